"""The groups that we do not scale: workers are replaced in place, the numbers are the user's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Cancel
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.budget import Rules, rules_for
from dask_adaptive.planner.fleet import Fleet, is_replaced, sort_fleet
from dask_adaptive.planner.limits import Bounded
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
    observed: ObservedCluster, policy: Policy, past: Past,
    *, scaled: Collection[str], left: int, now: float,
) -> tuple[Part, ...]:  # fmt: skip
    """
    The recycles of all groups but those that we scale.

    Args:
        scaled: Their names.
        left: Recycles that maxPerHour still allows.
    """
    parts = []
    for group in observed.groups:
        if group.name in scaled:
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


def cancel_others(
    observed: ObservedCluster, scaled: Collection[str], reason: Reason, message: str
) -> tuple[Cancel, ...]:
    """Put workers of those groups that we let go back to service."""
    return tuple(
        Cancel(w.name, w.dask_names, reason, message)
        for group in observed.groups
        if group.name not in scaled
        for w in group.workers
        if w.is_connected and not w.going and is_replaced(w)
    )
