"""Plans that scale nothing: paused, gated, or without an answer of the scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Cancel, GroupPlan, Plan, SetReplicas
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import GroupBounds, IdleAction
from dask_adaptive.planner.fall import cancel_all
from dask_adaptive.planner.fleet import sort_fleet
from dask_adaptive.planner.gates import fallback_minimum
from dask_adaptive.planner.joined import summary
from dask_adaptive.planner.others import cancel_others
from dask_adaptive.planner.pauses import held
from dask_adaptive.planner.schedules import floor_of
from dask_adaptive.planner.stages import scaled_groups


def frozen(
    observed: ObservedCluster, policy: Policy, past: Past, reason: Reason, message: str,
    *, wanted: Mapping[str, int],
) -> Plan:  # fmt: skip
    """
    Leave all groups as they are.

    Args:
        wanted: What the load asks for, as far as it is known, by group.
    """
    groups = []
    for group, _ in scaled_groups(observed, policy):
        fleet = sort_fleet(group, past.deleted, heed_nodes=policy.disruption.node_signals)
        groups.append(
            GroupPlan(
                group=group.name,
                serving=fleet.serving,
                wanted=wanted.get(group.name, 0),
                desired=fleet.serving,
                reason=reason,
                message=message,
                current=fleet.serving,
                is_frozen=True,
            )
        )
    return replace(summary(groups), message=message)


def returned(
    observed: ObservedCluster, policy: Policy, past: Past, reason: Reason, message: str
) -> tuple[Cancel, ...]:
    """Put every worker that is on its way out by our doing back to service."""
    scaled = scaled_groups(observed, policy)
    fleets = [sort_fleet(group, past.deleted) for group, _ in scaled]
    others = cancel_others(observed, {group.name for group, _ in scaled}, reason, message)
    return (*(c for fleet in fleets for c in cancel_all(fleet, reason, message)), *others)


def blind(observed: ObservedCluster, policy: Policy, past: Past) -> Plan:
    """Without the scheduler no worker is taken away; up to what people set as floors some come."""
    scheduler = observed.scheduler
    problem = scheduler.problem or Reason.SCHEDULER_UNREACHABLE
    message = f"{scheduler.message}; no worker is taken away"
    plan = frozen(observed, policy, past, problem, message, wanted={})
    raised = tuple(_raised(observed, policy, past))
    if policy.mode is Mode.ADVISE:
        return replace(plan, advice=raised)
    return plan if policy.mode is Mode.PAUSED else replace(plan, actions=raised)


def _raised(observed: ObservedCluster, policy: Policy, past: Past) -> Iterator[SetReplicas]:
    default = observed.key.default_group
    groups = scaled_groups(observed, policy)
    left: float = math.inf
    if any(bounds.name == default for bounds in policy.scaling.groups):
        left = policy.maximum - sum(group.replicas for group, _ in groups)
    for group, bounds in groups:
        floor, reason, message = _floor(observed, group, bounds, policy, past)
        floor = int(min(floor, bounds.maximum, group.replicas + max(left, 0)))
        floor, _ = held(floor, group.replicas, observed.pause, is_default=group.name == default)
        if floor > group.replicas:
            left -= floor - group.replicas
            yield SetReplicas(group.name, floor, reason, message)


def _floor(
    observed: ObservedCluster, group: ObservedGroup, bounds: GroupBounds, policy: Policy, past: Past
) -> tuple[int, Reason, str]:
    """The highest floor of a group, and what sets it. Safe without the scheduler: it only adds."""
    default, replicas = observed.key.default_group, group.replicas
    minimum = bounds.minimum
    desired = past.of(group.name).desired
    is_to_zero = policy.scaling.idle.action is IdleAction.SCALE_TO_ZERO
    if is_to_zero and desired is not None and desired < minimum:
        minimum = 0  # nobody used the cluster when the scheduler was last heard
    below = f"{replicas} replicas are below minReplicas {minimum}"
    floors = [(minimum, Reason.BELOW_MINIMUM, below)]
    scheduled, step = floor_of(policy.scaling.schedules, group.name, default, at=observed.at)
    if step is not None:
        floors.append((scheduled, step.reason, step.message))
    fallback = fallback_minimum(observed, policy) if group.name == default else None
    if fallback is not None:
        asked = policy.scaling.fallback.failure_threshold
        said = f"no answer to {asked} questions (fallback): at least {fallback} workers"
        floors.append((fallback, Reason.FALLBACK, said))
    return max(floors, key=lambda floor: floor[0])
