"""Computes from budget claims how many workers each group may have. Pure."""

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

#: Other clusters that a message names.
NAMED = 2

#: Age of the allowance that a pass may act on, in seconds: until then an allowance counts as used,
#: whether its workers have been requested or not.
PROMISED_S = 10.0


class Holder(NamedTuple):
    """A worker group that shares a budget."""

    cluster: ClusterKey
    group: str


@dataclass(frozen=True, slots=True)
class Holding:
    """One worker group's holding of a budget."""

    holder: Holder
    size: tuple[float, ...]  # of one worker, by resource of the pool
    workers: int  # existing or requested, draining ones included
    claim: Claimed | None  # None: not scaled, or unknown yet: it keeps its workers
    rule: ShareRule = DEFAULT  # of all that have the same one together


@dataclass(frozen=True, slots=True)
class Pool:
    """A shared amount: an AdaptiveBudget, or the room of a ResourceQuota."""

    name: str  # with its kind
    limits: Mapping[str, float]
    holdings: tuple[Holding, ...]
    borrowing: bool = True
    after_s: float | None = None  # `reclaim.after`; None: no workers are reclaimed
    namespace: str = ""  # of a ResourceQuota

    @property
    def key(self) -> tuple[str, ...]:
        """Identity of the pool."""
        return self.namespace, self.name, *self.limits

    @property
    def limits_text(self) -> str:
        """Describe the limits, such as: 200 workers, 2.0 TiB memory."""
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
    """A group's last allowance, and since when it has been so large."""

    allowed: int
    grown_at: float
    promised: int = 0  # what it may be about to ask for, where that is more than it holds


@dataclass(frozen=True, slots=True)
class Division:
    """The division of one pool; `grants` is the memory for the next division."""

    rows: tuple[Row, ...] = ()
    grants: Mapping[Holder, Grant] = field(default_factory=dict)


def divide(pool: Pool, before: Mapping[Holder, Grant], *, now: float) -> Division:
    """
    Divide a pool. No group grows into workers that another has yet to give back.

    No worker changes hands twice within `after_s`: who got more keeps for so long what it has, as
    far as the limits allow. Without a memory all have just got what they have.

    Args:
        before: The result of the previous division.
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
    # The rest is for workers that are only kept for a while.
    most = [
        max(goal, has if holding.claim is None else holding.claim.number)
        for goal, has, holding in zip(needed, held, pool.holdings, strict=True)
    ]
    lasting = [
        claim._replace(want=number, keep=goal)
        for claim, number, goal in zip(claims, most, needed, strict=True)
    ]
    goals = share(lasting, limits, borrowing=pool.borrowing)
    # Held workers count as used until given back; beyond the limits no group grows.
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
    """Return the workers that a group holds, or may be about to request."""
    if old is None or now - old.grown_at >= PROMISED_S:
        return holding.workers
    return max(holding.workers, old.promised)


def _at_least_held(pool: Pool, held: Sequence[int]) -> list[float]:
    """Return the limits, raised to what is held."""
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
    """Return each group's lowest allowance among its pools, with a message."""
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
    """Format an amount, such as: 200 workers, 2.0 TiB memory."""
    is_bytes = "memory" in resource or "storage" in resource
    return f"{format_bytes(number) if is_bytes else f'{number:g}'} {resource}"


def _message(pool: Pool, row: Row, holders: Iterable[Row], others: int) -> str:
    """
    Explain an allowance, such as: 12 of 40 wanted: AdaptiveBudget all has 60 workers, shared with b
    (24).
    """
    most = islice((r for r in holders if r.holder.cluster != row.holder.cluster), NAMED)
    named = [f"{r.holder.cluster.name} ({r.held})" for r in most]
    shared = f", shared with {listed(named, NAMED, others)}" if named else ""
    return f"{row.allowed} of {row.wanted} wanted: {pool.name} has {pool.limits_text}{shared}"
