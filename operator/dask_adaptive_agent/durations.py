"""
What a task is expected to take, by its prefix; and what a worker's runs take on average.

Nothing is measured unless it is switched on: it costs about a microsecond a task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix

logger = logging.getLogger(__name__)

REPORT = "task-finished"

#: Of the spread, this part is the newest run's. A mean absolute deviation, weighted like that of
#: round trips in RFC 6298, but from 0: one long run says nothing of the next one's difference.
NEWEST = 0.25

#: States of tasks that run, or are to run.
UNFINISHED = ("waiting", "queued", "no-worker", "processing")

#: Looking at all prefixes takes at most this part of the time: `TaskPrefix.states` walks all groups
#: before 2024.6.
LOOK_PART = 0.02


class Kind:
    """Runs of one prefix, in seconds."""

    __slots__ = ("mean", "spread")

    def __init__(self, first: float) -> None:
        self.mean = first
        self.spread = 0.0

    def add(self, took: float) -> None:
        self.spread += NEWEST * (abs(took - self.mean) - self.spread)
        # As TaskPrefix.add_duration weighs, which forgets its average after an outlier.
        self.mean = 0.5 * took + 0.5 * self.mean


class Durations:
    """
    Means and spreads of the scheduler's task prefixes.

    Args:
        scheduler: Its average of a prefix is taken where it has one.
        clock: Seconds that never go backwards.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler: Any = scheduler
        self._clock = clock
        self._kinds: dict[str, Kind] = {}
        self._by_worker: dict[str, tuple[float, int]] = {}  # seconds and runs, by address
        self._stock: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None
        #: Of a report: how long its run took, less what it only waited.
        self.startstops: Callable[[dict[str, Any]], Any] = lambda msg: msg.get("startstops")
        self.is_on = False
        self._longest: tuple[float, TaskPrefix | None] = (0.0, None)
        self._look_at = 0.0

    def switch(self, on: bool) -> None:
        """Measure, or measure no more: what is known stays."""
        if on == self.is_on:
            return
        self.is_on = on
        handlers = self._scheduler.stream_handlers
        if on:
            if self._ours is None and REPORT in handlers:
                self._stock = handlers[REPORT]
                self._ours = handlers[REPORT] = self._measuring(handlers[REPORT])
        elif self._ours is not None and handlers.get(REPORT) is self._ours:
            # Where somebody else has wrapped ours since, it stays, and passes on what it gets.
            handlers[REPORT] = self._stock
            self._stock = self._ours = None

    def mean_s(self, prefix: TaskPrefix) -> float:
        """
        The mean of a prefix, in seconds.

        Without a finished run: what those that run have taken already (`max_exec_time`, from
        heartbeats), and no less than the scheduler assumes.
        """
        average = prefix.duration_average
        if average >= 0:
            return average
        kind = self._kinds.get(prefix.name)
        if kind is not None:
            return kind.mean
        return float(max(prefix.max_exec_time, self._scheduler.UNKNOWN_TASK_DURATION))

    def expected_s(self, prefix: TaskPrefix, deviations: float, floor_s: float) -> float:
        """What a run is expected to take at most: its mean, and so many deviations."""
        # Once for each task that is assigned: as few calls as there can be.
        mean = prefix.duration_average
        if mean < 0:
            mean = self.mean_s(prefix)
        kind = self._kinds.get(prefix.name)
        expected = mean if kind is None else mean + deviations * kind.spread
        return expected if expected > floor_s else floor_s

    def longest_s(self, deviations: float, floor_s: float) -> float:
        """What the longest kind among tasks that run or are to run is expected to take; 0: none."""
        now = self._clock()
        if now >= self._look_at:
            prefixes = [p for p in self._scheduler.task_prefixes.values() if _is_unfinished(p)]
            every = [(self.expected_s(p, deviations, floor_s), p.name, p) for p in prefixes]
            longest, _, prefix = max(every, default=(0.0, "", None))
            self._longest = (longest, prefix)
            took = self._clock() - now
            self._look_at = now + took / LOOK_PART
        longest, prefix = self._longest
        return longest if prefix is None else self.expected_s(prefix, deviations, floor_s)

    def means_ms(self, addresses: Collection[str]) -> list[int]:
        """The mean of each worker's runs since they are measured; 0: none."""
        known = self._by_worker
        if not known:
            return [0] * len(addresses)
        nothing = (0.0, 0)
        sums = [known.get(address, nothing) for address in addresses]
        return [max(1, round(s / runs * 1000)) if runs else 0 for s, runs in sums]

    def forget(self, address: str) -> None:
        """A worker has left."""
        self._by_worker.pop(address, None)

    def finished(self, key: Any, address: str, startstops: Iterable[dict[str, Any]]) -> None:
        """A worker reports a run."""
        ts = self._scheduler.tasks.get(key)
        ws = self._scheduler.workers.get(address)
        if ts is None or ws is None:
            return
        for one in startstops:
            if one["action"] == "compute":
                took = max(0.0, one["stop"] - one["start"])
                seconds, runs = self._by_worker.get(address, (0.0, 0))
                self._by_worker[address] = (seconds + took, runs + 1)
                kind = self._kinds.get(ts.prefix.name)
                if kind is None:
                    self._kinds[ts.prefix.name] = Kind(took)
                else:
                    kind.add(took)

    def _measuring(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def measured(**msg: Any) -> Any:
            if self.is_on:
                try:
                    # Before the stock handler: it gives the worker its next task.
                    self.finished(msg["key"], msg["worker"], self.startstops(msg) or ())
                except Exception:
                    # Fail open: the scheduler's own averages remain.
                    logger.exception("Cannot measure a run")
            return stock(**msg)

        measured.__wrapped__ = stock  # type: ignore[attr-defined]
        return measured


def _is_unfinished(prefix: TaskPrefix) -> bool:
    states: Any = prefix.states
    return any(states.get(state) for state in UNFINISHED)
