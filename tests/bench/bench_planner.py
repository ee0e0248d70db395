"""
What one plan costs, against the number of workers.

    PYTHONPATH=operator:tests python tests/bench/bench_planner.py [--workers N …]

Three worlds: at rest, falling (half of the workers are not needed), and rising from half the load.
Then plans with four quotas, of which no worker is near, and over which every worker is; the status,
and what is remembered. The rest of a pass: bench_pass.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from measuring import milliseconds, options, show

from dask_adaptive.loop.summary import status_of
from dask_adaptive.model.observed import (
    ObservedCluster,
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
from support.worlds import NOW, PAST, busy, cluster, dated, worker

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


def used(observed: ObservedCluster, runs: int) -> ObservedCluster:
    """Its workers have made so many runs."""
    use = Use(runs=runs, failures=3, process=0.5, unmanaged=0.2)
    workers = tuple(
        replace(w, use=use, pod_uid=f"pod-{w.name}", pod_made_at=-500.0)
        for w in observed.groups[0].workers
    )
    group = replace(observed.groups[0], workers=workers)
    return dated(replace(observed, groups=(group,)), 1_700_000_000.0)


def calls(n: int) -> dict[str, Callable[[], Any]]:
    policy = Policy(ClusterRef("etl"), 2 * n, idle_timeout_s=10.0)
    at_once = replace(policy, retirement=Retirement(max_concurrent=n))
    at_rest, falling, rising = (world(n, t) for t in (n, n // 2, 3 * n // 2))
    decided = plan(falling, at_once, PAST, now=NOW)
    assert len(decided.actions) == n // 2
    quotas = replace(policy, recycle=QUOTAS)
    fresh, spent = used(world(n, n), 100), used(world(n, n), 20_000)
    assert len(plan(spent, quotas, PAST, now=NOW).replacing) == n
    return {
        "plan, at rest": lambda: plan(at_rest, policy, PAST, now=NOW),
        "plan, falling": lambda: plan(falling, policy, PAST, now=NOW),
        "plan, all at once": lambda: plan(falling, at_once, PAST, now=NOW),
        "plan, rising": lambda: plan(rising, policy, PAST, now=NOW),
        "status": lambda: status_of(falling, policy, decided, (), now=NOW),
        "plan, 4 quotas": lambda: plan(fresh, quotas, PAST, now=NOW),
        "plan, all over quota": lambda: plan(spent, quotas, PAST, now=NOW),
        "remember": lambda: remember(PAST, falling, policy, decided, (), now=NOW),
    }


if __name__ == "__main__":
    given = options(__doc__, workers=[100, 1_000, 10_000], repeat=9)
    rows = [
        {"workers": n, "what": what, **milliseconds(call, given.repeat)}
        for n in given.workers
        for what, call in calls(n).items()
    ]
    show(rows, "milliseconds")
