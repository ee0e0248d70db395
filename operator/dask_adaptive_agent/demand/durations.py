"""
Durations of tasks by prefix: the one estimator of the agent.

`Cordons` hands over reports of runs. Nothing is measured unless it is switched on, and then at
most one run in `PAUSE_S`: beyond that, runs are too short and too many to need each one of them.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.protocol.requests import LONGEST_MS

if TYPE_CHECKING:
    from distributed.scheduler import TaskPrefix, TaskState, WorkerState

logger = logging.getLogger(__name__)

#: Runs of so many seconds, and up to twice that, are the latest; fewer runs than that say little.
WINDOW_S, FEW = 30.0, 10

#: Ten years. Who reports that a run has lasted longer has no clock.
FOREVER_S = LONGEST_MS / 1000

#: Of the spread, this part is the newest run's. A mean absolute deviation, weighted like that of
#: round trips in RFC 6298, but from 0: one long run says nothing of the next one's difference.
NEWEST = 0.25

#: A task is expected to take its mean and so much of the spread.
DEVIATIONS = 2.0

#: Seconds between two runs that are measured: a thousand a second cost 0.2 % of the loop.
PAUSE_S = 0.001

#: States of tasks that are yet to be given to a worker.
TO_COME = ("waiting", "queued", "no-worker")
UNFINISHED = (*TO_COME, "processing")

#: Looking at all prefixes takes at most this part of the time: `TaskPrefix.states` walks all groups
#: before 2024.6.
LOOK_PART = 0.005


@dataclass
class Spread:
    """Of the runs of one prefix, in seconds: their mean, and how far they are from it."""

    mean: float
    deviation: float = 0.0
    resources: frozenset[str] = frozenset()  # that the latest run wanted

    def add(self, took: float) -> None:
        self.deviation += NEWEST * (abs(took - self.mean) - self.deviation)
        # As TaskPrefix.add_duration weighs, which forgets its average after an outlier.
        self.mean = 0.5 * took + 0.5 * self.mean


class Stage(enum.Enum):
    """The state of the tasks of one prefix."""

    TO_BEGIN = "some of them are yet to begin, so a worker may be given them"
    BEGUN = "all that are there run"
    ABSENT = "none is there"


class TaskKind(NamedTuple):
    """Tasks of one prefix."""

    expected_s: float
    prefix: TaskPrefix
    stage: Stage
    resources: frozenset[str]  # names of what the latest of them wanted


class Durations(Component):
    """
    Two answers for each task prefix: `mean_s`, of many runs, says how much work there is;
    `expected_s`, of the latest runs and their spread, how long the next one may take.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._window_at = self.clock()
        #: Runs and seconds of each prefix: a window ago, and later.
        self._old: dict[TaskPrefix, tuple[int, float]] = {}
        self._new: dict[TaskPrefix, tuple[int, float]] = {}
        self._spreads: dict[str, Spread] = {}
        #: From then on the next report is measured; infinite: none is.
        self.next_at = math.inf
        self._stages: dict[TaskPrefix, Stage] = {}  # of known ones, as of the last look
        self._look_at = 0.0

    def switch(self, on: bool) -> None:
        """Measure, or measure no more: what is known stays."""
        if on != (self.next_at < math.inf):
            self.next_at = 0.0 if on else math.inf

    def mean_s(self, prefix: TaskPrefix) -> float:
        """
        Mean seconds of the runs of the last 30 to 60 s; -1: no run has finished, or workers have
        reported durations that are none.

        From books that every release keeps (`all_durations`, `state_counts`). `duration_average` is
        half the newest run, and is forgotten when a task runs for twice as long: where most tasks
        take a second and some take half a minute, it says either by turns.
        """
        mean = self._mean_s(prefix)
        return mean if 0 <= mean < FOREVER_S else -1.0

    def _mean_s(self, prefix: Any) -> float:
        done = prefix.state_counts.get("memory", 0)
        average = float(prefix.duration_average)
        total = prefix.all_durations.get("compute", 0.0) if done else 0.0
        if not total or (done < FEW and average >= 0):
            return average
        now = self.clock()
        if now - self._window_at >= WINDOW_S:
            self._window_at = now
            self._old, self._new = self._new, {}
        self._new.setdefault(prefix, (done, total))
        old_done, old_total = self._old.get(prefix) or self._new[prefix]
        runs = done - old_done
        if runs >= FEW and total > old_total:
            return float((total - old_total) / runs)
        return float(total / done)

    def expected_s(self, prefix: TaskPrefix, floor_s: float) -> float:
        """
        Seconds that the next run is expected to take at most: a mean, and `DEVIATIONS`.

        The mean is the scheduler's, or ours where it has forgotten its own after an outlier.
        Without a finished run: what those that run have taken already (`max_exec_time`, from
        heartbeats), and no less than the scheduler assumes.
        """
        spread = self._spreads.get(prefix.name)
        mean = float(prefix.duration_average)
        if mean < 0:
            unknown_s = self.scheduler.UNKNOWN_TASK_DURATION
            mean = max(prefix.max_exec_time, unknown_s) if spread is None else spread.mean
        return max(floor_s, mean + (0.0 if spread is None else DEVIATIONS * spread.deviation))

    def kinds(self, floor_s: float) -> list[TaskKind]:
        now = self.clock()
        if now >= self._look_at:
            self._look()
            self._look_at = now + (self.clock() - now) / LOOK_PART
        spreads, none = self._spreads, Spread(0.0)
        return [
            TaskKind(self.expected_s(p, floor_s), p, stage, spreads.get(p.name, none).resources)
            for p, stage in self._stages.items()
        ]

    def _look(self) -> None:
        workers = self.scheduler.workers.values()
        busy = [ws for ws in workers if len(ws.processing) > ws.nthreads]  # others begin at once
        to_begin = {ts.prefix for ws in busy for ts in ws.processing if not has_begun(ws, ts)}
        self._stages = {}
        for prefix in self.scheduler.task_prefixes.values():
            if prefix in to_begin or is_among(prefix, TO_COME):
                self._stages[prefix] = Stage.TO_BEGIN
            elif is_among(prefix, ("processing",)):
                self._stages[prefix] = Stage.BEGUN
            elif prefix.duration_average >= 0 or prefix.name in self._spreads:
                self._stages[prefix] = Stage.ABSENT

    def came(self, prefixes: Iterable[TaskPrefix]) -> None:
        """Tasks of these kinds have come since the last look."""
        self._stages.update(dict.fromkeys(prefixes, Stage.TO_BEGIN))

    def report(self, msg: dict[str, Any], now: float) -> None:
        """A worker reports a run; the scheduler has not heard of it yet. Never raises."""
        self.next_at = now + PAUSE_S
        # Fail open: the scheduler's own averages remain.
        with logged(logger, "Failed to measure a run"):
            self._add(msg["key"], msg.get("startstops") or ())

    def _add(self, key: Any, startstops: Any) -> None:
        ts = self.scheduler.tasks.get(key)
        if ts is None:
            return
        for one in startstops:
            if one["action"] == "compute":
                took = max(0.0, one["stop"] - one["start"])
                spread = self._spreads.setdefault(ts.prefix.name, Spread(took))
                spread.add(took)
                spread.resources = frozenset(ts.resource_restrictions or ())


def has_begun(ws: WorkerState, ts: TaskState) -> bool:
    """Tells whether a worker runs one of its tasks, as far as it has reported."""
    return ts in ws.executing or ts in ws.long_running


def is_among(prefix: TaskPrefix, states: Collection[str]) -> bool:
    counts: Any = prefix.states
    return any(counts.get(state) for state in states)
