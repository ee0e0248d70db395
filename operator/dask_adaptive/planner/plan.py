"""Decide what to do with one cluster: `plan` is the one entry of this package."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dask_adaptive.model.amounts import counted
from dask_adaptive.model.observed import ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import (
    Action,
    Arriving,
    Blocker,
    Cancel,
    Claimed,
    GroupPlan,
    Plan,
    Retire,
    SetReplicas,
    Step,
)
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive.model.scaling import GroupBounds, IdleAction
from dask_adaptive.planner.budgets import RecycleContext, left_this_hour
from dask_adaptive.planner.caps import (
    deletion,
    fallback_floor,
    is_paused,
    paused_step,
    scheduled_floor,
)
from dask_adaptive.planner.context import Horizon, PassContext, scaled_groups
from dask_adaptive.planner.groups import on_the_way, sort_workers, with_worker_groups
from dask_adaptive.planner.leave import sync_pins, tell_endings
from dask_adaptive.planner.limits import limits_for
from dask_adaptive.planner.load import loads
from dask_adaptive.planner.memory import is_blind, renewed
from dask_adaptive.planner.next_step import NextStep, next_step
from dask_adaptive.planner.replace import (
    GroupRecycling,
    recycle_group,
    recycle_unscaled,
)
from dask_adaptive.planner.stages import Draft, drafts_of, telling

#: Fewer workers that are away never stop anything: in a small cluster one is soon a large part.
AWAY_LEAST = 3

#: A lost worker is waited for for so long; one without a node for `unschedulableTimeout`.
LOST_S = 600.0

#: A worker that takes so many times longer than others did is not counted on any more.
LATE = 3.0

#: One that is late is expected within this part of what others took.
SOON = 0.25

#: What is expected is told again after so long: an agent gives up workers that are overdue.
OVERDUE_S = 3.0

#: The next pass is made so soon where it starts from another memory than this one.
AGAIN_S = 1.0


def plan(observed: ObservedCluster, policy: Policy, past: Past, *, now: float) -> Plan:
    """
    Turn one observation into a plan. Total: every input has a plan, and every plan a reason.

    Args:
        observed: The cluster, platform and scheduler joined.
        policy: What the user asked for, `in_numbers`.
        past: What earlier passes remembered; an empty one only delays.
        now: Seconds, on the clock that stamped `past`.

    Returns:
        A plan that holds until its `valid_until`: made again at any instant before, from `aged` of
        the same observation and the same past (or what `remember` makes of it, kept up by `heard`),
        it is the same, but for figures that count time: ages and ends in messages, what is left of
        limits, expected arrivals, the use of lifetimes.
    """
    horizon = Horizon(now, observed.clocks)
    context = PassContext(observed, policy, with_worker_groups(past, observed), horizon)
    decided = _planned(context)
    if _is_new(decided, context):
        horizon.within(AGAIN_S)
    return replace(decided, valid_until=horizon.at)


def _planned(context: PassContext) -> Plan:
    observed, policy, past = context.observed, context.policy, context.past
    _note_ends(context)
    if (stop := _cannot_decide(context)) is not None:
        return stop

    always = (*tell_endings(context), *sync_pins(context))
    if past.session != observed.scheduler.session:
        # Another scheduler's load says nothing about this one's.
        context = replace(context, past=renewed(past))
    if (still := _held(context)) is not None:
        return replace(still, actions=(*always, *still.actions))
    decided = _scaled(context)
    if policy.mode is Mode.ADVISE:
        returned = _all_returned(context, Reason.ADVISING, "the policy only advises")
        return _as_advice(decided, (*always, *returned))
    return replace(decided, actions=(*always, *decided.actions))


def _note_ends(context: PassContext) -> None:
    """When the observation itself changes: a pause, a pin or a note of somebody's ends."""
    observed, within = context.observed, context.horizon.within
    if observed.changes_in_s > 0:
        within(observed.changes_in_s)
    if is_paused(observed.pause) and observed.pause.left_s is not None:
        within(observed.pause.left_s)
    workers = (w for group in observed.groups for w in group.workers if w.pins or w.manual_pin)
    for worker in workers:
        for pin in worker.pins:
            within(pin.until - observed.scheduler.at)
        if worker.manual_pin is not None:
            within(worker.manual_pin.until - observed.at)


def _is_new(decided: Plan, context: PassContext) -> bool:
    """Tells whether what is remembered of this pass is not what it started from."""
    past, scheduler = context.past, context.observed.scheduler
    if not decided.groups or not scheduler.is_connected:
        return False
    if past.session != scheduler.session or is_blind(past, now=context.now):
        return True
    for group in (g for g in decided.groups if not g.is_frozen):
        mine = past.of(group.group)
        if (group.desired, group.blocked) != (mine.desired, mine.blocked):
            return True
        if mine.since is None or group.current > (mine.asked or 0):
            return True
    seen, groups = past.seen, context.observed.groups
    if any(w.name not in seen and w.dask_names for g in groups for w in g.workers):
        return True  # how long it took to come is measured
    is_waiting = decided.waiting != past.recycle.surging_since.keys()
    return is_waiting or decided.floors != past.floors or bool(decided.aborting)


def count_blockers(blockers: Sequence[Blocker]) -> tuple[tuple[Reason, int], ...]:
    """Count the workers that stay, by reason: most first, then by the reason's word."""
    counts = Counter(b.reason for b in blockers)
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0].value)))


def _scaled(context: PassContext) -> Plan:
    observed, policy = context.observed, context.policy
    drafts = drafts_of(context)
    left = left_this_hour(context)
    leaving = sum(not w.is_replaced for draft in drafts for w in draft.workers.retiring)
    recycled: list[GroupRecycling] = []
    steps: list[NextStep] = []
    for draft in drafts:
        at = RecycleContext(context, draft.workers.group, draft.number, left, is_scaled=True)
        mine = recycle_group(draft.workers, draft.assessment, at)
        step = next_step(context, draft, mine, leaving=leaving)
        left = mine.left
        begun = [a for a in step.actions if isinstance(a, Retire)]
        leaving += sum(a.reason.is_surplus for a in begun)
        recycled.append(mine)
        steps.append(step)
    rest = recycle_unscaled(context, scaled={draft.name for draft in drafts}, left=left)
    decided = _cluster_plan(context, steps, (*recycled, *rest))
    decided = replace(decided, arriving=_arriving(drafts, decided.actions, context))
    end = deletion(observed, policy, context.horizon)  # in mode Advise this is advice, too
    if end is None:
        return decided
    # Nobody uses the cluster: it goes as a whole, and nothing else is done to it.
    return replace(decided, reason=end.reason, message=end.message, actions=(end,))


# Plans that scale nothing: too little, or something wrong, is known; somebody, or a gate, holds it


def _cannot_decide(context: PassContext) -> Plan | None:
    """The plans that touch no worker."""
    observed = context.observed
    if not observed.found:
        missing = f"there is no DaskCluster {observed.key.name}; waiting for it"
        return Plan(Reason.CLUSTER_NOT_FOUND, missing)
    if observed.conflict:
        return Plan(Reason.OWNERSHIP_CONFLICT, observed.conflict)
    if observed.group(context.default_group) is None:
        missing = f"the cluster has no worker group {context.default_group} yet"
        return Plan(Reason.CLUSTER_NOT_FOUND, missing)
    return None if observed.scheduler.is_connected else _blind(context)


def _held(context: PassContext) -> Plan | None:
    """The plans that scale nothing although the load is known."""
    why = _why_held(context)
    if why is None:
        return None
    wanted = {name: load.wanted for name, load in loads(context).items()}
    still = _frozen(context, *why, wanted=wanted)
    if why[0] is Reason.TOO_MANY_UNREADY:
        return still  # what drains goes on, but nothing is taken away
    return replace(still, actions=_all_returned(context, *why))


def _why_held(context: PassContext) -> tuple[Reason, str] | None:
    pause = context.observed.pause
    if context.policy.mode is Mode.PAUSED:
        return Reason.PAUSED, "paused: nothing is scaled"
    if is_paused(pause) and pause.all:
        said = [part for part in (pause.message, pause.problem) if part]
        return Reason.PAUSED, "; ".join(["paused: nothing is scaled", *said])
    message = _too_many_away(context)
    return (Reason.TOO_MANY_UNREADY, message) if message else None


def _too_many_away(context: PassContext) -> str:
    """
    Say that nothing is to be scaled, because more of the workers than `maxUnready` are away.

    Then something is wrong with more than the load (a network, a registry, a zone), and what the
    scheduler says of load is as wrong. What never connected, or we let go or replace, is not away,
    and what does not come back is not for ever: then it is taken away, and others may come.

    Source:
        cluster-autoscaler, `--max-total-unready-percentage` (45) and `--ok-total-unready-count`
        (3; there more than so many stop it, here as many do: clusters of workers are smaller).
    """
    past, most = context.past, context.policy.max_unready
    workers = [w for group in context.observed.groups for w in group.workers]
    lost = (w for w in workers if not w.dask_names and w.name in past.seen)
    away = sum(not _is_let_go(w, context) for w in lost)
    if away < AWAY_LEAST:
        return ""
    known = away + sum(w.is_connected and not _is_let_go(w, context) for w in workers)
    if away <= most * known:
        return ""
    return (
        f"{away} of {known} connected workers are lost, more than {most:.0%}"
        " (maxUnready): nothing is scaled until they are back, or given up"
    )


def _is_let_go(worker: ObservedWorker, context: PassContext) -> bool:
    past = context.past
    if worker.is_deleting or worker.retiring is not None or worker.gated:
        return True  # gated: whoever shares out places took it, and will bring it back
    if worker.name in past.leaving or worker.name in past.restarted:
        return True
    if not worker.is_connected:  # lost for too long: given up, like one that never came
        is_placed = worker.unscheduled_at is None
        most_s = LOST_S if is_placed else context.policy.unschedulable_timeout_s
        if context.horizon.is_over(past.lost.get(worker.name, context.now) + most_s - context.now):
            return True
    # Replaced in place: its next pod is on its way. Later than that it is away like any other.
    recycled = past.counted.get(worker.name)
    if recycled is None or recycled == worker.pod_uid:
        return False
    limit_s = context.policy.recycle_of(worker.group).strategy.ready_timeout_s
    return not context.horizon.is_over(limit_s - context.horizon.clocks.pod_age_s(worker))


def _frozen(
    context: PassContext, reason: Reason, message: str, *, wanted: Mapping[str, int]
) -> Plan:
    """Leave all groups as they are; `wanted`: what the load asks for, as far as it is known."""
    heed_nodes = context.policy.disruption.node_signals
    groups = []
    for group, _ in scaled_groups(context.observed, context.policy):
        serving = sort_workers(group, context.past.deleted, heed_nodes=heed_nodes).serving
        groups.append(
            GroupPlan(
                group=group.name,
                serving=serving,
                wanted=wanted.get(group.name, 0),
                desired=serving,
                reason=reason,
                message=message,
                current=serving,
                is_frozen=True,
            )
        )
    return replace(_summary(groups), message=message)


def _all_returned(context: PassContext, reason: Reason, message: str) -> tuple[Cancel, ...]:
    """Put every worker that is on its way out by our doing back to service."""
    scaled = [group for group, _ in scaled_groups(context.observed, context.policy)]
    back = [w for group in scaled for w in sort_workers(group, context.past.deleted).retiring]
    others = (w for g in context.observed.groups if g not in scaled for w in g.workers)
    back += [w for w in others if w.is_connected and w.is_replaced]
    return tuple(Cancel(w.name, w.dask_names, reason, message) for w in back)


def _blind(context: PassContext) -> Plan:
    """Without the scheduler no worker is taken away; up to what people set as floors some come."""
    scheduler, mode = context.observed.scheduler, context.policy.mode
    problem = scheduler.problem or Reason.SCHEDULER_UNREACHABLE
    plan = _frozen(context, problem, f"{scheduler.message}; no worker is taken away", wanted={})
    wished = tuple(_raised(context))
    claims = {rise.group: Claimed(rise.replicas, rise.replicas) for rise in wished}
    plan = replace(plan, groups=tuple(replace(g, claim=claims.get(g.group)) for g in plan.groups))
    raised = tuple(_within_budgets(context, wished))
    if mode is Mode.ADVISE:
        return replace(plan, advice=raised)
    return plan if mode is Mode.PAUSED else replace(plan, actions=raised)


def _raised(context: PassContext) -> Iterator[SetReplicas]:
    default, policy = context.default_group, context.policy
    groups = scaled_groups(context.observed, policy)
    left: float = math.inf
    if any(bounds.name == default for bounds in policy.own_bounds):
        left = policy.max_replicas - sum(group.replicas for group, _ in groups)
    for group, bounds in groups:
        replicas = group.replicas
        floor = _floor(context, group, bounds)
        number = int(min(floor.replicas, bounds.maximum, replicas + max(left, 0)))
        paused = paused_step(number, replicas, context.observed.pause)
        number = number if paused is None else paused.replicas
        if number > replicas:
            left -= number - replicas
            yield SetReplicas(group.name, number, floor.reason, floor.message)


def _within_budgets(context: PassContext, wished: Iterable[SetReplicas]) -> Iterator[SetReplicas]:
    groups = {group.name: group for group in context.observed.groups}
    for rise in wished:
        group, number = groups[rise.group], rise.replicas
        if group.allowance is not None:
            number = min(number, group.allowance.workers)
        if number > group.replicas:
            yield replace(rise, replicas=number)


def _floor(context: PassContext, group: ObservedGroup, bounds: GroupBounds) -> Step:
    """The highest floor of a group, and what sets it. Safe without the scheduler: it only adds."""
    minimum = bounds.minimum
    desired = context.past.of(group.name).desired
    is_to_zero = context.policy.idle.action is IdleAction.SCALE_TO_ZERO
    if is_to_zero and desired is not None and desired < minimum:
        minimum = 0  # nobody used the cluster when the scheduler was last heard
    below = f"{group.replicas} replicas are below minReplicas {minimum}"
    fallback = fallback_floor(context) if group.name == context.default_group else None
    lowest = Step("bounds", minimum, Reason.TOO_FEW_REPLICAS, below)
    floors = (lowest, scheduled_floor(context, group.name), fallback)
    return max((step for step in floors if step is not None), key=lambda step: step.replicas)


# One plan for the cluster, from those for its groups


def _cluster_plan(
    context: PassContext, steps: Sequence[NextStep], recycled: Sequence[GroupRecycling]
) -> Plan:
    """
    Args:
        steps: Of the groups that are scaled, the default one first.
        recycled: The recycles of all groups, those of the scaled ones first.
    """
    actions: list[Action] = [action for step in steps for action in step.actions]
    blockers = [blocker for step in steps for blocker in step.blockers]
    for group in recycled[len(steps) :]:
        actions += (*group.back, *group.restart, *group.retire)
        blockers += group.blockers
    return replace(
        _summary([step.plan for step in steps]),
        actions=tuple(actions),
        blockers=tuple(blockers),
        replacing=tuple(row for group in recycled for row in group.rows),
        uses=tuple(use for group in recycled for use in group.assessment.uses),
        storm=next((group.storm for group in recycled if group.storm), ""),
        limits=limits_for(context, recycled, left=recycled[-1].left),
        floors={n: f for group in recycled for n, f in group.floors.items()},
        waiting=frozenset().union(*(group.waiting for group in recycled)),
        aborting={n: why for group in recycled for n, why in group.aborting.items()},
    )


def _summary(groups: Sequence[GroupPlan]) -> Plan:
    """The numbers of all groups together, and what there is to say of the most telling one."""
    first = telling(groups)
    wanted, desired = sum(g.wanted for g in groups), sum(g.desired for g in groups)
    message = first.message
    if len(groups) > 1:
        message = f"{first.group}: {message}"
        if first.reason is Reason.DESIRED_WITHIN_RANGE:
            message = f"{counted(desired, 'worker')} wanted and present, in {len(groups)} groups"
    return Plan(first.reason, message, wanted, desired, groups=tuple(groups))


def _as_advice(decided: Plan, actions: tuple[Action, ...]) -> Plan:
    """The same decision, not carried out: nothing is enforced, nobody waits for anything."""
    return replace(
        decided,
        actions=actions,
        advice=decided.actions,
        limits=Limits(),
        replacing=tuple(replace(row, state="Due") for row in decided.replacing),
        floors={},
        waiting=frozenset(),
        aborting={},
        arriving=(),
    )


def _arriving(
    drafts: Sequence[Draft], actions: Sequence[Action], context: PassContext
) -> tuple[Arriving, ...]:
    """Lists the workers that were asked for by when they are expected, the soonest first."""
    asked = {a.group: a.replicas for a in actions if isinstance(a, SetReplicas)}
    found = Counter[tuple[int, str]]()
    for draft in drafts:
        for in_s, workers in _expected(draft, asked.get(draft.name, 0), context):
            found[round(in_s), draft.name] += workers
    if found:
        context.horizon.within(OVERDUE_S)
    return tuple(Arriving(n, float(in_s), group) for (in_s, group), n in sorted(found.items()))


def _expected(draft: Draft, asked: int, context: PassContext) -> Iterator[tuple[float, int]]:
    """In how many seconds how many workers are expected."""
    takes_s = context.past.of(draft.name).arrival_s or context.past.recycle.ready_s
    is_exceeded, clocks = context.horizon.is_exceeded, context.horizon.clocks
    for worker in draft.workers.pending:
        age_s, since = clocks.age_s(worker), worker.unscheduled_at
        is_unplaced = since is not None and is_exceeded(takes_s - (clocks.platform - since))
        is_stuck = worker.gated or worker.refused or is_unplaced
        if not is_stuck and not is_exceeded(LATE * takes_s - age_s):
            yield max(takes_s - age_s, SOON * takes_s), 1
    unmade = max(on_the_way(context, draft.workers), asked - draft.workers.present)
    if unmade > 0:
        yield takes_s, unmade
