"""What is said of the agent in a scheduler, its reliefs, and Dask's configuration there. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dask_adaptive.loop import status as st
from dask_adaptive.loop.status import Condition
from dask_adaptive.model.observed import ConfigProblem, ObservedScheduler
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive_agent import wire

#: Keys that one message names; the status has them all.
NAMED = 3

#: By state of a key, the worst first: the reason, and what is to be done about such keys.
_STATES = {
    wire.K_INVALID: (Reason.CONFIG_INVALID, "mend {these} in spec.scheduler.config"),
    wire.K_UNKNOWN: (Reason.CONFIG_UNKNOWN, "this release does not read {these}: a typo?"),
    wire.K_PENDING: (
        Reason.PENDING_RESTART,
        "{these} wait{s} for the scheduler's next pod, and nothing restarts a running one",
    ),
}


def injected(scheduler: ObservedScheduler) -> Condition:
    """Whether the agent is there, and which of its reliefs have failed."""
    if scheduler.agent:
        failed = [f"{r.name} ({r.message})" for r in scheduler.relief if r.state == wire.R_FAILED]
        off = f"; off, stock code serves: {', '.join(failed)}" if failed else ""
        message = f"agent {scheduler.agent}{off}"
        return Condition(st.INJECTED, True, Reason.CONNECTED, message)
    if scheduler.degraded is None:
        message = "not known while the scheduler does not answer"
        return Condition(st.INJECTED, None, Reason.SCHEDULER_UNREACHABLE, message)
    return Condition(st.INJECTED, False, scheduler.degraded, scheduler.degraded_message)


def configured(scheduler: ObservedScheduler, policy: Policy) -> Condition:
    """Whether the scheduler runs with the configuration that the policy asks for."""
    if not policy.scheduler.config:
        return _condition(True, Reason.RECONCILED, "spec.scheduler.config asks for nothing")
    if scheduler.problem is not None:
        return _condition(None, scheduler.problem, "not known while the scheduler does not answer")
    if scheduler.config is None:
        return _condition(None, *_nobody(scheduler))
    problems = {state: [p for p in scheduler.config if p.state == state] for state in _STATES}
    found = {state: some for state, some in problems.items() if some}
    if not found:
        count = len(policy.scheduler.config)
        return _condition(True, Reason.RECONCILED, f"all {count} settings are in place")
    reason, _ = _STATES[next(iter(found))]
    return _condition(False, reason, "; ".join(_sentence(*each) for each in found.items()))


def _condition(status: bool | None, reason: Reason, message: str) -> Condition:
    return Condition(st.SCHEDULER_CONFIGURED, status, reason, message)


def _nobody(scheduler: ObservedScheduler) -> tuple[Reason, str]:
    """Why nobody has compared."""
    if scheduler.agent:
        old = f"agent {scheduler.agent} is too old to tell; a new pod of the scheduler renews it"
        return Reason.AGENT_MISSING, old
    return (
        scheduler.degraded or Reason.AGENT_MISSING,
        "only the agent can tell, and it is not there",
    )


def _sentence(state: str, problems: Iterable[ConfigProblem]) -> str:
    some = list(problems)
    named = ", ".join(f"{p.key} ({p.message})" for p in some[:NAMED])
    more = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
    is_one = len(some) == 1
    advice = _STATES[state][1].format(these="it" if is_one else "them", s="s" if is_one else "")
    return f"{state}: {named}{more}: {advice}"
