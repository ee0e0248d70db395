"""Work that keeps coming: how much of it, lately, though each time it is soon done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix

#: What came longer ago says nothing about what is to come.
WINDOW_S = 300.0

#: Tasks that come within so long of each other came together.
TOGETHER_S = 5.0

#: After so many times the usual gap nobody waits for the next lot.
LATE = 2.0


class Incoming:
    """Counts tasks as they come, at each look."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler: Any = scheduler
        self._clock = clock
        self._counts: dict[TaskPrefix, int] = {}
        self._is_first = True
        #: When some came, when the last of them did, and how long they take in all.
        self._lots: deque[list[float]] = deque()

    def look(self, seconds: Callable[[TaskPrefix], float]) -> None:
        """
        Args:
            seconds: How long a task of a prefix takes.
        """
        now = self._clock()
        came_s = 0.0
        for prefix in self._scheduler.task_prefixes.values():
            # Each task waits once, however shortly (released -> waiting), in every release.
            count = prefix.state_counts.get("waiting", 0)
            new = count - self._counts.get(prefix, 0)
            if new:
                self._counts[prefix] = count
                came_s += max(0, new) * seconds(prefix)
        if came_s and not self._is_first:
            self._add(now, came_s)
        self._is_first = False
        while self._lots and now - self._lots[0][0] > WINDOW_S:
            self._lots.popleft()

    def rate(self) -> float:
        """
        Thread-seconds of work a second, on average since the first lot; 0: it came at once.

        The last lot is left out: it is there, and whether another follows is what is asked.
        """
        if len(self._lots) < 2 or self._is_late():
            return 0.0
        lasted_s = self._lots[-1][0] - self._lots[0][0]
        return sum([lot[2] for lot in self._lots]) / lasted_s - self._lots[-1][2] / lasted_s

    def every_s(self) -> float:
        """Seconds from one lot to the next, on average; 0: there was one, or none."""
        n = len(self._lots)
        return (self._lots[-1][0] - self._lots[0][0]) / (n - 1) if n > 1 else 0.0

    def _is_late(self) -> bool:
        """Whether the next lot ought to be there by now: it may not come at all."""
        return self._clock() - self._lots[-1][1] > LATE * self.every_s()

    def _add(self, now: float, came_s: float) -> None:
        if self._lots and now - self._lots[-1][1] <= TOGETHER_S:
            self._lots[-1][1] = now
            self._lots[-1][2] += came_s
        else:
            self._lots.append([now, now, came_s])
