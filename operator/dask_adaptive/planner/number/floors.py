"""Floors and holds that people set: schedules, idle, fallback, pause annotations."""

from __future__ import annotations

from dask_adaptive.model.amounts import counted, format_duration
from dask_adaptive.model.observed import Demand, ObservedCluster, ObservedScheduler
from dask_adaptive.model.plan import DeleteCluster, Step
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Idle, IdleAction, Pause
from dask_adaptive.model.windows import is_open, turns_at
from dask_adaptive.planner.context import Horizon, PassContext


def scheduled_floor(context: PassContext, group: str) -> Step | None:
    """The highest floor of `spec.schedules` that is open for a group now."""
    default, at = context.default_group, context.observed.at
    mine = [s for s in context.policy.schedules if (s.worker_group or default) == group]
    context.horizon.within(turns_at([s.window for s in mine], at) - at)
    open_now = [s for s in mine if is_open((s.window,), at)]
    if not open_now:
        return None
    highest = max(open_now, key=lambda s: s.min_replicas)
    window = highest.window
    message = f"at least {highest.min_replicas} by schedule {window.schedule} ({window.time_zone})"
    return Step("schedule", highest.min_replicas, Reason.SCHEDULED_MINIMUM, message)


def fallback_floor(context: PassContext) -> Step | None:
    """
    The floor of the default group while the scheduler does not answer (`spec.fallback`).

    None: as many workers as there are.
    """
    fallback, scheduler = context.policy.fallback, context.observed.scheduler
    asked = max(1, fallback.failure_threshold)
    if scheduler.is_connected or fallback.replicas is None or scheduler.unanswered < asked:
        return None
    default = context.policy.bounds(context.default_group)[0]
    number = min(max(fallback.replicas, default.minimum), default.maximum)
    message = f"no answer to {asked} requests (fallback): at least {counted(number, 'worker')}"
    return Step("fallback", number, Reason.FALLBACK, message)


def lifts_minimums(context: PassContext) -> str:
    """
    Say that minimums no longer hold, because nobody uses the cluster and its policy wants it so.

    Workers leave as they do for want of work: the windows and the vetoes are not shortened, and
    one that holds the last copy of a result stays as long as no other can take it.
    """
    idle = context.policy.idle
    if idle.action is not IdleAction.SCALE_TO_ZERO:
        return ""
    unused = _unused(context.observed, idle, context.horizon)
    return f"{unused}: minimums do not hold" if unused else ""


def deletion(
    observed: ObservedCluster, policy: Policy, horizon: Horizon | None = None
) -> DeleteCluster | None:
    """
    Delete the cluster that nobody uses, if its policy wants it so and nothing speaks against it.

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
    unused = _unused(observed, policy.idle, horizon or Horizon())
    has_client = scheduler.quiet.no_client_s <= 0
    is_held = any(w.actors or (has_client and w.sole_bytes) for w in scheduler.workers)
    if unused and not is_held:
        return DeleteCluster(observed.uid, Reason.CLUSTER_IDLE, f"{unused}: it is deleted")
    return None


def _unused(observed: ObservedCluster, idle: Idle, horizon: Horizon) -> str:
    """
    For how long nobody has used the cluster, in words; empty: somebody does, or not yet.

    In the policy's figures: measured ones would make news of the same thing all the time.
    """
    scheduler = observed.scheduler
    if not scheduler.is_connected or _has_work(scheduler) or _is_claimed(observed, horizon):
        return ""
    quiet = scheduler.quiet
    # A client that has sent its work and left (fire_and_forget) is waited for by nobody but us:
    # until its tasks are done the cluster is in use, and they are what was looked at above.
    for words, quiet_s, limit_s in (
        ("no task for {} or longer", quiet.no_task_s, idle.after_s),
        ("no client for {} or longer, and no task", quiet.no_client_s, idle.no_client_timeout_s),
    ):
        if limit_s is not None and quiet_s > 0 and horizon.is_over(limit_s - quiet_s):
            return words.format(format_duration(limit_s))
    return ""


def _has_work(scheduler: ObservedScheduler) -> bool:
    if scheduler.queued or scheduler.processing or scheduler.held or scheduler.shuffles:
        return True
    if any(w.processing for w in scheduler.workers):
        return True
    demand = scheduler.demand or Demand()
    return bool(demand.shuffles) or any(p.unfinished for p in demand.prefixes)


def _is_claimed(observed: ObservedCluster, horizon: Horizon) -> bool:
    """Tells whether somebody claims the cluster: by pins of any kind, or a client's `want`."""
    scheduler = observed.scheduler
    return (
        any(w.is_pinned for group in observed.groups for w in group.workers)
        or any(w.pins for w in scheduler.workers)
        or any(w.workers > 0 and not horizon.is_over(w.left_s) for w in scheduler.wants)
    )


def paused_step(desired: int, serving: int, pause: Pause) -> Step | None:
    """
    The number of workers that the annotations of a pause leave, where it is another one.

    What can't be read holds what it is about.
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
    # The condition says when it ends: a sentence that counts down would be news all the time.
    said = (part for part in (what, pause.message, pause.problem) if part)
    return Step("pause", serving, reason, "; ".join(said))


def is_paused(pause: Pause) -> bool:
    """Tells whether a pause holds anything; it ends by itself, even if nobody looks."""
    if pause.left_s is not None and pause.left_s <= 0:
        return False
    return pause.all or pause.scale_in or pause.scale_out
