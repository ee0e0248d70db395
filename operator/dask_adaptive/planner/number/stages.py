"""
Takes the number that the load asks for through the stages (floors, behavior, bounds, caps).
Caps ask for no worker that would not come, and share the cluster's limit among groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dask_adaptive.model.amounts import counted, format_duration
from dask_adaptive.model.observed import ObservedGroup, ObservedWorker, Pending
from dask_adaptive.model.past import Blocked, Past
from dask_adaptive.model.plan import Claimed, GroupPlan, Step
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import StrategyType
from dask_adaptive.model.scaling import GroupBounds
from dask_adaptive.planner.actions.groups import GroupWorkers, on_the_way, sort_workers
from dask_adaptive.planner.context import Horizon, PassContext, scaled_groups
from dask_adaptive.planner.number.behavior import damped
from dask_adaptive.planner.number.demand import Load, loads
from dask_adaptive.planner.number.floors import (
    is_paused,
    lifts_minimums,
    paused_step,
    scheduled_floor,
)
from dask_adaptive.planner.recycling.quotas import Assessment, RecycleCandidate, assess
from dask_adaptive.planner.recycling.select import is_under_way


@dataclass(frozen=True, slots=True)
class Draft:
    """One group's number on its way through the stages."""

    bounds: GroupBounds
    workers: GroupWorkers
    assessment: Assessment
    load: Load
    current: int  # what it moves from, see `current_workers`
    there: int  # of these: there, on their way, or back by themselves
    wanted: int  # what the load asks for
    number: int  # what the stages have made of it so far
    steps: tuple[Step, ...]  # that of the load first; the last one made the number
    floor: Step | None = None  # below which no stage takes it, but caps and pauses
    blocked: Blocked | None = None
    claim: Claimed | None = None

    @property
    def name(self) -> str:
        return self.workers.name

    @property
    def standing(self) -> int:
        """Workers that are there or on their way, and retiring ones that can be called back."""
        return self.there + len(self.workers.recallable)

    def at(self, step: Step | None) -> Draft:
        """After one more stage; None: it had nothing to say."""
        if step is None:
            return self
        return replace(self, number=step.replicas, steps=(*self.steps, step))

    def on_floor(self) -> Draft:
        """No lower than its floor."""
        is_below = self.floor is not None and self.number < self.floor.replicas
        return self.at(self.floor) if is_below else self


def drafts_of(context: PassContext) -> tuple[Draft, ...]:
    """Take each group's load through all stages; the same input gives the same numbers."""
    asked = loads(context)
    drafts = []
    for group, bounds in scaled_groups(context.observed, context.policy):
        draft = _loaded(context, group, bounds, asked[group.name])
        for stage in (_floored, _damped, _bounded, _capped):
            draft = stage(draft, context)
        drafts.append(draft)
    return tuple(_budgeted(_paused(d, context), context) for d in _shared(drafts, context))


def _loaded(context: PassContext, group: ObservedGroup, bounds: GroupBounds, load: Load) -> Draft:
    policy, past = context.policy, context.past
    workers = sort_workers(group, past.deleted, heed_nodes=policy.disruption.node_signals)
    assessment = assess(context, group)
    wanted = wanted_now(load.wanted, workers, assessment.due, past)
    steps = load.steps
    if wanted != load.wanted:
        stand_in = f"{load.wanted - wanted} of {load.wanted} replace workers that leave"
        steps = (*steps, Step("recycle", wanted, Reason.RECYCLING, stand_in))
    current = current_workers(context, workers, assessment.due)
    replaced = sum(w.is_replaced for w in workers.retiring)
    there = min(current, workers.serving + on_the_way(context, workers) + replaced)
    return Draft(bounds, workers, assessment, load, current, there, wanted, wanted, steps)


def _floored(draft: Draft, context: PassContext) -> Draft:
    """The minimum, unless nobody uses the cluster; and, used or not, what schedules keep."""
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
        idle_timeout_s=draft.bounds.idle_timeout_s, since=watched, horizon=context.horizon,
        lowest=draft.floor.replicas if draft.floor else 0, highest=draft.bounds.maximum,
    )  # fmt: skip
    # What a floor asks for is not slowed down: as with HPA, minReplicas hold at once.
    return replace(draft, number=number, steps=(*draft.steps, *steps)).on_floor()


def _bounded(draft: Draft, _: PassContext) -> Draft:
    maximum = draft.bounds.maximum
    if draft.number <= maximum:
        return draft
    message = f"{draft.number} wanted, maxReplicas is {maximum}"
    return draft.at(Step("bounds", maximum, Reason.TOO_MANY_REPLICAS, message))


def _shared(drafts: Sequence[Draft], context: PassContext) -> Sequence[Draft]:
    """`maxReplicas` of the policy is that of all groups together where the default has its own."""
    policy = context.policy
    if all(g.name != context.default_group for g in policy.own_bounds):
        return drafts
    # Nobody is taken away so that another group can grow, and none grows into the place of one that
    # has yet to leave; but what is beyond the limit goes. Another group need not wait for the
    # places of workers that no node takes, as far as those are beyond the minimum.
    maximum = policy.max_replicas - sum(max(0, d.there - d.number) for d in drafts)
    desired = {d.name: d.number for d in drafts}
    horizon = context.horizon
    stuck = {
        d.name: len(stuck_workers(d.workers.pending, policy, horizon)) + len(d.workers.gated)
        for d in drafts
    }
    least = {d.name: min(d.workers.serving, d.bounds.minimum) for d in drafts}
    floor = {d.name: min(d.number, max(d.there - stuck[d.name], least[d.name])) for d in drafts}
    if sum(floor.values()) > policy.max_replicas:
        maximum = policy.max_replicas
        desired = {d.name: min(d.number, max(d.there, least[d.name])) for d in drafts}
        floor = {d.name: min(desired[d.name], d.bounds.minimum) for d in drafts}
    bounds = [d.bounds for d in drafts]
    # A minimum goes before what a higher priority wants more of.
    minimums = {d.name: max(floor[d.name], min(d.number, d.bounds.minimum)) for d in drafts}
    numbers = shared(desired, bounds, shared(minimums, bounds, floor, maximum), maximum)
    return [_limited(draft, numbers[draft.name], policy.max_replicas) for draft in drafts]


def _limited(draft: Draft, number: int, maximum: int) -> Draft:
    """Lower a number to what the cluster's limit leaves, and say why."""
    if number == draft.number:
        return draft
    message = f"{draft.number} needed, {number} for now: maxReplicas of all groups is {maximum}"
    return draft.at(Step("cluster", number, Reason.TOO_MANY_REPLICAS, message))


def _paused(draft: Draft, context: PassContext) -> Draft:
    # Of those that serve none goes while more are wanted, however few were desired last.
    held = max(draft.standing, min(draft.number, draft.workers.serving))
    step = paused_step(draft.number, held, context.observed.pause)
    # What people hold is needed, and no more than that.
    return draft if step is None else replace(draft.at(step), floor=step)


def _budgeted(draft: Draft, context: PassContext) -> Draft:
    """No more than the group's part of what it shares; but nobody leaves whom a pause holds."""
    floor = draft.floor.replicas if draft.floor else 0
    needed = min(draft.number, max(draft.wanted, floor))
    draft = replace(draft, claim=Claimed(needed, draft.number))
    allowance = draft.workers.group.allowance
    if allowance is None:
        return draft
    pause, most = context.observed.pause, allowance.workers
    if is_paused(pause) and pause.scale_in:
        most = max(most, draft.standing)
    if draft.number <= most:
        return draft
    return draft.at(Step("budget", most, Reason.BUDGET_SHARED, allowance.message))


def wanted_now(
    wanted: int, workers: GroupWorkers, due: Collection[RecycleCandidate], past: Past
) -> int:
    """
    The workers that the load asks for, without those that only stand in for leaving ones.

    `Scheduler.adaptive_target` never asks for fewer than have tasks: a replacement that works next
    to the worker that it replaces would be taken for demand, and each recycle would leave the
    cluster one worker larger.
    """
    desired = past.of(workers.name).desired
    if desired is None or not is_under_way(workers, due):
        return wanted
    floors = sum(w.name in past.floors for w in workers.group.workers)
    return max(desired, wanted - floors) if desired < wanted <= workers.in_service else wanted


def current_workers(
    context: PassContext, workers: GroupWorkers, due: Collection[RecycleCandidate]
) -> int:
    """
    The number to move from, as if no worker were being replaced; it includes workers that were
    asked for and are about to be made.

    While some are, what was desired last says it best: neither one more, because a replacement has
    come, nor one fewer, because a worker is about to go. Without a past it is guessed.
    """
    past, recycle = context.past, context.policy.recycle_of(workers.name)
    if not is_under_way(workers, due):
        return workers.serving + on_the_way(context, workers)
    desired = past.of(workers.name).desired
    if desired is not None:
        return desired
    if recycle.strategy.type is StrategyType.IN_PLACE:
        return workers.serving + sum(w.is_replaced for w in workers.retiring)
    surged = min(len(due), max(1, recycle.strategy.max_surge.of(workers.in_service)))
    return max(workers.serving - surged, workers.in_service)


#: What keeps a number from what is asked for, the most important first: `ScalingLimited`.
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

#: Bounds are told once a group has come to them: on its way there it is not limited by them yet.
_BOUNDS = frozenset({Reason.TOO_MANY_REPLICAS, Reason.TOO_FEW_REPLICAS})

#: Ordinary demand: nothing that would have to be explained.
_USUAL = frozenset(
    {Reason.LOAD_INCREASED, Reason.DESIRED_WITHIN_RANGE, Reason.UNDERUTILIZED, Reason.RECYCLING}
)


def limited_by(draft: Draft, *, is_at_rest: bool) -> Step | None:
    """The stage that kept the number from what is asked for, if one did."""
    step = draft.steps[-1]
    if step.reason not in LIMITS:
        return None
    return step if is_at_rest or step.reason not in _BOUNDS else None


def why_more(draft: Draft, workers: GroupWorkers) -> tuple[Reason, str]:
    """The first stage that asks for so many workers, as the reason of a rise."""
    there = f"{draft.wanted} wanted, {workers.serving} there: {counted(draft.number, 'worker')}"
    asks = next(s for s in draft.steps if s.replicas >= draft.number)
    if asks.reason in _USUAL:
        return Reason.LOAD_INCREASED, _with_assumption(there, draft)
    if asks.reason is Reason.TOO_FEW_REPLICAS:
        return asks.reason, there
    return asks.reason, f"{asks.message}: {counted(draft.number, 'worker')}, now {workers.serving}"


def why_at_rest(draft: Draft, workers: GroupWorkers, limited: Step | None) -> tuple[Reason, str]:
    """The reason and message of a group that has reached its number."""
    if limited is not None:
        return limited.reason, limited.message
    replaced = (
        *workers.replaced,
        *workers.restarting,
        *(w for w in workers.retiring if w.is_replaced),
    )
    if replaced:
        return Reason.RECYCLING, f"{counted(len(replaced), 'worker')} being replaced"
    if workers.retiring:
        return Reason.RETIRING, f"{counted(len(workers.retiring), 'worker')} leaving"
    if draft.steps[-1].reason in _USUAL:
        present = f"{counted(draft.number, 'worker')} wanted and present"
        return Reason.DESIRED_WITHIN_RANGE, _with_assumption(present, draft)
    return draft.steps[-1].reason, draft.steps[-1].message


def _with_assumption(message: str, draft: Draft) -> str:
    return "; ".join(part for part in (message, draft.load.assumption) if part)


def telling(plans: Iterable[GroupPlan]) -> GroupPlan:
    """The group with the most important plan; the first of equals."""
    return min(plans, key=_rank)


#: Of these there is least to say.
_QUIET = (Reason.DESIRED_WITHIN_RANGE, Reason.SCALE_DOWN_STABILIZED, Reason.RETIRING)


def _rank(plan: GroupPlan) -> int:
    """Groups that move come first, then limited ones; frozen ones are all alike."""
    if plan.reason in _QUIET:
        return 100 - _QUIET.index(plan.reason)
    if plan.desired != plan.serving:
        return 1
    is_limit = plan.limited is not None and plan.limited.reason is plan.reason
    return 2 + LIMITS.index(plan.reason) if is_limit else 50


# Caps

#: The first wait before one more worker is tried, after none could be had; it doubles.
FIRST_WAIT_S = 60.0

#: The longest such wait.
LONGEST_WAIT_S = 1800.0


def _capped(draft: Draft, context: PassContext) -> Draft:
    """
    Ask for no worker that would not come.

    Caps hold back, they take nobody away but gated workers beyond `maxPending`: else the number is
    never below both `desired` and the workers that there are. Workers on their way out that can be
    called back exist, so no cap is about them. Each cap that lowers the number is a step, and so is
    one that is waited for.
    """
    policy, workers = context.policy, draft.workers
    there = workers.serving + len(workers.recallable)
    steps, number = list(draft.steps), draft.number
    horizon = context.horizon
    for step in (_by_pending(workers, policy, there), _by_room(workers.group, there)):
        if step is not None and step.replicas < number:
            number = step.replicas
            steps.append(step)
    if (gated := workers.gated) and number > len(workers.active):
        message = f"{counted(len(gated), 'worker')} not admitted: {gated[0].waiting}"
        steps.append(Step("cap", number, Reason.ADMISSION_GATED, message))
    blocked, is_trying = _blocked(context, workers, wants_more=number > there)
    if blocked is not None:
        limit = there + is_trying
        is_stuck = bool(stuck_workers(workers.group.workers, policy, horizon))
        is_short = number > limit or (number > len(workers.active) and is_stuck)
        number = min(number, max(limit, min(draft.number, workers.serving)))
        if is_short:
            steps.append(Step("cap", number, blocked.reason, blocked.message))
    return replace(draft, number=number, steps=tuple(steps), blocked=blocked)


def shared(
    desired: Mapping[str, int],
    bounds: Sequence[GroupBounds],
    floor: Mapping[str, int],
    maximum: int,
) -> Mapping[str, int]:
    """
    Share the cluster's maxReplicas among its groups: a higher priority first, equals alike.

    None gets more than is desired, or less than its floor (than what is desired, if that is less).
    """
    numbers = {name: min(number, floor[name]) for name, number in desired.items()}
    left = max(0, maximum - sum(numbers.values()))
    rank = {b.name: b.priority for b in bounds}
    for priority in sorted(set(rank.values()), reverse=True):
        equals = [name for name in desired if rank[name] == priority]
        missing = {name: desired[name] - numbers[name] for name in equals}
        for name, more in _evenly(missing, left).items():
            numbers[name] += more
            left -= more
    return numbers


def _evenly(missing: Mapping[str, int], left: int) -> dict[str, int]:
    """Share `left` so that nobody has more than another who lacks some; odd ones in order."""
    given = dict.fromkeys(missing, 0)
    open_names = list(missing)
    while left > 0 and open_names:
        each = max(1, left // len(open_names))
        for name in open_names:
            more = min(each, missing[name] - given[name], left)
            given[name] += more
            left -= more
        open_names = [name for name in open_names if given[name] < missing[name]]
    return given


def _by_pending(workers: GroupWorkers, policy: Policy, there: int) -> Step | None:
    most = policy.behavior.scale_up.max_pending
    if most is None:
        return None
    pending = len(workers.pending)
    message = f"{counted(pending, 'worker')} pending, maxPending is {most}"
    # Workers that were preempted come back gated, and were not asked for: too many of them go.
    more = max(most - pending, min(0, most - len(workers.gated)))
    return Step("cap", there + more, Reason.SCALE_UP_LIMITED, message)


def _by_room(group: ObservedGroup, there: int) -> Step | None:
    if group.room is None:
        return None
    more = max(0, group.room.workers)
    return Step("cap", there + more, Reason.QUOTA_EXCEEDED, group.room.message)


def _blocked(
    context: PassContext, workers: GroupWorkers, *, wants_more: bool
) -> tuple[Blocked | None, bool]:
    """
    Returns whether more workers are blocked, and whether one more is tried in this pass.

    A worker that waits is tried by Kubernetes itself all the time; but its Deployment keeps what
    it was made with, so only a new one shows that its group asks for less by now.
    """
    now, group, known = context.now, workers.group, context.past.of(workers.name).blocked
    if known is not None and _is_over(known, group, context.horizon):
        known = None
    stuck = stuck_workers(group.workers, context.policy, context.horizon)
    waited_for = frozenset(w.name for w in workers.pending)
    if known is None:
        if not stuck:
            return None, False
        reason, message = _why(stuck, context.policy)
        return Blocked(now + FIRST_WAIT_S, reason, message, workers=waited_for), False
    reason, message = _why(stuck, context.policy) if stuck else (known.reason, known.message)
    is_trying = wants_more and context.horizon.is_over(known.until - now)
    times = known.times + is_trying
    until = now + _wait_s(times) if is_trying else known.until
    waited_for |= known.workers & {w.name for w in group.workers}
    return Blocked(until, reason, message, times, waited_for), is_trying


def _is_over(known: Blocked, group: ObservedGroup, horizon: Horizon) -> bool:
    """Tells whether a worker has come since, or nobody has tried for too long to know."""
    now, began = horizon.now, known.until - _wait_s(known.times)
    if horizon.is_exceeded(LONGEST_WAIT_S - (now - known.until)):
        return True
    made_at = horizon.clocks.platform - (now - began)
    return any(
        w.is_connected and (w.name in known.workers or w.made_at > made_at) for w in group.workers
    )


def _wait_s(times: int) -> float:
    return min(FIRST_WAIT_S * 2.0 ** (min(times, 12) - 1), LONGEST_WAIT_S)


def stuck_workers(
    workers: Iterable[ObservedWorker], policy: Policy, horizon: Horizon
) -> tuple[ObservedWorker, ...]:
    """Workers whose pods are refused, then those that no node has had room for in time."""
    longest_s = policy.unschedulable_timeout_s
    waiting = [w for w in workers if isinstance(w.lifecycle, Pending)]
    refused = [w for w in waiting if w.refused]
    unplaced = [
        w
        for w in waiting
        if w.unscheduled_at is not None
        and not w.refused
        and horizon.is_exceeded(longest_s - (horizon.clocks.platform - w.unscheduled_at))
    ]
    return (*refused, *sorted(unplaced, key=lambda w: w.unscheduled_at or 0.0))


def _why(stuck: Sequence[ObservedWorker], policy: Policy) -> tuple[Reason, str]:
    first = stuck[0]
    if first.refused:
        # The words of Kubernetes' ResourceQuota admission plugin.
        is_quota = "exceeded quota" in first.refused
        reason = Reason.QUOTA_EXCEEDED if is_quota else Reason.ADMISSION_REFUSED
        return reason, f"pods of {counted(len(stuck), 'worker')} refused: {first.refused}"
    # Not for how long: what is told changes with the world, not with the clock.
    longest = format_duration(policy.unschedulable_timeout_s)
    message = f"{counted(len(stuck), 'worker')} without a node for over {longest}: {first.waiting}"
    return Reason.UNSCHEDULABLE, message
