"""
Work that keeps coming, though each time it is soon done: how much a second, and how often.

`simulate` adds up the work of a trace with the same `Batches`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dask_adaptive_agent.protocol.operator_side import Component

if TYPE_CHECKING:
    from distributed.scheduler import TaskPrefix

#: Work that came longer ago says nothing about what is to come.
WINDOW_S = 300.0

#: Seconds within which work belongs to the same batch.
TOGETHER_S = 5.0

#: After so many times the usual gap nobody waits for the next batch.
LATE = 2.0


@dataclass
class _Batch:
    first_at: float
    last_at: float
    seconds: float


class Batches:
    """Adds up the work that came of late. Times are seconds, on a clock of the caller's."""

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque()

    def add(self, now: float, seconds: float) -> None:
        """So many thread-seconds of work came just now."""
        if self._batches and now - self._batches[-1].last_at <= TOGETHER_S:
            self._batches[-1].last_at = now
            self._batches[-1].seconds += seconds
        else:
            self._batches.append(_Batch(now, now, seconds))

    def forget(self, now: float) -> None:
        """Leave out what came too long ago."""
        while self._batches and now - self._batches[0].first_at > WINDOW_S:
            self._batches.popleft()

    def rate(self, now: float) -> float:
        """
        Thread-seconds of work a second, on average since the first batch.

        The last batch is left out: it is there, and whether another follows is the question. So it
        is 0 where all came at once, and where the next batch is so late that it may not come.
        """
        if len(self._batches) < 2 or now - self._batches[-1].last_at > LATE * self.every_s():
            return 0.0
        lasted_s = self._batches[-1].first_at - self._batches[0].first_at
        return (sum([b.seconds for b in self._batches]) - self._batches[-1].seconds) / lasted_s

    def every_s(self) -> float:
        """Seconds from one batch to the next, on average; 0: there was one, or none."""
        n = len(self._batches)
        return (self._batches[-1].first_at - self._batches[0].first_at) / (n - 1) if n > 1 else 0.0


@dataclass(eq=False)
class Arrivals(Component):
    """Counts the tasks of one scheduler as they come, at each look."""

    def __post_init__(self) -> None:
        self._counts: dict[TaskPrefix, int] = {}
        self._is_first = True
        self.batches = Batches()

    def look(self, seconds: Callable[[TaskPrefix], float]) -> None:
        """Count what has come since the last look; `seconds`: how long a task takes."""
        now = self.clock()
        came_s = 0.0
        for prefix in self.scheduler.task_prefixes.values():
            # Each task waits once, however shortly (released -> waiting), in every release.
            count = prefix.state_counts.get("waiting", 0)
            new = count - self._counts.get(prefix, 0)
            if new:
                self._counts[prefix] = count
                came_s += max(0, new) * seconds(prefix)
        if came_s and not self._is_first:
            self.batches.add(now, came_s)
        self._is_first = False
        self.batches.forget(now)
