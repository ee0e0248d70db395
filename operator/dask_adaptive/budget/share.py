"""
`share` gives each claim its part of what there is, in whole workers.

Source:
    Dominant resource fairness (Ghodsi et al. 2011), by progressive filling: the next worker goes to
    the claim that has least, measured by the resource of which it takes most.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from operator import le, mul
from typing import NamedTuple

#: Halvings of the level up to which all are filled at once; what is left is given one by one.
HALVINGS = 20

#: Sums of parts of workers are off by less.
SLACK = 1e-9


class Contender(NamedTuple):
    """One worker group that a budget is about."""

    size: tuple[float, ...]  # of one worker, by resource, as the limits are
    want: int  # workers
    keep: int = 0  # of those that it holds: not to be taken for others now
    weight: float = 1.0
    priority: int = 0
    guarantee: int = 0  # workers
    party: Hashable = None  # weight and guarantee are of all that have the same; None: of it alone


def share(
    claims: Sequence[Contender], limits: Sequence[float], *, borrowing: bool = True
) -> tuple[int, ...]:
    """
    Return the workers of each claim, at most what it wants, all within the limits.

    First what is to be kept, then guarantees, then the rest by priority; each by weighted dominant
    shares. While a claim wants more and it fits, nothing is left over. Who wants more never gets
    less. Takes O(n log n) for claims of a few sizes.

    Args:
        claims: Of two with equal shares the first goes first.
        limits: By resource.
        borrowing: Whether a claim may have more than its weight's part while others leave theirs.
    """
    fair = [claim.want for claim in claims]
    taken = [sum(c.size[r] * c.want for c in claims) for r in range(len(limits))]
    if borrowing and all(map(le, taken, limits)):
        return tuple(fair)  # the usual case, and the rest takes much longer
    parties = defaultdict[Hashable, list[int]](list)
    for i, claim in enumerate(claims):
        parties[i if claim.party is None else claim.party].append(i)
    if len(parties) < len(claims):
        claims, fair = _parted(claims, list(parties.values()), limits, borrowing)
        most = [claim.want for claim in claims] if borrowing else fair
    else:
        total = sum(claim.weight for claim in claims)
        most = [c.want if borrowing else min(c.want, _own(c, limits, total)) for c in claims]
    given = [0] * len(claims)
    filling, everyone = _Filling(claims, limits, given), range(len(claims))
    filling.up_to([min(c.keep, c.want) for c in claims], everyone)
    filling.up_to([min(c.guarantee, c.want) for c in claims], everyone)
    for priority in sorted({c.priority for c in claims}, reverse=True):
        these = [i for i in everyone if claims[i].priority == priority]
        filling.up_to([min(pair) for pair in zip(fair, most, strict=True)], these)
        filling.up_to(most, these)
    return tuple(given)


def _parted(
    claims: Sequence[Contender], parties: Sequence[Sequence[int]], limits: Sequence[float],
    borrowing: bool,
) -> tuple[list[Contender], list[int]]:  # fmt: skip
    """Split the shares of parties among their claims."""
    parted, fair = list(claims), [0] * len(claims)
    together = [_together([claims[i] for i in mine]) for mine in parties]
    numbers = share(together, limits, borrowing=borrowing)
    for mine, whole, number in zip(parties, together, numbers, strict=True):
        each = [claims[i]._replace(size=(1.0,), guarantee=0, party=None) for i in mine]
        sure = share(each, [whole.guarantee])
        for i, part, guarantee in zip(mine, share(each, [number]), sure, strict=True):
            weight = claims[i].weight / len(mine)
            fair[i] = part
            parted[i] = claims[i]._replace(weight=weight, guarantee=guarantee, party=None)
    return parted, fair


def _together(claims: Sequence[Contender]) -> Contender:
    """Merge a party into one claim, of workers of their mean size."""
    want = sum(claim.want for claim in claims)
    sizes = zip(*(claim.size for claim in claims), strict=True)
    wants = [claim.want for claim in claims] if want else [1] * len(claims)
    size = tuple(sum(map(mul, each, wants)) / sum(wants) for each in sizes)
    keep = sum(claim.keep for claim in claims)
    return claims[0]._replace(size=size, want=want, keep=keep, party=None)


def _own(claim: Contender, limits: Sequence[float], total: float) -> int:
    part = claim.weight / total
    fits = (part * limit / each for each, limit in zip(claim.size, limits, strict=True) if each)
    return max(claim.guarantee, math.floor(min(fits, default=claim.want) + SLACK))


class _Filling:
    """Gives workers to claims until nothing more fits."""

    def __init__(
        self, claims: Sequence[Contender], limits: Sequence[float], given: list[int]
    ) -> None:
        self._sizes = [claim.size for claim in claims]
        self._limits, self._given = limits, given
        self._left = list(limits)
        self._steps = [_dominant(claim, limits) for claim in claims]

    def up_to(self, most: Sequence[int], among: Iterable[int]) -> None:
        """Give each of these claims at most so many workers in total."""
        waiting = list(among)
        while waiting := [i for i in waiting if self._given[i] < most[i] and self._fits(i)]:
            self._rise(most, waiting)
            queue = [(self._has(i), i) for i in waiting]
            heapq.heapify(queue)
            while queue:
                _, i = heapq.heappop(queue)
                if self._given[i] < most[i]:
                    if not self._fits(i):
                        break  # others of its size do not either: all at once are sorted out
                    self._give(i, 1)
                    heapq.heappush(queue, (self._has(i), i))

    def _has(self, i: int) -> float:
        return round(self._given[i] * self._steps[i], 9)  # equal parts are equal numbers

    def _rise(self, most: Sequence[int], waiting: Sequence[int]) -> None:
        """Raise claims one after another until the first does not fit."""
        low, high = 0.0, max(most[i] * self._steps[i] for i in waiting)
        if self._is_within(high, most, waiting):
            low = high
        # Smaller than any claim's step: adding workers one by one gets there sooner.
        least = min(self._steps[i] for i in waiting)
        for _ in range(HALVINGS):
            if high - low <= least:
                break
            level = (low + high) / 2
            low, high = (level, high) if self._is_within(level, most, waiting) else (low, level)
        for i in waiting:
            self._give(i, self._at(low, i, most[i]) - self._given[i])

    def _at(self, level: float, i: int, most: int) -> int:
        """Return the workers of a claim once no claim below a level waits."""
        step = self._steps[i]
        number = math.ceil(level / step - SLACK) if step else most
        return max(self._given[i], min(most, number))

    def _is_within(self, level: float, most: Sequence[int], waiting: Sequence[int]) -> bool:
        more = [(self._at(level, i, most[i]) - self._given[i], self._sizes[i]) for i in waiting]
        return all(
            sum(n * size[r] for n, size in more) <= left * (1 + SLACK) + SLACK
            for r, left in enumerate(self._left)
        )

    def _fits(self, i: int) -> bool:
        pairs = zip(self._sizes[i], self._left, self._limits, strict=True)
        return all(not size or size <= left + SLACK * (1 + limit) for size, left, limit in pairs)

    def _give(self, i: int, workers: int) -> None:
        self._given[i] += workers
        for r, size in enumerate(self._sizes[i]):
            self._left[r] -= workers * size


def _dominant(claim: Contender, limits: Sequence[float]) -> float:
    """Return one worker's largest share of any resource, divided by the claim's weight."""
    pairs = zip(claim.size, limits, strict=True)
    parts = (size / limit if limit > 0 else math.inf for size, limit in pairs if size)
    return max(parts, default=0.0) / claim.weight
