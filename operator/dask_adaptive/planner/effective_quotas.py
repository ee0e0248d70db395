"""What one worker may use: its group's quotas, less its jitter."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b

from dask_adaptive.model.observed import Clocks, ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import LifetimeQuota, Quota, Recycle, TaskQuota


def life_of(worker: ObservedWorker) -> str:
    """What a worker's quotas belong to: a new pod under the same name begins with clean ones."""
    return worker.pod_uid or worker.uid


@lru_cache(maxsize=2**16)
def shares(life: str) -> tuple[float, float]:
    """Two numbers in [0, 1), of tasks and of lifetime: the same for the same life, always."""
    drawn = blake2b(life.encode(), digest_size=8).digest()
    return int.from_bytes(drawn[:4], "big") / 2**32, int.from_bytes(drawn[4:], "big") / 2**32


def own_tasks(worker: ObservedWorker, quota: TaskQuota) -> int:
    """Runs that a worker may make, less its jitter; 0: any number."""
    if not quota.max or not quota.jitter:
        return quota.max
    return _jittered(quota.max, quota.jitter, life_of(worker))


@lru_cache(maxsize=2**16)  # several rules ask for it in each pass
def _jittered(tasks: int, jitter: float, life: str) -> int:
    return max(1, math.ceil(tasks * (1 - jitter * shares(life)[0])))


def own_lifetime_s(worker: ObservedWorker, quota: LifetimeQuota) -> float:
    """How old a worker's pod may become, less its jitter."""
    if not quota.jitter:
        return quota.max_s
    return quota.max_s * (1 - quota.jitter * shares(life_of(worker))[1])


def own_margin_s(worker: ObservedWorker, quota: LifetimeQuota, clocks: Clocks) -> float:
    """The margin before a worker's end: a fifth of its life at most, or it would hardly serve."""
    life_s = clocks.pod_age_s(worker) + clocks.ends_in_s(worker)
    return max(0.0, min(quota.margin_s, life_s / 5))


def has_spent(worker: ObservedWorker, recycle: Recycle) -> bool:
    """Whether a worker has used up an exact quota of tasks, and so gets no more of them."""
    return recycle.tasks.exact and (
        (worker.cordon is not None and worker.cordon.quota is Quota.TASKS)
        or worker.retires_for is Reason.TASK_QUOTA
    )


def with_walltimes(observed: ObservedCluster, policy: Policy) -> ObservedCluster:
    """The same cluster, where `recycle.lifetime.max` is a worker's end if it is a walltime."""
    if not any(policy.recycle_of(g.name).lifetime.walltime for g in observed.groups):
        return observed
    groups = tuple(_with_walltimes(g, policy.recycle_of(g.name)) for g in observed.groups)
    return replace(observed, groups=groups)


def _with_walltimes(group: ObservedGroup, recycle: Recycle) -> ObservedGroup:
    if not recycle.lifetime.walltime:
        return group
    workers = []
    for worker in group.workers:
        ends_at = worker.pod_made_at + own_lifetime_s(worker, recycle.lifetime)
        workers.append(replace(worker, ends_at=ends_at) if ends_at < worker.ends_at else worker)
    return replace(group, workers=tuple(workers))
