"""
What one plan costs, against the number of workers.

    PYTHONPATH=operator:tests python tests/bench/bench_planner.py [--json] [--workers N …]

Three worlds: at rest, falling (half of the workers are not needed), and rising from half the load.
The join of platform and scheduler and the status are timed beside it, also where 20 shuffles hold
every worker; a plan for the day on which every node goes; and plans with four
quotas, of which no worker is near, and over which every worker is. `aged` makes an observation
older, so that a plan can be made again without a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from measuring import milliseconds, options, show

from dask_adaptive.loop.join import join
from dask_adaptive.loop.summary import status_of
from dask_adaptive.model.observed import (
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    Pin,
    PlatformView,
    PlatformWorker,
)
from dask_adaptive.model.policy import ClusterRef, Policy, Retirement
from dask_adaptive.model.recycle import (
    FailureQuota,
    LifetimeQuota,
    MemoryQuota,
    Recycle,
    TaskQuota,
    Use,
)
from dask_adaptive.planner.memory import remember
from dask_adaptive.planner.plan import plan
from support.aging import aged
from support.worlds import GROUP, KEY, NOW, PAST, busy, cluster, dated, worker

QUOTAS = Recycle(
    tasks=TaskQuota(10_000, jitter=0.1),
    lifetime=LifetimeQuota(43_200.0, jitter=0.1),
    memory=MemoryQuota(soft=0.8, hard=0.92),
    failures=FailureQuota(20, patterns=("*CUDA error*",)),
)


def world(n: int, target: int) -> ObservedCluster:
    """Half of the workers busy, half idle for long."""
    workers = [busy(f"w{i:06}") if i % 2 else worker(f"w{i:06}") for i in range(n)]
    return cluster(workers, target=target)


def shuffling(observed: ObservedCluster, shuffles: int) -> ObservedScheduler:
    """Its scheduler, with so many shuffles that each hold every worker."""
    pins = tuple(Pin("shuffle", f"s{i}", "takes part", 60.0) for i in range(shuffles))
    workers = tuple(replace(w, pins=pins) for w in observed.scheduler.workers)
    return replace(observed.scheduler, workers=workers)


def used(observed: ObservedCluster, runs: int) -> ObservedCluster:
    """Its workers have made so many runs."""
    use = Use(runs=runs, failures=3, process=0.5, unmanaged=0.2, unmanaged_bytes=10**9)
    workers = tuple(
        replace(w, use=use, pod_uid=f"pod-{w.name}", pod_made_at=-500.0)
        for w in observed.groups[0].workers
    )
    group = replace(observed.groups[0], workers=workers)
    return dated(replace(observed, groups=(group,)), 1_700_000_000.0)


def calls(n: int) -> dict[str, Callable[[], Any]]:
    policy = Policy(ClusterRef("etl"), 2 * n)
    at_once = Policy(ClusterRef("etl"), 2 * n, retirement=Retirement(max_concurrent=n))
    at_rest, falling, rising = (world(n, t) for t in (n, n // 2, 3 * n // 2))
    view = PlatformView(
        groups=(ObservedGroup(GROUP, n),),
        workers=tuple(
            PlatformWorker(w.name, w.uid, w.group, w.made_at) for w in at_rest.groups[0].workers
        ),
    )
    decided = plan(falling, at_once, PAST, now=NOW)
    assert len(decided.actions) == n // 2
    pinned = shuffling(at_rest, shuffles=20)
    seen = join(KEY, view, pinned)
    doomed = world(n, n)
    going = replace(
        doomed.groups[0],
        workers=tuple(replace(w, node_terminating="cordoned") for w in doomed.groups[0].workers),
    )
    doomed = replace(doomed, groups=(going,))
    quotas = replace(policy, recycle=QUOTAS)
    fresh, spent = used(world(n, n), 100), used(world(n, n), 20_000)
    assert len(plan(spent, quotas, PAST, now=NOW).replacing) == n
    return {
        "plan, at rest": lambda: plan(at_rest, policy, PAST, now=NOW),
        "plan, falling": lambda: plan(falling, policy, PAST, now=NOW),
        "plan, all at once": lambda: plan(falling, at_once, PAST, now=NOW),
        "plan, rising": lambda: plan(rising, policy, PAST, now=NOW),
        "join": lambda: join(KEY, view, at_rest.scheduler),
        "status": lambda: status_of(falling, policy, decided, (), now=NOW),
        "plan, all nodes go": lambda: plan(doomed, policy, PAST, now=NOW),
        "plan, 4 quotas": lambda: plan(fresh, quotas, PAST, now=NOW),
        "plan, all over quota": lambda: plan(spent, quotas, PAST, now=NOW),
        "join, 20 shuffles": lambda: join(KEY, view, pinned),
        "status, 20 shuffles": lambda: status_of(seen, policy, decided, (), now=NOW),
        "aged": lambda: aged(at_rest, 5.0),
        "remember": lambda: remember(PAST, falling, policy, decided, (), now=NOW),
    }


if __name__ == "__main__":
    given = options(__doc__, workers=[100, 1_000, 10_000], repeat=9)
    rows = [
        {"workers": n, "what": what, **milliseconds(call, given.repeat)}
        for n in given.workers
        for what, call in calls(n).items()
    ]
    show(rows, given, "milliseconds")
