"""
A WorkerPlugin that a relief has in all workers, for as long as it is at work.

It travels by value, as an expression of builtins and text, because a worker's image need not hold
this package; `Worker.plugin_add` unpickles it unguarded, so it must be readable everywhere.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from distributed.core import Status

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)


#: Messages that are still on their way, and to which plugin: asyncio keeps no task by itself, and
#: one must not overtake another, also not that of an earlier errand of the same name.
_under_way: dict[asyncio.Task[None], str] = {}


class Errand:
    """
    Args:
        scheduler: Whose workers get it, those to come included.
        name: Of the plugin; also its key in `Scheduler.worker_plugins`.
        pickled: The plugin; see `worker.Made`. Its `setup` must not raise.
    """

    def __init__(self, scheduler: Scheduler, name: str, pickled: bytes) -> None:
        self._scheduler: Any = scheduler
        self._name = name
        self._pickled = pickled

    def give(self) -> None:
        """To all workers."""
        self._scheduler.worker_plugins[self._name] = self._pickled
        self._tell(op="plugin-add", plugin=self._pickled, name=self._name)

    def take(self) -> None:
        """From all workers, unless somebody else has given it since."""
        books = self._scheduler.worker_plugins
        if books.get(self._name) is self._pickled:
            del books[self._name]
            self._tell(op="plugin-remove", name=self._name)

    def _tell(self, **message: Any) -> None:
        """Those that are connected now; `Scheduler.add_worker` gives the books to all others."""
        workers = list(self._scheduler.workers)
        is_closing = self._scheduler.status in (Status.closing, Status.closed, Status.failed)
        if workers and not is_closing:
            before = {task for task, name in _under_way.items() if name == self._name}
            task = asyncio.ensure_future(self._broadcast(workers, message, before))
            _under_way[task] = self._name
            task.add_done_callback(_under_way.pop)

    async def _broadcast(
        self, workers: list[str], message: dict[str, Any], before: set[asyncio.Task[None]]
    ) -> None:
        if before:
            await asyncio.wait(before)
        is_wanted = self._name in self._scheduler.worker_plugins
        if is_wanted != (message["op"] == "plugin-add"):
            return  # the other message follows; plugin-add replaces what is there
        try:
            still = [address for address in workers if address in self._scheduler.workers]
            await self._scheduler.broadcast(msg=message, workers=still, on_error="ignore")
        except Exception:
            # Fail open: these workers go on as they do.
            logger.exception("Cannot tell workers of the plugin %s", self._name)
