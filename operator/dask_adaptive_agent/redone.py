"""Counts the work that has to be done again because a worker is gone, by the cause of its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from distributed.core import Status

from dask_adaptive_agent import wire

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: While a scheduler ends, nothing is done again.
ENDING = (Status.closing, Status.closed, Status.failed)


class Redone:
    """
    Tasks and results lost with workers, as in `wire.Snapshot.redone`.

    Args:
        scheduler: Read only.
        cause: Says why a worker is gone: one of `wire.LOST`, `FORCED`, `ENDED`.
    """

    def __init__(self, scheduler: Scheduler, cause: Callable[[WorkerState], str]) -> None:
        self._scheduler = scheduler
        self._cause = cause
        self.counts = dict.fromkeys((wire.LOST, wire.FORCED, wire.ENDED), 0)

    def removing(self, ws: WorkerState) -> None:
        """A worker is about to be taken off the books, with all that it has."""
        if self._scheduler.status in ENDING:
            return
        lost = len(ws.processing) + sum([1 for ts in ws.has_what if _is_missed(ts)])
        if lost:
            self.counts[self._cause(ws)] += lost


def _is_missed(ts: TaskState) -> bool:
    """Whether a result of which this is the only copy is still wanted."""
    return len(ts.who_has or ()) == 1 and bool(ts.who_wants or ts.waiters)
