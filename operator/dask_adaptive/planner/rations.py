"""What one worker may use: the policy's quotas with its own jitter, and its own annotations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.recycle import (
    FailureQuota,
    LifetimeQuota,
    Limit,
    Measure,
    MemoryQuota,
    Profile,
    QuotaNotes,
    Recycle,
    TaskQuota,
    Trait,
)

#: What a worker has left within the margin before its end: next to nothing. An agent that hears
#: that an end has passed gives the worker tasks again.
IMMINENT_S = 0.001


def life_of(worker: ObservedWorker) -> str:
    """What a worker's quotas belong to: a new pod under the same name begins with clean ones."""
    return worker.pod_uid or worker.uid


@lru_cache(maxsize=2**16)
def shares(life: str) -> tuple[float, float]:
    """Two numbers in [0, 1), of tasks and of lifetime: the same for the same life, always."""
    drawn = blake2b(life.encode(), digest_size=8).digest()
    return int.from_bytes(drawn[:4], "big") / 2**32, int.from_bytes(drawn[4:], "big") / 2**32


def own_tasks(worker: ObservedWorker, quota: TaskQuota) -> int:
    """Runs that a worker may make; 0: any number."""
    notes = worker.quota_notes
    maximum = quota.maximum if notes is None or notes.tasks is None else notes.tasks
    if not maximum or not quota.jitter:
        return maximum
    return max(1, math.ceil(maximum * (1 - quota.jitter * shares(life_of(worker))[0])))


def own_lifetime_s(worker: ObservedWorker, quota: LifetimeQuota) -> float:
    """How old a worker's pod may become."""
    notes = worker.quota_notes
    maximum_s = quota.maximum_s if notes is None or notes.lifetime_s is None else notes.lifetime_s
    if not quota.jitter:
        return maximum_s
    return maximum_s * (1 - quota.jitter * shares(life_of(worker))[1])


def own_soft(worker: ObservedWorker, quota: MemoryQuota) -> float:
    notes = worker.quota_notes
    return quota.soft if notes is None or notes.memory_soft is None else notes.memory_soft


def own_hard(worker: ObservedWorker, quota: MemoryQuota) -> float:
    notes = worker.quota_notes
    return quota.hard if notes is None or notes.memory_hard is None else notes.memory_hard


def own_failures(worker: ObservedWorker, quota: FailureQuota) -> int:
    """Failures within the window that a worker may have; 0: any number."""
    notes = worker.quota_notes
    return quota.maximum if notes is None or notes.failures is None else notes.failures


def measured(worker: ObservedWorker, quota: MemoryQuota) -> float:
    """The memory that the soft line is about."""
    return worker.use.unmanaged if quota.measure is Measure.UNMANAGED else worker.use.process


def end_ratio(worker: ObservedWorker, quota: LifetimeQuota) -> float:
    """How much of its life a worker has behind it if others have set its end; below 0: no end."""
    if math.isinf(worker.ends_in_s):
        return -1.0
    left_s = max(0.0, worker.ends_in_s - quota.margin_s)
    return worker.pod_age_s / (worker.pod_age_s + left_s) if left_s else 1.0


def limit_of(worker: ObservedWorker, recycle: Recycle, *, expected_s: float = 0.0) -> Limit:
    """
    What the agent is to enforce for each Dask worker of this worker; `profile` is 0.

    `left_s` is about ends that others set: of the pod, or of Dask's --lifetime. Who lifts a limit,
    because a worker may not be replaced now, lifts `runs` only; the end comes all the same. At
    `recycle.lifetime.max` nothing ends, unless it is a walltime: see `walltime`.

    Args:
        expected_s: How long the longest of the unfinished tasks is expected to take; 0: unknown.
    """
    left_s = 0.0
    if worker.ends_in_s > 0:
        left_s = max(IMMINENT_S, worker.ends_in_s - recycle.lifetime.margin_s)
    runs = own_tasks(worker, recycle.tasks)
    if recycle.tasks.from_walltime and expected_s > 0 and math.isfinite(left_s):
        # Exact limits count what is assigned, too: that is on its way already.
        given = worker.use.runs + (worker.processing if recycle.tasks.exact else 0)
        fitting = max(1, given + math.floor(min(left_s / expected_s, 1e9)))
        runs = min(runs, fitting) if runs else fitting
    return Limit(runs, left_s)


def profile_of(
    recycle: Recycle, workers: Sequence[ObservedWorker] = (), notes: QuotaNotes | None = None
) -> Profile:
    """
    The rules that the workers of one group share.

    Args:
        workers: Those of the group: the youngest one tells how long a new one will live. Without
            it tasks that are too long for every worker would wait for a new one for ever.
        notes: Of a worker whose own number of failures differs, which then needs its own profile.
    """
    connected = (w for w in workers if w.dask_names)
    youngest = min(connected, key=lambda w: (w.pod_age_s, w.name), default=None)
    failures = recycle.failures.maximum
    if notes is not None and notes.failures is not None:
        failures = notes.failures
    fresh_s = math.inf
    if youngest is not None:
        fresh_s = max(0.0, youngest.pod_age_s + youngest.ends_in_s - recycle.lifetime.margin_s)
    return Profile(
        exact=recycle.tasks.exact,
        failures=failures,
        window_s=recycle.failures.window_s,
        patterns=recycle.failures.patterns,
        fresh_s=fresh_s,
        floor_s=recycle.lifetime.floor_s,
        deviations=recycle.lifetime.deviations,
        measure=Trait.DURATION in recycle.selection.traits,
    )
