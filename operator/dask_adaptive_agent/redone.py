"""Counts the work that is done again, by the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distributed.core import Status

from dask_adaptive_agent import wire

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

#: While a scheduler ends, nothing is done again.
ENDING = (Status.closing, Status.closed, Status.failed)


@dataclass
class Redone:
    """Tasks and results lost with workers, as in `wire.Snapshot.redone`."""

    scheduler: Scheduler
    cause: Callable[[WorkerState], str]  # one of `wire.LOST`, `FORCED`, `ENDED`
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((wire.LOST, wire.FORCED, wire.ENDED), 0)
    )

    def removing(self, ws: WorkerState) -> None:
        """A worker is about to be removed from the scheduler, with all that it has."""
        if self.scheduler.status in ENDING:
            return
        only = [ts for ts in ws.has_what if len(ts.who_has or ()) == 1]
        lost = len(ws.processing) + sum([bool(ts.who_wants or ts.waiters) for ts in only])
        if lost:
            self.counts[self.cause(ws)] += lost
