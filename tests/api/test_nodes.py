"""Nodes as an informer watches them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from dask_adaptive.kube.api import NODES, KubeApi
from dask_adaptive.kube.cache.informer import Informer
from dask_adaptive.kube.cache.world import World, scopes_of
from dask_adaptive.kube.nodes import NodeObject
from support.kube_operator import until
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
