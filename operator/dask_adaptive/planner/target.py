"""How many workers the load asks for, in workers of the policy's group."""

from __future__ import annotations

import math

from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedGroup


def wanted_workers(cluster: ObservedCluster, group: ObservedGroup) -> int:
    """
    Turn the scheduler's adaptive_target into workers (Deployments) of one group.

    adaptive_target speaks of all Dask workers of the cluster. Those of other groups serve the load
    too, so they are taken off; a Deployment that runs several Dask workers counts as that many.
    """
    mine = [w for w in group.workers if w.is_connected]
    processes = sum(len(w.dask_names) for w in mine)
    each = max(1, round(processes / len(mine))) if mine else 1

    ours = {name for w in mine for name in w.dask_names}
    others = sum(
        w.name not in ours and w.leaving is Leaving.NO and not w.departing
        for w in cluster.scheduler.workers
    )
    return math.ceil(max(0, cluster.scheduler.target - others) / each)
