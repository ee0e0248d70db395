"""
What a task is expected to take, by its prefix; and what a worker's runs take on average.

`Meters` hands over reports of runs. Nothing is measured unless it is switched on, and then at most
one run in `PAUSE_S`: beyond that, runs are too short and too many to need each one of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix

logger = logging.getLogger(__name__)

#: Of the spread, this part is the newest run's. A mean absolute deviation, weighted like that of
#: round trips in RFC 6298, but from 0: one long run says nothing of the next one's difference.
NEWEST = 0.25

#: Seconds between two runs that are measured: a thousand a second cost 0.2 % of the loop.
PAUSE_S = 0.001

#: States of tasks that run, or are to run.
UNFINISHED = ("waiting", "queued", "no-worker", "processing")

#: Looking at all prefixes takes at most this part of the time: `TaskPrefix.states` walks all groups
#: before 2024.6.
LOOK_PART = 0.005


class Spread:
    """Of the runs of one prefix, in seconds: their mean, and how far they are from it."""

    __slots__ = ("deviation", "mean")

    def __init__(self, first: float) -> None:
        self.mean = first
        self.deviation = 0.0

    def add(self, took: float) -> None:
        self.deviation += NEWEST * (abs(took - self.mean) - self.deviation)
        # As TaskPrefix.add_duration weighs, which forgets its average after an outlier.
        self.mean = 0.5 * took + 0.5 * self.mean


class Kind(NamedTuple):
    """Tasks of one prefix."""

    expected_s: float
    prefix: TaskPrefix


class Durations:
    """
    Means and deviations of the scheduler's task prefixes.

    Args:
        scheduler: Its average of a prefix is taken where it has one.
        clock: Seconds that never go backwards.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler: Any = scheduler
        self._clock = clock
        self._spreads: dict[str, Spread] = {}
        self._by_worker: dict[str, tuple[float, int]] = {}  # seconds and runs, by address
        #: From then on the next report is measured; infinite: none is.
        self.next_at = math.inf
        #: Prefixes with unfinished tasks, and other known ones, as of the last look.
        self._there: set[TaskPrefix] = set()
        self._others: set[TaskPrefix] = set()
        self._look_at = 0.0

    @property
    def is_on(self) -> bool:
        return self.next_at < math.inf

    def switch(self, on: bool) -> None:
        """Measure, or measure no more: what is known stays."""
        if on != self.is_on:
            self.next_at = 0.0 if on else math.inf

    def mean_s(self, prefix: TaskPrefix) -> float:
        """
        The mean of a prefix, in seconds.

        Without a finished run: what those that run have taken already (`max_exec_time`, from
        heartbeats), and no less than the scheduler assumes.
        """
        average = prefix.duration_average
        if average >= 0:
            return average
        spread = self._spreads.get(prefix.name)
        if spread is not None:
            return spread.mean
        return float(max(prefix.max_exec_time, self._scheduler.UNKNOWN_TASK_DURATION))

    def expected_s(self, prefix: TaskPrefix, deviations: float, floor_s: float) -> float:
        """What a run is expected to take at most: its mean, and so many deviations."""
        spread = self._spreads.get(prefix.name)
        extra = 0.0 if spread is None else deviations * spread.deviation
        return max(floor_s, self.mean_s(prefix) + extra)

    def kinds(self, deviations: float, floor_s: float) -> tuple[list[Kind], list[Kind]]:
        """Kinds of tasks that run or are to run; and those known that are not there now."""
        now = self._clock()
        if now >= self._look_at:
            self._there, self._others = set(), set()
            for prefix in self._scheduler.task_prefixes.values():
                if is_among(prefix, UNFINISHED):
                    self._there.add(prefix)
                elif prefix.duration_average >= 0 or prefix.name in self._spreads:
                    self._others.add(prefix)
            self._look_at = now + (self._clock() - now) / LOOK_PART
        return (
            [Kind(self.expected_s(p, deviations, floor_s), p) for p in self._there],
            [Kind(self.expected_s(p, deviations, floor_s), p) for p in self._others],
        )

    def came(self, prefixes: Collection[TaskPrefix]) -> None:
        """Tasks of these kinds have come since the last look."""
        self._there.update(prefixes)
        self._others.difference_update(prefixes)

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

    def report(self, msg: dict[str, Any], now: float) -> None:
        """A worker reports a run; the scheduler has not heard of it yet. Never raises."""
        self.next_at = now + PAUSE_S
        try:
            self._add(msg["key"], msg["worker"], msg.get("startstops") or ())
        except Exception:
            # Fail open: the scheduler's own averages remain.
            logger.exception("Cannot measure a run")

    def _add(self, key: Any, address: str, startstops: Any) -> None:
        ts = self._scheduler.tasks.get(key)
        if ts is None:
            return
        for one in startstops:
            if one["action"] == "compute":
                took = max(0.0, one["stop"] - one["start"])
                seconds, runs = self._by_worker.get(address, (0.0, 0))
                self._by_worker[address] = (seconds + took, runs + 1)
                spread = self._spreads.get(ts.prefix.name)
                if spread is None:
                    self._spreads[ts.prefix.name] = Spread(took)
                else:
                    spread.add(took)


def is_among(prefix: TaskPrefix, states: Collection[str]) -> bool:
    counts: Any = prefix.states
    return any(counts.get(state) for state in states)
