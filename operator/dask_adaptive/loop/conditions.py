"""The conditions of a policy: what is well with it, and what is not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dask_adaptive.loop import status as st
from dask_adaptive.loop.configured import configured, injected
from dask_adaptive.loop.pause import pause_row, paused
from dask_adaptive.loop.status import Condition, PauseRow
from dask_adaptive.model.observed import ObservedCluster, ObservedScheduler
from dask_adaptive.model.plan import Outcome, Plan
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.quotas import has_spent
from dask_adaptive.planner.why import LIMITS


def conditions_of(
    observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome],
    *, unheard: str = "", pause: PauseRow | None = None,
) -> tuple[Condition, ...]:  # fmt: skip
    """
    All seven conditions, always, in the order in which they are shown.

    Args:
        unheard: Why the agent could not be told of limits; empty: it was.
        pause: As it is told, if it has been told before.
    """
    return (
        _ready(observed, decided),
        _connected(observed.scheduler),
        injected(observed.scheduler),
        configured(observed.scheduler, policy),
        _able(observed, policy, decided, outcomes, unheard),
        _limited(decided),
        paused(policy, observed.pause, pause_row(observed, pause)),
    )


def _limited(decided: Plan) -> Condition:
    limited = [(plan.group, plan.limited) for plan in decided.groups if plan.limited is not None]
    if not limited:
        within = "the load asks for a number within the bounds"
        return Condition(st.SCALING_LIMITED, False, Reason.DESIRED_WITHIN_RANGE, within)
    limited.sort(key=lambda item: LIMITS.index(item[1].reason))
    several = len(decided.groups) > 1
    said = [f"{group}: {step.message}" if several else step.message for group, step in limited]
    return Condition(st.SCALING_LIMITED, True, limited[0][1].reason, "; ".join(said))


def _ready(observed: ObservedCluster, decided: Plan) -> Condition:
    is_stopped = (
        not observed.found or observed.conflict or decided.reason is Reason.CLUSTER_NOT_FOUND
    )
    if is_stopped or not observed.scheduler.is_connected:
        return Condition(st.READY, False, decided.reason, decided.message)
    return Condition(st.READY, True, Reason.RECONCILED, "the cluster is served")


def _connected(scheduler: ObservedScheduler) -> Condition:
    if scheduler.problem is None:
        return Condition(st.SCHEDULER_CONNECTED, True, Reason.CONNECTED, "the scheduler answers")
    status = None if scheduler.problem is Reason.CLUSTER_NOT_FOUND else False
    return Condition(st.SCHEDULER_CONNECTED, status, scheduler.problem, scheduler.message)


def _able(
    observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome],
    unheard: str,
) -> Condition:  # fmt: skip
    failed = next((o for o in outcomes if o.reason is Reason.ACTION_FAILED), None)
    if failed is not None:
        return Condition(st.ABLE_TO_SCALE, False, Reason.ACTION_FAILED, failed.message)
    if observed.scheduler.problem is not None:
        return Condition(st.ABLE_TO_SCALE, False, *_unanswered(observed.scheduler, policy))
    if decided.reason is Reason.TOO_MANY_UNREADY:
        return Condition(st.ABLE_TO_SCALE, False, decided.reason, decided.message)
    if unheard:
        message = f"the agent could not be told of quotas: {unheard}"
        return Condition(st.ABLE_TO_SCALE, False, Reason.ACTION_FAILED, message)
    waiting = _waiting(observed, policy)
    if decided.storm:
        return Condition(st.ABLE_TO_SCALE, False, Reason.RECYCLE_STORM, decided.storm + waiting)
    able = f"workers can be added and retired{waiting}"
    return Condition(st.ABLE_TO_SCALE, True, Reason.RECONCILED, able)


def _waiting(observed: ObservedCluster, policy: Policy) -> str:
    """What exact quotas cost now: workers that take no tasks until they are replaced."""
    exact = [g for g in observed.groups if policy.recycle_of(g.name).tasks.exact]
    workers = [w for g in exact for w in g.workers if w.is_connected]
    spent = sum(has_spent(w, policy.recycle_of(w.group)) for w in workers)
    if not spent:
        return ""
    return f"; {spent} of {len(workers)} workers wait for replacements: exact quotas"


def _unanswered(scheduler: ObservedScheduler, policy: Policy) -> tuple[Reason, str]:
    """A scheduler that is away for a moment, or for so long that `fallback` is in force."""
    assert scheduler.problem is not None
    fallback = policy.scaling.fallback
    if scheduler.unanswered < max(1, fallback.failure_threshold):
        return scheduler.problem, scheduler.message
    kept = "all workers are held"
    if fallback.replicas is not None:
        kept = f"all workers are held, and at least {fallback.replicas}"
    asked = fallback.failure_threshold
    return Reason.FALLBACK, f"{scheduler.message}; {asked} questions and more: {kept}"
