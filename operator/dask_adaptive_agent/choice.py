"""New shuffles do not choose workers that are on their way out: they would be held for nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import wraps
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import patching
from dask_adaptive_agent.closing import Delegate, in_service
from dask_adaptive_agent.patching import Mismatch, Patches

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: Where the shuffle plugin chooses workers of a new run, all synchronous.
TARGETS = (patching.SHUFFLE_CHOICE, patching.SHUFFLE_CHOICE_OLD)


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

    def install(self, patches: Patches) -> None:
        """Raises `Mismatch` where this release chooses in another way."""
        plugin = self._scheduler.extensions.get("shuffle")
        # It must look for workers where we put the stand-in.
        if getattr(plugin, "scheduler", None) is not self._scheduler:
            raise Mismatch("the shuffle plugin does not look for workers in `scheduler`")
        known = [target for target in TARGETS if hasattr(plugin, target.name)]
        if not known:
            raise Mismatch("the shuffle plugin chooses workers in another way than known")
        for target in known:
            patches.put(target, self._choosing)

    def _choosing(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        def choose(*args: Any, **kwargs: Any) -> Any:
            stand_in = self._stand_in()
            if stand_in is None:
                return stock(*args, **kwargs)
            plugin = self._scheduler.extensions["shuffle"]
            plugin.scheduler = stand_in
            try:
                return stock(*args, **kwargs)
            finally:
                plugin.scheduler = self._scheduler

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
