"""Schedulers with an agent, and workers in the same process, for tests."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from time import monotonic
from typing import Any

from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install
from dask_adaptive_agent.patching import Patches, _Shared


class Clock:
    """Real time, and as much ahead as a test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return monotonic() + self.ahead_s


class StillClock:
    """Moved by the test alone."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def with_agent(
    workers: int = 2,
    *,
    threads: int = 1,
    clock: Any = Clock,
    settings: dict[str, Any] = {},  # noqa: B006  # read only
    **options: Any,
) -> Callable[[Any], Any]:
    """
    `gen_cluster` with a client, so many workers, and the agent in the scheduler, of whom somebody
    asks for these settings.

    A test that names `agent` among its parameters is given it; one that names `clock`, the agent's.
    """
    options = {"client": True, "nthreads": [("127.0.0.1", threads)] * workers, **options}

    def decorate(test: Any) -> Any:
        parameters = inspect.signature(test).parameters
        given = parameters.keys() & {"agent", "clock"}

        @functools.wraps(test)
        async def run(*cluster: Any, **kwargs: Any) -> None:
            s = cluster[1 if options["client"] else 0]
            now = clock() if "clock" in given else monotonic
            there = {"agent": install(s, now), "clock": now}
            if settings:
                s.handlers[wire.CONFIGURE](**settings)
            await test(*cluster, **kwargs, **{name: there[name] for name in given})

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter for name, parameter in parameters.items() if name not in given]
        )
        return gen_cluster(**options)(run)

    return decorate


#: Where a policy has asked for workers to be drained at the end of their `--lifetime`.
with_lifetimes = functools.partial(with_agent, settings={"on_lifetime": wire.LIFETIME_DRAIN})


def clear_shared() -> None:
    """Take out what schedulers of other tests have left patched: they may have closed without."""
    for layer in _Shared._all.values():
        for patch in list(layer.patches):
            patch.remove()


def in_force(*all_patches: Patches) -> dict[str, bool]:
    """Places of upstream's that are changed now. False: somebody's patch keeps calls from ours."""
    out: dict[str, bool] = {}
    for patch in [patch for patches in all_patches for patch in patches._patches if patch.is_on]:
        place = str(patch.target)
        out[place] = out.get(place, True) and patch.is_called
    return out


def reliefs_in_force(agent: Any) -> dict[str, bool]:
    return in_force(*[relief.patches for relief in agent.reliefs._active.values()])
