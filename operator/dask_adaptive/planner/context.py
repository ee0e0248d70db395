"""The input of one pass: one value that every part of the planner takes; and how long it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask_adaptive.model.observed import Clocks, ObservedCluster, ObservedGroup
from dask_adaptive.model.past import Past
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.scaling import GroupBounds

#: No plan holds for less: a time that is rounded down must not have the same plan made for ever.
TICK_S = 0.001


class Horizon:
    """
    Collects how long the plan of one pass holds.

    Each rule that compares a time asks `is_over`, which notes when the answer changes; the ages of
    workers come from `clocks`.
    """

    __slots__ = ("clocks", "in_s", "now")

    def __init__(self, now: float = 0.0, clocks: Clocks = Clocks()) -> None:  # noqa: B008
        self.now = now  # seconds, on the clock that stamped `Past`
        self.clocks = clocks  # those of the observation
        self.in_s = math.inf  # until then, counted from `now`, no rule that was asked changes

    @property
    def at(self) -> float:
        """The instant until which the plan holds."""
        return self.now + max(self.in_s, TICK_S)

    def within(self, seconds: float) -> None:
        """The plan holds no longer than this."""
        if seconds < self.in_s:
            self.in_s = seconds

    def is_over(self, left_s: float) -> bool:
        """Tells whether no time is left."""
        if left_s <= 0:
            return True
        self.within(left_s)
        return False

    def is_exceeded(self, left_s: float) -> bool:
        """Tells whether a time is over and more has passed: the end itself still belongs to it."""
        if left_s < 0:
            return True
        self.within(left_s)
        return False


@dataclass(frozen=True, slots=True)
class PassContext:
    """All that the planner knows in one pass over one cluster; it reads no clock."""

    observed: ObservedCluster
    policy: Policy
    past: Past
    horizon: Horizon

    @property
    def now(self) -> float:
        return self.horizon.now

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
