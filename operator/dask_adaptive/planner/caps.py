"""
Bounds a group's number by floors and holds that people set (schedules, idle, fallback, pauses), and
by caps, so that no worker is requested in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dask_adaptive.model.amounts import counted, format_duration, joined
from dask_adaptive.model.observed import (
    Clocks,
    Demand,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
    Pending,
)
from dask_adaptive.model.past import Blocked
from dask_adaptive.model.plan import DeleteCluster, Step
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import GroupBounds, Idle, IdleAction, Pause
from dask_adaptive.model.windows import is_open
from dask_adaptive.planner.context import PassContext
from dask_adaptive.planner.groups import GroupWorkers


def scheduled_floor(context: PassContext, group: str) -> Step | None:
    """Return a group's highest floor among open `spec.schedules`."""
    default, at = context.default_group, context.observed.at
    mine = [s for s in context.policy.schedules if (s.worker_group or default) == group]
    open_now = [s for s in mine if is_open((s.window,), at)]
    if not open_now:
        return None
    highest = max(open_now, key=lambda s: s.min_replicas)
    window = highest.window
    message = f"at least {highest.min_replicas} by schedule {window.schedule} ({window.time_zone})"
    return Step("schedule", highest.min_replicas, Reason.SCHEDULED_MINIMUM, message)


def fallback_floor(context: PassContext) -> Step | None:
    """
    Return the default group's floor while the scheduler does not answer (`spec.fallback`).

    None: as many workers as there are.
    """
    fallback, scheduler = context.policy.fallback, context.observed.scheduler
    threshold = max(1, fallback.failure_threshold)
    if scheduler.is_connected or fallback.replicas is None or scheduler.unanswered < threshold:
        return None
    default = context.policy.bounds(context.default_group)[0]
    number = min(max(fallback.replicas, default.minimum), default.maximum)
    message = f"no answer to {threshold} requests (fallback): at least {counted(number, 'worker')}"
    return Step("fallback", number, Reason.FALLBACK, message)


def lifts_minimums(context: PassContext) -> str:
    """
    Return why minimums do not hold: the cluster is unused and its policy scales it to zero.

    Workers leave as they do for want of work: the windows and the vetoes are not shortened, and
    one that holds the last copy of a result stays as long as no other can take it.
    """
    idle = context.policy.idle
    if idle.action is not IdleAction.SCALE_TO_ZERO:
        return ""
    unused = _unused(context.observed, idle)
    return f"{unused}: minimums do not apply" if unused else ""


def deletion(observed: ObservedCluster, policy: Policy) -> DeleteCluster | None:
    """
    Delete an unused cluster, if its policy says so and nothing needs it.

    What is deleted is lost, so more counts as use than for a worker: results in memory while a
    client is connected (its futures and `persist`ed collections), and actors. Results whose client
    is gone do not count, or nearly no cluster would ever go: published data, queues and variables
    are kept by a pin.
    """
    scheduler = observed.scheduler
    if policy.idle.action is not IdleAction.DELETE_CLUSTER:
        return None
    if not observed.uid or is_paused(observed.pause):
        return None
    unused = _unused(observed, policy.idle)
    has_client = scheduler.quiet.no_client_s <= 0
    is_held = any(w.actors or (has_client and w.sole_bytes) for w in scheduler.workers)
    if unused and not is_held:
        return DeleteCluster(observed.uid, Reason.CLUSTER_IDLE, f"{unused}: it is deleted")
    return None


def _unused(observed: ObservedCluster, idle: Idle) -> str:
    """
    Return how long the cluster has been unused, in words; empty if it is in use.

    In the policy's figures: measured ones would make news of the same thing all the time.
    """
    scheduler = observed.scheduler
    if not scheduler.is_connected or _has_work(scheduler) or _is_wanted(observed):
        return ""
    quiet = scheduler.quiet
    # After a client has left its work (fire_and_forget), the cluster is in use until its tasks are
    # done; these were checked above.
    for words, quiet_s, limit_s in (
        ("no task for {} or longer", quiet.no_task_s, idle.after_s),
        ("no client for {} or longer, and no task", quiet.no_client_s, idle.no_client_timeout_s),
    ):
        if limit_s is not None and quiet_s > 0 and quiet_s >= limit_s:
            return words.format(format_duration(limit_s))
    return ""


def _has_work(scheduler: ObservedScheduler) -> bool:
    if scheduler.queued or scheduler.processing or scheduler.held or scheduler.shuffles:
        return True
    if any(w.processing for w in scheduler.workers):
        return True
    demand = scheduler.demand or Demand()
    return bool(demand.shuffles) or any(p.unfinished for p in demand.prefixes)


def _is_wanted(observed: ObservedCluster) -> bool:
    """True if the cluster is wanted: by pins of any kind, or a client's `want`."""
    scheduler = observed.scheduler
    return (
        any(w.is_pinned for w in observed.notable)
        or any(w.pins for w in scheduler.workers)
        or any(w.workers > 0 and w.left_s > 0 for w in scheduler.wants)
    )


def paused_step(desired: int, serving: int, pause: Pause) -> Step | None:
    """
    Return the number that a pause by annotations allows, if it differs. Unreadable annotations
    pause what they concern.
    """
    if not is_paused(pause):
        return None
    reason = Reason.INVALID_ANNOTATION if pause.problem else Reason.SCALING_PAUSED
    if pause.all:
        reason, what = Reason.PAUSED, "nothing is scaled"
    elif pause.scale_in and desired < serving:
        what = f"{desired} wanted, {serving} held: no worker leaves"
    elif pause.scale_out and desired > serving:
        what = f"{desired} wanted, {serving} held: no worker is requested"
    else:
        return None
    # The condition names the end: a countdown here would be news in every pass.
    return Step("pause", serving, reason, joined(what, pause.message, pause.problem))


def is_paused(pause: Pause) -> bool:
    """True if a pause holds anything."""
    if pause.left_s is not None and pause.left_s <= 0:
        return False
    return pause.all or pause.scale_in or pause.scale_out


#: First wait before one more worker is tried while they are blocked; it doubles.
FIRST_WAIT_S = 60.0

#: The longest such wait.
LONGEST_WAIT_S = 1800.0


def capped(
    context: PassContext, workers: GroupWorkers, wanted: int
) -> tuple[int, tuple[Step, ...], Blocked | None]:
    """
    Cap the number, so that no worker is requested in vain; return number, caps and blockage.

    Caps hold back, they take nobody away but gated workers beyond `maxPending`: else the number is
    never below both `wanted` and the workers that there are. Workers on their way out that can be
    called back exist, so no cap is about them. Each cap that lowers the number is a step, and so is
    one that is waited for.
    """
    policy, number = context.policy, wanted
    there = workers.serving + len(workers.recallable)
    steps = []
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
        is_stuck = bool(stuck_workers(workers.group.table.notable, policy, context.clocks))
        is_short = number > limit or (number > len(workers.active) and is_stuck)
        number = min(number, max(limit, min(wanted, workers.serving)))
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
    Divide the cluster's maxReplicas among its groups: by priority, equally within one.

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
    """Divide `left` evenly among those that lack some; odd ones go in order."""
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
    # Preempted workers come back gated without being requested: surplus ones are deleted.
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
    Return whether more workers are blocked, and whether this pass tries one more.

    A worker that waits is tried by Kubernetes itself all the time; but its Deployment keeps what
    it was made with, so only a new one shows that its group asks for less by now.
    """
    now, group, known = context.now, workers.group, context.past.of(workers.name).blocked
    if known is not None and _is_over(known, group, context):
        known = None
    stuck = stuck_workers(group.table.notable, context.policy, context.clocks)
    waited_for = frozenset(w.name for w in workers.pending)
    if known is None:
        if not stuck:
            return None, False
        reason, message = _why(stuck, context.policy)
        return Blocked(now + FIRST_WAIT_S, reason, message, workers=waited_for), False
    reason, message = _why(stuck, context.policy) if stuck else (known.reason, known.message)
    is_trying = wants_more and now >= known.until
    times = known.times + is_trying
    until = now + _wait_s(times) if is_trying else known.until
    waited_for |= known.workers & group.table.positions.keys()
    return Blocked(until, reason, message, times, waited_for), is_trying


def _is_over(known: Blocked, group: ObservedGroup, context: PassContext) -> bool:
    """True if a worker has connected since, or the last try is too long ago."""
    now, began = context.now, known.until - _wait_s(known.times)
    if now - known.until > LONGEST_WAIT_S:
        return True
    made_at = context.observed.at - (now - began)
    return any(
        w.is_connected and (w.name in known.workers or w.platform.made_at > made_at)
        for w in group.workers
    )


def _wait_s(times: int) -> float:
    return min(FIRST_WAIT_S * 2.0 ** (min(times, 12) - 1), LONGEST_WAIT_S)


def stuck_workers(
    workers: Iterable[ObservedWorker], policy: Policy, clocks: Clocks
) -> tuple[ObservedWorker, ...]:
    """Return workers with refused pods, then those without a node for too long."""
    longest_s = policy.unschedulable_timeout_s
    waiting = [w for w in workers if isinstance(w.lifecycle, Pending)]
    refused = [w for w in waiting if w.platform.refused]
    unplaced = [w for w in waiting if not w.platform.refused and clocks.unplaced_s(w) > longest_s]
    return (*refused, *sorted(unplaced, key=clocks.unplaced_s, reverse=True))


def _why(stuck: Sequence[ObservedWorker], policy: Policy) -> tuple[Reason, str]:
    first = stuck[0]
    if first.platform.refused:
        # The words of Kubernetes' ResourceQuota admission plugin.
        is_quota = "exceeded quota" in first.platform.refused
        reason = Reason.QUOTA_EXCEEDED if is_quota else Reason.ADMISSION_REFUSED
        return reason, f"pods of {counted(len(stuck), 'worker')} refused: {first.platform.refused}"
    # Without a duration: messages must not change with the clock alone.
    longest = format_duration(policy.unschedulable_timeout_s)
    message = f"{counted(len(stuck), 'worker')} without a node for over {longest}: {first.waiting}"
    return Reason.UNSCHEDULABLE, message
