"""Changes of mind, as they are remembered: decided what, from what, with what outcome. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dask_adaptive.model.history import Decision
from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    DeleteCluster,
    GroupPlan,
    Outcome,
    Plan,
    Retire,
    SetReplicas,
)
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason

#: What only carries on with something that was decided before.
_CARRIES_ON = frozenset({Reason.REPLICAS_CORRECTED, Reason.DRAINED})


class Mind(NamedTuple):
    """What was thought of one group last; another thought is news."""

    desired: int
    word: str  # what limits or stops it, if anything
    outcome: str = ""  # of what was done, or tried, last


def decisions(
    minds: Mapping[str, Mind], observed: ObservedCluster, policy: Policy, decided: Plan,
    outcomes: Sequence[Outcome],
) -> tuple[tuple[Decision, ...], Mapping[str, Mind]]:  # fmt: skip
    """
    What is new in one pass: at most one decision for each group.

    Args:
        minds: As the last pass left them; none for a group that is seen for the first time.

    Returns:
        The decisions, and the minds for the next pass. An unchanged world makes no decision.
    """
    done = _by_group(outcomes, observed)
    now: dict[str, Mind] = {}
    made = []
    for plan in decided.groups:
        mine = done.pop(plan.group, [])
        outcome, word = _outcome(mine, plan, policy), _word(plan)
        before = minds.get(plan.group) or Mind(plan.serving, word)
        # What was refused once, and is again after a while, is no news.
        mind = Mind(plan.desired, word, outcome if mine else before.outcome)
        now[plan.group] = mind
        if mind != before or any(o.done for o in mine):
            made.append(_decision(plan, outcome, observed))
    for group, mine in sorted(done.items()):
        if any(o.done for o in mine):
            made.append(_unscaled(group, mine, observed))
    return tuple(made), now


def _by_group(outcomes: Iterable[Outcome], observed: ObservedCluster) -> dict[str, list[Outcome]]:
    groups = {w.name: g.name for g in observed.groups for w in g.workers}
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        group = _group_of(outcome.action, groups, observed)
        if group and outcome.action.reason not in _CARRIES_ON:
            found[group].append(outcome)
    return found


def _group_of(action: Action, groups: Mapping[str, str], observed: ObservedCluster) -> str:
    match action:
        case SetReplicas(group):
            return group
        case DeleteCluster():
            return observed.key.default_group
        case Retire(worker) | Cancel(worker) | Delete(worker):
            return groups.get(worker, "")
    return ""  # pins, ends of pods: nothing that was decided


def _word(plan: GroupPlan) -> str:
    if plan.is_frozen:
        return plan.reason.value
    return "" if plan.limited is None else plan.limited.reason.value


def _outcome(outcomes: Sequence[Outcome], plan: GroupPlan, policy: Policy) -> str:
    if any(o.done for o in outcomes):
        return "Done"
    if outcomes:
        first = outcomes[0]
        word = "Failed" if first.reason is Reason.ACTION_FAILED else "Refused"
        return f"{word}: {first.message}"
    if policy.mode is Mode.ADVISE and plan.desired != plan.serving:
        return "Advised"
    return "Held" if plan.is_frozen or plan.desired != plan.serving else ""


def _decision(plan: GroupPlan, outcome: str, observed: ObservedCluster) -> Decision:
    return Decision(
        at=observed.at,
        group=plan.group,
        before=plan.serving,
        wanted=plan.wanted,
        desired=plan.desired,
        reason=plan.reason,
        message=plan.message,
        outcome=outcome,
        asked_by=asked_by(plan),
        inputs={name: round(value, 3) for name, value in plan.inputs.items()},
        steps=plan.steps,
    )


def asked_by(plan: GroupPlan) -> str:
    """Who is behind a number: the last stage that made it what it is says so."""
    step = next((s for s in reversed(plan.steps) if s.replicas == plan.desired), None)
    reason = plan.reason if step is None or plan.is_frozen else step.reason
    return _ASKED_BY.get(reason, plan.asked_by)


_ASKED_BY = {
    Reason.SCHEDULED_MINIMUM: "schedule",
    Reason.PAUSED: "annotation",
    Reason.REPLICAS_HELD: "annotation",
    Reason.SCALE_IN_PAUSED: "annotation",
    Reason.SCALE_OUT_PAUSED: "annotation",
    Reason.TOO_FEW_REPLICAS: "policy",
    Reason.TOO_MANY_REPLICAS: "policy",
    Reason.CLUSTER_IDLE: "policy",
    Reason.FALLBACK: "policy",
}


def _unscaled(group: str, outcomes: Sequence[Outcome], observed: ObservedCluster) -> Decision:
    """What was done to a group whose number is the user's: its workers are replaced."""
    seen = observed.group(group)
    there = len(seen.workers) if seen else 0
    replicas = seen.replicas if seen else 0
    action = next(o.action for o in outcomes if o.done)
    return Decision(
        observed.at, group, there, replicas, replicas, action.reason, action.message, "Done",
        asked_by="policy",
    )  # fmt: skip
