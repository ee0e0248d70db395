"""
`idleTimeout: Auto`: how long an idle worker is worth keeping.

Keeping costs the time until it is needed again; letting it go costs what its return does. Where no
pause is known a worker is kept for as long as its return costs, which is never more than twice what
hindsight would have paid. Where some are, it is kept for the time that would have cost least.

Source:
    The ski rental problem (Karlin, Manasse, Rudolph, Sleator 1988: Competitive snoopy caching).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.past import Past, Pauses, Recommendation
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.scaling import AUTO_S, GroupBounds

#: Pauses are counted by length: up to each of these, in seconds, and longer ones. Shorter ones than
#: the first are none: nobody would have left.
EDGES_S = tuple(5.0 * 2 ** (n / 2) for n in range(20))

#: A second that work waits for a worker costs as much as so many seconds of a worker. Where no
#: start was measured, 10 s are assumed, and a return is worth 20 s.
WAITING = 1.0

#: Data moves to a worker at this rate, in bytes a second: a fifth of what 4 Gbit/s carry.
BANDWIDTH = 100e6

#: Each pause makes those before count so much less: of twenty that are known, half are forgotten.
FADING = 0.95

#: The next pause may be so many times as long, or a worker would leave right before each.
LONGER = 1.2

#: A worker takes as long to come as the median of so many before it.
STARTS = 9

#: Falls that are remembered until the number rises again; of more, the oldest are forgotten.
FALLS = 100


@dataclass(frozen=True, slots=True)
class IdleTime:
    """How long an idle worker of a group is kept, and what that was made from."""

    seconds: float  # whole, if its bounds are
    start_s: float  # from asking for a worker until it serves; whole
    move_s: float = 0.0  # until its data have moved; whole
    pauses: tuple[float, ...] = ()  # weights, by `EDGES_S`

    def __str__(self) -> str:
        known = f"{sum(self.pauses):.1f} pauses count" if self.pauses else "no pause is known"
        data = f", its data {self.move_s:.0f}s" if self.move_s else ""
        comes = f"a worker takes {self.start_s:.0f}s to come{data}"
        return f"{self.seconds:.0f}s (Auto: {comes}; {known})"


def idle_times(policy: Policy, observed: ObservedCluster, past: Past) -> Mapping[str, IdleTime]:
    """By group: what `Auto` is now, of the groups whose idleTimeout that is."""
    bounds = policy.bounds(observed.key.default_group)
    names = [b.name for b in bounds if b.idle_timeout_s == AUTO_S]
    if not names:
        return {}
    scheduler, within = observed.scheduler, policy.idle_timeout_auto
    move_s = round(scheduler.results / max(1, len(scheduler.workers)) / BANDWIDTH)
    found = {}
    for name in names:
        mine = past.of(name)
        # Of a cluster that is new the first waits for the scheduler, too: no mean.
        start_s = math.ceil(median(mine.starts or [past.recycle.ready_s]))
        best_s = worth_keeping_s(mine.pauses.weights, (1 + WAITING) * (start_s + move_s))
        seconds = max(within.min_s, min(math.ceil(best_s), within.max_s))
        found[name] = IdleTime(seconds, start_s, move_s, mine.pauses.weights)
    return found


def with_idle_times(policy: Policy, times: Mapping[str, IdleTime], default_group: str) -> Policy:
    """The policy with a number wherever `Auto` stands."""
    if not times:
        return policy
    groups = tuple(
        replace(g, idle_timeout_s=times[g.name].seconds) if g.name in times else g
        for g in policy.worker_groups
    )
    default = times.get(default_group)
    seconds = policy.idle_timeout_s if default is None else default.seconds
    return replace(policy, idle_timeout_s=seconds, worker_groups=groups)


def in_numbers(policy: Policy, observed: ObservedCluster, past: Past) -> Policy:
    """The policy with what `Auto` is now."""
    times = idle_times(policy, observed, past)
    return with_idle_times(policy, times, observed.key.default_group)


def worth_keeping_s(weights: Sequence[float], return_cost: float) -> float:
    """
    The time after which an idle worker should go.

    Args:
        weights: How many pauses there have been of each length (`EDGES_S`).
        return_cost: Of a worker that has gone, in seconds of a worker.
    """
    if not any(weights):
        return return_cost
    lengths = (*EDGES_S, math.inf)

    def cost(kept_s: float) -> float:
        return sum(
            # A pause is somewhere in its range: in the middle, on a scale of factors.
            weight * (length / 2**0.25 if length <= kept_s else kept_s + return_cost)
            for weight, length in zip(weights, lengths, strict=True)
        )

    return min((0.0, return_cost, *EDGES_S), key=lambda s: (round(cost(s), 6), s))


def after(pauses: Pauses, wanted: int, bounds: GroupBounds, *, now: float) -> Pauses:
    """
    The pauses once the load asks for so many workers; those that no bound allows are not needed.

    Of each worker that is needed again its pause is counted: since the last fall below its number.
    All that end at once count as one.
    """
    number = max(bounds.minimum, min(wanted, bounds.maximum))
    falls, ended = list(pauses.falls), list[tuple[float, int]]()
    last = number if pauses.needed is None else pauses.needed
    if number < last:
        falls = [*falls, Recommendation(now, last)][-FALLS:]
    while number > last and falls:
        at, top = falls[-1]
        ended.append((now - at, min(top, number) - last))
        last = min(top, number)
        if top <= number:
            falls.pop()
    ended = [(length, workers) for length, workers in ended if length >= EDGES_S[0]]
    weights = pauses.weights
    if ended:
        every = sum(workers for _, workers in ended)
        counts = [FADING * weight for weight in weights or [0.0] * (len(EDGES_S) + 1)]
        for length, workers in ended:
            counts[bisect.bisect_left(EDGES_S, LONGER * length)] += workers / every
        weights = tuple(round(count, 3) for count in counts)
    return Pauses(number, tuple(falls), weights)
