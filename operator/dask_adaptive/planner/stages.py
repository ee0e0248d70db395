"""Takes the number that the load asks for through the stages: floors, behavior, bounds, caps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dask_adaptive.model.amounts import counted, joined
from dask_adaptive.model.observed import ObservedGroup
from dask_adaptive.model.past import Blocked, Past
from dask_adaptive.model.plan import Claimed, GroupPlan, Step
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import StrategyType
from dask_adaptive.model.scaling import GroupBounds
from dask_adaptive.planner.behavior import damped
from dask_adaptive.planner.caps import (
    capped,
    is_paused,
    lifts_minimums,
    paused_step,
    scheduled_floor,
    shared,
    stuck_workers,
)
from dask_adaptive.planner.context import PassContext, scaled_groups
from dask_adaptive.planner.groups import GroupWorkers, on_the_way, sort_workers
from dask_adaptive.planner.load import Load
from dask_adaptive.planner.quotas import Assessment, assess


@dataclass(frozen=True, slots=True)
class Draft:
    """One group's number on its way through the stages."""

    bounds: GroupBounds
    workers: GroupWorkers
    assessment: Assessment
    load: Load
    current: int  # the stages start from this, see `current_workers`
    there: int  # of these: exist, are expected, or return by themselves
    wanted: int  # what the load asks for
    number: int  # after the stages so far
    steps: tuple[Step, ...]  # the load's first; the last one set the number
    floor: Step | None = None  # only caps and pauses go below it
    blocked: Blocked | None = None
    claim: Claimed | None = None

    @property
    def name(self) -> str:
        return self.workers.name

    @property
    def available(self) -> int:
        """Existing and expected workers, and retiring ones that can be called back."""
        return self.there + len(self.workers.recallable)

    def at(self, step: Step | None) -> Draft:
        """Return the draft after one more stage; None changes nothing."""
        if step is None:
            return self
        return replace(self, number=step.replicas, steps=(*self.steps, step))

    def at_most(self, number: int, stage: str, reason: Reason, message: str) -> Draft:
        """Return the draft after a stage that caps the number."""
        return self.at(None if self.number <= number else Step(stage, number, reason, message))

    def on_floor(self) -> Draft:
        """Raise the number to the draft's floor."""
        is_below = self.floor is not None and self.number < self.floor.replicas
        return self.at(self.floor) if is_below else self


def drafts_of(context: PassContext, needs: Mapping[str, Load]) -> tuple[Draft, ...]:
    """Take each group's load through all stages; the same input gives the same numbers."""
    drafts = []
    for group, bounds in scaled_groups(context.observed, context.policy):
        draft = _loaded(context, group, bounds, needs[group.name])
        for stage in (_floored, _damped, _bounded, _capped):
            draft = stage(draft, context)
        drafts.append(draft)
    return tuple(_budgeted(_paused(d, context), context) for d in _shared(drafts, context))


def _loaded(context: PassContext, group: ObservedGroup, bounds: GroupBounds, load: Load) -> Draft:
    policy, past = context.policy, context.past
    workers = sort_workers(group, past.deleted, heed_nodes=policy.disruption.node_signals)
    assessment = assess(context, group)
    replaced = sum(w.is_replaced for w in workers.retiring)
    wanted, steps = load.wanted, load.steps
    current = coming = workers.serving + on_the_way(context, workers)
    if assessment.due or replaced:
        wanted = wanted_now(wanted, workers, past)
        current = current_workers(context, workers, len(assessment.due))
    if wanted != load.wanted:
        stand_in = f"{load.wanted - wanted} of {load.wanted} replace workers that leave"
        steps = (*steps, Step("recycle", wanted, Reason.RECYCLING, stand_in))
    there = min(current, coming + replaced)
    return Draft(bounds, workers, assessment, load, current, there, wanted, wanted, steps)


def _floored(draft: Draft, context: PassContext) -> Draft:
    """Apply the floors: the minimum, unless the cluster is unused, and open schedules."""
    minimum = draft.bounds.minimum
    floors = []
    if minimum > 0:
        idle = lifts_minimums(context)
        if not idle:
            message = f"{draft.number} wanted, minReplicas is {minimum}"
            floors.append(Step("bounds", minimum, Reason.TOO_FEW_REPLICAS, message))
        else:
            draft = draft.at(Step("idle", draft.number, Reason.CLUSTER_IDLE, idle))
    if (scheduled := scheduled_floor(context, draft.name)) is not None:
        floors.append(scheduled)
    floor = max(floors, key=lambda step: step.replicas, default=None)
    return replace(draft, floor=floor).on_floor()


def _damped(draft: Draft, context: PassContext) -> Draft:
    policy, past = context.policy, context.past
    mine = past.of(draft.name)
    watched = None if past.since is None or mine.since is None else max(past.since, mine.since)
    number, steps = damped(
        draft.number, draft.current, policy.behavior, mine,
        idle_timeout_s=draft.bounds.idle_timeout_s, since=watched, now=context.now,
        lowest=draft.floor.replicas if draft.floor else 0, highest=draft.bounds.maximum,
    )  # fmt: skip
    # Floors are not slowed down: as with HPA, minReplicas hold at once.
    return replace(draft, number=number, steps=(*draft.steps, *steps)).on_floor()


def _bounded(draft: Draft, _: PassContext) -> Draft:
    maximum = draft.bounds.maximum
    message = f"{draft.number} wanted, maxReplicas is {maximum}"
    return draft.at_most(maximum, "bounds", Reason.TOO_MANY_REPLICAS, message)


def _capped(draft: Draft, context: PassContext) -> Draft:
    number, steps, blocked = capped(context, draft.workers, draft.number)
    return replace(draft, number=number, steps=(*draft.steps, *steps), blocked=blocked)


def _shared(drafts: Sequence[Draft], context: PassContext) -> Sequence[Draft]:
    """Apply the policy's `maxReplicas` to all groups together, if the default group has its own."""
    policy = context.policy
    if all(g.name != context.default_group for g in policy.own_bounds):
        return drafts
    # No worker is removed so that another group can grow, and no group grows into a place that is
    # not free yet; but workers beyond the limit leave. Places of unschedulable workers beyond the
    # minimum count as free.
    maximum = policy.max_replicas - sum(max(0, d.there - d.number) for d in drafts)
    desired = {d.name: d.number for d in drafts}
    stuck = {
        d.name: len(stuck_workers(d.workers.pending, policy, context.clocks)) + len(d.workers.gated)
        for d in drafts
    }
    least = {d.name: min(d.workers.serving, d.bounds.minimum) for d in drafts}
    floor = {d.name: min(d.number, max(d.there - stuck[d.name], least[d.name])) for d in drafts}
    if sum(floor.values()) > policy.max_replicas:
        maximum = policy.max_replicas
        desired = {d.name: min(d.number, max(d.there, least[d.name])) for d in drafts}
        floor = {d.name: min(desired[d.name], d.bounds.minimum) for d in drafts}
    bounds = [d.bounds for d in drafts]
    # Minimums come before the further needs of a higher priority.
    minimums = {d.name: max(floor[d.name], min(d.number, d.bounds.minimum)) for d in drafts}
    numbers = shared(desired, bounds, shared(minimums, bounds, floor, maximum), maximum)
    return [_limited(draft, numbers[draft.name], policy.max_replicas) for draft in drafts]


def _limited(draft: Draft, number: int, maximum: int) -> Draft:
    """Lower a number to its share of the cluster's limit."""
    message = f"{draft.number} needed, {number} for now: maxReplicas of all groups is {maximum}"
    return draft.at_most(number, "cluster", Reason.TOO_MANY_REPLICAS, message)


def _paused(draft: Draft, context: PassContext) -> Draft:
    # No serving worker leaves while more are wanted, however few were desired last.
    held = max(draft.available, min(draft.number, draft.workers.serving))
    step = paused_step(draft.number, held, context.observed.pause)
    # A pause sets both the number and its floor.
    return draft if step is None else replace(draft.at(step), floor=step)


def _budgeted(draft: Draft, context: PassContext) -> Draft:
    """Cap the number at the group's share of its budget, except for workers that a pause holds."""
    floor = draft.floor.replicas if draft.floor else 0
    needed = min(draft.number, max(draft.wanted, floor))
    draft = replace(draft, claim=Claimed(needed, draft.number))
    allowance = draft.workers.group.allowance
    if allowance is None:
        return draft
    pause, most = context.observed.pause, allowance.workers
    if is_paused(pause) and pause.scale_in:
        most = max(most, draft.available)
    return draft.at_most(most, "budget", Reason.BUDGET_SHARED, allowance.message)


def wanted_now(wanted: int, workers: GroupWorkers, past: Past) -> int:
    """
    Return the load's number without replacements that only stand in for leaving workers.

    `Scheduler.adaptive_target` never asks for fewer than have tasks: a replacement that works next
    to the worker that it replaces would be taken for demand, and each recycle would leave the
    cluster one worker larger.
    """
    desired = past.of(workers.name).desired
    if desired is None:
        return wanted
    floors = sum(w.name in past.floors for w in workers.group.workers)
    return max(desired, wanted - floors) if desired < wanted <= workers.in_service else wanted


def current_workers(context: PassContext, workers: GroupWorkers, due: int) -> int:
    """
    Return the number that the stages start from, as if no worker were being replaced. It includes
    workers that were requested and do not exist yet.

    What was desired last says it best: neither one more, because a replacement has come, nor one
    fewer, because a worker is about to go. Without a past it is guessed.

    Args:
        due: Workers that are to be replaced.
    """
    past, recycle = context.past, context.policy.recycle_of(workers.name)
    desired = past.of(workers.name).desired
    if desired is not None:
        return desired
    if recycle.strategy.type is StrategyType.IN_PLACE:
        return workers.serving + sum(w.is_replaced for w in workers.retiring)
    surged = min(due, max(1, recycle.strategy.max_surge.of(workers.in_service)))
    return max(workers.serving - surged, workers.in_service)


#: Reasons that limit a number, the most important first, for `ScalingLimited`.
LIMITS = (
    Reason.UNSCHEDULABLE,
    Reason.QUOTA_EXCEEDED,
    Reason.BUDGET_SHARED,
    Reason.ADMISSION_REFUSED,
    Reason.ADMISSION_GATED,
    Reason.TOO_MANY_REPLICAS,
    Reason.SCALE_UP_LIMITED,
    Reason.TOO_FEW_REPLICAS,
    Reason.SCALE_DOWN_LIMITED,
)

#: Bounds limit a group only once it has reached them, not on its way there.
_BOUNDS = frozenset({Reason.TOO_MANY_REPLICAS, Reason.TOO_FEW_REPLICAS})

#: Ordinary demand, which needs no explanation.
_USUAL = frozenset(
    {Reason.LOAD_INCREASED, Reason.DESIRED_WITHIN_RANGE, Reason.UNDERUTILIZED, Reason.RECYCLING}
)


def limited_by(draft: Draft, *, is_at_rest: bool) -> Step | None:
    """Return the stage that kept the number from what the load needs, if any."""
    step = draft.steps[-1]
    if step.reason not in LIMITS:
        return None
    return step if is_at_rest or step.reason not in _BOUNDS else None


def why_more(draft: Draft, workers: GroupWorkers) -> tuple[Reason, str]:
    """Return reason and message of a rise: the first stage that needs so many workers."""
    there = f"{draft.wanted} wanted, {workers.serving} there: {counted(draft.number, 'worker')}"
    step = next(s for s in draft.steps if s.replicas >= draft.number)
    if step.reason in _USUAL:
        return Reason.LOAD_INCREASED, joined(there, draft.load.assumption)
    if step.reason is Reason.TOO_FEW_REPLICAS:
        return step.reason, there
    return step.reason, f"{step.message}: {counted(draft.number, 'worker')}, now {workers.serving}"


def why_at_rest(draft: Draft, workers: GroupWorkers, limited: Step | None) -> tuple[Reason, str]:
    """Return reason and message of a group that has reached its number."""
    if limited is not None:
        return limited.reason, limited.message
    replaced = len(workers.replaced) + len(workers.restarting)
    replaced += sum(w.is_replaced for w in workers.retiring)
    if replaced:
        return Reason.RECYCLING, f"{counted(replaced, 'worker')} being replaced"
    if workers.retiring:
        return Reason.RETIRING, f"{counted(len(workers.retiring), 'worker')} leaving"
    if draft.steps[-1].reason in _USUAL:
        present = f"{counted(draft.number, 'worker')} wanted and present"
        return Reason.DESIRED_WITHIN_RANGE, joined(present, draft.load.assumption)
    return draft.steps[-1].reason, draft.steps[-1].message


def telling(plans: Iterable[GroupPlan]) -> GroupPlan:
    """Return the group with the most important plan; the first of equals."""
    return min(plans, key=_rank)


#: The least important reasons.
_QUIET = (Reason.DESIRED_WITHIN_RANGE, Reason.SCALE_DOWN_STABILIZED, Reason.RETIRING)


def _rank(plan: GroupPlan) -> int:
    """Rank moving groups first, then limited ones; frozen ones are all alike."""
    if plan.reason in _QUIET:
        return 100 - _QUIET.index(plan.reason)
    if plan.desired != plan.serving:
        return 1
    is_limit = plan.limited is not None and plan.limited.reason is plan.reason
    return 2 + LIMITS.index(plan.reason) if is_limit else 50
