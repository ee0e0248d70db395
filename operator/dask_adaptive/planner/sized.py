"""What the load asks for, and what there is, while some workers stand in for others."""

from __future__ import annotations

from collections.abc import Collection

from dask_adaptive.model.observed import ObservedGroup
from dask_adaptive.model.past import Past
from dask_adaptive.model.recycle import Recycle, Strategy
from dask_adaptive.planner.fleet import Fleet, is_replaced, on_the_way
from dask_adaptive.planner.quotas import Due
from dask_adaptive.planner.recycle import is_under_way


def wanted_now(wanted: int, fleet: Fleet, dues: Collection[Due], past: Past) -> int:
    """
    How many workers the load asks for, less those that are there only until others have left.

    `Scheduler.adaptive_target` never asks for fewer than have tasks: a replacement that works next
    to the worker that it replaces would be taken for demand, and each recycle would leave the
    cluster one worker larger.

    Args:
        wanted: What the load seems to ask for.
    """
    desired = past.of(fleet.name).desired
    if desired is None or not is_under_way(fleet, dues):
        return wanted
    floors = sum(w.name in past.floors for w in fleet.workers)
    return max(desired, wanted - floors) if desired < wanted <= fleet.in_service else wanted


def current_workers(
    fleet: Fleet, group: ObservedGroup, dues: Collection[Due], recycle: Recycle, past: Past,
    *, now: float,
) -> int:  # fmt: skip
    """
    How many workers there are to move from, as if none were being replaced; those that were asked
    for and are about to be made are among them.

    While some are, what was desired last says it best: neither one more, because a replacement has
    come, nor one fewer, because a worker is about to go. Without a past it is guessed.
    """
    if not is_under_way(fleet, dues):
        return fleet.serving + on_the_way(fleet, group, past, now=now)
    desired = past.of(fleet.name).desired
    if desired is not None:
        return desired
    if recycle.strategy is Strategy.IN_PLACE:
        return fleet.serving + sum(is_replaced(w) for w in fleet.retiring)
    surged = min(len(dues), max(1, recycle.max_surge.of(fleet.in_service)))
    return max(fleet.serving - surged, fleet.in_service)
