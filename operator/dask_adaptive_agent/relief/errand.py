"""
A WorkerPlugin that a relief has in all workers, for as long as it is at work.

It travels by value, as an expression of builtins and text, because a worker's image need not hold
this package; `Worker.plugin_add` unpickles it unguarded, so it must be readable everywhere.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent.worker import Made

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)


class Errand:
    """
    Args:
        scheduler: Whose workers get it, those to come included.
        name: Of the plugin; also its key in `Scheduler.worker_plugins`.
        text: Python that defines `plugin`. Its `setup` must not raise.
    """

    def __init__(self, scheduler: Scheduler, name: str, text: str) -> None:
        self._scheduler: Any = scheduler
        self._name = name
        self._pickled = pickle.dumps(Made(text), protocol=4)
        self._last: asyncio.Task[None] | None = None  # asyncio itself keeps no task alive

    def give(self) -> None:
        self._scheduler.worker_plugins[self._name] = self._pickled
        self._tell(op="plugin-add", plugin=self._pickled, name=self._name)

    def take(self) -> None:
        if self._scheduler.worker_plugins.pop(self._name, None) is not None:
            self._tell(op="plugin-remove", name=self._name)

    def _tell(self, **message: Any) -> None:
        """Those that are connected now; `Scheduler.add_worker` gives the books to all others."""
        workers = list(self._scheduler.workers)
        is_closing = self._scheduler.status in (Status.closing, Status.closed, Status.failed)
        if workers and not is_closing:
            self._last = asyncio.ensure_future(self._broadcast(workers, message, self._last))

    async def _broadcast(
        self, workers: list[str], message: dict[str, Any], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])  # or the one would overtake the other
        is_wanted = self._name in self._scheduler.worker_plugins
        if is_wanted != (message["op"] == "plugin-add"):
            return  # the other message follows
        try:
            still = [address for address in workers if address in self._scheduler.workers]
            await self._scheduler.broadcast(msg=message, workers=still, on_error="ignore")
        except Exception:
            # Fail open: these workers go on as they do.
            logger.exception("Cannot tell workers of the plugin %s", self._name)
