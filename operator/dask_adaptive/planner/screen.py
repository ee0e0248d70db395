"""
Which workers the rules must look at: one cheap pass over many, most of them far from any quota.

It may name too many, never too few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.recycle import Measure, Recycle, RecyclePast, TaskQuota
from dask_adaptive.planner.due import Scene


def suspects(workers: Sequence[ObservedWorker], scene: Scene) -> Sequence[ObservedWorker]:
    """The workers for which some rule of `due.RULES` may hold."""
    recycle = scene.recycle
    # The lowest numbers at which any worker of the group can be due, whatever its jitter. Workers
    # with annotations of their own, and what has no number, are looked at in any case.
    runs, fast_runs, fast = _pace(recycle.tasks, scene.past, workers)
    failures = recycle.failures.maximum or math.inf
    process, unmanaged = _memory_lines(recycle)
    gpu = min(recycle.gpu.soft, recycle.gpu.hard)
    age_s = _lowest_age(scene)
    ends_s = recycle.lifetime.margin_s + scene.expected_s + scene.past.ready_s
    grows, outliers = _leaking(scene), scene.outliers
    return [
        w
        for w in workers
        if (use := w.use).runs >= runs
        or use.failures >= failures
        or use.process >= process
        or use.unmanaged >= unmanaged
        or use.gpu >= gpu
        or w.pod_age_s >= age_s
        or w.ends_in_s <= ends_s
        or use.match
        or w.stopped
        or w.too_short
        or w.recycle_asked
        or w.drift
        or w.quota_notes is not None
        or (use.runs >= fast_runs and (w.pod_uid or w.uid) in fast)
        or (grows and (w.pod_uid or w.uid) in grows)
        or (outliers and w.name in outliers)
    ]


class _Pace(NamedTuple):
    """Runs at which a worker may be due for its quota of tasks, now or soon."""

    runs: float
    fast_runs: float = math.inf  # the same for those that are much faster than the others
    fast: frozenset[str] = frozenset()  # their lives


def _pace(quota: TaskQuota, past: RecyclePast, workers: Sequence[ObservedWorker]) -> _Pace:
    if not quota.maximum:
        return _Pace(math.inf)
    assigned = max([w.processing for w in workers], default=0) if quota.exact else 0
    lowest = quota.maximum * (1 - quota.jitter) - assigned
    paces = [pace for _, _, pace in past.pace.values()]
    if not paces:
        return _Pace(lowest)
    # By the fastest of thousands, all the others would be looked at for nothing.
    usual = 2 * sum(paces) / len(paces)
    fast = frozenset([life for life, (_, _, pace) in past.pace.items() if pace > usual])
    return _Pace(lowest - usual * past.ready_s, lowest - max(paces) * past.ready_s, fast)


def _memory_lines(recycle: Recycle) -> tuple[float, float]:
    quota = recycle.memory
    if quota.measure is Measure.UNMANAGED:
        return quota.hard, quota.soft
    return min(quota.hard, quota.soft), math.inf


def _lowest_age(scene: Scene) -> float:
    quota = scene.recycle.lifetime
    return min(
        quota.maximum_s * (1 - quota.jitter) - scene.past.ready_s
        if math.isfinite(quota.maximum_s)
        else math.inf,
        scene.at - scene.restart_at,
    )


def _leaking(scene: Scene) -> frozenset[str]:
    rate = scene.recycle.memory.leak_rate
    if math.isinf(rate):
        return frozenset()
    return frozenset(life for life, grows in scene.past.growth.items() if grows >= rate)
