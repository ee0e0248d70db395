"""More workers: first those that were about to leave, then new ones."""

from __future__ import annotations

from dataclasses import dataclass

from dask_adaptive.model.plan import Action, Cancel, SetReplicas
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.fleet import Fleet, is_replaced


@dataclass(frozen=True, slots=True)
class Rise:
    reason: Reason
    message: str
    actions: tuple[Action, ...] = ()


def rise(fleet: Fleet, desired: int, cause: tuple[Reason, str], *, is_unsettled: bool) -> Rise:
    """
    Bring the workers that serve up to `desired`, which is above their number now.

    Args:
        desired: Workers that shall serve.
        cause: What asks for them, in the first place.
        is_unsettled: Upstream may still be at work on an earlier change of `replicas`, or a worker
            that we deleted is still to be seen.
    """
    missing = desired - fleet.serving
    back = _called_back(fleet, missing)
    missing -= len(back)
    reason, message = _why(fleet, desired, cause)
    goal = fleet.present + missing
    if not missing:
        return Rise(back[0].reason, back[0].message, back)
    if fleet.handled not in (None, fleet.replicas) and goal == fleet.handled:
        # kopf compares with what it has handled last: if it sees the number only when it is that
        # again, it sees no change, and no worker is made. First it has to see the one before.
        seen = f"{goal} are needed, once {fleet.replicas} replicas are handled"
        return Rise(Reason.SETTLING, seen, back)
    if goal > fleet.replicas:
        return Rise(reason, message, (*back, SetReplicas(fleet.name, goal, reason, message)))
    if is_unsettled:
        on_the_way = f"{fleet.gap} workers were asked for and do not exist yet"
        return Rise(Reason.SETTLING, on_the_way, back)
    # Upstream acts on changes of `replicas` only. Here the number stands at or above the goal and
    # nobody is at work on it, so it is first told the truth; from there the next pass can rise.
    number = goal if goal < fleet.replicas else fleet.present
    corrected = f"{fleet.present} workers exist, {fleet.replicas} are asked for, {goal} are needed"
    return Rise(
        reason,
        message,
        (*back, SetReplicas(fleet.name, number, Reason.REPLICAS_CORRECTED, corrected)),
    )


def _why(fleet: Fleet, desired: int, cause: tuple[Reason, str]) -> tuple[Reason, str]:
    leaving = len(fleet.doomed) + sum(w.name in fleet.on_doomed_nodes for w in fleet.retiring)
    if leaving and desired <= fleet.serving + leaving:
        going = f"{leaving} workers are on nodes that are about to go"
        return Reason.NODE_GOING, f"{going}: {desired - fleet.serving} more are needed"
    replaced = len(fleet.replaced) + len(fleet.retiring) - fleet.leaving_unneeded
    if replaced and desired <= fleet.serving + replaced + leaving:
        going = f"{replaced} workers are to be replaced"
        return Reason.RECYCLING, f"{going}: {desired - fleet.serving} more must come first"
    return cause


def _called_back(fleet: Fleet, missing: int) -> tuple[Cancel, ...]:
    # Those with the most data first: they are the dearest to lose and the furthest from done. None
    # whose machine goes, or whose quota has run out: it would have to leave once more.
    free = [w for w in fleet.retiring if w.name not in fleet.on_doomed_nodes and not is_replaced(w)]
    order = sorted(free, key=lambda w: (-w.sole_bytes, w.name))
    return tuple(
        Cancel(w.name, w.dask_names, Reason.WANTED_AGAIN, "wanted again before it had left")
        for w in order[:missing]
    )
