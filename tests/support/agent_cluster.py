"""Schedulers with an agent, and workers in the same process, for tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from distributed.utils_test import gen_cluster

from dask_adaptive_agent.loading.attach import install


def with_agent(workers: int = 2, **options: Any) -> Callable[[Any], Any]:
    """
    `gen_cluster` with a client, so many workers of one thread, and the agent in the scheduler.

    The agent of a scheduler is what `install(s)` returns, however often it is called.
    """

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        async def run(c: Any, s: Any, *args: Any, **kwargs: Any) -> None:
            install(s)
            await test(c, s, *args, **kwargs)

        nthreads = [("127.0.0.1", 1)] * workers
        return gen_cluster(client=True, nthreads=nthreads, **options)(run)

    return decorate
