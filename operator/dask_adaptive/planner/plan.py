"""Decide what to do with one cluster: `plan` is the one entry of this package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, Blocker, DeleteCluster, Plan, Retire
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.budget import left_this_hour
from dask_adaptive.planner.demand import loads
from dask_adaptive.planner.endings import tell_endings
from dask_adaptive.planner.fleet import homed
from dask_adaptive.planner.frozen import blind, frozen, returned
from dask_adaptive.planner.gates import gate
from dask_adaptive.planner.idle import deletion
from dask_adaptive.planner.joined import arriving, as_advice, joined
from dask_adaptive.planner.moves import Move, moved
from dask_adaptive.planner.others import Part, others, part_of
from dask_adaptive.planner.pauses import is_paused, pauses_all
from dask_adaptive.planner.pins import sync_pins
from dask_adaptive.planner.remember import renewed
from dask_adaptive.planner.stages import drafts_of


def plan(observed: ObservedCluster, policy: Policy, past: Past, *, now: float) -> Plan:
    """
    Turn one observation into a plan. Total: every input has a plan, and every plan a reason.

    Args:
        observed: The cluster, platform and scheduler joined.
        policy: What the user asked for.
        past: What earlier passes remembered; an empty one only delays.
        now: Seconds, on the clock that stamped `past`.
    """
    past = homed(past, observed)
    if (stop := _cannot_decide(observed, policy, past)) is not None:
        return stop

    always = (*tell_endings(observed, past), *sync_pins(observed, policy))
    if past.session != observed.scheduler.session:
        past = renewed(past)  # another scheduler's load says nothing about this one's
    if (still := _held(observed, policy, past)) is not None:
        return replace(still, actions=(*always, *still.actions))
    decided = _scaled(observed, policy, past, now=now)
    if policy.mode is Mode.ADVISE:
        advising = (Reason.ADVISING, "the policy only advises")
        return as_advice(decided, (*always, *returned(observed, policy, past, *advising)))
    return replace(decided, actions=(*always, *decided.actions))


def _cannot_decide(observed: ObservedCluster, policy: Policy, past: Past) -> Plan | None:
    """The plans that touch no worker because too little, or something wrong, is known."""
    name = observed.key.name
    if not observed.found:
        return Plan(Reason.CLUSTER_NOT_FOUND, f"there is no DaskCluster {name}; waiting for it")
    if observed.conflict:
        return Plan(Reason.OWNERSHIP_CONFLICT, observed.conflict)
    if observed.group(observed.key.default_group) is None:
        missing = f"the cluster has no worker group {observed.key.default_group} yet"
        return Plan(Reason.CLUSTER_NOT_FOUND, missing)
    return blind(observed, policy, past) if observed.scheduler.problem is not None else None


def _held(observed: ObservedCluster, policy: Policy, past: Past) -> Plan | None:
    """The plans that scale nothing although the load is known: somebody, or a gate, holds it."""
    why = _why_held(observed, policy, past)
    if why is None:
        return None
    wanted = {name: load.wanted for name, load in loads(observed, policy, past).items()}
    still = frozen(observed, policy, past, *why, wanted=wanted)
    if why[0] is Reason.TOO_MANY_UNREADY:
        return still  # what drains goes on, but nothing is taken away
    return replace(still, actions=returned(observed, policy, past, *why))


def _why_held(observed: ObservedCluster, policy: Policy, past: Past) -> tuple[Reason, str] | None:
    if policy.mode is Mode.PAUSED:
        return Reason.PAUSED, "paused: nothing is scaled"
    if is_paused(observed.pause) and pauses_all(observed.pause):
        said = [part for part in (observed.pause.message, observed.pause.problem) if part]
        return Reason.PAUSED, "; ".join(["paused: nothing is scaled", *said])
    step = gate(observed, policy, past)
    return None if step is None else (step.reason, step.message)


def _scaled(observed: ObservedCluster, policy: Policy, past: Past, *, now: float) -> Plan:
    drafts = drafts_of(observed, policy, past, now=now)
    left = left_this_hour(policy, observed, past.recycle, now)
    leaving = sum(draft.fleet.leaving_unneeded for draft in drafts)
    parts: list[Part] = []
    moves: list[Move] = []
    for draft in drafts:
        part = part_of(
            observed, draft.group, draft.fleet, draft.assessment, policy, past,
            desired=draft.number, left=left, is_scaled=True, now=now,
        )  # fmt: skip
        move = moved(observed, draft, part, policy, past, leaving=leaving, now=now)
        left = part.turn.left
        leaving += _begun(move.actions)
        parts.append(part)
        moves.append(move)
    scaled = {draft.name for draft in drafts}
    rest = others(observed, policy, past, scaled=scaled, left=left, now=now)
    decided = joined(moves, (*parts, *rest), observed, policy)
    decided = replace(decided, arriving=arriving(drafts, decided.actions, past, now=now))
    end = deletion(observed, replace(policy, mode=Mode.AUTO))  # advised of, if not done
    return decided if end is None else _ended(decided, end)


def _begun(actions: Sequence[Action]) -> int:
    return sum(isinstance(a, Retire) and a.reason is Reason.UNDERUTILIZED for a in actions)


def _ended(decided: Plan, end: DeleteCluster) -> Plan:
    """Nobody uses the cluster: it goes as a whole, and nothing else is done to it."""
    return replace(decided, reason=end.reason, message=end.message, actions=(end,))


def count_blockers(blockers: Sequence[Blocker]) -> tuple[tuple[Reason, int], ...]:
    """How many workers stay for each reason, most first, then by the reason's word."""
    counts = Counter(b.reason for b in blockers)
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0].value)))
