"""Tells of each worker that a scheduler is about to forget, while it has all that it had."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
        self._ours: Callable[..., Any] | None = None
        self._handler: tuple[Any, Any] | None = None  # (stock, ours)

    def install(self) -> None:
        scheduler = self._scheduler
        # An instance attribute: handle_worker and retire_workers call self.remove_worker.
        self._ours = scheduler.remove_worker = self._telling(scheduler.remove_worker)
        stock = scheduler.handlers.get("unregister")
        if stock is not None:
            self._handler = (stock, self._telling(stock))
            scheduler.handlers["unregister"] = self._handler[1]

    def uninstall(self) -> None:
        """Put back what is still ours; what somebody else has put over it stays."""
        self.listeners.clear()
        scheduler = self._scheduler
        if self._ours is not None and scheduler.__dict__.get("remove_worker") is self._ours:
            del scheduler.remove_worker
        if self._handler is not None and scheduler.handlers.get("unregister") is self._handler[1]:
            scheduler.handlers["unregister"] = self._handler[0]
        self._ours = self._handler = None

    def _telling(self, stock: Callable[..., Any]) -> Callable[..., Any]:
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
