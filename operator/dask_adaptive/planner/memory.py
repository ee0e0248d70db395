"""Computes the past that the next pass sees; nothing else changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dask_adaptive.model.observed import Deleting, ObservedCluster, ObservedGroup, Retiring
from dask_adaptive.model.past import GroupPast, Past, Refusal
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    GroupPlan,
    Leave,
    Outcome,
    Plan,
    Retire,
    SetReplicas,
)
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast
from dask_adaptive.planner.actions.groups import gap_of, with_worker_groups
from dask_adaptive.planner.context import Horizon, PassContext
from dask_adaptive.planner.number.behavior import BLIND_S, remembered
from dask_adaptive.planner.number.capacity import arrival_s, at_least_as_long, starts
from dask_adaptive.planner.number.idle_time import STARTS
from dask_adaptive.planner.recycling.past import remember_recycles

#: A worker whose retirement was refused is not asked again for so long.
REFUSED_S = 15.0

#: The same where there may be no other time, or where it is of little use meanwhile: its node is
#: about to go, or its quota has run out.
REFUSED_PRESSING_S = 5.0


def remember(
    past: Past,
    observed: ObservedCluster,
    policy: Policy,
    decided: Plan,
    outcomes: Sequence[Outcome],
    *,
    now: float,
) -> Past:
    """The past as the next pass should see it. A scheduler that started anew has none."""
    if observed.group(observed.key.default_group) is None or not observed.scheduler.is_connected:
        # Without an answer nothing new is known; what was is kept, so that a short outage does
        # not lengthen the window, and a long one ends with recommendations too old to count.
        return past
    past = with_worker_groups(past, observed)
    if observed.scheduler.session != past.session or is_blind(past, now=now):
        past = replace(renewed(past), session=observed.scheduler.session, since=now)
    if decided.reason is Reason.PAUSED:
        past = replace(past, since=now)  # nothing was recommended meanwhile
    done = [outcome.action for outcome in outcomes if outcome.done]
    context = PassContext(observed, policy, past, Horizon(now, observed.clocks))
    groups = {plan.group: _remembered_group(context, plan, done) for plan in decided.groups}
    present = {w.name for g in observed.groups for w in g.workers}
    deleted = frozenset(a.worker for a in done if isinstance(a, Delete))
    inside = {name for pod in observed.terminating for name in pod.dask_names}
    told = {name for a in done if isinstance(a, Leave) for name in a.dask_names}
    past = replace(
        remember_recycles(past, observed, policy, decided, outcomes, now=now),
        heard_at=now,
        groups=groups,
        refusals=_refusals(past, outcomes, now=now),
        leaving=_leaving(context, done) | deleted,
        deleted=(past.deleted & present) | deleted,
        told=(past.told & inside) | told,
    )
    return with_worker_groups(past, observed)


def heard(past: Past, *, now: float) -> Past:
    """
    The past once the scheduler has answered that nothing has changed since the last pass.

    What the load asked for then it has asked for until now. Without this, passes that are seldom
    would look like an outage, and a window like one that nobody has watched.
    """
    groups = {}
    for name, mine in past.groups.items():
        for last in mine.recommendations[-1:]:
            if last.at == past.heard_at:  # else nothing has been recommended since: it is frozen
                lasting = (*mine.recommendations[:-1], last._replace(at=now))
                mine = replace(mine, recommendations=lasting)
        groups[name] = mine
    return replace(past, groups=groups, heard_at=now)


def renewed(past: Past) -> Past:
    """The past as it is when a scheduler has started anew: what it was about is gone."""
    known = past.recycle
    # All but the load is still true of a group.
    groups = {
        name: GroupPast(
            changes=mine.changes,
            up_at=mine.up_at,
            arrival_s=mine.arrival_s,
            starts=mine.starts,
            blocked=mine.blocked,
        )
        for name, mine in past.groups.items()
    }
    kept = RecyclePast(
        begun=known.begun, totals=known.totals, aborted=known.aborted, ready_s=known.ready_s
    )
    return Past(
        groups=groups,
        leaving=past.leaving,
        homes=past.homes,
        recycle=kept,
        seen=past.seen,
        lost=past.lost,
        awaited=past.awaited,
        aborts=past.aborts,
        counted=past.counted,
    )


def is_blind(past: Past, *, now: float) -> bool:
    """Tells whether the scheduler was heard so long ago that a memory of its load says nothing."""
    last = [g.recommendations[-1].at for g in past.groups.values() if g.recommendations]
    last += [] if past.heard_at is None else [past.heard_at]
    return _is_old(max(last, default=past.since), now=now)


def _is_old(last_at: float | None, *, now: float) -> bool:
    return last_at is None or now - last_at >= BLIND_S


def _refusals(past: Past, outcomes: Sequence[Outcome], *, now: float) -> dict[str, Refusal]:
    kept = {name: r for name, r in past.refusals.items() if r.until > now}
    for outcome in outcomes:
        if isinstance(outcome.action, Retire) and not outcome.done:
            reason = outcome.action.reason
            is_pressing = reason is Reason.NODE_GOING or reason.replaces
            until = now + (REFUSED_PRESSING_S if is_pressing else REFUSED_S)
            kept[outcome.action.worker] = Refusal(until, outcome.reason, outcome.message)
    return kept


def _leaving(context: PassContext, done: Sequence[Action]) -> frozenset[str]:
    """
    Names that, once they are missing, explain that `replicas` is too high.

    A number that was set since has taken those that are missing into account: they explain nothing
    any more, or workers that upstream is about to make would be taken for ones that we deleted.
    """
    past, groups = context.past, context.observed.groups
    workers = [w for g in groups for w in g.workers]
    present = {w.name for w in workers}
    retiring = {w.name for w in workers if isinstance(w.lifecycle, (Retiring, Deleting))}
    settled = {g.name for g in groups if g.replicas == len(g.workers)}
    settled |= {a.group for a in done if isinstance(a, SetReplicas)}
    missing = {n for n in past.leaving - present if past.homes.get(n) not in settled}
    return frozenset(missing | retiring | past.deleted & present)


def _remembered_group(context: PassContext, plan: GroupPlan, done: Sequence[Action]) -> GroupPast:
    """One group's past as the next pass should see it."""
    observed, policy, past, now = context.observed, context.policy, context.past, context.now
    mine, group = past.of(plan.group), observed.group(plan.group) or ObservedGroup(plan.group, 0)
    clocks = observed.clocks
    gap, new = gap_of(group), starts(past, group.workers, clocks, now=now)
    measured_s = arrival_s(mine.arrival_s, new)
    mine = replace(
        mine,
        gap=gap,
        gap_since=mine.gap_since if gap == mine.gap else now,
        arrival_s=at_least_as_long(measured_s, past, group.workers, clocks, now=now),
        starts=(*mine.starts, *new)[-STARTS:],
    )
    if plan.desired > plan.serving and any(
        isinstance(action, SetReplicas)
        and action.group == plan.group
        and action.reason is Reason.REPLICAS_CORRECTED
        for action in done
    ):
        mine = replace(mine, corrected_at=now)
    if plan.is_frozen:
        if plan.reason is Reason.PAUSED:
            return replace(mine, since=None, recommendations=(), desired=None)
        return mine  # what was recommended grows too old to count
    last_at = mine.recommendations[-1].at if mine.recommendations else mine.since
    if mine.since is None or _is_old(last_at, now=now):
        mine = replace(mine, since=now, recommendations=())
    bounds = next(b for b in policy.bounds(context.default_group) if b.name == plan.group)
    mine = remembered(
        mine, wanted=plan.wanted, before=plan.current, after=_after(plan, group, done),
        behavior=policy.behavior, idle_timeout_s=bounds.idle_timeout_s, now=now,
    )  # fmt: skip
    return replace(mine, desired=plan.desired, blocked=plan.blocked)


def _after(plan: GroupPlan, group: ObservedGroup, done: Sequence[Action]) -> int:
    """The workers of a group after what was asked for, and got; recycles change no number."""
    names = {w.name for w in group.workers}
    more = fewer = 0
    for action in done:
        if isinstance(action, SetReplicas):
            if action.group == plan.group and action.reason is not Reason.REPLICAS_CORRECTED:
                more += max(0, action.replicas - max(group.replicas, len(group.workers)))
        elif isinstance(action, Cancel | Retire | Delete) and action.worker in names:
            more += isinstance(action, Cancel)
            fewer += action.reason.is_surplus
    if plan.desired > plan.current:
        return min(plan.desired, plan.current + more)
    return max(plan.desired, plan.current - fewer)
