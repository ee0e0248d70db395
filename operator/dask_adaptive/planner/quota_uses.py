"""The highest use of each quota in a group: for metrics, in every pass, over every worker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.recycle import Quota, QuotaUse, Recycle, RecyclePast
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

#: Who may have the highest use of some quota: a short list, told from plain numbers. Workers with
#: annotations of their own come in addition.
Leaders = Iterable[ObservedWorker]

_RUNS, _AGE, _ENDS = attrgetter("use.runs"), attrgetter("pod_age_s"), attrgetter("ends_in_s")
_PROCESS, _UNMANAGED = attrgetter("use.process"), attrgetter("use.unmanaged")
_GPU, _FAILURES = attrgetter("use.gpu"), attrgetter("use.failures")

#: Below any ratio of use: the worker has no such quota.
_NO_QUOTA = -1.0


def group_uses(
    group: str, workers: Sequence[ObservedWorker], recycle: Recycle, past: RecyclePast
) -> tuple[QuotaUse, ...]:
    """The highest use of each quota that some worker of the group has."""
    noted = [w for w in workers if w.quota_notes is not None]
    alike = [w for w in workers if w.quota_notes is None] if noted else workers
    found = []
    for quota, leaders, ratio in _USES:
        looked_at = (*leaders(alike, recycle), *noted) if alike else noted
        used = [(ratio(w, recycle, past), w.name) for w in looked_at]
        highest, name = min(((-r, n) for r, n in used), default=(1.0, ""))
        if highest <= 0:
            found.append(QuotaUse(group, quota, abs(highest), name))
    return tuple(found)


def _tasks_leaders(workers: Sequence[ObservedWorker], recycle: Recycle) -> Leaders:
    if not recycle.tasks.maximum:
        return ()
    # A quota that is lower by all of the jitter is used as far by so many runs less.
    line = max(map(_RUNS, workers)) * (1 - recycle.tasks.jitter)
    return [w for w in workers if w.use.runs >= line]


def _tasks(worker: ObservedWorker, recycle: Recycle, _: RecyclePast) -> float:
    own = own_tasks(worker, recycle.tasks)
    return worker.use.runs / own if own else _NO_QUOTA


def _lifetime_leaders(workers: Sequence[ObservedWorker], recycle: Recycle) -> Leaders:
    quota = recycle.lifetime
    ending = () if math.isinf(min(map(_ENDS, workers))) else workers
    if math.isinf(quota.maximum_s) or ending:
        return ending
    line = max(map(_AGE, workers)) * (1 - quota.jitter)
    return [w for w in workers if w.pod_age_s >= line]


def _lifetime(worker: ObservedWorker, recycle: Recycle, _: RecyclePast) -> float:
    own_s = own_lifetime_s(worker, recycle.lifetime)
    used = worker.pod_age_s / max(own_s, 1e-9) if math.isfinite(own_s) else _NO_QUOTA
    return max(used, end_ratio(worker, recycle.lifetime))


def _memory_leaders(workers: Sequence[ObservedWorker], recycle: Recycle) -> Leaders:
    quota = recycle.memory
    if math.isfinite(quota.leak_rate):
        return workers
    if math.inf == quota.soft == quota.hard:
        return ()
    return (max(workers, key=_PROCESS), max(workers, key=_UNMANAGED))


def _memory(worker: ObservedWorker, recycle: Recycle, past: RecyclePast) -> float:
    quota = recycle.memory
    soft, hard = own_soft(worker, quota), own_hard(worker, quota)
    return max(
        measured(worker, quota) / soft if math.isfinite(soft) else _NO_QUOTA,
        worker.use.process / hard if math.isfinite(hard) else _NO_QUOTA,
        past.growth.get(life_of(worker), 0.0) / quota.leak_rate
        if math.isfinite(quota.leak_rate)
        else _NO_QUOTA,
    )


def _gpu_leaders(workers: Sequence[ObservedWorker], recycle: Recycle) -> Leaders:
    return () if math.isinf(_gpu_line(recycle)) else (max(workers, key=_GPU),)


def _gpu(worker: ObservedWorker, recycle: Recycle, _: RecyclePast) -> float:
    line = _gpu_line(recycle)
    return worker.use.gpu / line if math.isfinite(line) else _NO_QUOTA


def _gpu_line(recycle: Recycle) -> float:
    return min(recycle.gpu.soft, recycle.gpu.hard)


def _failures_leaders(workers: Sequence[ObservedWorker], recycle: Recycle) -> Leaders:
    quota = recycle.failures
    if not quota.maximum and not quota.patterns:
        return ()
    matched = [w for w in workers if w.use.match] if quota.patterns else []
    return (max(workers, key=_FAILURES), *matched)


def _failures(worker: ObservedWorker, recycle: Recycle, _: RecyclePast) -> float:
    quota = recycle.failures
    own = own_failures(worker, quota)
    if quota.patterns:
        found = 1.0 if worker.use.match else 0.0
        return max(found, worker.use.failures / own if own else 0.0)
    return worker.use.failures / own if own else _NO_QUOTA


_USES = (
    (Quota.TASKS, _tasks_leaders, _tasks),
    (Quota.LIFETIME, _lifetime_leaders, _lifetime),
    (Quota.MEMORY, _memory_leaders, _memory),
    (Quota.GPU_MEMORY, _gpu_leaders, _gpu),
    (Quota.FAILURES, _failures_leaders, _failures),
)
