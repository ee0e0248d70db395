"""One plan for the cluster, from those for its groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, Arriving, GroupPlan, Plan, SetReplicas
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive.planner.fleet import on_the_way
from dask_adaptive.planner.limits import limits_for
from dask_adaptive.planner.moves import Move
from dask_adaptive.planner.others import Part
from dask_adaptive.planner.stages import Draft
from dask_adaptive.planner.why import telling

#: A worker that takes so many times longer than others did is not counted on any more.
LATE = 3.0

#: One that is late is expected within this part of what others took.
SOON = 0.25


def joined(
    moves: Sequence[Move], parts: Sequence[Part], observed: ObservedCluster, policy: Policy
) -> Plan:
    """
    Args:
        moves: Of the groups that are scaled, the default one first.
        parts: The recycles of all groups, those of the scaled ones first.
    """
    turns = [part.turn for part in parts]
    actions: list[Action] = [action for move in moves for action in move.actions]
    blockers = [blocker for move in moves for blocker in move.blockers]
    for turn in turns[len(moves) :]:
        actions += (*turn.back, *turn.restart, *turn.retire)
        blockers += turn.blockers
    return replace(
        summary([move.plan for move in moves]),
        actions=tuple(actions),
        blockers=tuple(blockers),
        replacing=tuple(row for turn in turns for row in turn.rows),
        uses=tuple(use for part in parts for use in part.assessment.uses),
        storm=next((turn.storm for turn in turns if turn.storm), ""),
        limits=limits_for([p.bounded for p in parts], observed, policy, left=turns[-1].left),
        floors={n: f for turn in turns for n, f in turn.floors.items()},
        waiting=frozenset().union(*(turn.waiting for turn in turns)),
        aborting={n: why for turn in turns for n, why in turn.aborting.items()},
    )


def summary(groups: Sequence[GroupPlan]) -> Plan:
    """The numbers of all groups together, and what there is to say of the most telling one."""
    first = telling(groups)
    wanted, desired = sum(g.wanted for g in groups), sum(g.desired for g in groups)
    message = first.message
    if len(groups) > 1:
        message = f"{first.group}: {message}"
        if first.reason is Reason.DESIRED_WITHIN_RANGE:
            message = f"{desired} workers wanted and there, in {len(groups)} groups"
    return Plan(first.reason, message, wanted, desired, groups=tuple(groups))


def as_advice(decided: Plan, actions: tuple[Action, ...]) -> Plan:
    """The same decision, not carried out: nothing is enforced, nobody waits for anything."""
    return replace(
        decided,
        actions=actions,
        advice=decided.actions,
        limits=Limits(),
        replacing=tuple(replace(row, state="Due") for row in decided.replacing),
        floors={},
        waiting=frozenset(),
        aborting={},
        arriving=(),
    )


def arriving(
    drafts: Sequence[Draft], actions: Sequence[Action], past: Past, *, now: float
) -> tuple[Arriving, ...]:
    """What is on its way, and when it is expected: the soonest first."""
    asked = {a.group: a.replicas for a in actions if isinstance(a, SetReplicas)}
    found: dict[int, int] = {}
    for draft in drafts:
        for in_s in _expected(draft, asked.get(draft.name, 0), past, now=now):
            found[round(in_s)] = found.get(round(in_s), 0) + 1
    return tuple(Arriving(workers, float(in_s)) for in_s, workers in sorted(found.items()))


def _expected(draft: Draft, asked: int, past: Past, *, now: float) -> Iterator[float]:
    takes_s = past.of(draft.name).arrival_s or past.recycle.ready_s
    for worker in draft.fleet.pending:
        is_stuck = worker.refused or worker.unschedulable_s > takes_s
        if is_stuck or worker.age_s > LATE * takes_s:
            continue
        yield max(takes_s - worker.age_s, SOON * takes_s)
    unmade = on_the_way(draft.fleet, draft.group, past, now=now)
    for _ in range(max(unmade, asked - draft.fleet.present)):
        yield takes_s
