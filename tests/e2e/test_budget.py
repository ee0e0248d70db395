"""Clusters share a budget on a real node: loads come and go, and nothing is redone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from dask_adaptive.kube.api import BUDGETS
from support.e2e_cluster import LiveCluster, Start
from support.e2e_tasks import result
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

    a, b, urgent = await asyncio.gather(*map(begin, ("a", "b", "urgent")))
    every, most = (a, b, urgent), 0

    async def held() -> tuple[int, ...]:
        nonlocal most
        numbers = tuple([len(await c.deployments()) for c in every])
        most = max(most, sum(numbers))
        return numbers

    def near(*fair: int) -> Callable[[], Awaitable[bool]]:
        async def is_near() -> bool:
            pairs = zip(await held(), fair, strict=True)
            return all(abs(number - part) <= 1 for number, part in pairs)

        return is_near

    async def fair(*parts: int) -> None:
        began = time.monotonic()
        await a.until(near(*parts), f"{parts} within one", patience_s=FAIR_S)
        await asyncio.sleep(max(0.0, FAIR_S - (time.monotonic() - began)))
        assert await near(*parts)()

    long = a.client.map(result, range(400), seconds=1.0, pure=False)
    await a.until(near(6, 0, 0), "one alone has all")
    await a.until_connected(6)
    other = b.client.map(result, range(400), seconds=1.0, pure=False)
    await fair(3, 3, 0)
    quick = urgent.client.map(result, range(60), seconds=1.0, pure=False)
    await fair(1, 1, 4)
    status = admin.json("get", "dab", budget)["status"]
    assert {"a", "b", "urgent"} == {g["cluster"] for g in status["groups"] if g["waitingSince"]}
    await a.until_event("BudgetShared")

    assert [100_000] * 60 == [len(r) for r in await urgent.client.gather(quick)]
    del quick  # its idle workers are needed elsewhere: they do not wait for their idleTimeout
    await fair(3, 3, 0)
    for cluster, futures in ((a, long), (b, other)):
        await cluster.client.cancel(futures[200:])
        done = await cluster.client.gather(futures[:200])
        assert [100_000] * 200 == [len(r) for r in done]
    assert most <= 6
    assert [0, 0, 0] == [(await c.counts())[2] for c in every]
