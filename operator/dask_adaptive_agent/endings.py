"""Puts `Deadlines` in force while some worker has an end, and only then."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent.assigning import Assigning
from dask_adaptive_agent.deadlines import Deadlines
from dask_adaptive_agent.durations import Durations
from dask_adaptive_agent.ends import Ends
from dask_adaptive_agent.limits import Limits

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)

#: Seconds between two looks at all workers: while one has an end, and while none has.
LOOK_S, LOOK_OUT_S = 0.5, 5.0


class Endings:
    """
    Looks by itself which workers have an end, and has tasks assigned accordingly.

    Args:
        scheduler: Its workers.
        limits: What the operator has said of them.
        is_pinned: Whether a worker must stay, so that none comes in its place.
        lease_s: So long after it was last heard, the operator counts as gone.
        tell: Makes a note: kind, message, names of workers.
        clock: That of `limits`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        limits: Limits,
        *,
        is_pinned: Callable[[WorkerState], bool],
        lease_s: Callable[[], float],
        tell: Callable[[str, str, Sequence[str]], None],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._is_pinned = is_pinned
        self._are_all_pinned = False
        self._lease_s = lease_s
        self._clock = clock
        self._heard_at = -math.inf
        self.ends = Ends(scheduler, limits, clock)
        self.durations = Durations(scheduler, clock)
        self.deadlines = Deadlines(
            scheduler,
            self.ends,
            self.durations,
            is_attended=self._is_attended,
            tell=tell,
            clock=clock,
        )
        self.assigning = Assigning(scheduler, self.deadlines, clock)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._arm(LOOK_OUT_S)

    def look(self) -> None:
        """Be up to date at once: limits have changed, or workers have joined."""
        try:
            self._look()
        except Exception:
            # Fail open: tasks go where the scheduler wants them.
            logger.exception("Cannot see which workers end")
        if self._timer is not None:
            self._arm(LOOK_S if self.assigning.is_in_place else LOOK_OUT_S)

    def heard(self) -> None:
        """The operator asks: it is there to bring workers, and wants to know how things are."""
        self._heard_at = self._clock()
        self.look()

    def worker_joined(self, address: str) -> None:
        ws = self._scheduler.workers.get(address)
        if ws is not None:
            self.ends.joined(ws)
            if self.ends.by_address and not self.assigning.is_in_place:
                self.look()

    def worker_left(self, address: str) -> None:
        self.ends.left(address)
        self.durations.forget(address)

    def close(self, *, is_closing: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.durations.switch(False)
        self.assigning.uninstall()

    def _look(self) -> None:
        self.ends.refresh()
        has_ends = bool(self.ends.by_address)
        # A shuffle would wait for its tasks, they for a new worker, and that for the shuffle's end.
        self._are_all_pinned = has_ends and all(map(self._is_pinned, self._scheduler.running))
        self.durations.switch(has_ends or self.ends.are_measured)
        if not has_ends:
            self.assigning.uninstall()
            return
        self.deadlines.refresh()
        self.assigning.install()
        self.assigning.take_back()
        self.assigning.feed()
        if self._scheduler.queued:
            self._scheduler.stimulus_queue_slots_maybe_opened(stimulus_id="dask-adaptive-look")

    def _is_attended(self) -> bool:
        return not self._are_all_pinned and self._clock() - self._heard_at <= self._lease_s()

    def _arm(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop: Any = self._scheduler.loop
        self._timer = loop.asyncio_loop.call_later(pause_s, self.look)
