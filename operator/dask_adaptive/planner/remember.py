"""What to keep of one pass for the next: the only way in which the past changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dask_adaptive.model.observed import Leaving, ObservedCluster
from dask_adaptive.model.past import Past, Refusal
from dask_adaptive.model.plan import Delete, Leave, Outcome, Plan, Retire, SetReplicas
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast
from dask_adaptive.planner.behavior import BLIND_S
from dask_adaptive.planner.fleet import homed
from dask_adaptive.planner.group_past import remembered_group, renewed_group
from dask_adaptive.planner.recycled import remember_recycles

#: A worker whose retirement was refused is not asked again for so long.
REFUSED_S = 15.0

#: The same where there may be no other time, or where it is of little use meanwhile: its machine is
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
    past = homed(past, observed)
    if observed.scheduler.session != past.session or _was_blind(past, now=now):
        past = replace(renewed(past), session=observed.scheduler.session, since=now)
    if decided.reason is Reason.PAUSED:
        past = replace(past, since=now)  # nothing was recommended meanwhile
    groups = {
        plan.group: remembered_group(past, plan, observed, policy, outcomes, now=now)
        for plan in decided.groups
    }
    past = remember_recycles(past, observed, policy, decided, outcomes, now=now)
    present = {w.name for g in observed.groups for w in g.workers}
    leaving = _leaving(past, observed, outcomes)
    return homed(
        replace(
            past,
            groups=groups,
            refusals=_refusals(past, outcomes, now=now),
            leaving=leaving,
            deleted=(past.deleted & present) | _deleted(outcomes),
            told=_told(past, observed, outcomes),
        ),
        observed,
    )


def renewed(past: Past) -> Past:
    """The past as it is when a scheduler has started anew: what it was about is gone."""
    known = past.recycle
    kept = RecyclePast(
        begun=known.begun, totals=known.totals, aborted=known.aborted, ready_s=known.ready_s
    )
    return Past(
        groups={name: renewed_group(group) for name, group in past.groups.items()},
        leaving=past.leaving,
        homes=past.homes,
        recycle=kept,
        seen=past.seen,
        aborts=past.aborts,
        counted=past.counted,
    )


def _was_blind(past: Past, *, now: float) -> bool:
    last = [g.recommendations[-1].at for g in past.groups.values() if g.recommendations]
    seen_at = max(last, default=past.since)
    return seen_at is None or now - seen_at >= BLIND_S


def _refusals(past: Past, outcomes: Sequence[Outcome], *, now: float) -> dict[str, Refusal]:
    kept = {name: r for name, r in past.refusals.items() if r.until > now}
    for outcome in outcomes:
        if isinstance(outcome.action, Retire) and not outcome.done:
            reason = outcome.action.reason
            is_pressing = reason is Reason.NODE_GOING or reason.replaces
            until = now + (REFUSED_PRESSING_S if is_pressing else REFUSED_S)
            kept[outcome.action.worker] = Refusal(until, outcome.reason, outcome.message)
    return kept


def _leaving(past: Past, observed: ObservedCluster, outcomes: Sequence[Outcome]) -> frozenset[str]:
    """
    Names that, once they are missing, explain that `replicas` is too high.

    A number that was set since has taken those that are missing into account: they explain nothing
    any more, or workers that upstream is about to make would be taken for ones that we deleted.
    """
    workers = [w for g in observed.groups for w in g.workers]
    present = {w.name for w in workers}
    retiring = {w.name for w in workers if w.leaving is not Leaving.NO or w.going}
    settled = {g.name for g in observed.groups if g.replicas == len(g.workers)}
    settled |= {o.action.group for o in outcomes if isinstance(o.action, SetReplicas) and o.done}
    missing = {n for n in past.leaving - present if past.homes.get(n) not in settled}
    return frozenset(missing | retiring | past.deleted & present | _deleted(outcomes))


def _told(past: Past, observed: ObservedCluster, outcomes: Sequence[Outcome]) -> frozenset[str]:
    inside = {name for ending in observed.ending for name in ending.dask_names}
    now = {
        name
        for o in outcomes
        if isinstance(o.action, Leave) and o.done
        for name in o.action.dask_names
    }
    return (past.told & inside) | now


def _deleted(outcomes: Sequence[Outcome]) -> frozenset[str]:
    return frozenset(o.action.worker for o in outcomes if isinstance(o.action, Delete) and o.done)
