"""
Of workers that may leave, those whose machine is soonest empty go first: machines are paid for, not
workers. It changes which worker leaves, never how many, nor whether one may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from dask_adaptive.model.observed import ObservedCluster, ObservedWorker

#: Results that only one worker holds, in bytes: up to this much costs nothing to move.
LITTLE = 1 << 20

#: What is left on a worker's node once those that may leave have left, and how many those are.
Emptiness = tuple[int, int, str]

NodeOrder = Callable[[ObservedWorker], Emptiness]


def node_order(observed: ObservedCluster, free: Iterable[ObservedWorker]) -> NodeOrder:
    """
    How soon a worker's node can be empty, lowest first.

    Of what else runs on a node nothing is known: it counts as if these were all.

    Args:
        free: Workers that may leave now.
    """
    workers = (w for group in observed.groups for w in group.workers)
    every = Counter(w.node for w in workers if not w.is_deleting and w.retiring is None)
    going = Counter(w.node for w in free)

    def emptiness(worker: ObservedWorker) -> Emptiness:
        node = worker.node
        return every[node] - going[node], going[node], node

    return emptiness
