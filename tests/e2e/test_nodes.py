"""What is done to the node under all workers. Never beside other tests: there is only one node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from dask_adaptive.kube.resources import PODS
from support.e2e_cluster import LiveCluster
from support.e2e_tasks import result
from support.kube_server import Kubectl

Start = Callable[..., Awaitable[LiveCluster]]


@pytest.fixture
async def uncordoned(admin: Kubectl) -> AsyncIterator[list[str]]:
    """Nodes that the test put here are made schedulable again at its end."""
    nodes: list[str] = []
    yield nodes
    for node in nodes:
        await asyncio.to_thread(admin, "uncordon", node)


async def _node_of(c: LiveCluster, pod: str) -> str:
    return str((await c.api.get(PODS.path(c.namespace, pod)))["spec"]["nodeName"])


@pytest.mark.parametrize("guarded", [False, True])
async def test_kubectl_drain_of_one_workers_pod_redoes_nothing(
    start: Start, admin: Kubectl, uncordoned: list[str], guarded: bool
) -> None:
    guard = {"enabled": guarded, "maxDelay": "2m"}
    here_only = {"nodeSignals": "Ignore"}  # else all workers would leave: it is their node, too
    c = await start(policy={"minReplicas": 2, "evictionGuard": guard, "disruption": here_only})
    await c.until_connected(2)
    doomed = min(await c.connected())
    here = {"workers": [await c.address_of(doomed)], "pure": False}
    results = c.client.map(result, range(20), seconds=0.1, **here)
    await c.client.gather(c.client.map(len, results, **here))
    running = c.client.submit(result, 0, seconds=15.0, **here)
    pod = await c.pod_of(doomed)
    node = await _node_of(c, pod)
    uncordoned.append(node)
    its = (await c.api.get(PODS.path(c.namespace, pod)))["metadata"]["labels"]
    selector = f"--pod-selector=pod-template-hash={its['pod-template-hash']}"

    said = await asyncio.to_thread(admin, "drain", node, selector, "--timeout=120s")
    assert f"pod/{pod} evicted" in said
    assert guarded is bool(await c.events("EvictionDelayed"))
    assert running.done()
    await asyncio.to_thread(admin, "uncordon", node)
    await c.until_connected(2)  # its Deployment made another pod

    await c.client.gather([*results, running])
    assert (41, 41, 0) == await c.counts()


async def test_workers_of_a_cordoned_node_leave_as_far_as_others_can_take_their_place(
    start: Start, admin: Kubectl, uncordoned: list[str]
) -> None:
    c = await start(policy={"minReplicas": 2, "maxReplicas": 2})
    await c.until_settled(2)
    before = await c.connected()
    results = c.client.map(result, range(20), seconds=0.2, pure=False)
    await c.client.gather(c.client.map(len, results, pure=False))
    node = await _node_of(c, await c.pod_of(min(before)))
    uncordoned.append(node)
    await asyncio.to_thread(admin, "cordon", node)
    await c.until_event("NodeGoing")

    async def one_is_left() -> bool:
        return len(await c.connected()) == 1

    # Their replacements find no room; the last one with results has nobody to give them to.
    await c.until(one_is_left, "one of the two has handed its results to the other and left")

    async def are_pending() -> bool:
        return int((await c.status()).get("pending", 0)) == 2

    await c.until(are_pending, "two replacements were asked for")
    assert await c.connected() < before
    await asyncio.to_thread(admin, "uncordon", node)
    await c.until_settled(2)

    await c.client.gather(results)
    assert (40, 40, 0) == await c.counts()
