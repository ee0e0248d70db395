"""Declares the input of one pass, which every part of the planner takes, with `Auto` as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.observed import Clocks, ObservedCluster, ObservedGroup
from dask_adaptive.model.past import Past
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.scaling import AUTO_S, LEAST_S, MOST_S, GroupBounds


@dataclass(frozen=True, slots=True)
class PassContext:
    """Everything that the planner knows in one pass over one cluster; it reads no clock."""

    observed: ObservedCluster
    policy: Policy  # with a number for each `Auto`
    past: Past
    now: float  # seconds, on the clock that stamped `past`
    idle_times: Mapping[str, IdleTime]  # by group with `Auto`

    @classmethod
    def of(
        cls, observed: ObservedCluster, policy: Policy, past: Past, *, now: float
    ) -> PassContext:
        policy, times = in_numbers(policy, observed, past)
        return cls(observed, policy, past, now, times)

    @property
    def clocks(self) -> Clocks:
        return self.observed.clocks

    @property
    def default_group(self) -> str:
        return self.observed.key.default_group


def scaled_groups(
    observed: ObservedCluster, policy: Policy
) -> tuple[tuple[ObservedGroup, GroupBounds], ...]:
    """Return the existing groups with bounds, the default one first."""
    every = policy.bounds(observed.key.default_group)
    found = ((observed.group(bounds.name), bounds) for bounds in every)
    return tuple((group, bounds) for group, bounds in found if group is not None)


#: Assumed rate of moving data to a worker, bytes a second: a fifth of 4 Gbit/s.
BANDWIDTH = 100e6

#: Starts whose median predicts the next one.
STARTS = 9


@dataclass(frozen=True, slots=True)
class IdleTime:
    """
    `idleTimeout: Auto`: an idle worker is kept until that has cost as much as restarting it.

    Keeping costs the time until it is needed again; letting it go costs its return: the new worker
    is paid for meanwhile, and work waits for it. Who keeps it for as long as the return takes never
    pays more than three times what hindsight would have paid, and on made-up work 1.19 times as
    much; twice as long would be twice and 1.32 (docs/benchmarks/idle.md): most pauses are long.

    Source:
        The ski rental problem (Karlin, Manasse, Rudolph, Sleator 1988: Competitive snoopy caching).
    """

    start_s: float  # from asking for a worker until it serves; whole
    move_s: float = 0.0  # until its share of the results has moved; whole

    @property
    def seconds(self) -> float:
        return max(LEAST_S, min(self.start_s + self.move_s, MOST_S))

    def __str__(self) -> str:
        data = f" and the {self.move_s:.0f}s that its data take to move" if self.move_s else ""
        bounds = f"within {LEAST_S:.0f}s and {format_duration(MOST_S)}"
        return (
            f"{self.seconds:.0f}s (Auto: the {self.start_s:.0f}s that a worker takes to"
            f" start{data}, {bounds})"
        )


def in_numbers(
    policy: Policy, observed: ObservedCluster, past: Past
) -> tuple[Policy, Mapping[str, IdleTime]]:
    """
    Return the policy with a number for each `Auto`, and these numbers by group.

    Without such a number `Auto` is infinite: no worker of that group leaves.
    """
    scheduler = observed.scheduler
    move_s = round(scheduler.results / max(1, len(scheduler.workers)) / BANDWIDTH)
    default = observed.key.default_group
    times = {
        b.name: IdleTime(
            # In a new cluster the first worker also waits for the scheduler: use no mean.
            math.ceil(median(past.of(b.name).starts or [past.recycle.ready_s])),
            move_s,
        )
        for b in policy.bounds(default)
        if b.idle_timeout_s == AUTO_S
    }
    if not times:
        return policy, times
    groups = tuple(
        replace(g, idle_timeout_s=times[g.name].seconds) if g.name in times else g
        for g in policy.worker_groups
    )
    seconds = times[default].seconds if default in times else policy.idle_timeout_s
    return replace(policy, idle_timeout_s=seconds, worker_groups=groups), times
