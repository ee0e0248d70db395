"""Caps: asks for no worker that would not come, and shares the cluster's limit among groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dask_adaptive.model.amounts import counted, format_duration
from dask_adaptive.model.observed import ObservedGroup, ObservedWorker, Pending
from dask_adaptive.model.past import Blocked
from dask_adaptive.model.plan import Step
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import GroupBounds
from dask_adaptive.planner.actions.groups import GroupWorkers
from dask_adaptive.planner.context import Horizon, PassContext

#: The first wait before one more worker is tried, after none could be had; it doubles.
FIRST_WAIT_S = 60.0

#: The longest such wait.
LONGEST_WAIT_S = 1800.0


def capped(
    context: PassContext, desired: int, workers: GroupWorkers
) -> tuple[int, tuple[Step, ...], Blocked | None]:
    """
    Ask for no worker that would not come.

    Caps hold back, they take nobody away but gated workers beyond `maxPending`: else the number is
    never below both `desired` and the workers that there are. Workers on their way out that can be
    called back exist, so no cap is about them.

    Returns:
        Workers; each cap that lowered the number, or is waited for; the next `GroupPast.blocked`.
    """
    policy, there = context.policy, workers.serving + len(workers.recallable)
    steps = []
    number = desired
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
        number = min(number, max(limit, min(desired, workers.serving)))
        if is_short:
            steps.append(Step("cap", number, blocked.reason, blocked.message))
    return number, tuple(steps), blocked


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
