"""The input of one pass: one value that every part of the planner takes."""

from __future__ import annotations

from dataclasses import dataclass

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.past import Past
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.scaling import GroupBounds


@dataclass(frozen=True, slots=True)
class PassContext:
    """All that the planner knows in one pass over one cluster; it reads no clock."""

    observed: ObservedCluster
    policy: Policy
    past: Past
    now: float  # seconds, on the clock that stamped `past`; `observed.at` is the platform's

    @property
    def default_group(self) -> str:
        return self.observed.key.default_group


def scaled_groups(
    observed: ObservedCluster, policy: Policy
) -> tuple[tuple[ObservedGroup, GroupBounds], ...]:
    """The groups that are there and that the policy has bounds for, the default one first."""
    every = policy.bounds(observed.key.default_group)
    found = ((observed.group(bounds.name), bounds) for bounds in every)
    return tuple((group, bounds) for group, bounds in found if group is not None)
