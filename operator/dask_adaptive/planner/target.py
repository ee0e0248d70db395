"""How many workers the load asks for, in workers of the policy's group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from dask_adaptive.model.observed import (
    Leaving,
    ObservedCluster,
    ObservedGroup,
    SchedulerWorker,
)


def wanted_workers(cluster: ObservedCluster, group: ObservedGroup) -> int:
    """
    Turn the scheduler's adaptive_target into workers (Deployments) of one group.

    adaptive_target speaks of all Dask workers of the cluster. Those of other groups serve the load
    too, so they are taken off; a Deployment that runs several Dask workers counts as that many.
    """
    mine = [w for w in group.workers if w.is_connected]
    processes = sum(len(w.dask_names) for w in mine)
    each = max(1, round(processes / len(mine))) if mine else 1

    others = sum(1 for _ in serving_elsewhere(cluster, [group]))
    return math.ceil(max(0, cluster.scheduler.target - others) / each)


def serving_elsewhere(
    cluster: ObservedCluster, groups: Iterable[ObservedGroup]
) -> Iterator[SchedulerWorker]:
    """Dask workers that stay, and belong to none of the groups."""
    ours = {name for group in groups for w in group.workers for name in w.dask_names}
    for worker in cluster.scheduler.workers:
        if worker.name not in ours and worker.leaving is Leaving.NO and not worker.departing:
            yield worker
