"""What to keep of one pass for the next about one group that is scaled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.past import GroupPast, Past
from dask_adaptive.model.plan import Cancel, Delete, GroupPlan, Outcome, Retire, SetReplicas
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.arrivals import arrival_s, at_least
from dask_adaptive.planner.behavior import BLIND_S, remembered
from dask_adaptive.planner.fleet import gap_of


def remembered_group(
    past: Past, plan: GroupPlan, observed: ObservedCluster, policy: Policy,
    outcomes: Iterable[Outcome], *, now: float,
) -> GroupPast:  # fmt: skip
    """
    One group's past as the next pass should see it.

    Args:
        past: That of the scheduler which is observed, with the group's as it was.
    """
    mine, group = past.of(plan.group), observed.group(plan.group) or ObservedGroup(plan.group, 0)
    gap = gap_of(group)
    mine = replace(
        mine,
        gap=gap,
        gap_since=mine.gap_since if gap == mine.gap else now,
        arrival_s=at_least(arrival_s(mine.arrival_s, past, group.workers), past, group.workers),
    )
    if plan.is_frozen:
        if plan.reason is Reason.PAUSED:
            return replace(mine, since=None, recommendations=(), desired=None)
        return mine  # what was recommended grows too old to count
    if _was_blind(mine, now=now):
        mine = replace(mine, since=now, recommendations=())
    bounds = policy.bounds(observed.key.default_group)
    idle_timeout_s = next((policy.idle_timeout_of(b) for b in bounds if b.name == plan.group), 0.0)
    mine = remembered(
        mine, wanted=plan.wanted, before=plan.current, after=_after(plan, group, outcomes),
        behavior=policy.scaling.behavior, idle_timeout_s=idle_timeout_s, now=now,
    )  # fmt: skip
    return replace(mine, desired=plan.desired, blocked=plan.blocked)


def renewed_group(past: GroupPast) -> GroupPast:
    """What is still true of a group when its scheduler has started anew: all but the load."""
    return GroupPast(
        changes=past.changes, up_at=past.up_at, arrival_s=past.arrival_s, blocked=past.blocked
    )


def _was_blind(mine: GroupPast, *, now: float) -> bool:
    if mine.since is None:
        return True
    last = mine.recommendations[-1].at if mine.recommendations else mine.since
    return now - last >= BLIND_S


def _after(plan: GroupPlan, group: ObservedGroup, outcomes: Iterable[Outcome]) -> int:
    """The workers of a group after what was asked for, and got; recycles change no number."""
    names = {w.name for w in group.workers}
    more = fewer = 0
    for outcome in outcomes:
        action = outcome.action
        if not outcome.done:
            continue
        if isinstance(action, SetReplicas):
            if action.group == plan.group and action.reason is not Reason.REPLICAS_CORRECTED:
                more += max(0, action.replicas - max(group.replicas, len(group.workers)))
        elif isinstance(action, Cancel | Retire | Delete) and action.worker in names:
            more += isinstance(action, Cancel)
            fewer += action.reason in {Reason.UNDERUTILIZED, Reason.NEVER_CONNECTED}
    if plan.desired > plan.current:
        return min(plan.desired, plan.current + more)
    return max(plan.desired, plan.current - fewer)
