"""The end of workers that the policy itself knows of: a lifetime that somebody else enforces."""

from __future__ import annotations

from dataclasses import replace

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.recycle import Recycle
from dask_adaptive.planner.rations import own_lifetime_s


def with_walltimes(observed: ObservedCluster, policy: Policy) -> ObservedCluster:
    """The same cluster, where `recycle.lifetime.max` is a worker's end if it is a walltime."""
    if not any(policy.recycle_of(g.name).lifetime.is_walltime for g in observed.groups):
        return observed
    groups = tuple(_with_walltimes(g, policy.recycle_of(g.name)) for g in observed.groups)
    return replace(observed, groups=groups)


def _with_walltimes(group: ObservedGroup, recycle: Recycle) -> ObservedGroup:
    if not recycle.lifetime.is_walltime:
        return group
    return replace(group, workers=tuple(_ending(w, recycle) for w in group.workers))


def _ending(worker: ObservedWorker, recycle: Recycle) -> ObservedWorker:
    left_s = max(0.0, own_lifetime_s(worker, recycle.lifetime) - worker.pod_age_s)
    return worker if left_s >= worker.ends_in_s else replace(worker, ends_in_s=left_s)
