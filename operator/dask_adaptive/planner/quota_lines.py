"""How far one worker has used up each of its quotas, for people who ask `explain`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dask_adaptive.model.amounts import format_bytes
from dask_adaptive.model.duration import format_duration
from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.recycle import Measure, Quota, Recycle, RecyclePast
from dask_adaptive.planner.rations import (
    end_ratio,
    life_of,
    measured,
    own_failures,
    own_hard,
    own_lifetime_s,
    own_soft,
    own_tasks,
)


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """How far one worker has used up one quota, for people."""

    quota: Quota
    used: str
    limit: str
    ratio: float  # 1: used up


def quota_lines(
    worker: ObservedWorker, recycle: Recycle, past: RecyclePast, *, now: float
) -> tuple[QuotaLine, ...]:
    """Every quota that holds for a worker, and how far it is used."""
    return (
        *_task_lines(worker, recycle),
        *_lifetime_lines(worker, recycle),
        *_memory_lines(worker, recycle, past, now=now),
        *_gpu_lines(worker, recycle),
        *_failure_lines(worker, recycle),
    )


def _task_lines(worker: ObservedWorker, recycle: Recycle) -> Iterator[QuotaLine]:
    own, runs = own_tasks(worker, recycle.tasks), worker.use.runs
    if own:
        yield QuotaLine(Quota.TASKS, f"{runs:,} tasks run", f"{own:,}", runs / own)


def _lifetime_lines(worker: ObservedWorker, recycle: Recycle) -> Iterator[QuotaLine]:
    own_s, age_s = own_lifetime_s(worker, recycle.lifetime), worker.pod_age_s
    if math.isfinite(own_s):
        used = f"{format_duration(age_s)} old"
        yield QuotaLine(Quota.LIFETIME, used, format_duration(own_s), age_s / max(own_s, 1e-9))
    if math.isfinite(worker.ends_in_s):
        left_s, margin_s = max(0.0, worker.ends_in_s), recycle.lifetime.margin_s
        used = f"ends in {format_duration(left_s)}"
        limit = f"{format_duration(margin_s)} before its end"
        yield QuotaLine(Quota.LIFETIME, used, limit, end_ratio(worker, recycle.lifetime))


def _memory_lines(
    worker: ObservedWorker, recycle: Recycle, past: RecyclePast, *, now: float
) -> Iterator[QuotaLine]:
    quota, use = recycle.memory, worker.use
    soft, hard = own_soft(worker, quota), own_hard(worker, quota)
    if math.isfinite(soft):
        what = "unmanaged" if quota.measure is Measure.UNMANAGED else "process"
        now_used = measured(worker, quota)
        since = past.above_since.get(life_of(worker))
        above = f", above the line for {format_duration(now - since)}" if since is not None else ""
        limit = f"soft {soft:.0%} for {format_duration(quota.for_s)}"
        yield QuotaLine(Quota.MEMORY, f"{what} {now_used:.0%}{above}", limit, now_used / soft)
    if math.isfinite(hard):
        used = f"process {use.process:.0%}"
        yield QuotaLine(Quota.MEMORY, used, f"hard {hard:.0%}", use.process / hard)
    if math.isfinite(quota.leak_rate):
        grows = past.growth.get(life_of(worker), 0.0)
        limit = f"{format_bytes(quota.leak_rate)} an hour"
        used = f"grows by {format_bytes(grows)} an hour" if grows else "no growth seen"
        yield QuotaLine(Quota.MEMORY, used, limit, grows / quota.leak_rate)


def _gpu_lines(worker: ObservedWorker, recycle: Recycle) -> Iterator[QuotaLine]:
    quota, use = recycle.gpu, worker.use.gpu
    for name, line in (("soft", quota.soft), ("hard", quota.hard)):
        if math.isfinite(line):
            for_s = f" for {format_duration(quota.for_s)}" if name == "soft" else ""
            limit = f"{name} {line:.0%}{for_s}"
            yield QuotaLine(Quota.GPU_MEMORY, f"{use:.0%}", limit, use / line)


def _failure_lines(worker: ObservedWorker, recycle: Recycle) -> Iterator[QuotaLine]:
    quota, use = recycle.failures, worker.use
    own = own_failures(worker, quota)
    within = format_duration(quota.window_s)
    if own:
        used = f"{use.failures:,} runs failed"
        yield QuotaLine(Quota.FAILURES, used, f"{own:,} within {within}", use.failures / own)
    if quota.patterns:
        used = "one was found" if use.match else "none was found"
        limit = f"any of {len(quota.patterns)} patterns"
        yield QuotaLine(Quota.FAILURES, used, limit, 1.0 if use.match else 0.0)
