"""
The groups that we do not scale: their workers are replaced in place, their numbers are the user's.

And what the recycles of all groups add up to in one plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, Cancel, Plan
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive.planner.budget import Rules, rules_for
from dask_adaptive.planner.fleet import Fleet, is_replaced, sort_fleet
from dask_adaptive.planner.limits import Bounded, limits_for
from dask_adaptive.planner.quotas import Assessment, assess
from dask_adaptive.planner.recycle import Turn, take_turns
from dask_adaptive.planner.turns import Scene


@dataclass(frozen=True, slots=True)
class Part:
    """One group's recycles in this pass."""

    group: ObservedGroup
    rules: Rules
    turn: Turn
    assessment: Assessment

    @property
    def bounded(self) -> Bounded:
        under_way = frozenset(r.worker for r in self.turn.rows if r.state != "Due")
        return Bounded(self.group, self.rules, self.turn.heads, under_way, len(self.turn.retire))


def part_of(
    observed: ObservedCluster, group: ObservedGroup, fleet: Fleet, assessment: Assessment,
    policy: Policy, past: Past, *, desired: int, left: int, is_scaled: bool, now: float,
) -> Part:  # fmt: skip
    recycle = policy.recycle_of(group.name)
    rules = rules_for(observed, policy, recycle, past.recycle, is_scaled=is_scaled, now=now)
    scene = Scene(observed, group, policy, recycle, rules, past, desired, left, now)
    return Part(group, rules, take_turns(fleet, assessment.due, scene), assessment)


def others(
    observed: ObservedCluster, policy: Policy, past: Past, *, left: int, now: float
) -> tuple[Part, ...]:
    """
    The recycles of all groups but the one that we scale.

    Args:
        left: Recycles that maxPerHour still allows.
    """
    parts = []
    for group in observed.groups:
        if group.name == observed.key.default_group:
            continue
        # News of machines that go is heeded only where replacements are ours to ask for.
        fleet = sort_fleet(group, past.deleted, heed_nodes=False)
        assessment = assess(observed, group, policy, past.recycle, now=now)
        part = part_of(
            observed, group, fleet, assessment, policy, past,
            desired=group.replicas, left=left, is_scaled=False, now=now,
        )  # fmt: skip
        left = part.turn.left
        parts.append(part)
    return tuple(parts)


def cancel_others(observed: ObservedCluster, reason: Reason, message: str) -> tuple[Cancel, ...]:
    """Put workers of those groups that we let go back to service."""
    return tuple(
        Cancel(w.name, w.dask_names, reason, message)
        for group in observed.groups
        if group.name != observed.key.default_group
        for w in group.workers
        if w.is_connected and not w.going and is_replaced(w)
    )


def joined(decided: Plan, parts: Sequence[Part], observed: ObservedCluster, policy: Policy) -> Plan:
    """
    A plan for the cluster, from one for the group that we scale.

    Args:
        decided: For the default group, its actions and blockers included.
        parts: Of all groups, the default one first.
    """
    turns = [part.turn for part in parts]
    rest: list[Action] = []
    for turn in turns[1:]:
        rest += (*turn.back, *turn.restart, *turn.retire)
    return replace(
        decided,
        actions=(*decided.actions, *rest),
        blockers=(*decided.blockers, *(b for turn in turns[1:] for b in turn.blockers)),
        replacing=tuple(row for turn in turns for row in turn.rows),
        uses=tuple(use for part in parts for use in part.assessment.uses),
        storm=next((turn.storm for turn in turns if turn.storm), ""),
        limits=limits_for([p.bounded for p in parts], observed, policy, left=turns[-1].left),
        floors={n: f for turn in turns for n, f in turn.floors.items()},
        waiting=frozenset().union(*(turn.waiting for turn in turns)),
        aborting={n: why for turn in turns for n, why in turn.aborting.items()},
    )


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
    )
