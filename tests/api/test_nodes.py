"""Nodes as a cluster-wide operator watches them. It only watches here: it leads nowhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dask_adaptive.controller.app import Operator, Settings
from dask_adaptive.kube.api import NODES, KubeApi
from dask_adaptive.kube.nodes import NodeObject
from support.kube_operator import until
from support.kube_server import Kubectl


@pytest.fixture
async def operator(api: KubeApi) -> AsyncIterator[Operator]:
    made = Operator(Settings(identity="test"), api)
    watching = asyncio.create_task(made._watch())
    yield made
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


async def test_a_node_that_is_about_to_go_is_noticed(
    operator: Operator, api: KubeApi, kubectl: Kubectl
) -> None:
    name = f"n-{kubectl.namespace}"
    await api.create(NODES.path(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    try:

        def going() -> str:
            node = operator._world.get(NodeObject, "", name)
            return node.terminating if node else "not seen"

        await until(lambda: going() == "")
        kubectl("cordon", name)
        await until(lambda: going() == f"node {name} is cordoned")
        kubectl("uncordon", name)
        await until(lambda: going() == "")
    finally:
        kubectl("delete", "node", name)
    await until(lambda: going() == "not seen")
