"""What to keep of one pass for the next: the only way in which the past changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dask_adaptive.model.observed import Leaving, ObservedCluster
from dask_adaptive.model.past import Past, Recommendation, Refusal
from dask_adaptive.model.plan import Delete, Leave, Outcome, Plan, Retire, SetReplicas
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast
from dask_adaptive.planner.fleet import gap_of
from dask_adaptive.planner.recycled import remember_recycles
from dask_adaptive.planner.stabilize import BLIND_S

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
    group = observed.group(observed.key.default_group)
    if group is None or not observed.scheduler.is_connected:
        # Without an answer nothing new is known; what was is kept, so that a short outage does
        # not lengthen the window, and a long one ends with recommendations too old to count.
        return past
    if observed.scheduler.session != past.session or _was_blind(past, now=now):
        past = replace(renewed(past), session=observed.scheduler.session, since=now)
    if decided.reason is Reason.PAUSED:
        past = replace(past, since=now, recommendations=())  # nothing was recommended meanwhile
    gap = gap_of(group)
    past = remember_recycles(past, observed, policy, decided, outcomes, now=now)
    return replace(
        past,
        recommendations=_recommendations(past, decided, policy, now=now),
        refusals=_refusals(past, outcomes, now=now),
        leaving=_leaving(past, observed, outcomes, is_settled=gap[0] == gap[1]),
        deleted=(past.deleted & {w.name for w in group.workers}) | _deleted(outcomes),
        told=_told(past, observed, outcomes),
        gap=gap,
        gap_since=past.gap_since if gap == past.gap else now,
    )


def renewed(past: Past) -> Past:
    """The past as it is when a scheduler has started anew: what it was about is gone."""
    known = past.recycle
    kept = RecyclePast(
        begun=known.begun, totals=known.totals, aborted=known.aborted, ready_s=known.ready_s
    )
    return Past(leaving=past.leaving, recycle=kept, aborts=past.aborts, counted=past.counted)


def _was_blind(past: Past, *, now: float) -> bool:
    last = past.recommendations[-1].at if past.recommendations else past.since
    return last is None or now - last >= BLIND_S


def _recommendations(
    past: Past, decided: Plan, policy: Policy, *, now: float
) -> tuple[Recommendation, ...]:
    if decided.reason is Reason.PAUSED:
        return ()
    recent = [r for r in past.recommendations if now - r.at < policy.idle_timeout_s]
    # A recommendation that an equal or higher later one covers can never be the window's maximum.
    while recent and recent[-1].replicas <= decided.wanted:
        recent.pop()
    return (*recent, Recommendation(now, decided.wanted))


def _refusals(past: Past, outcomes: Sequence[Outcome], *, now: float) -> dict[str, Refusal]:
    kept = {name: r for name, r in past.refusals.items() if r.until > now}
    for outcome in outcomes:
        if isinstance(outcome.action, Retire) and not outcome.done:
            reason = outcome.action.reason
            is_pressing = reason is Reason.NODE_GOING or reason.replaces
            until = now + (REFUSED_PRESSING_S if is_pressing else REFUSED_S)
            kept[outcome.action.worker] = Refusal(until, outcome.reason, outcome.message)
    return kept


def _leaving(
    past: Past, observed: ObservedCluster, outcomes: Sequence[Outcome], *, is_settled: bool
) -> frozenset[str]:
    """
    Names that, once they are missing, explain that `replicas` is too high.

    A number that was set since has taken those that are missing into account: they explain nothing
    any more, or workers that upstream is about to make would be taken for ones that we deleted.
    """
    workers = [w for g in observed.groups for w in g.workers]
    present = {w.name for w in workers}
    retiring = {w.name for w in workers if w.leaving is not Leaving.NO or w.going}
    is_set = any(isinstance(o.action, SetReplicas) and o.done for o in outcomes)
    missing = frozenset() if is_settled or is_set else past.leaving - present
    return missing | retiring | past.deleted & present | _deleted(outcomes)


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
