"""Tells of each worker that a scheduler is about to forget, while it has all that it had."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import patching
from dask_adaptive_agent.patching import Call, Patches

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)

Listener = Callable[["WorkerState"], None]


class Removals:
    """
    Wraps `remove_worker` of one scheduler, wherever it is called.

    `SchedulerPlugin.remove_worker` comes too late: the worker's tasks have been released, and its
    results are on nobody's books.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler
        self.listeners: list[Listener] = []

    def install(self, patches: Patches) -> None:
        # `handle_worker` and `retire_workers` call the method, a worker that closes the handler.
        patches.put(patching.REMOVE_WORKER, self._telling)
        patches.put(patching.REMOVE_WORKER_RPC, self._telling)

    def _telling(self, stock: Call) -> Call:
        async def remove_worker(address: str, *args: Any, **kwargs: Any) -> Any:
            self._tell(address)
            return await stock(address, *args, **kwargs)

        return remove_worker

    def _tell(self, address: str) -> None:
        # As `Scheduler.remove_worker` finds it: most callers have it as the books do.
        ws = self._scheduler.workers.get(address)
        if ws is None:
            return
        for listener in list(self.listeners):
            try:
                listener(ws)
            except Exception:
                # Fail open: the worker goes, counted or not.
                logger.exception("Cannot count what worker %s had", address)
