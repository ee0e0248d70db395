"""
Turns cached AdaptiveBudgets and ResourceQuotas into pools, and renders a budget's status. Pure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from dask_adaptive.budget.adaptive_budget import WORKERS, AdaptiveBudget, parse_budget
from dask_adaptive.budget.board import Holder, Holding, Pool, Row, amount
from dask_adaptive.kube import objects
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import ClusterObject, DeploymentObject
from dask_adaptive.kube.resource_quotas import QuotaObject, cost
from dask_adaptive.kube.worker_pods import Shape
from dask_adaptive.loop.status import Condition, Generation
from dask_adaptive.model.codec import InvalidPolicy, Key, Listed
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.plan import Claimed, Instant

#: Budget claims by group, from the clusters' loops.
Claims = Mapping[Holder, Claimed]

#: Rows of one status, waiting groups first.
MAX_ROWS = 100

_ONE = 1000  # thousandths


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One worker group that shares a budget."""

    #: Namespace of the DaskCluster.
    namespace: str
    #: Name of the DaskCluster.
    cluster: str
    #: Name of the DaskWorkerGroup.
    name: str
    #: Workers that exist or are requested.
    held: int = 0
    #: Workers that it needs.
    wanted: int = 0
    #: Workers that the budget allows it.
    allowed: int = 0
    #: Since when it has needed more workers than it may have.
    waiting_since: Instant = math.inf

    @property
    def holder(self) -> Holder:
        return Holder(ClusterKey(self.namespace, self.cluster), self.name)


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """The status of an AdaptiveBudget, declared as that of a policy is (`loop/status.py`)."""

    #: The generation of the spec that this status is based on.
    generation: Annotated[Generation, Key("observedGeneration")] = 0
    #: What all workers use together, by resource in the limits.
    held: Mapping[str, str] = field(default_factory=dict)
    #: Workers that exist or are requested.
    held_workers: int = 0
    #: Workers that the clusters need.
    wanted_workers: int = 0
    #: Worker groups that need more than they may have.
    waiting: int = 0
    #: Clusters that share it.
    clusters: int = 0
    #: The worker groups, waiting ones first; at most 100.
    groups: tuple[BudgetRow, ...] = ()
    #: Ready.
    conditions: Annotated[tuple[Condition, ...], Listed(key="type")] = ()


def read_budgets(
    budgets: Iterable[objects.BudgetObject],
) -> tuple[dict[str, AdaptiveBudget], dict[str, InvalidPolicy]]:
    """Return the readable AdaptiveBudgets by title, and the problems of the others."""
    found, wrong = dict[str, AdaptiveBudget](), dict[str, InvalidPolicy]()
    for each in budgets:
        try:
            budget = parse_budget(msgspec.json.decode(each.spec_json))
            found[each.title] = budget.within(each.meta.namespace)
        except InvalidPolicy as exc:
            wrong[each.title] = exc
    return found, wrong


def pools_of(world: World, budgets: Mapping[str, AdaptiveBudget], claims: Claims) -> list[Pool]:
    """Return all shared pools: budgets, and ResourceQuotas of namespaces with several clusters."""
    quotas = world.all(QuotaObject)
    if not budgets and not quotas:
        return []
    every = world.all(ClusterObject)
    # Workers of a cluster that is being deleted count as held.
    gone = {cluster.key for cluster in every if cluster.meta.deleting}
    claims = {holder: claim for holder, claim in claims.items() if holder.cluster not in gone}
    pools = [_of_budget(world, name, budget, every, claims) for name, budget in budgets.items()]
    within = defaultdict[str, list[ClusterObject]](list)
    for cluster in every:
        within[cluster.meta.namespace].append(cluster)
    for quota in quotas:
        if len(mine := within[quota.meta.namespace]) > 1:
            pools += _of_quota(world, quota, mine, claims)
    return pools


def _of_budget(
    world: World, name: str, budget: AdaptiveBudget, clusters: Sequence[ClusterObject],
    claims: Claims,
) -> Pool:  # fmt: skip
    holdings = []
    for cluster in clusters:
        where = world.get(objects.NamespaceObject, "", cluster.meta.namespace)
        if not budget.covers(cluster.meta.namespace, dict(where.labels) if where else {}):
            continue
        rule = budget.rule_for(cluster.meta.namespace, cluster.meta.name)
        for holder, shape, workers in _groups(world, cluster.key):
            size = tuple(_taken(resource, shape) for resource in budget.limits)
            holdings.append(Holding(holder, size, workers, claims.get(holder), rule))
    after_s = budget.reclaim.after_s
    return Pool(f"AdaptiveBudget {name}", budget.limits, tuple(holdings), budget.borrowing, after_s)


def _of_quota(
    world: World, quota: QuotaObject, clusters: Sequence[ClusterObject], claims: Claims
) -> Iterator[Pool]:
    """Add what its clusters hold to a quota's room: else two would count on the same room."""
    groups = [row for cluster in clusters for row in _groups(world, cluster.key)]
    counted = [row for row in groups if quota.counts(row[1])]
    made = Counter(holder for cluster in clusters for holder in _with_pods(world, cluster.key))
    for name, hard in quota.hard:
        used, mine, held = dict(quota.used).get(name), list[Holding](), 0
        for holder, shape, workers in counted:
            if each := cost(name, shape):
                mine.append(Holding(holder, (each / _ONE,), workers, claims.get(holder)))
                held += made[holder] * each
        if used is not None and len({h.holder.cluster for h in mine}) > 1:
            limit = max(hard - used + held, 0) / _ONE
            pool_name, within = f"ResourceQuota {quota.meta.name}", quota.meta.namespace
            yield Pool(pool_name, {name: limit}, tuple(mine), namespace=within)


def _groups(world: World, key: ClusterKey) -> Iterator[tuple[Holder, Shape, int]]:
    """Yield each group with the shape of a worker, and its existing or requested workers."""
    there = Counter(deployment.group for deployment in world.of(DeploymentObject, key))
    for group in world.of(objects.GroupObject, key):
        name = group.meta.name
        yield Holder(key, name), group.shape, max(group.replicas, there[name])


def _with_pods(world: World, key: ClusterKey) -> Iterator[Holder]:
    """Return the group of each worker whose pod exists."""
    workers = {pod.worker for pod in world.of(objects.PodObject, key)}
    there = (d for d in world.of(DeploymentObject, key) if d.meta.name in workers)
    return (Holder(key, deployment.group) for deployment in there)


def _taken(resource: str, shape: Shape) -> float:
    """Return one worker's request of a resource."""
    return 1.0 if resource == WORKERS else cost(f"requests.{resource}", shape) / _ONE


def budget_status(pool: Pool, rows: Sequence[Row], since: Mapping[Holder, float]) -> BudgetStatus:
    """
    Render the status of a budget, without conditions.

    Args:
        since: Since when those who wait do, in seconds since 1970.
    """
    order = sorted(rows, key=lambda r: (not r.waits, -r.held, r.holder))
    sizes = {h.holder: h.size for h in pool.holdings}
    return BudgetStatus(
        held={
            name: amount(name, sum(sizes[r.holder][i] * r.held for r in rows))
            for i, name in enumerate(pool.limits)
        },
        held_workers=sum(r.held for r in rows),
        wanted_workers=sum(r.wanted for r in rows),
        waiting=sum(r.waits for r in rows),
        clusters=len({r.holder.cluster for r in rows}),
        groups=tuple(
            BudgetRow(
                *row.holder.cluster, row.holder.group, row.held, row.wanted, row.allowed,
                since.get(row.holder, math.inf),
            )
            for row in order[:MAX_ROWS]
        ),
    )  # fmt: skip
