"""Computes the past that the next pass sees; nothing else changes it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dask_adaptive.model.observed import Deleting, ObservedGroup, ObservedWorker, Retiring
from dask_adaptive.model.past import GroupPast, Past, Refusal
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    GroupPlan,
    Leave,
    Outcome,
    Plan,
    Restart,
    Retire,
    SetReplicas,
)
from dask_adaptive.model.reason import SURPLUS, Reason
from dask_adaptive.model.recycle import RecyclePast
from dask_adaptive.planner.behavior import BLIND_S, remembered
from dask_adaptive.planner.capacity import SEEN_S, arrival_s, at_least_as_long, starts
from dask_adaptive.planner.context import STARTS, PassContext
from dask_adaptive.planner.groups import gap_of, with_worker_groups
from dask_adaptive.planner.quotas import life_of, paced_over_s
from dask_adaptive.planner.replace import HOUR_S

#: Wait before a refused retirement is requested again.
REFUSED_S = 15.0

#: The same for urgent ones: the node terminates, or the quota has run out.
REFUSED_PRESSING_S = 5.0


def remember(
    context: PassContext, decided: Plan, outcomes: Sequence[Outcome], *, now: float
) -> Past:
    """Return the past for the next pass. A restarted scheduler begins with none."""
    observed, past = context.observed, context.past
    if observed.group(context.default_group) is None or not observed.scheduler.is_connected:
        # Without an answer keep the past: a short outage does not lengthen the window, and after a
        # long one the recommendations are too old to count.
        return past
    past = with_worker_groups(past, observed)
    if observed.scheduler.session != past.session or is_blind(past, now=now):
        past = replace(renewed(past), session=observed.scheduler.session, since=now)
    if decided.reason is Reason.PAUSED:
        past = replace(past, since=now)  # nothing was recommended meanwhile
    done = [outcome.action for outcome in outcomes if outcome.done]
    context = replace(context, past=past, now=now)
    new = {g.name: starts(past, g.table, context.clocks, now=now) for g in observed.groups}
    groups = {
        plan.group: _remembered_group(context, plan, done, new.get(plan.group, []))
        for plan in decided.groups
    }
    deleted = frozenset(a.worker for a in done if isinstance(a, Delete))
    inside = {name for pod in observed.terminating for name in pod.dask_names}
    announced = {name for a in done if isinstance(a, Leave) for name in a.dask_names}
    past = replace(
        _with_recycles(context, decided, done, [s for mine in new.values() for s in mine]),
        heard_at=now,
        groups=groups,
        refusals=_refusals(past, outcomes, now=now),
        leaving=_leaving(context, done) | deleted,
        deleted=deleted.union(n for n in past.deleted if observed.worker(n)),
        announced=(past.announced & inside) | announced,
    )
    return with_worker_groups(past, observed)


def changes_memory(context: PassContext, decided: Plan) -> bool:
    """
    True if this pass changes the memory, apart from noting that time has passed.

    What was done is not known yet. To ask whether `remember` gives another past would not do: one
    that is paused, or has workers that run tasks, notes each pass.
    """
    past, scheduler = context.past, context.observed.scheduler
    if not decided.groups or not scheduler.is_connected:
        return False
    if past.session != scheduler.session or is_blind(past, now=context.now):
        return True
    for group in (g for g in decided.groups if not g.is_frozen):
        mine = past.of(group.group)
        if (group.desired, group.blocked) != (mine.desired, mine.blocked):
            return True
        if mine.since is None or group.current > (mine.requested or 0):
            return True
    if any(group.table.unseen(past.seen) for group in context.observed.groups):
        return True  # how long it took to come is measured
    is_waiting = decided.waiting != past.recycle.surging_since.keys()
    return is_waiting or decided.floors != past.floors or bool(decided.aborting)


def heard(past: Past, *, now: float) -> Past:
    """
    Return the past after the scheduler reported no change since the last pass.

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
    """Return the past for a restarted scheduler: memories of its load are dropped."""
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
    kept = replace(past.recycle, above_since={}, pace={}, surging_since={})
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
    """True if the scheduler last answered too long ago to remember its load."""
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
    Return names that explain, once they are missing, why `replicas` is too high.

    A number that was set since has taken those that are missing into account: they explain nothing
    any more, or workers that upstream is about to make would be taken for ones that we deleted.
    """
    past, observed, groups = context.past, context.observed, context.observed.groups
    retiring = {w.name for w in observed.notable if isinstance(w.lifecycle, (Retiring, Deleting))}
    settled = {g.name for g in groups if g.replicas == len(g.workers)}
    settled |= {a.group for a in done if isinstance(a, SetReplicas)}
    unsettled = (name for name in past.leaving if past.homes.get(name) not in settled)
    missing = {name for name in unsettled if observed.worker(name) is None}
    return frozenset(missing | retiring).union(n for n in past.deleted if observed.worker(n))


def _remembered_group(
    context: PassContext, plan: GroupPlan, done: Sequence[Action], new: Sequence[float]
) -> GroupPast:
    """Return one group's past for the next pass; `new` are the starts that it has seen."""
    observed, policy, past, now = context.observed, context.policy, context.past, context.now
    mine, group = past.of(plan.group), observed.group(plan.group) or ObservedGroup(plan.group, 0)
    gap = gap_of(group)
    measured_s = arrival_s(mine.arrival_s, new)
    mine = replace(
        mine,
        gap=gap,
        gap_since=mine.gap_since if gap == mine.gap else now,
        arrival_s=at_least_as_long(measured_s, past, group.table.notable, context.clocks, now=now),
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
    """Return a group's workers after the completed actions; recycles change no number."""
    more = fewer = 0
    for action in done:
        if isinstance(action, SetReplicas):
            if action.group == plan.group and action.reason is not Reason.REPLICAS_CORRECTED:
                more += max(0, action.replicas - max(group.replicas, len(group.workers)))
        elif isinstance(action, Cancel | Retire | Delete) and group.table.named([action.worker]):
            more += isinstance(action, Cancel)
            fewer += action.reason in SURPLUS
    if plan.desired > plan.current:
        return min(plan.desired, plan.current + more)
    return max(plan.desired, plan.current - fewer)


# Of workers their use of quotas, of recycles how they went

#: Shortest time between passes that measures a pace.
SHORTEST_S = 1.0

#: Longest wait before a failed replacement is tried again.
LONGEST_S = 3600.0

#: Requests of people, which maxPerHour does not count.
_ASKED = frozenset({Reason.RECYCLE_REQUESTED, Reason.DRIFTED})

Pace = tuple[float, int, float]


def _with_recycles(
    context: PassContext, decided: Plan, done: Sequence[Action], new: Sequence[float]
) -> Past:
    """Return the past of recycles, without workers that are gone."""
    past, now, observed = context.past, context.now, context.observed
    replaced = [a for a in done if isinstance(a, Retire) and a.reason.replaces]
    begun, counted = _begun(context, replaced)
    aborted, aborts = _aborted(context, decided)
    if any(a.worker in decided.floors and a.worker not in decided.waiting for a in replaced):
        aborted, aborts = {}, {}  # its replacement is there: they can be made (again)
    above_since, pace = _quota_uses(context)
    automatic = [now for reason in begun if reason not in _ASKED]
    since = past.recycle.surging_since
    waiting = decided.waiting - decided.aborting.keys()
    absent = [w for w in observed.notable if not w.dask_names]
    lost = {w.name: past.lost.get(w.name, now) for w in absent if w.name in past.seen}
    connected = observed.connected
    return replace(
        past,
        seen=connected.union(lost) if lost else connected,
        lost=lost,
        awaited={
            # A gated worker starts when its gate opens, which is seen at once.
            w.name: now + SEEN_S if w.platform.gated else past.awaited.get(w.name, now)
            for w in absent
            if w.name not in lost
        },
        floors=dict(decided.floors),
        aborts=aborts,
        counted=counted,
        restarted=_restarted(context, done),
        recycle=RecyclePast(
            begun=(*(at for at in past.recycle.begun if now - at < HOUR_S), *automatic),
            totals=Counter(begun) + Counter(past.recycle.totals),
            above_since=above_since,
            pace=pace,
            surging_since={name: since.get(name, now) for name in waiting},
            aborted=aborted,
            ready_s=arrival_s(past.recycle.ready_s, new),
        ),
    )


def _begun(context: PassContext, replaced: Sequence[Retire]) -> tuple[list[Reason], dict[str, str]]:
    """Return the reasons of recycles begun in this pass, each pod's only once."""
    reasons, observed = [], context.observed
    counted = {n: pod for n, pod in context.past.counted.items() if observed.worker(n)}
    for action in replaced:
        worker = observed.worker(action.worker)
        life = life_of(worker) if worker else ""
        if counted.get(action.worker) != life:
            counted[action.worker] = life
            reasons.append(action.reason)
    return reasons, counted


def _aborted(
    context: PassContext, decided: Plan
) -> tuple[dict[str, tuple[float, str]], dict[str, int]]:
    """Return back-offs, doubled each time whichever replacement failed to come."""
    past, now, find = context.past, context.now, context.observed.worker
    known = past.recycle.aborted
    aborted = {n: a for n, a in known.items() if a[0] > now and find(n)}
    aborts = {n: count for n, count in past.aborts.items() if find(n)}
    count = max(past.aborts.values(), default=0)
    for name, worker in [(name, find(name)) for name in decided.aborting]:
        if worker is None:
            continue
        first_s = context.policy.recycle_of(worker.platform.group).strategy.ready_timeout_s
        until = now + min(first_s * 2 ** min(count, 12), LONGEST_S)
        aborted[name], aborts[name] = (until, decided.aborting[name]), count + 1
    return aborted, aborts


def _restarted(context: PassContext, done: Sequence[Action]) -> dict[str, str]:
    """Return the pods that we deleted while the scheduler still shows their processes."""
    leaving = {w.name for w in context.observed.notable if isinstance(w.lifecycle, Retiring)}
    kept = {n: pod for n, pod in context.past.restarted.items() if n in leaving}
    return kept | {a.worker: a.pod_uid for a in done if isinstance(a, Restart)}


def _quota_uses(context: PassContext) -> tuple[dict[str, float], dict[str, Pace]]:
    """Return since when workers are above the soft line of memory, and their paces, by life."""
    past, now = context.past.recycle, context.now
    above_since: dict[str, float] = {}
    pace: dict[str, Pace] = {}
    for group in context.observed.groups:
        recycle = context.policy.recycle_of(group.name)
        if not recycle.tasks.max and math.isinf(recycle.memory.soft):
            continue
        for worker in group.workers:
            if not worker.dask_names or isinstance(worker.lifecycle, Deleting):
                continue
            life = life_of(worker)
            known, age_s = past.pace.get(life), context.clocks.pod_age_s(worker)
            pace[life] = _pace(known, worker, age_s=age_s, over_s=paced_over_s(past), now=now)
            if worker.use.unmanaged >= recycle.memory.soft:
                # A new process, perhaps in the same pod, starts with empty memory.
                is_new = known is None or worker.use.runs < known[1]
                above_since[life] = now if is_new else past.above_since.get(life, now)
    return above_since, pace


def _pace(
    known: Pace | None, worker: ObservedWorker, *, age_s: float, over_s: float, now: float
) -> Pace:
    """
    The instant at which a worker last worked, its runs by then, and its runs a second while it
    has tasks.
    """
    runs = worker.use.runs
    if known is None:
        return now, runs, runs / age_s if age_s > 0 else 0.0
    at, before, pace = known
    if now - at < SHORTEST_S:
        return known
    if runs == before and not worker.process.processing:
        return known  # it rests: `TaskRuns` says for how long its pace counts
    if runs < before or now - at > over_s:
        return now, runs, pace  # another process, or a rest: what lies between was no work
    weight = 1 - math.exp((at - now) / over_s)
    pace += weight * ((runs - before) / (now - at) - pace)
    # An average that starts at zero is too slow for a worker that is spent within seconds.
    is_young = 0 < age_s < 3 * over_s
    return now, runs, max(pace, runs / age_s) if is_young else pace
