"""New shuffles do not choose workers that are on their way out: they would be held for nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import wraps
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent.closing import Delegate, in_service

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: Methods of the shuffle plugin that choose workers of a new run, all synchronous:
#: `_calculate_worker_for` since 2024.2 at the latest; before, `_pin_output_workers`.
METHODS = ("_calculate_worker_for", "_pin_output_workers")


class ShuffleChoice:
    """
    Lets the shuffle plugin see only workers in service while it chooses, unless there is none.

    Args:
        scheduler: Whose plugin "shuffle" chooses.
        leaving: Addresses that are on their way out, besides those whose status says so.
        chosen: Called in the moment after a new run was put on the books.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        leaving: Callable[[], Collection[str]],
        chosen: Callable[[], None],
    ) -> None:
        self._scheduler: Any = scheduler
        self._leaving = leaving
        self._chosen = chosen
        self._plugin: Any = None
        self._ours: dict[str, Any] = {}

    @property
    def is_in_place(self) -> bool:
        return any(self._plugin.__dict__.get(name) is own for name, own in self._ours.items())

    def install(self) -> None:
        self._plugin = self._scheduler.extensions.get("shuffle")
        # It must look for workers where we put the stand-in.
        if getattr(self._plugin, "scheduler", None) is not self._scheduler:
            return
        for name in METHODS:
            stock = getattr(self._plugin, name, None)
            if callable(stock):
                self._ours[name] = self._choosing(stock)
                setattr(self._plugin, name, self._ours[name])

    def uninstall(self) -> None:
        for name, own in self._ours.items():
            if self._plugin.__dict__.get(name) is own:
                delattr(self._plugin, name)
        self._ours = {}

    def _choosing(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        def choose(*args: Any, **kwargs: Any) -> Any:
            stand_in = self._stand_in()
            if stand_in is not None:
                self._plugin.scheduler = stand_in
            try:
                return stock(*args, **kwargs)
            finally:
                self._plugin.scheduler = self._scheduler

        return choose

    def _stand_in(self) -> Any:
        """The scheduler with fewer workers; None: as it is."""
        try:
            self._scheduler.loop.asyncio_loop.call_soon(self._chosen)
            workers = in_service(self._scheduler, self._leaving())
            if not workers or len(workers) == len(self._scheduler.workers):
                return None
            return Delegate(self._scheduler, workers={ws.address: ws for ws in workers})
        except Exception:
            # Fail open: a worker that leaves may be chosen, as upstream does.
            logger.exception("Cannot tell which workers are in service; a shuffle may take all")
            return None
