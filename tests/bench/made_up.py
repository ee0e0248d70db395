"""
Made-up work for simulations: bursts, waves, schedules, sessions with pauses of many lengths.

Each is what people submit and when, with true durations; nothing of it was recorded under a policy.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from dask_adaptive.model.policy import ClusterRef, Policy
from dask_adaptive.model.scaling import WorkerGroup
from dask_adaptive_lab.simulate.workload import Arrival, Release, Workload
from dask_adaptive_lab.trace import Origin, Sample, Trace, TraceGroup

DEFAULT_GROUP = "etl-default"
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Tasks of one kind, submitted at once."""

    at: float
    tasks: int
    seconds: float  # that each of them runs
    kind: str = "work"


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Work, and the cluster that is to do it."""

    about: str
    work: Workload
    maximum: int
    minimum: int = 0  # so many are there when it begins
    startup_s: float = 20.0
    second_group: int = 0  # its maximum; 0: there is none
    lasts_s: float = 0.0  # at least; more where the work takes longer

    @property
    def trace(self) -> Trace:
        """Empty but for the cluster, and the time."""
        group = TraceGroup(DEFAULT_GROUP, *[self.minimum] * 3, threads=1)
        last = max(a.at for a in self.work.arrivals)
        samples = (Sample(0.0, groups=(group,)), Sample(max(self.lasts_s, last), groups=(group,)))
        return Trace(Origin("etl", 0.0, default_group=DEFAULT_GROUP), samples)

    @property
    def policy(self) -> Policy:
        second = WorkerGroup("etl-second", self.second_group)
        groups = (WorkerGroup(DEFAULT_GROUP, self.maximum), second) if self.second_group else ()
        most = self.maximum + self.second_group
        return Policy(ClusterRef("etl"), most, self.minimum, worker_groups=groups)


def work_of(batches: Iterable[Batch], then: Iterable[Batch] = ()) -> Workload:
    """
    Work that is submitted in batches.

    Args:
        batches: Independent tasks.
        then: Tasks that need all before them; `at` is not used.
    """
    first, last = sorted(batches, key=lambda b: b.at), tuple(then)
    counts = accumulate((b.tasks for b in last), initial=sum(b.tasks for b in first))
    return Workload(
        arrivals=(
            *(Arrival(b.at, b.kind, b.tasks, 0) for b in first),
            *(Arrival(first[-1].at, b.kind, 0, b.tasks) for b in last),
        ),
        withdrawals=(),
        releases=tuple(Release(n, b.kind, b.tasks) for n, b in zip(counts, last, strict=False)),
        duration_s={b.kind: b.seconds for b in (*first, *last)},
        known={},
    )


def every(seconds: float, count: int, tasks: int, task_s: float) -> Iterator[Batch]:
    return (Batch(n * seconds, tasks, task_s) for n in range(count))


def after_pauses(pauses: Iterable[float], tasks: int, task_s: float, width: int) -> Iterator[Batch]:
    """A batch, a pause once so many workers would have done it, the next batch."""
    at = 0.0
    for pause in pauses:
        yield Batch(at, tasks, task_s)
        at += tasks * task_s / width + pause


def _session(seed: int, hours: float) -> Iterator[Batch]:
    """A person: cells of a few seconds to minutes, thoughts of half a minute, meetings."""
    chance, at = random.Random(seed), 0.0
    while at < hours * HOUR_S:
        kind, tasks, seconds = chance.choice([("cell", 20, 1.0), ("fit", 60, 4.0), ("io", 8, 6.0)])
        yield Batch(at, tasks, seconds, kind)
        think_s = (
            chance.expovariate(1 / 30) if chance.random() < 0.85 else chance.uniform(600, 2400)
        )
        at += tasks * seconds / 8 + think_s


def _tails(seed: int) -> Iterator[Batch]:
    """Batches of which some tasks take ten times as long as most."""
    chance, at = random.Random(seed), 0.0
    for n in range(12):
        yield Batch(at, 120, 3.0, "quick")
        yield Batch(at, 12, 30.0, "slow")
        yield Batch(at, 2, 150.0, "slowest")
        at += 240 + chance.expovariate(1 / 60) + 300 * (n % 4 == 3)


def _pareto(seed: int, count: int) -> list[float]:
    chance = random.Random(seed)
    return [min(8 * chance.paretovariate(0.9), 2 * HOUR_S) for _ in range(count)]


def _uniform(seed: int, count: int, low: float, high: float) -> list[float]:
    chance = random.Random(seed)
    return [chance.uniform(low, high) for _ in range(count)]


_NODE = {"maximum": 6, "minimum": 1, "startup_s": 5.0}  # as in tests/bench/upstream

#: By name.
WORKLOADS = {
    "burst and tail": MadeUp(
        "240 tasks of 0.5 s, then 4 of 40 s",
        work_of([Batch(0, 240, 0.5)], [Batch(0, 4, 40, "tail")]),
        **_NODE,
    ),
    "notebook waves": MadeUp(
        "8 bursts of 60 tasks of 0.8 s, pauses of 9 s",
        work_of(after_pauses([9.0] * 8, 60, 0.8, 6)),
        **_NODE,
    ),
    "oscillating": MadeUp(
        "6 bursts of 40 tasks of 0.5 s, every 17 s", work_of(every(17, 6, 40, 0.5)), **_NODE
    ),
    "slow step": MadeUp(
        "60 quick tasks, then 60 of 3 s",
        work_of([Batch(0, 60, 0.01, "quick")], [Batch(0, 60, 3.0, "slow")]),
        **_NODE,
    ),
    "two groups": MadeUp(
        "every 4 min 80 tasks of 4 s, two groups of 4",
        work_of(every(240, 15, 80, 4.0)),
        4,
        second_group=4,
    ),
    "cron": MadeUp("every 10 min 120 tasks of 5 s", work_of(every(600, 12, 120, 5.0)), 12),
    "hourly": MadeUp("every hour 400 tasks of 5 s", work_of(every(3600, 4, 400, 5.0)), 20),
    "steady": MadeUp("every 7 s 12 tasks of 2 s, for an hour", work_of(every(7, 514, 12, 2.0)), 10),
    "short pauses": MadeUp(
        "a loop: 60 tasks of 2 s, pauses of 12 to 25 s",
        work_of(after_pauses(_uniform(1, 60, 12, 25), 60, 2.0, 8)),
        8,
    ),
    "long pauses": MadeUp(
        "80 tasks of 3 s, pauses of 10 to 30 min",
        work_of(after_pauses(_uniform(2, 10, 600, 1800), 80, 3.0, 8)),
        8,
    ),
    "heavy-tailed pauses": MadeUp(
        "60 tasks of 2 s, pauses of 8 s to 2 h (Pareto)",
        work_of(after_pauses(_pareto(3, 80), 60, 2.0, 8)),
        8,
    ),
    "a person": MadeUp(
        "a notebook for 3 h: cells, thoughts, meetings", work_of(_session(4, 3)), 8, startup_s=40.0
    ),
    "long tails": MadeUp(
        "12 batches; some tasks take 10 and 50 times as long as most", work_of(_tails(5)), 16
    ),
}
