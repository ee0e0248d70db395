"""What becomes of a cluster that nobody uses: `spec.idle`."""

from __future__ import annotations

from dask_adaptive.model.duration import format_duration
from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import ObservedCluster, ObservedScheduler
from dask_adaptive.model.plan import DeleteCluster
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Idle, IdleAction
from dask_adaptive.planner.pauses import is_paused


def idle_step(observed: ObservedCluster, policy: Policy) -> Step | None:
    """
    Say that minimums no longer hold, because nobody uses the cluster and its policy wants it so.

    Workers leave as they do for want of work: the windows and the vetoes are not shortened, and
    one that holds the last copy of a result stays as long as no other can take it.
    """
    if policy.scaling.idle.action is not IdleAction.SCALE_TO_ZERO:
        return None
    unused = _unused(observed, policy.scaling.idle)
    if not unused:
        return None
    return Step("idle", 0, Reason.CLUSTER_IDLE, f"{unused}: minimums do not hold")


def deletion(observed: ObservedCluster, policy: Policy) -> DeleteCluster | None:
    """
    Delete the cluster that nobody uses, if its policy wants it so and nothing speaks against it.

    What is deleted is lost, so more counts as use than for a worker: results in memory while a
    client is connected (its futures and `persist`ed collections), and actors. Results whose client
    is gone do not count, or nearly no cluster would ever go: published data, queues and variables
    are kept by a pin.
    """
    if policy.scaling.idle.action is not IdleAction.DELETE_CLUSTER or policy.mode is not Mode.AUTO:
        return None
    scheduler = observed.scheduler
    if not observed.found or observed.conflict or not observed.uid or is_paused(observed.pause):
        return None
    # Stock RPC can't tell how long a cluster has been quiet, nor who has pinned what.
    if not scheduler.agent or scheduler.degraded is not None:
        return None
    if (unused := _unused(observed, policy.scaling.idle)) and not _holds_something(observed):
        return DeleteCluster(observed.uid, Reason.CLUSTER_IDLE, f"{unused}: it is deleted")
    return None


def _unused(observed: ObservedCluster, idle: Idle) -> str:
    """
    For how long nobody has used the cluster, in words; empty: somebody does, or not yet.

    Told by the policy's figures: measured ones would make news of the same thing all the time.
    """
    scheduler = observed.scheduler
    if not scheduler.is_connected or _has_work(scheduler) or _is_claimed(observed):
        return ""
    quiet = scheduler.quiet
    if idle.after_s is not None and 0 < quiet.no_task_s >= idle.after_s:
        return f"no task for {format_duration(idle.after_s)} or longer"
    # A client that has sent its work and left (fire_and_forget) is waited for by nobody but us:
    # until its tasks are done the cluster is in use, and they are what was looked at above.
    if idle.no_client_s is not None and 0 < quiet.no_client_s >= idle.no_client_s:
        return f"no client for {format_duration(idle.no_client_s)} or longer, and no task"
    return ""


def _has_work(scheduler: ObservedScheduler) -> bool:
    if scheduler.queued or scheduler.processing or scheduler.held or scheduler.shuffles:
        return True
    if any(w.processing for w in scheduler.workers):
        return True
    demand = scheduler.demand
    if demand is None:
        return False
    return bool(demand.shuffles) or any(p.running or p.ready or p.waiting for p in demand.prefixes)


def _is_claimed(observed: ObservedCluster) -> bool:
    """Whether somebody wants it kept: pins of any kind, a client's `want`."""
    scheduler = observed.scheduler
    return (
        any(w.is_pinned for group in observed.groups for w in group.workers)
        or any(w.pins for w in scheduler.workers)
        or any(w.workers > 0 and w.left_s > 0 for w in scheduler.wants)
    )


def _holds_something(observed: ObservedCluster) -> bool:
    workers = observed.scheduler.workers
    if any(w.actors for w in workers):
        return True
    has_client = observed.scheduler.quiet.no_client_s <= 0
    return has_client and any(w.sole_bytes for w in workers)
