"""Tasks that pin, sent to workers by value: these processes have no copy of the tests."""

from __future__ import annotations

import time
from typing import Any


def hold(reason: str = "", seconds: float = 0.0, ttl: Any = "30m") -> tuple[str, ...]:
    """Pin the worker that it runs on, for a while; whom it held."""
    from dask_adaptive_agent import pinned

    with pinned(reason=reason, ttl=ttl) as pin:
        time.sleep(seconds)
        return pin.workers


def hold_until(event_name: str, reason: str = "", *, leave_pool: bool = False) -> tuple[str, ...]:
    """Pin the worker that it runs on until a Dask event is set."""
    from distributed import Event, secede

    from dask_adaptive_agent import pinned

    if leave_pool:
        secede()
    with pinned(reason=reason) as pin:
        Event(event_name).wait()
        return pin.workers


async def hold_until_async(event_name: str, reason: str = "") -> tuple[str, ...]:
    import asyncio

    from dask_adaptive_agent import pinned

    async with pinned(reason=reason) as pin:
        # distributed.Event would need a client of this loop: watch for a file instead.
        import os

        while not os.path.exists(event_name):
            await asyncio.sleep(0.01)
        return pin.workers


def where_from() -> tuple[str, str]:
    """Which copy of the package a task gets: its version and its file."""
    import dask_adaptive_agent

    spec = dask_adaptive_agent.__spec__
    return dask_adaptive_agent.__version__, str(spec.origin if spec else "")


def can_import(module: str) -> bool:
    import importlib

    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


# distributed tries pickle first, which names the module; what is of __main__ goes by value.
for _task in (hold, hold_until, hold_until_async, where_from, can_import):
    _task.__module__ = "__main__"
