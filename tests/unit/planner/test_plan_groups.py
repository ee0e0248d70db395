"""Several worker groups: each follows what it is needed for, and no other group is touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from dask_adaptive.model.observed import Demand, ObservedCluster, ObservedWorker, Want
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Plan
from dask_adaptive.model.policy import Policy, Retirement
from dask_adaptive.model.scaling import WorkerGroup
from support.tables import table
from support.worlds import (
    DRAINING,
    GOING,
    GPU,
    GROUP,
    NOW,
    POLICY,
    actions,
    busy,
    group_of,
    plan,
    remember,
    watched,
    worker,
)
from support.worlds import cluster as cluster_of

BIG = "etl-big"
PAST = watched(GPU)


def cluster(workers: Sequence[ObservedWorker], **changes: Any) -> ObservedCluster:
    """With an agent that says that there is no work, but for what runs."""
    return cluster_of(workers, **{"demand": Demand(), **changes})


def policy_of(*groups: WorkerGroup, max_replicas: int = 10, **more: Any) -> Policy:
    return dataclasses.replace(POLICY, max_replicas=max_replicas, worker_groups=groups, **more)


TWO = policy_of(WorkerGroup(GPU, 4))


def want(workers: int, of: str = "") -> Want:
    return Want(workers, 60.0, "client nb", of)


def decide(world: ObservedCluster, policy: Policy = TWO, past: Past = PAST) -> Plan:
    return plan(world, policy, past, now=NOW)


A, B = worker("a"), worker("b")
G, H = worker("g"), worker("h")


@table(
    "world, policy, expected",
    from_zero=(cluster([busy("a")], wants=(want(2, GPU),), others=[group_of(GPU, [])]), TWO,
        [f"{GPU}=2"]),
    both_grow_to_what_each_may=(cluster([busy("a")], wants=(want(3), want(9, GPU)),
        others=[group_of(GPU, [busy("g")])]), TWO, ["=3", f"{GPU}=4"]),
    the_third_is_not_touched=(cluster([A, B],
        others=[group_of(GPU, [G, H]), group_of(BIG, [worker("x")])]), TWO,
        ["retire a", "retire b", "retire g", "retire h"]),
    up_to_its_own_minimum=(cluster([A], wants=(want(1),), others=[group_of(GPU, [G, H])]),
        policy_of(WorkerGroup(GPU, 4, min_replicas=3)), [f"{GPU}=3"]),
    its_own_idle_timeout=(cluster([worker("a", idle_s=40.0)],
        others=[group_of(GPU, [worker("g", idle_s=40.0)])]),
        policy_of(WorkerGroup(GPU, 4, idle_timeout_s=60.0)), ["retire a"]),
    max_concurrent_is_of_the_cluster=(cluster([A, B], others=[group_of(GPU, [G, H])]),
        dataclasses.replace(TWO, retirement=Retirement(max_concurrent=3)),
        ["retire a", "retire b", "retire g"]),
    those_of_other_groups_count=(cluster([A], others=[group_of(GPU, [G, worker("h", **DRAINING)])]),
        dataclasses.replace(TWO, retirement=Retirement(max_concurrent=1)), []),
    its_machine_goes=(cluster([A], wants=(want(1), want(2, GPU)),
        others=[group_of(GPU, [busy("g", **GOING), busy("h")])]), TWO, [f"{GPU}=3", "retire g"]),
    nobody_replaces_those_of_a_group_that_is_not_scaled=(cluster([A], wants=(want(1),),
        others=[group_of(BIG, [busy("x", **GOING)])]), TWO, []),
)  # fmt: skip
def test_groups(world: ObservedCluster, policy: Policy, expected: list[str]) -> None:
    assert expected == actions(decide(world, policy))


# --- the cluster's limit ----------------------------------------------------------------------


def limited(*bounds: WorkerGroup, max_replicas: int) -> Policy:
    return policy_of(*bounds, max_replicas=max_replicas)


def test_what_is_beyond_the_clusters_limit_goes_the_lowest_priority_first() -> None:
    """The limit was lowered."""
    world = cluster(
        [worker("a"), worker("b")], wants=(want(2), want(2, GPU)), others=[group_of(GPU, [G, H])]
    )
    policy = limited(WorkerGroup(GROUP, 8, priority=1), WorkerGroup(GPU, 8), max_replicas=3)

    assert ["retire g"] == actions(decide(world, policy))


# --- what is told of several ------------------------------------------------------------------


# --- what is remembered of each ---------------------------------------------------------------


def after(world: ObservedCluster, past: Past, *, now: float = NOW, policy: Policy = TWO) -> Past:
    return remember(past, world, policy, plan(world, policy, past, now=now), (), now=now)
