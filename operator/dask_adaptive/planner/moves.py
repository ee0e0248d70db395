"""What is done so that one group comes to its number: safely, whatever upstream is doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, Blocker, Delete, GroupPlan, SetReplicas
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.doomed import drain_doomed
from dask_adaptive.planner.fall import Fall, delete_drained, fall
from dask_adaptive.planner.fleet import Fleet, is_creating, is_deleting
from dask_adaptive.planner.others import Part
from dask_adaptive.planner.rise import rise
from dask_adaptive.planner.stages import Draft
from dask_adaptive.planner.why import limited_by, why_at_rest, why_more


@dataclass(frozen=True, slots=True)
class Move:
    """One group's step towards its number."""

    plan: GroupPlan
    actions: tuple[Action, ...] = ()
    blockers: tuple[Blocker, ...] = ()


def moved(
    observed: ObservedCluster, draft: Draft, part: Part, policy: Policy, past: Past,
    *, leaving: int, now: float,
) -> Move:  # fmt: skip
    """
    Decide the next step of one group.

    Args:
        part: Its recycles in this pass.
        leaving: Workers of the whole cluster that are on their way out because nobody needs them.
    """
    group, fleet, turn = draft.group, part.turn.fleet, part.turn
    gone = delete_drained(fleet)
    # What must leave for its machine does so whatever is desired; replacements are asked for first.
    doomed, held = drain_doomed(fleet, past, now=now)
    held = _merged(held, turn.blockers)
    going: tuple[Action, ...] = (*doomed, *turn.restart, *turn.retire)

    if draft.number > fleet.serving:
        is_unsettled = is_creating(fleet, group, past, now=now) or is_deleting(group, past)
        up = rise(fleet, draft.number, why_more(draft, fleet), is_unsettled=is_unsettled)
        # Those that have drained wait: one that goes before upstream has looked for what it is to
        # make would be made anew.
        actions = (*turn.back, *up.actions, *going)
        return Move(_planned(draft, fleet, up.reason, up.message), actions, held)
    if draft.number < fleet.serving:
        due = frozenset(d.worker for d in part.assessment.due if d.is_over)
        idle_s = policy.idle_timeout_of(draft.bounds)
        down = fall(
            observed, fleet, draft.number, policy, past, due=due, idle_s=idle_s, leaving=leaving,
            now=now,
        )  # fmt: skip
        leave = (*turn.back, *gone, *going, *down.actions)
        actions = (*leave, *_settle(fleet, group, past, leave, now=now))
        return Move(
            _planned(draft, fleet, *_why(down, actions)), actions, _merged(held, down.blockers)
        )
    actions = (*turn.back, *gone, *going, *_settle(fleet, group, past, gone, now=now))
    limited = limited_by(draft, is_at_rest=True)
    reason, message = why_at_rest(draft, fleet, limited)
    if actions:
        reason, message = actions[0].reason, actions[0].message
    return Move(_planned(draft, fleet, reason, message), actions, held)


def _planned(draft: Draft, fleet: Fleet, reason: Reason, message: str) -> GroupPlan:
    return GroupPlan(
        group=draft.name,
        serving=fleet.serving,
        wanted=draft.wanted,
        desired=draft.number,
        reason=reason,
        message=message,
        steps=draft.steps,
        inputs={**draft.load.inputs, **_figures(draft, fleet)},
        limited=limited_by(draft, is_at_rest=fleet.serving == draft.number),
        asked_by=draft.load.asked_by,
        current=draft.current,
        blocked=draft.blocked,
    )


def _figures(draft: Draft, fleet: Fleet) -> dict[str, float]:
    return {
        "serving": fleet.serving,
        "pending": len(fleet.pending),
        "retiring": len(fleet.retiring),
        "replicas": draft.group.replicas,
        "minReplicas": draft.bounds.minimum,
        "maxReplicas": draft.bounds.maximum,
    }


def _merged(held: Sequence[Blocker], others: Sequence[Blocker]) -> tuple[Blocker, ...]:
    named = {b.worker for b in held}
    return (*held, *(b for b in others if b.worker not in named))


def _settle(
    fleet: Fleet, group: ObservedGroup, past: Past, actions: Sequence[Action], *, now: float
) -> tuple[SetReplicas, ...]:
    """Bring `replicas` in step with the Deployments, so that upstream finds nothing to do."""
    if fleet.gap == 0 or is_creating(fleet, group, past, now=now):
        return ()
    # A number above what is left when all deletions are through has upstream make workers anew
    # (facts 9a): wait until each is seen gone.
    if is_deleting(group, past):
        return ()
    if any(isinstance(a, Delete) for a in actions):
        return ()
    message = f"{fleet.present} workers exist, {fleet.replicas} are asked for"
    return (SetReplicas(fleet.name, fleet.present, Reason.REPLICAS_CORRECTED, message),)


def _why(down: Fall, actions: Sequence[Action]) -> tuple[Reason, str]:
    if actions and not down.actions:
        return actions[0].reason, actions[0].message
    return down.reason, down.message
