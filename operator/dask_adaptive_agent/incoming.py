"""Work that keeps coming: how much of it, lately, though each time it is soon done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent.lots import Lots

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix


class Incoming:
    """Counts tasks as they come, at each look."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler: Any = scheduler
        self._clock = clock
        self._counts: dict[TaskPrefix, int] = {}
        self._is_first = True
        self._lots = Lots()

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
            self._lots.add(now, came_s)
        self._is_first = False
        self._lots.forget(now)

    def rate(self) -> float:
        """Thread-seconds of work a second; 0: it came at once. See `Lots.rate`."""
        return self._lots.rate(self._clock())

    def every_s(self) -> float:
        """Seconds from one lot to the next, on average; 0: there was one, or none."""
        return self._lots.every_s()
