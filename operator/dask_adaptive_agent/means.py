"""How long a task takes: the mean of a prefix's latest runs, steadier than upstream's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent.settings import LONGEST_MS

if TYPE_CHECKING:
    from distributed.scheduler import TaskPrefix

#: Runs of so many seconds, and up to twice that, are the latest; fewer runs than that say little.
WINDOW_S, FEW = 30.0, 10

#: Ten years. Who reports that a run has lasted longer has no clock.
FOREVER_S = LONGEST_MS / 1000


class Means:
    """
    Means by prefix, from books that every release keeps (`all_durations`, `state_counts`).

    `duration_average` is half the newest run, and is forgotten when a task runs for twice as long:
    where most tasks take a second and some take half a minute, it says either by turns.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._old: dict[TaskPrefix, tuple[int, float]] = {}  # runs and seconds, a window ago
        self._new: dict[TaskPrefix, tuple[int, float]] = {}  # the same, more lately

    def turn(self) -> None:
        """To be called at the beginning of each look."""
        if self._clock() - self._since >= WINDOW_S:
            self._since = self._clock()
            self._old, self._new = self._new, {}

    def mean_s(self, prefix: TaskPrefix) -> float:
        """Seconds; -1: no run has finished, or workers have reported durations that are none."""
        mean = self._mean_s(prefix)
        return mean if 0 <= mean < FOREVER_S else -1.0

    def _mean_s(self, prefix: TaskPrefix) -> float:
        books: Any = prefix
        done = books.state_counts.get("memory", 0)
        average = float(books.duration_average)
        if done < FEW and average >= 0:
            return average
        total = books.all_durations.get("compute", 0.0) if done else 0.0
        if not total:
            return average
        self._new.setdefault(prefix, (done, total))
        old_done, old_total = self._old.get(prefix) or self._new[prefix]
        runs = done - old_done
        if runs >= FEW and total > old_total:
            return float((total - old_total) / runs)
        return float(total / done)
