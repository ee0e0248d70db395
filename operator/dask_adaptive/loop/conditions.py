"""
Computes the eight conditions of a policy, with their messages. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_adaptive.loop import status as st
from dask_adaptive.loop.status import Condition
from dask_adaptive.model.amounts import counted, joined, listed
from dask_adaptive.model.observed import ObservedCluster, ObservedScheduler
from dask_adaptive.model.plan import Outcome, Plan
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Pause
from dask_adaptive.model.scheduler_settings import flat, json_by_key
from dask_adaptive.planner.caps import is_paused
from dask_adaptive.planner.quotas import has_spent
from dask_adaptive.planner.stages import LIMITS
from dask_adaptive_agent import wire

UNKNOWN = "not known until the scheduler answers"

#: Settings that one message names. Never their values: these may be passwords.
NAMED = 5


def paused(policy: Policy, pause: Pause) -> Condition:
    """Condition: a person has paused something, by mode or annotation."""
    if policy.mode is Mode.PAUSED:
        return Condition(st.PAUSED, True, Reason.PAUSED, "mode is Paused")
    if not is_paused(pause):
        is_advising = policy.mode is Mode.ADVISE
        reason = Reason.ADVISING if is_advising else Reason.RECONCILED
        return Condition(st.PAUSED, False, reason, f"mode is {policy.mode.value}")
    message = joined(pause.message, pause.problem)
    reason = Reason.PAUSED if pause.all else Reason.SCALING_PAUSED
    reason = Reason.INVALID_ANNOTATION if pause.problem else reason
    return Condition(st.PAUSED, True, reason, message or "paused")


def injected(scheduler: ObservedScheduler) -> Condition:
    """Condition: the scheduler runs the agent. The message names failed reliefs."""
    if scheduler.is_connected:
        failed = [f"{r.name} ({r.message})" for r in scheduler.relief if r.state == wire.R_FAILED]
        off = f"; reliefs off: {', '.join(failed)}" if failed else ""
        message = f"agent {scheduler.agent}{off}"
        return Condition(st.INJECTED, True, Reason.RECONCILED, message)
    if scheduler.problem is not None and scheduler.lacks_agent:
        return Condition(st.INJECTED, False, scheduler.problem, scheduler.message)
    return Condition(st.INJECTED, None, Reason.SCHEDULER_UNREACHABLE, UNKNOWN)


def configured(scheduler: ObservedScheduler, policy: Policy) -> Condition:
    """Condition: the scheduler runs with the configuration that the policy asks for."""
    if not policy.scheduler.config:
        return _condition(True, Reason.RECONCILED, "spec.scheduler.config is empty")
    if scheduler.problem is not None:
        return _condition(None, scheduler.problem, UNKNOWN)
    if scheduler.config is None:
        old = f"agent {scheduler.agent} does not report this; restart the scheduler to update it"
        return _condition(None, Reason.AGENT_MISSING, old)
    in_force = dict(scheduler.config)
    wanted = dict(json_by_key(flat(policy.scheduler.config)))
    others = [key for key, value in wanted.items() if in_force.get(key) != value]
    if not others:
        count = len(policy.scheduler.config)
        return _condition(True, Reason.RECONCILED, f"{counted(count, 'setting')} in effect")
    until = "the scheduler restarts, unless its pod's environment sets other values"
    return _condition(
        False, Reason.PENDING_RESTART, f"not in effect until {until}: {listed(others, NAMED)}"
    )


def _condition(status: bool | None, reason: Reason, message: str) -> Condition:
    return Condition(st.SCHEDULER_CONFIGURED, status, reason, message)


def conditions_of(
    observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome],
    *, unheard: str = "",
) -> tuple[Condition, ...]:  # fmt: skip
    """
    All eight conditions, always, in the order in which they are shown.

    Args:
        unheard: Why limits could not be sent to the agent; empty: they were.
    """
    return (
        _ready(observed, decided),
        _connected(observed.scheduler),
        injected(observed.scheduler),
        configured(observed.scheduler, policy),
        _able(observed, policy, decided, outcomes, unheard),
        _limited(decided),
        paused(policy, observed.pause),
        _watching(observed),
    )


def _watching(observed: ObservedCluster) -> Condition:
    """Condition: every kind can be watched. A kind that cannot disables only its own feature."""
    if observed.losses:
        return Condition(st.WATCHING, False, Reason.UNREADABLE, "; ".join(observed.losses))
    return Condition(st.WATCHING, True, Reason.RECONCILED, "all kinds can be read")


def _limited(decided: Plan) -> Condition:
    limited = [(plan.group, plan.limited) for plan in decided.groups if plan.limited is not None]
    if not limited:
        within = "the load needs no more and no fewer workers than the bounds allow"
        return Condition(st.SCALING_LIMITED, False, Reason.DESIRED_WITHIN_RANGE, within)
    limited.sort(key=lambda item: LIMITS.index(item[1].reason))
    several = len(decided.groups) > 1
    messages = [f"{group}: {step.message}" if several else step.message for group, step in limited]
    return Condition(st.SCALING_LIMITED, True, limited[0][1].reason, "; ".join(messages))


def _ready(observed: ObservedCluster, decided: Plan) -> Condition:
    is_unserved = (
        not observed.found or observed.conflict or decided.reason is Reason.CLUSTER_NOT_FOUND
    )
    if is_unserved or not observed.scheduler.is_connected:
        return Condition(st.READY, False, decided.reason, decided.message)
    workers = [w for w in observed.notable if w.is_connected]
    is_full = len(workers) == len(observed.connected)
    if workers and is_full and all(w.process.is_paused and w.process.stuck for w in workers):
        full = f"memory is full: {counted(len(workers), 'worker')} paused, no task starts"
        return Condition(st.READY, False, Reason.WORKERS_PAUSED, full)
    return Condition(st.READY, True, Reason.RECONCILED, "the operator serves the cluster")


def _connected(scheduler: ObservedScheduler) -> Condition:
    if scheduler.problem is None or scheduler.lacks_agent:
        return Condition(st.SCHEDULER_CONNECTED, True, Reason.RECONCILED, "the scheduler answers")
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
        message = f"quotas could not be sent to the agent: {unheard}"
        return Condition(st.ABLE_TO_SCALE, False, Reason.ACTION_FAILED, message)
    waiting = _waiting(observed, policy)
    if decided.storm:
        return Condition(st.ABLE_TO_SCALE, False, Reason.RECYCLE_STORM, decided.storm + waiting)
    able = f"workers can be added and retired{waiting}"
    return Condition(st.ABLE_TO_SCALE, True, Reason.RECONCILED, able)


def _waiting(observed: ObservedCluster, policy: Policy) -> str:
    """Count workers that exact quotas keep from taking tasks until they are replaced."""
    quotas = [(g, policy.recycle_of(g.name)) for g in observed.groups]
    exact = [(g, r) for g, r in quotas if r.tasks.exact]
    spent = [has_spent(w, r) for g, r in exact for w in g.workers if w.is_connected]
    if not any(spent):
        return ""
    return f"; {sum(spent)} of {len(spent)} workers are at exact quotas and wait to be replaced"


def _unanswered(scheduler: ObservedScheduler, policy: Policy) -> tuple[Reason, str]:
    """Distinguish a short silence of the scheduler from one for which `fallback` applies."""
    assert scheduler.problem is not None
    fallback = policy.fallback
    if scheduler.unanswered < max(1, fallback.failure_threshold):
        return scheduler.problem, scheduler.message
    least = fallback.replicas
    kept = "" if least is None else f", at least {counted(least, 'worker')} are kept"
    missed = f"no answer to {fallback.failure_threshold} requests (fallback)"
    return Reason.FALLBACK, f"{scheduler.message}; {missed}: no worker is removed{kept}"
