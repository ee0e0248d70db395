"""Pods that are being deleted, by whoever's decision: tell the scheduler how long they have."""

from __future__ import annotations

from dask_adaptive.model.observed import Ending, Leaving, ObservedCluster
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Leave
from dask_adaptive.model.reason import Reason

#: The scheduler's idea of a worker's end may differ by so much from its pod's.
SLACK_S = 5.0


def tell_endings(observed: ObservedCluster, past: Past) -> tuple[Leave, ...]:
    """
    Say which workers are about to end where the scheduler does not know, or believes in more time.

    In all groups and all modes: the pod goes whatever we decide, and this only saves work. Where
    the worker's own hook has been at work before, there is nothing to say. Less time than the pod
    has may be the word of somebody who was not sure of the end: then ours is heard once.
    """
    if not observed.ending:
        return ()
    drained = {w.address for w in observed.scheduler.workers if w.leaving is Leaving.DRAINED}
    return tuple(
        Leave(
            ending.worker,
            ending.dask_names,
            ending.left_s,
            Reason.POD_ENDING,
            f"pod {ending.pod} is being deleted",
        )
        for ending in observed.ending
        if set(ending.dask_names) - drained and not _is_known(ending, past)
    )


def _is_known(ending: Ending, past: Past) -> bool:
    too_long_s = ending.told_left_s - ending.left_s
    if too_long_s < -SLACK_S:
        return past.told >= set(ending.dask_names)
    return too_long_s <= SLACK_S
