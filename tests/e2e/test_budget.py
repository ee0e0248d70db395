"""Clusters share a budget on a real node: loads come and go, and nothing is redone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator

import pytest

from dask_adaptive.kube.api import BUDGETS
from support.e2e_cluster import LiveCluster, Start
from support.e2e_sharing import share_six
from support.kube_bodies import body
from support.kube_server import Kubectl

#: So long after a load has changed each has its part, within one worker.
FAIR_S = 10.0


@pytest.fixture
def budget(admin: Kubectl, kubectl: Kubectl) -> Iterator[str]:
    """Six workers: `urgent` goes first, others keep one each."""
    spec = {
        "limits": {"workers": 6},
        "namespaces": [kubectl.namespace],
        "shares": [
            {"namespace": kubectl.namespace, "cluster": "urgent", "priority": 5},
            {"namespace": kubectl.namespace, "guarantee": 2},
        ],
        "reclaim": {"after": "0s"},
    }
    admin.apply(body(BUDGETS, kubectl.namespace, spec))
    yield kubectl.namespace
    admin("delete", "dab", kubectl.namespace)


async def test_three_clusters_share_six_workers(start: Start, budget: str, admin: Kubectl) -> None:
    def begin(name: str) -> Awaitable[LiveCluster]:
        return start(name, policy={"maxReplicas": 6, "idleTimeout": "60s"})

    async def held(cluster: LiveCluster) -> int:
        return len(await cluster.deployments())

    async def all_wait() -> None:
        def waiting() -> set[str]:
            status = admin.json("get", "dab", budget)["status"]
            return {g["cluster"] for g in status["groups"] if "waitingSince" in g}

        await every[0].until(lambda: waiting() == {"a", "b", "urgent"}, "the budget says who waits")
        await every[0].until_event("BudgetShared")

    every = await asyncio.gather(*map(begin, ("a", "b", "urgent")))
    # Idle workers are needed elsewhere: they do not wait for their idleTimeout.
    await share_six(every, held, within_s=FAIR_S, all_wait=all_wait)
