"""
What it costs to see whose quota has run out, against the number of workers.

    python tests/bench/bench_planner_quotas.py [--json] [--workers 1000 5000]

Four quotas (tasks, lifetime, memory, failures), with jitter; one worker in a hundred is over one.
Beside it, in the same run: the plain way (every rule for every worker), what is remembered of a
pass, and the days on which a leak is looked for in all of them or everything is to be restarted.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.policy import Policy, parse_policy
from dask_adaptive.model.recycle import RecyclePast, Use
from dask_adaptive.planner.due import RULES, Due, Scene, urgency
from dask_adaptive.planner.quotas import assess, limit_of, remember_quotas
from support.worlds import NOW, busy, cluster

REPEATS = 25
AT = 1_800_000_000.0

SPEC: dict[str, Any] = {
    "clusterRef": {"name": "etl"},
    "maxReplicas": 10_000,
    "recycle": {
        "tasks": {"max": 1000, "jitter": "10%"},
        "lifetime": {"max": "12h", "jitter": "10%"},
        "memory": {"soft": "80%", "hard": "92%"},
        "failures": {"max": 20, "patterns": ["*CUDA error*"]},
    },
}


def world(n: int, seed: int = 1) -> ObservedCluster:
    """Workers evenly spread over their quotas, one in a hundred over its tasks."""
    drawn = random.Random(seed)
    workers = []
    for i in range(n):
        use = Use(
            runs=1001 if i % 100 == 0 else drawn.randrange(850),
            failures=drawn.randrange(5),
            process=drawn.uniform(0.1, 0.8),
            unmanaged=drawn.uniform(0.0, 0.6),
            unmanaged_bytes=drawn.randrange(10**9, 4 * 10**9),
        )
        name = f"w{i:06}"
        age_s = drawn.uniform(0, 38_000)
        workers.append(busy(name, use=use, pod_uid=f"{drawn.getrandbits(128):032x}",
                            pod_age_s=age_s, age_s=age_s))  # fmt: skip
    return replace(cluster(workers, target=n), at=AT)


def plain(seen: ObservedCluster, group: ObservedGroup, policy: Policy, past: RecyclePast) -> Any:
    """Every rule for every worker."""
    scene = Scene(policy.recycle, past, NOW, seen.at, float("-inf"), 0.0, {})
    found: list[Due] = []
    for worker in group.workers:
        if worker.dask_names and not worker.going and not worker.ending:
            dues = [d for rule in RULES if (d := rule(worker, scene)) is not None]
            found += dues[:1]
    return sorted(found, key=urgency)


def milliseconds(call: Callable[[], Any]) -> dict[str, float]:
    call()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1000)
    return {"min": min(times), "median": median(times), "max": max(times)}


def measure(n: int) -> dict[str, dict[str, float]]:
    policy, seen = parse_policy(SPEC), world(n)
    leaks = replace(policy, recycle=replace(
        policy.recycle, memory=replace(policy.recycle.memory, leak_rate=5e8)))  # fmt: skip
    restarting = replace(policy, restart_at=AT)
    group = seen.groups[0]
    past = grown = RecyclePast()
    for i in range(40):
        past = remember_quotas(past, seen, policy, now=NOW + 5 * i)
        grown = remember_quotas(grown, seen, leaks, now=NOW + 121 * i)
    now, later = NOW + 5 * 40, NOW + 121 * 40

    quick = assess(seen, group, policy, past, now=now)
    assert n // 100 == sum(d.is_over for d in quick.due)
    assert [(d.worker, d.reason) for d in plain(seen, group, policy, past)] == [
        (d.worker, d.reason) for d in quick.due
    ]
    return {
        "assess": milliseconds(lambda: assess(seen, group, policy, past, now=now)),
        "assess, plain": milliseconds(lambda: plain(seen, group, policy, past)),
        "assess, leaks too": milliseconds(lambda: assess(seen, group, leaks, grown, now=later)),
        "assess, all due": milliseconds(lambda: assess(seen, group, restarting, past, now=now)),
        "limits": milliseconds(lambda: [limit_of(w, policy.recycle) for w in group.workers]),
        "remember": milliseconds(lambda: remember_quotas(past, seen, policy, now=now)),
        "remember a sample": milliseconds(lambda: remember_quotas(grown, seen, leaks, now=later)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--workers", type=int, nargs="*", default=[1_000, 5_000])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for n in options.workers:
        for what, ms in measure(n).items():
            if options.json:
                print(json.dumps({"bench": "quotas", "workers": n, "what": what, "ms": ms}))
            else:
                figures = "".join(f"{ms[k]:>9.2f}" for k in ms)
                print(f"{n:>7} workers  {what:<20}{figures}  ms")


if __name__ == "__main__":
    main()
