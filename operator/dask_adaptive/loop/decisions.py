"""
Collects decisions with their inputs and outcomes: for the history, and for the page in the
scheduler's dashboard.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dask_adaptive.loop.ports import PageContent, PlatformError, Reporter
from dask_adaptive.loop.summary import USUAL
from dask_adaptive.loop.words import why_leaving
from dask_adaptive.model.observed import ObservedCluster, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import (
    KEPT,
    Action,
    Cancel,
    Decision,
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
from dask_adaptive.planner.caps import is_paused

#: Reasons of actions that only continue an earlier decision.
_CARRIES_ON = frozenset({Reason.REPLICAS_CORRECTED, Reason.DRAINED})

_ASKED_BY = {
    Reason.SCHEDULED_MINIMUM: "schedule",
    Reason.PAUSED: "annotation",
    Reason.SCALING_PAUSED: "annotation",
    Reason.TOO_FEW_REPLICAS: "policy",
    Reason.TOO_MANY_REPLICAS: "policy",
    Reason.CLUSTER_IDLE: "policy",
    Reason.FALLBACK: "policy",
}

#: Shortest time between two writes of the history: many workers leave one after the other.
HISTORY_EVERY_S = 60.0


class LastDecision(NamedTuple):
    """The last decision about one group; a different one is news."""

    desired: int
    word: str  # what limits or stops it, if anything
    outcome: str = ""  # of what was done, or tried, last


def decisions(
    minds: Mapping[str, LastDecision], observed: ObservedCluster, policy: Policy, decided: Plan,
    outcomes: Sequence[Outcome],
) -> tuple[tuple[Decision, ...], Mapping[str, LastDecision]]:  # fmt: skip
    """
    Return the new decisions of one pass, at most one for each group and none in an unchanged world,
    and the minds to pass to the next call.
    """
    done = _by_group(outcomes, observed)
    now: dict[str, LastDecision] = {}
    made = []
    for plan in decided.groups:
        mine = done.pop(plan.group, [])
        outcome, word = _outcome(mine, plan, policy), _word(plan)
        before = minds.get(plan.group) or LastDecision(plan.serving, word)
        # A refusal that repeats is no news.
        mind = LastDecision(plan.desired, word, outcome if mine else before.outcome)
        now[plan.group] = mind
        if mind != before or any(o.done for o in mine):
            made.append(_decision(plan, outcome, observed))
    for group, mine in sorted(done.items()):
        if any(o.done for o in mine):
            made.append(_unscaled(group, mine, observed))
    return tuple(made), now


def _by_group(outcomes: Iterable[Outcome], observed: ObservedCluster) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        group = _group_of(outcome.action, observed)
        if group and outcome.action.reason not in _CARRIES_ON:
            found[group].append(outcome)
    return found


def _group_of(action: Action, observed: ObservedCluster) -> str:
    match action:
        case SetReplicas(group):
            return group
        case DeleteCluster():
            return observed.key.default_group
        case Retire(name) | Cancel(name) | Delete(name):
            worker = observed.worker(name)
            return worker.platform.group if worker else ""
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
    """Return the source of a number: the last stage that produced it."""
    step = next((s for s in reversed(plan.steps) if s.replicas == plan.desired), None)
    reason = plan.reason if step is None or plan.is_frozen else step.reason
    return _ASKED_BY.get(reason, plan.asked_by)


def _unscaled(group: str, outcomes: Sequence[Outcome], observed: ObservedCluster) -> Decision:
    """Make the decision about an unscaled group, whose workers are only replaced."""
    seen = observed.group(group)
    there, replicas = (len(seen.workers), seen.replicas) if seen else (0, 0)
    action = next(o.action for o in outcomes if o.done)
    return Decision(
        observed.at, group, there, replicas, replicas, action.reason, action.message, "Done",
        asked_by="policy",
    )  # fmt: skip


class DecisionHistory:
    """
    The decisions of one policy. The status holds the last one, so a write is due only once there
    are more, and then waits `HISTORY_EVERY_S` to gather others.

    Args:
        last: The last decision of an earlier process.
    """

    def __init__(self, last: Decision | None = None) -> None:
        self.last = last
        self._lasts: Mapping[str, LastDecision] = {}
        self.recent = deque[Decision]([last] if last else [], maxlen=MAX_DECISIONS)
        self._unwritten = [last] if last else []  # it may not have been written
        self.due_at = math.inf  # when the next write is due

    def note(
        self, observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome],
        *, now: float,
    ) -> None:  # fmt: skip
        """Add the new decisions of a pass."""
        made, self._lasts = decisions(self._lasts, observed, policy, decided, outcomes)
        self.recent.extend(made)
        self._unwritten = [*self._unwritten, *made][-KEPT:]
        if made:
            self.last = made[-1]
        if len(self._unwritten) > 1:
            self.due_at = min(self.due_at, now + HISTORY_EVERY_S)

    async def write(self, reporter: Reporter, *, now: float) -> None:
        """Write the history if a write is due at `now`; a failed write is repeated later."""
        if now < self.due_at or math.isinf(self.due_at):
            return
        self.due_at = now + HISTORY_EVERY_S
        with contextlib.suppress(PlatformError):
            await reporter.history(tuple(self._unwritten))
            self._unwritten, self.due_at = [], math.inf


#: Last decisions that the page shows.
MAX_DECISIONS = 20

#: Workers that the page explains.
MAX_WORKERS = 100

#: With these reasons no further worker is requested, however much work arrives.
_FULL = frozenset(
    {
        Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED, Reason.BUDGET_SHARED,
        Reason.ADMISSION_REFUSED, Reason.ADMISSION_GATED,
    }
)  # fmt: skip


def page_content(
    name: str, observed: ObservedCluster, policy: Policy, decided: Plan, past: Past,
    decisions: Iterable[Decision],
) -> PageContent:  # fmt: skip
    """
    Compose the page. `name` is the policy's; `decisions` are the last ones, oldest first.
    """
    rows = tuple((d.at, d.group, d.reason.value, d.message) for d in decisions)
    can_grow = _can_grow(observed, policy, decided)
    arrivals = (past.of(group).arrival_s for group in can_grow)
    return PageContent(
        policy=name,
        message=f"{decided.reason.value}: {decided.message}",
        workers=tuple(_workers(observed, decided))[:MAX_WORKERS],
        decisions=rows[-MAX_DECISIONS:],
        can_grow=sum(can_grow.values()),
        grow_s=min((s for s in arrivals if s is not None), default=None),
    )


def _workers(observed: ObservedCluster, decided: Plan) -> Iterator[tuple[str, str]]:
    leaving = {a.worker: a.message for a in decided.actions if isinstance(a, Retire)}
    held = {b.worker: b.message for b in decided.blockers if b.reason not in USUAL}
    for group in observed.groups:
        for worker in group.table.notable_and(leaving.keys() | held.keys()):
            sentence = _sentence(worker, leaving, held)
            if sentence:
                yield from ((name, sentence) for name in worker.dask_names)


def _sentence(worker: ObservedWorker, leaving: Mapping[str, str], held: Mapping[str, str]) -> str:
    if now := why_leaving(worker):
        return f"leaves: {now}"
    if worker.name in leaving:
        return f"is about to leave: {leaving[worker.name]}"
    return f"stays: {held[worker.name]}" if worker.name in held else ""


def _can_grow(observed: ObservedCluster, policy: Policy, decided: Plan) -> dict[str, int]:
    """The number of workers of each group that may still be added."""
    if policy.mode is not Mode.AUTO or (is_paused(observed.pause) and observed.pause.scale_out):
        return {}
    bounds = {b.name: b for b in policy.bounds(observed.key.default_group)}
    left = {p.group: bounds[p.group].maximum - p.desired for p in decided.groups if _grows(p)}
    left = {group: more for group, more in left.items() if more > 0}
    if any(g.name == observed.key.default_group for g in policy.own_bounds):
        room = max(0, policy.max_replicas - decided.desired)
        left = {group: min(more, room) for group, more in left.items()}
        while sum(left.values()) > room:
            left.popitem()
    return left


def _grows(plan: GroupPlan) -> bool:
    if plan.is_frozen or any(s.reason in _FULL for s in plan.steps[-1:]):
        return False
    return plan.limited is None or plan.limited.reason not in _FULL
