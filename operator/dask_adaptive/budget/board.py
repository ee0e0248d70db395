"""Claims on a budget, and the number of workers that each of them may have. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from dask_adaptive.budget.adaptive_budget import ShareRule
from dask_adaptive.budget.share import Contender, share
from dask_adaptive.model.amounts import format_bytes, listed
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.plan import Claimed
from dask_adaptive.model.scaling import Allowance

DEFAULT = ShareRule("")

#: Others that a message names.
NAMED = 2

#: A pass acts on what it read up to so many seconds before: until then what a group may have is
#: taken, whether its workers have been asked for or not.
PROMISED_S = 10.0


class Holder(NamedTuple):
    """A worker group, as one that shares."""

    cluster: ClusterKey
    group: str


@dataclass(frozen=True, slots=True)
class Holding:
    """One worker group's holding of a budget."""

    holder: Holder
    size: tuple[float, ...]  # of one worker, by resource of the pool
    workers: int  # that exist, or are asked for; those that drain, too
    claim: Claimed | None  # None: nobody scales it, or nobody has said yet: it stays as it is
    rule: ShareRule = DEFAULT  # of all that have the same one together


@dataclass(frozen=True, slots=True)
class Pool:
    """A shared amount: an AdaptiveBudget, or the room of a ResourceQuota."""

    name: str  # with its kind
    limits: Mapping[str, float]
    holdings: tuple[Holding, ...]
    borrowing: bool = True
    after_s: float | None = None  # `reclaim.after`; None: nobody gives back for others
    namespace: str = ""  # of a ResourceQuota

    @property
    def key(self) -> tuple[str, ...]:
        """No other pool has the same."""
        return self.namespace, self.name, *self.limits

    @property
    def limits_text(self) -> str:
        """Such as: 200 workers, 2.0 TiB memory."""
        return ", ".join(amount(resource, limit) for resource, limit in self.limits.items())


@dataclass(frozen=True, slots=True)
class Row:
    """One worker group's part of a pool."""

    holder: Holder
    held: int
    wanted: int
    allowed: int

    @property
    def waits(self) -> bool:
        return self.wanted > self.allowed


@dataclass(frozen=True, slots=True)
class Grant:
    """A group's last allowance, and the instant since which it has been so large."""

    allowed: int
    grown_at: float
    promised: int = 0  # what it may be about to ask for, where that is more than it holds


@dataclass(frozen=True, slots=True)
class Division:
    """The division of one pool; `grants` is the memory for the next one."""

    rows: tuple[Row, ...] = ()
    grants: Mapping[Holder, Grant] = field(default_factory=dict)


def divide(pool: Pool, before: Mapping[Holder, Grant], *, now: float) -> Division:
    """
    Divide a pool. Nobody grows into what another one has yet to give back.

    No worker changes hands twice within `after_s`: who got more keeps for so long what it has, as
    far as the limits allow. Without a memory all have just got what they have.

    Args:
        before: What the division before came to.
        now: Seconds, on the clock that stamped `before`.
    """
    limits = list(pool.limits.values())
    grants_before = [before.get(holding.holder) for holding in pool.holdings]
    held = [_held(h, old, now) for h, old in zip(pool.holdings, grants_before, strict=True)]
    claims = [
        _claim(pool, holding, has, old, now)
        for holding, has, old in zip(pool.holdings, held, grants_before, strict=True)
    ]
    needed = share(claims, limits, borrowing=pool.borrowing)
    # What is left is for workers that are only kept for a while.
    most = [
        max(goal, has if holding.claim is None else holding.claim.number)
        for goal, has, holding in zip(needed, held, pool.holdings, strict=True)
    ]
    lasting = [
        claim._replace(want=number, keep=goal)
        for claim, number, goal in zip(claims, most, needed, strict=True)
    ]
    goals = share(lasting, limits, borrowing=pool.borrowing)
    # What is held is taken, until it is given back; where that is beyond the limits nobody grows.
    taken = [
        claim._replace(want=max(goal, has), keep=has)
        for claim, goal, has in zip(claims, goals, held, strict=True)
    ]
    free = share(taken, _at_least_held(pool, held))
    grants, rows = {}, []
    for holding, old, has, claim, goal, now_free in zip(
        pool.holdings, grants_before, held, claims, goals, free, strict=True
    ):
        gives_back = goal <= has and pool.after_s is not None
        allowed = goal if gives_back else max(has, min(goal, now_free))
        grown_at = old.grown_at if old and allowed <= old.allowed else now
        most_soon = max(allowed, has)
        promised = most_soon if most_soon > holding.workers else 0
        grants[holding.holder] = Grant(allowed, grown_at, promised)
        rows.append(Row(holding.holder, holding.workers, claim.want, allowed))
    return Division(tuple(rows), grants)


def _held(holding: Holding, old: Grant | None, now: float) -> int:
    """Workers that it holds, or may be about to ask for."""
    if old is None or now - old.grown_at >= PROMISED_S:
        return holding.workers
    return max(holding.workers, old.promised)


def _at_least_held(pool: Pool, held: Sequence[int]) -> list[float]:
    """The limits, or what is held where that is more."""
    taken = (
        sum(n * holding.size[r] for n, holding in zip(held, pool.holdings, strict=True))
        for r in range(len(pool.limits))
    )
    return [max(pair) for pair in zip(pool.limits.values(), taken, strict=True)]


def _claim(pool: Pool, holding: Holding, has: int, old: Grant | None, now: float) -> Contender:
    rule = holding.rule
    if holding.claim is None or pool.after_s is None:
        keep = has
    else:
        grown_at, allowed = (old.grown_at, old.allowed) if old else (now, has)
        keep = min(has, allowed) if now - grown_at < pool.after_s else 0
    want = has if holding.claim is None else holding.claim.needed
    party = (rule.namespace, rule.cluster) if rule.namespace else None
    weight = float(rule.weight)
    return Contender(holding.size, want, keep, weight, rule.priority, rule.guarantee, party)


def allowances(pools: Iterable[tuple[Pool, Division]]) -> dict[Holder, Allowance]:
    """By group, the least that any of its pools allows, and in which words."""
    found: dict[Holder, Allowance] = {}
    for pool, division in pools:
        holders = sorted((r for r in division.rows if r.held), key=lambda r: (-r.held, r.holder))
        groups = Counter(r.holder.cluster for r in holders)
        for row in division.rows:
            known = found.get(row.holder)
            if known is None or row.allowed < known.workers:
                others = len(holders) - groups[row.holder.cluster]
                found[row.holder] = Allowance(row.allowed, _message(pool, row, holders, others))
    return found


def amount(resource: str, number: float) -> str:
    """Such as: 200 workers, 2.0 TiB memory."""
    is_bytes = "memory" in resource or "storage" in resource
    return f"{format_bytes(number) if is_bytes else f'{number:g}'} {resource}"


def _message(pool: Pool, row: Row, holders: Iterable[Row], others: int) -> str:
    """Such as: 12 of 40 wanted: AdaptiveBudget all has 60 workers, shared with b (24)."""
    most = islice((r for r in holders if r.holder.cluster != row.holder.cluster), NAMED)
    named = [f"{r.holder.cluster.name} ({r.held})" for r in most]
    shared = f", shared with {listed(named, NAMED, others)}" if named else ""
    return f"{row.allowed} of {row.wanted} wanted: {pool.name} has {pool.limits_text}{shared}"
