"""What quotas need to know of earlier passes: since when, how fast, which way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from dask_adaptive.model.observed import ObservedCluster, ObservedWorker
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.recycle import Recycle, RecyclePast
from dask_adaptive.planner.due import gpu_key, paced_over_s
from dask_adaptive.planner.leaks import Sample, growth, with_sample
from dask_adaptive.planner.rations import life_of, measured, own_soft

#: Passes that follow each other faster than this say nothing of a pace.
SHORTEST_S = 1.0


@dataclass(slots=True)
class _Kept:
    """What is known of workers that are still there."""

    above_since: dict[str, float] = field(default_factory=dict)
    samples: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    growth: dict[str, float] = field(default_factory=dict)
    pace: dict[str, tuple[float, int, float]] = field(default_factory=dict)


def remember_quotas(
    past: RecyclePast, observed: ObservedCluster, policy: Policy, *, now: float
) -> RecyclePast:
    """
    The past with what quotas need of this observation, and without workers that are gone.

    `ready_s` is not measured here: that takes knowledge of what was waited for.
    """
    if not observed.scheduler.is_connected:
        return past
    kept = _Kept()
    for group in observed.groups:
        recycle = policy.recycle_of(group.name)
        for worker in group.workers:
            if worker.dask_names and not worker.going:
                _keep(kept, worker, recycle, past, now=now)
    return replace(
        past,
        above_since=kept.above_since,
        samples=kept.samples,
        growth=kept.growth,
        pace=kept.pace,
    )


def _keep(
    kept: _Kept, worker: ObservedWorker, recycle: Recycle, past: RecyclePast, *, now: float
) -> None:
    life = life_of(worker)
    known = past.pace.get(life)
    kept.pace[life] = _pace(known, worker, over_s=paced_over_s(past), now=now)
    if known is None or worker.use.runs < known[1]:
        past = _NOTHING  # another process, though maybe in the same pod: its memory began anew
    _keep_levels(kept, worker, recycle, past, now=now)
    if math.isfinite(recycle.memory.leak_rate):
        _keep_samples(kept, worker, recycle, past, now=now)


_NOTHING = RecyclePast()


def _pace(
    known: tuple[float, int, float] | None, worker: ObservedWorker, *, over_s: float, now: float
) -> tuple[float, int, float]:
    """When it last worked, its runs by then, and runs a second while it has tasks."""
    runs = worker.use.runs
    if known is None:
        return now, runs, runs / worker.pod_age_s if worker.pod_age_s > 0 else 0.0
    at, before, pace = known
    if now - at < SHORTEST_S:
        return known
    if runs == before and not worker.processing:
        return known  # it rests: `pace_of` says how long that is remembered
    if runs < before or now - at > over_s:
        return now, runs, pace  # another process, or a rest: what lies between was no work
    weight = 1 - math.exp((at - now) / over_s)
    pace += weight * ((runs - before) / (now - at) - pace)
    # An average that begins at nothing comes too late for a worker that is spent within seconds.
    is_young = 0 < worker.pod_age_s < 3 * over_s
    return now, runs, max(pace, runs / worker.pod_age_s) if is_young else pace


def _keep_levels(
    kept: _Kept, worker: ObservedWorker, recycle: Recycle, past: RecyclePast, *, now: float
) -> None:
    if measured(worker, recycle.memory) >= own_soft(worker, recycle.memory):
        life = life_of(worker)
        kept.above_since[life] = past.above_since.get(life, now)
    if worker.use.gpu >= recycle.gpu.soft:
        kept.above_since[gpu_key(worker)] = past.above_since.get(gpu_key(worker), now)


def _keep_samples(
    kept: _Kept, worker: ObservedWorker, recycle: Recycle, past: RecyclePast, *, now: float
) -> None:
    life, quota = life_of(worker), recycle.memory
    window_s = quota.leak_window_s
    before = past.samples.get(life, ())
    samples = with_sample(before, now, worker.use.unmanaged_bytes, window_s=window_s)
    kept.samples[life] = samples
    if samples is before:
        grows = past.growth.get(life, 0.0)
    else:
        grows = growth(samples, window_s=window_s, notable=quota.leak_rate)
    if grows > 0:
        kept.growth[life] = grows
