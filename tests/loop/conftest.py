"""Rehearsals as a fixture: real schedulers and worker processes, governed by the real loop."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest

from dask_adaptive_lab.rehearse import rehearsal
from support.forked_processes import fork_server, forking
from support.stage import Stage, Start

#: Seconds between two passes: as few as leave time for what they began.
PASS_S = 0.15

SERVER = "DASK_ADAPTIVE_FORK_SERVER"


def pytest_configure(config: pytest.Config) -> None:
    """One fork server for all test processes: the first, which starts the others, has it."""
    if SERVER not in os.environ:
        stack = ExitStack()
        config.add_cleanup(stack.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ[SERVER] = stack.enter_context(fork_server(Path(folder) / "server"))
        stack.callback(os.environ.pop, SERVER)


@pytest.fixture(scope="session", autouse=True)
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "PASS_S", PASS_S)
        with forking(Path(os.environ[SERVER])):
            yield


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Start]:
    """
    Call it with a policy's fields to get a running `Stage`; all is ended after the test.

    With `workers`, that is its minimum, and they are there.
    """
    async with AsyncExitStack() as stack:

        async def start(
            workers: int = 0, spec: dict[str, Any] | None = None, **options: Any
        ) -> Stage:
            spec = {"minReplicas": workers, **(spec or {})}
            s = await stack.enter_async_context(Stage(tmp_path, spec=spec, **options))
            if workers:
                await s.connected(workers)
            return s

        yield start
