"""What is not asked for in vain: pending workers, room in the namespace, the cluster's limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dask_adaptive.model.duration import format_duration
from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Blocked, GroupPast
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import GroupBounds
from dask_adaptive.planner.fleet import Fleet

#: The first wait before one more worker is tried, after none could be had; it doubles.
FIRST_WAIT_S = 60.0

#: The longest such wait.
LONGEST_WAIT_S = 1800.0


def capped(
    desired: int, fleet: Fleet, group: ObservedGroup, policy: Policy, past: GroupPast,
    *, now: float,
) -> tuple[int, tuple[Step, ...], Blocked | None]:  # fmt: skip
    """
    Ask for no worker that would not come.

    Caps hold back, they take nobody away: the number is never below both `desired` and the workers
    that there are. Workers on their way out that can be called back exist, so no cap is about them.

    Returns:
        Workers; each cap that lowered the number (one that nothing could be had is told as long as
        it lasts and workers are waited for); and what is to be remembered as `GroupPast.blocked`.
    """
    there = fleet.serving + fleet.recallable
    steps = []
    number = desired
    for step in (_by_pending(fleet, policy, there), _by_room(group, there)):
        if step is not None and step.replicas < number:
            number = max(step.replicas, min(desired, fleet.serving))
            steps.append(step)
    blocked, is_trying = _blocked(group, fleet, policy, past, wants_more=number > there, now=now)
    if blocked is not None:
        limit = there + is_trying
        is_short = number > limit or (number > len(fleet.active) and bool(_stuck(group, policy)))
        number = min(number, max(limit, min(desired, fleet.serving)))
        if is_short:
            steps.append(Step("cap", number, blocked.reason, blocked.message))
    return number, tuple(steps), blocked


def shared(
    desired: Mapping[str, int],
    bounds: Sequence[GroupBounds],
    floor: Mapping[str, int],
    maximum: int,
) -> tuple[Mapping[str, int], Mapping[str, Step]]:
    """
    Share the cluster's maxReplicas among its groups: a higher priority first, equals alike.

    Args:
        desired: Workers of each group, by name.
        floor: Workers of each group below which this must not take it, by name.
        maximum: Of all groups together.

    Returns:
        Numbers, each at most what is desired and no lower than its floor (or what is desired, where
        that is less); and one step for each group that gets less than it desires.
    """
    numbers = {name: min(number, floor.get(name, 0)) for name, number in desired.items()}
    left = max(0, maximum - sum(numbers.values()))
    rank = {b.name: b.priority for b in bounds}
    for priority in sorted({rank.get(name, 0) for name in desired}, reverse=True):
        equals = [name for name in desired if rank.get(name, 0) == priority]
        missing = {name: desired[name] - numbers[name] for name in equals}
        for name, more in _evenly(missing, left).items():
            numbers[name] += more
            left -= more
    asked = f"all groups together {sum(desired.values())}: maxReplicas is {maximum}"
    steps = {
        name: Step("cluster", number, Reason.CLUSTER_LIMIT, f"{desired[name]} needed, {asked}")
        for name, number in numbers.items()
        if number < desired[name]
    }
    return numbers, steps


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


def _by_pending(fleet: Fleet, policy: Policy, there: int) -> Step | None:
    most = policy.scaling.behavior.max_pending
    if most is None:
        return None
    pending = len(fleet.pending)
    message = f"{pending} workers are on their way, maxPending is {most}"
    return Step("cap", there + max(0, most - pending), Reason.MAX_PENDING, message)


def _by_room(group: ObservedGroup, there: int) -> Step | None:
    if group.room is None:
        return None
    more = max(0, group.room.workers)
    return Step("cap", there + more, Reason.QUOTA_EXCEEDED, group.room.message)


def _blocked(
    group: ObservedGroup, fleet: Fleet, policy: Policy, past: GroupPast,
    *, wants_more: bool, now: float,
) -> tuple[Blocked | None, bool]:  # fmt: skip
    """
    Whether more workers are not to be asked for, and whether one is, to see if it comes by now.

    A worker that waits is tried by Kubernetes itself all the time; but its Deployment keeps what
    it was made with, so only a new one shows that its group asks for less by now.
    """
    known = past.blocked
    if known is not None and _is_over(known, group, now):
        known = None
    stuck = _stuck(group, policy)
    waited_for = frozenset(w.name for w in fleet.pending)
    if known is None:
        if not stuck:
            return None, False
        reason, message = _why(stuck, policy)
        return Blocked(now + FIRST_WAIT_S, reason, message, workers=waited_for), False
    reason, message = _why(stuck, policy) if stuck else (known.reason, known.message)
    is_trying = wants_more and now >= known.until
    times = known.times + is_trying
    until = now + _wait_s(times) if is_trying else known.until
    waited_for |= known.workers & {w.name for w in group.workers}
    return Blocked(until, reason, message, times, waited_for), is_trying


def _is_over(known: Blocked, group: ObservedGroup, now: float) -> bool:
    """Whether a worker has come since, or nobody has wanted one for so long that it is unknown."""
    began = known.until - _wait_s(known.times)
    if now - known.until > LONGEST_WAIT_S:
        return True
    return any(
        w.is_connected and (w.name in known.workers or w.age_s < now - began) for w in group.workers
    )


def _wait_s(times: int) -> float:
    return min(FIRST_WAIT_S * 2.0 ** (min(times, 12) - 1), LONGEST_WAIT_S)


def _stuck(group: ObservedGroup, policy: Policy) -> tuple[ObservedWorker, ...]:
    """Workers that can't be had, those whose pods can't even be made first."""
    longest_s = policy.scaling.caps.unschedulable_timeout_s
    waiting = [w for w in group.workers if not w.is_connected and not w.going]
    refused = [w for w in waiting if w.refused]
    unplaced = [w for w in waiting if not w.refused and w.unschedulable_s > longest_s]
    return (*refused, *sorted(unplaced, key=lambda w: -w.unschedulable_s))


def _why(stuck: Sequence[ObservedWorker], policy: Policy) -> tuple[Reason, str]:
    first = stuck[0]
    if first.refused:
        # The words of Kubernetes' ResourceQuota admission plugin.
        is_quota = "exceeded quota" in first.refused
        reason = Reason.QUOTA_EXCEEDED if is_quota else Reason.ADMISSION_REFUSED
        return reason, f"pods of {len(stuck)} workers are refused: {first.refused}"
    # Not for how long: what is told changes with the world, not with the clock.
    longest = format_duration(policy.scaling.caps.unschedulable_timeout_s)
    message = f"{len(stuck)} workers have found no node for over {longest}: {first.waiting}"
    return Reason.UNSCHEDULABLE, message
