"""Nodes as an informer watches them, and as workers leave them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench.scale.bodies import Cluster
from bench.scale.schedulers import Farm
from bench.scale.seed import seed_clusters
from bench.scale.upstream import Upstream
from dask_adaptive.kube.api import NODES, PODS, KubeApi
from dask_adaptive.kube.cache.informer import Informer
from dask_adaptive.kube.cache.world import World, scopes_of
from dask_adaptive.kube.nodes import NodeObject
from dask_adaptive.scheduler.link import connect
from support.kube_operator import running, until
from support.kube_server import Kubectl


@pytest.fixture
async def world(api: KubeApi) -> AsyncIterator[World]:
    world = World()
    (nodes,) = (scope for scope in scopes_of() if scope[0].resource == NODES)
    informer = Informer(nodes, api=api, world=world, clock=time.monotonic)
    watching = asyncio.create_task(informer.run())
    yield world
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


async def test_a_node_that_is_about_to_go_is_noticed(
    world: World, api: KubeApi, kubectl: Kubectl
) -> None:
    name = f"n-{kubectl.namespace}"
    await api.create(NODES.path(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    try:

        def going() -> str:
            node = world.get(NodeObject, "", name)
            return node.terminating if node else "not seen"

        await until(lambda: going() == "")
        kubectl("cordon", name)
        await until(lambda: going() == f"node {name} is cordoned")
        kubectl("uncordon", name)
        await until(lambda: going() == "")
    finally:
        kubectl("delete", "node", name)
    await until(lambda: going() == "not seen")


async def test_of_idle_workers_those_leave_whose_nodes_empty_soonest(
    api: KubeApi, kubectl: Kubectl
) -> None:
    cluster = Cluster("c", kubectl.namespace, 0)
    farm = Farm([cluster.name])
    await farm.start()
    scheduler = farm.schedulers[cluster.name]
    scheduler.held = 0  # else the least data go first, wherever they are

    async def join(_: str, workers: Any) -> None:
        scheduler.join(workers)

    async def leave(_: str, names: Any) -> None:
        scheduler.leave(names)

    nodes = iter(["two", "three", "one", "three", "two", "three"])
    upstream = Upstream(api, [cluster], join=join, leave=leave, nodes=nodes)
    await seed_clusters(api, [cluster], policy={"maxReplicas": 6, "minReplicas": 3})
    playing = asyncio.create_task(upstream.run(kubectl.namespace))

    def link(_: str, **how: Any) -> Any:
        return connect(farm.addresses[cluster.name], **how)

    async def kept() -> list[str]:
        pods = await api.list(PODS.path(kubectl.namespace))
        stay = [p for p in pods if "deletionTimestamp" not in p["metadata"]]  # there is no kubelet
        return sorted(pod["spec"]["nodeName"] for pod in stay)

    try:
        async with running(api, kubectl.namespace, connect=link):
            scheduler.load(6)
            await until(lambda: sum(w.busy for w in scheduler.workers.values()) == 6, timeout_s=30)
            scheduler.load(0)
            await until(lambda: len(scheduler.workers) == 3, timeout_s=60)
            while len(found := await kept()) > 3:
                await asyncio.sleep(0.2)
            assert ["three"] * 3 == found, "though some of the others have less data"
    finally:
        playing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await playing
        await farm.close()
