"""Decide what to do with one cluster: `plan` is the one entry of this package."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dask_adaptive.model.amounts import counted
from dask_adaptive.model.observed import ObservedGroup
from dask_adaptive.model.plan import (
    Action,
    Blocker,
    Cancel,
    Claimed,
    GroupPlan,
    Plan,
    Retire,
    SetReplicas,
    Step,
)
from dask_adaptive.model.policy import Mode
from dask_adaptive.model.reason import SURPLUS, Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive.model.scaling import GroupBounds, IdleAction
from dask_adaptive.planner.caps import deletion, fallback_floor, paused_step, scheduled_floor
from dask_adaptive.planner.context import PassContext, scaled_groups
from dask_adaptive.planner.groups import sort_workers, too_many_away, with_worker_groups
from dask_adaptive.planner.horizon import next_instant
from dask_adaptive.planner.leave import announce_terminating, sync_pins
from dask_adaptive.planner.limits import arriving, limits_for
from dask_adaptive.planner.load import Load, loads
from dask_adaptive.planner.memory import changes_memory, renewed
from dask_adaptive.planner.next_step import NextStep, next_step
from dask_adaptive.planner.replace import (
    GroupRecycling,
    RecycleContext,
    left_this_hour,
    recycle_group,
    recycle_unscaled,
)
from dask_adaptive.planner.stages import drafts_of, telling

#: Time until the next pass, if this one changes the memory.
AGAIN_S = 1.0


def plan(context: PassContext) -> Plan:
    """
    Turn one observation into a plan. Total: every input gives a plan, and every plan has a reason.

    Returns:
        A plan that holds until its `valid_until`: made again at any instant before, from `aged` of
        the same observation and the same past (or what `remember` makes of it, kept up by `heard`),
        it is the same, but for figures that count time: ages and ends in messages, what is left of
        limits, expected arrivals, the use of lifetimes.
    """
    context = replace(context, past=with_worker_groups(context.past, context.observed))
    decided, until = _planned(context)
    if changes_memory(context, decided):
        until = min(until, context.now + AGAIN_S)
    return replace(decided, valid_until=until)


def _planned(context: PassContext) -> tuple[Plan, float]:
    """Return the plan, and until when it holds if the memory stays the same."""
    policy, past = context.policy, context.past
    if (stop := _cannot_decide(context)) is not None:
        return stop, next_instant(context, stop, {}, ())

    always = (*announce_terminating(context), *sync_pins(context))
    if past.session != context.observed.scheduler.session:
        # The load of an earlier scheduler says nothing about this one.
        context = replace(context, past=renewed(past))
    needs = loads(context)
    recycled: Sequence[GroupRecycling] = ()
    if (decided := _held(context, needs)) is None:
        decided, recycled = _scaled(context, needs)
        if policy.mode is Mode.ADVISE:
            decided = _as_advice(context, decided)
    decided = replace(decided, actions=(*always, *decided.actions))
    return decided, next_instant(context, decided, needs, recycled)


def count_blockers(blockers: Sequence[Blocker]) -> tuple[tuple[Reason, int], ...]:
    """Count the workers that stay, by reason: most first, then by the reason's word."""
    counts = Counter(b.reason for b in blockers)
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0].value)))


def _scaled(
    context: PassContext, needs: Mapping[str, Load]
) -> tuple[Plan, Sequence[GroupRecycling]]:
    drafts = drafts_of(context, needs)
    left = left_this_hour(context)
    leaving = sum(not w.is_replaced for draft in drafts for w in draft.workers.retiring)
    recycled: list[GroupRecycling] = []
    steps: list[NextStep] = []
    for draft in drafts:
        at = RecycleContext(context, draft.workers.group, draft.number, left, is_scaled=True)
        mine = recycle_group(draft.workers, draft.assessment, at)
        step = next_step(context, draft, mine, leaving=leaving)
        left = mine.left
        leaving += sum(isinstance(a, Retire) and a.reason in SURPLUS for a in step.actions)
        recycled.append(mine)
        steps.append(step)
    recycled += recycle_unscaled(context, scaled={draft.name for draft in drafts}, left=left)
    decided = _cluster_plan(context, steps, recycled)
    decided = replace(decided, arriving=arriving(drafts, decided.actions, context))
    end = deletion(context.observed, context.policy)  # in mode Advise this is advice, too
    if end is not None:
        # The cluster is unused: it is deleted as a whole, and nothing else is done.
        decided = replace(decided, reason=end.reason, message=end.message, actions=(end,))
    return decided, recycled


# Plans that scale nothing: too little is known, or a pause or a gate holds the cluster


def _cannot_decide(context: PassContext) -> Plan | None:
    """Return a plan that touches no worker, if too little is known."""
    observed = context.observed
    if not observed.found:
        missing = f"DaskCluster {observed.key.name} does not exist"
        return Plan(Reason.CLUSTER_NOT_FOUND, missing)
    if observed.conflict:
        return Plan(Reason.OWNERSHIP_CONFLICT, observed.conflict)
    if observed.group(context.default_group) is None:
        missing = f"the cluster has no worker group {context.default_group} yet"
        return Plan(Reason.CLUSTER_NOT_FOUND, missing)
    return None if observed.scheduler.is_connected else _blind(context)


def _held(context: PassContext, needs: Mapping[str, Load]) -> Plan | None:
    """Return a plan that scales nothing, if a pause or lost workers hold the cluster."""
    why = _why_held(context)
    if why is None:
        return None
    still = _frozen(context, *why, needs)
    if why[0] is Reason.TOO_MANY_UNREADY:
        return still  # draining continues, but no worker is removed
    return replace(still, actions=_all_returned(context, *why))


def _why_held(context: PassContext) -> tuple[Reason, str] | None:
    if context.policy.mode is Mode.PAUSED:
        return Reason.PAUSED, "paused: nothing is scaled"
    # For zero workers only a pause of everything yields a step.
    if (everything := paused_step(0, 0, context.observed.pause)) is not None:
        return everything.reason, f"paused: {everything.message}"
    message = too_many_away(context)
    return (Reason.TOO_MANY_UNREADY, message) if message else None


def _frozen(context: PassContext, reason: Reason, message: str, needs: Mapping[str, Load]) -> Plan:
    """Leave all groups as they are. `needs` holds the load of each group, as far as known."""
    heed_nodes = context.policy.disruption.node_signals
    groups = []
    for group, _ in scaled_groups(context.observed, context.policy):
        serving = sort_workers(group, context.past.deleted, heed_nodes=heed_nodes).serving
        groups.append(
            GroupPlan(
                group=group.name,
                serving=serving,
                wanted=needs[group.name].wanted if needs else 0,
                desired=serving,
                reason=reason,
                message=message,
                current=serving,
                is_frozen=True,
            )
        )
    return replace(_summary(groups), message=message)


def _all_returned(context: PassContext, reason: Reason, message: str) -> tuple[Cancel, ...]:
    """Return every worker that we are retiring to service."""
    scaled = [group for group, _ in scaled_groups(context.observed, context.policy)]
    back = [w for group in scaled for w in sort_workers(group, context.past.deleted).retiring]
    others = (w for g in context.observed.groups if g not in scaled for w in g.workers)
    back += [w for w in others if w.is_connected and w.is_replaced]
    return tuple(Cancel(w.name, w.dask_names, reason, message) for w in back)


def _blind(context: PassContext) -> Plan:
    """Without the scheduler, remove no worker, but raise groups to the floors that people set."""
    scheduler, mode = context.observed.scheduler, context.policy.mode
    problem = scheduler.problem or Reason.SCHEDULER_UNREACHABLE
    plan = _frozen(context, problem, f"{scheduler.message}; no worker is removed", {})
    claims, raised = {}, []
    for group, number, floor in _below_floors(context):
        claims[group.name] = Claimed(number, number)
        if group.allowance is not None:
            number = min(number, group.allowance.workers)
        if number > group.replicas:
            raised.append(SetReplicas(group.name, number, floor.reason, floor.message))
    plan = replace(plan, groups=tuple(replace(g, claim=claims.get(g.group)) for g in plan.groups))
    if mode is Mode.ADVISE:
        return replace(plan, advice=tuple(raised))
    return plan if mode is Mode.PAUSED else replace(plan, actions=tuple(raised))


def _below_floors(context: PassContext) -> Iterator[tuple[ObservedGroup, int, Step]]:
    """Yield the groups below their floors, with the number to raise them to."""
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
            yield group, number, floor


def _floor(context: PassContext, group: ObservedGroup, bounds: GroupBounds) -> Step:
    """Return a group's highest floor. Safe without the scheduler: it only adds workers."""
    minimum = bounds.minimum
    desired = context.past.of(group.name).desired
    is_to_zero = context.policy.idle.action is IdleAction.SCALE_TO_ZERO
    if is_to_zero and desired is not None and desired < minimum:
        minimum = 0  # the cluster was unused when the scheduler last answered
    below = f"replicas is {group.replicas}, minReplicas is {minimum}"
    fallback = fallback_floor(context) if group.name == context.default_group else None
    lowest = Step("bounds", minimum, Reason.TOO_FEW_REPLICAS, below)
    floors = (lowest, scheduled_floor(context, group.name), fallback)
    return max((step for step in floors if step is not None), key=lambda step: step.replicas)


# One plan for the cluster, combined from its groups'


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
    """Sum up all groups; the message is that of the most important one."""
    first = telling(groups)
    wanted, desired = sum(g.wanted for g in groups), sum(g.desired for g in groups)
    message = first.message
    if len(groups) > 1:
        message = f"{first.group}: {message}"
        if first.reason is Reason.DESIRED_WITHIN_RANGE:
            message = f"{counted(desired, 'worker')} wanted and present, in {len(groups)} groups"
    return Plan(first.reason, message, wanted, desired, groups=tuple(groups))


def _as_advice(context: PassContext, decided: Plan) -> Plan:
    """Return the same decision as advice: no action, no limit, no wait."""
    return replace(
        decided,
        actions=_all_returned(context, Reason.ADVISING, "mode is Advise"),
        advice=decided.actions,
        limits=Limits(),
        replacing=tuple(replace(row, state="Due") for row in decided.replacing),
        floors={},
        waiting=frozenset(),
        aborting={},
        arriving=(),
    )
