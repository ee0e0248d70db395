"""What is in the scheduler's queue behind its head: looked at once in a while, as it is long."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix, TaskState

#: Looking takes at most this part of the time.
LOOK_PART = 0.02

#: Tasks of other kinds than that of the head, kept until the next look.
KEPT = 1000


class QueueView:
    """
    The kinds of tasks that are queued, and those that come behind others which can't run.

    `HeapSet` shows its head at once, and the rest by sorting all of it.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler: Any = scheduler
        self._clock = clock
        self._kinds: dict[TaskPrefix, TaskState] = {}
        self._look_at = 0.0
        self._behind: deque[TaskState] = deque()
        self._look_behind_at = 0.0

    def kinds(self) -> dict[TaskPrefix, TaskState]:
        """A task of each kind in the queue, as of the last look."""
        now = self._clock()
        if now >= self._look_at:
            self._kinds = {ts.prefix: ts for ts in self._scheduler.queued}
            self._look_at = self._next_look(now)
        if not self._scheduler.queued:
            self._kinds = {}
        return {prefix: ts for prefix, ts in self._kinds.items() if ts.state == "queued"}

    def next_behind(self, without: Container[TaskPrefix]) -> TaskState | None:
        """The next task of none of these kinds, in the order of the queue; None: none is known."""
        now = self._clock()
        if not self._behind and now >= self._look_behind_at:
            for ts in self._scheduler.queued.sorted():
                if ts.prefix not in without:
                    self._behind.append(ts)
                    if len(self._behind) == KEPT:
                        break
            self._look_behind_at = self._next_look(now)
        while self._behind:
            ts = self._behind.popleft()
            if ts.state == "queued" and ts.prefix not in without:
                return ts
        return None

    def _next_look(self, began: float) -> float:
        return self._clock() + (self._clock() - began) / LOOK_PART
