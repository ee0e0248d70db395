"""Clusters under one budget in simulated time: the very loop runs on each."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from dask_adaptive.budget.board import Grant, Holder, Holding, Pool, allowances, divide
from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.loop.ports import Ports
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformView
from dask_adaptive.model.plan import Claimed
from dask_adaptive.model.policy import ClusterRef, Policy
from dask_adaptive.model.scaling import Allowance
from dask_adaptive_lab.simulate.cluster import SimulatedCluster
from dask_adaptive_lab.simulate.simulated_ports import SimulatedPorts, completed
from dask_adaptive_lab.simulate.workload import Arrival, Workload

AFTER_S = 30.0


class Sharing(SimulatedPorts):
    """One cluster, that sees its allowance and tells what it would have without."""

    def __init__(self, cluster: SimulatedCluster, key: ClusterKey) -> None:
        super().__init__(cluster, key)
        self.allowance: Allowance | None = None
        self.claim: Claimed | None = None

    def ports(self) -> Ports:
        return replace(super().ports(), claim=self.want)

    async def look(self) -> PlatformView:
        seen = await super().look()
        groups = tuple(replace(group, allowance=self.allowance) for group in seen.groups)
        return replace(seen, groups=groups)

    def want(self, claims: Mapping[str, Claimed]) -> None:
        self.claim = next(iter(claims.values()), self.claim)


@dataclass
class Member:
    ports: Sharing
    loop: ClusterLoop

    @property
    def holding(self) -> Holding:
        cluster, key = self.ports.cluster, self.ports.key
        held = max(cluster.replicas[key.default_group], len(cluster.workers))
        return Holding(Holder(key, key.default_group), (1.0,), held, self.ports.claim)

    @property
    def is_at_rest(self) -> bool:
        """It has no workers, and nothing to do: the next pass would change nothing."""
        claim = self.ports.claim
        return not (
            claim is None or claim.number or self.holding.workers or self.ports.cluster.unfinished
        )


def member(name: str, work: Workload) -> Member:
    key = ClusterKey("sim", name)
    cluster = SimulatedCluster(work, lambda *_: 10.0, {key.default_group: 1})
    ports = Sharing(cluster, key)
    return Member(ports, ClusterLoop(key, ports.ports()))


def work(dice: random.Random, lasts_s: float) -> Workload:
    """Batches that come and go, as people and schedules send them."""
    at, arrivals = dice.uniform(0, lasts_s / 10), list[Arrival]()
    while at < 0.7 * lasts_s:
        arrivals.append(Arrival(at, "work", dice.choice([5, 30, 100]), 0))
        at += dice.expovariate(1 / (lasts_s / 8))
    return Workload(tuple(arrivals), (), (), {"work": dice.choice([2.0, 6.0])}, {})


@pytest.mark.parametrize(
    ("clusters", "limit", "lasts_s", "step_s", "seed"),
    [
        (3, 6, 900.0, 2.0, 1),
        (5, 12, 3600.0, 5.0, 2),
        pytest.param(
            200, 400, 86_400.0, 120.0, 3, marks=[pytest.mark.thorough, pytest.mark.timeout(900)]
        ),
    ],
)
def test_nobody_goes_beyond_and_nothing_is_redone(
    clusters: int, limit: int, lasts_s: float, step_s: float, seed: int
) -> None:
    dice = random.Random(seed)
    members = [member(f"c{n}", work(dice, lasts_s)) for n in range(clusters)]
    policy = Policy(ClusterRef("any"), 40, idle_timeout_s=60.0)
    grants: Mapping[Holder, Grant] = {}
    was_tight = False
    for n in range(int(lasts_s / step_s)):
        now = n * step_s
        for one in members:
            one.ports.cluster.advance(now)
        pool = Pool(
            "AdaptiveBudget all", {"workers": limit}, tuple(m.holding for m in members),
            after_s=AFTER_S,
        )  # fmt: skip
        division = divide(pool, grants, now=now)
        grants, parts = division.grants, allowances([(pool, division)])
        for one in members:
            one.ports.allowance = parts[one.holding.holder]
            if one.is_at_rest:
                continue
            completed(
                one.loop.one_pass(replace(policy, cluster_ref=ClusterRef(one.ports.key.name)))
            )
        assert sum(m.holding.workers for m in members) <= limit
        was_tight |= any(row.waits for row in division.rows)

    assert was_tight, "the budget has not mattered"
    assert not sum(m.ports.cluster.redone for m in members)
    assert not sum(m.ports.cluster.unfinished for m in members), "everybody's work is done"
    assert not sum(m.ports.cluster.killed for m in members)
