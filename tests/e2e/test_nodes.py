"""What is done to the node under all workers, or needs it for itself. Never beside other tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import futures_of, wait

from dask_adaptive.kube.api import PODS
from support.e2e_cluster import Start
from support.kube_server import Kubectl
from support.tasks import p2p, result


@pytest.fixture
async def uncordoned(admin: Kubectl) -> AsyncIterator[list[str]]:
    """Nodes that the test put here are made schedulable again at its end."""
    nodes: list[str] = []
    yield nodes
    for node in nodes:
        await asyncio.to_thread(admin, "uncordon", node)


async def test_a_node_is_drained_and_cordoned_and_nothing_is_redone(
    start: Start, admin: Kubectl, uncordoned: list[str]
) -> None:
    here_only = {"nodeSignals": "Ignore"}  # else all workers would leave: it is their node, too
    bounds = {"minReplicas": 2, "maxReplicas": 2}
    c = await start(policy={**bounds, "disruption": here_only})
    await c.until_settled(2)
    doomed = min(await c.connected())
    here = {"workers": [await c.address_of(doomed)], "pure": False}
    results = c.client.map(result, range(20), seconds=0.1, **here)
    await c.client.gather(c.client.map(len, results, **here))
    running = c.client.submit(result, 0, seconds=8.0, **here)
    pod = await c.api.get(PODS.path(c.namespace, await c.pod_of(doomed)))
    node = str(pod["spec"]["nodeName"])
    uncordoned.append(node)
    selector = f"--pod-selector=pod-template-hash={pod['metadata']['labels']['pod-template-hash']}"

    said = await asyncio.to_thread(admin, "drain", node, selector, "--timeout=120s")
    assert f"pod/{pod['metadata']['name']} evicted" in said
    assert running.done()
    await asyncio.to_thread(admin, "uncordon", node)
    await c.until_settled(2)  # its Deployment made another pod
    await c.client.gather([*results, running])
    assert (41, 41, 0) == await c.counts()

    before = await c.connected()
    await c.client.gather(c.client.map(result, range(10), seconds=0.2, pure=False))
    await asyncio.to_thread(admin, "cordon", node)
    await c.edit(disruption={"nodeSignals": "Drain"})
    await c.until_event("NodeGoing")

    # Their replacements find no room; the last one with results has nobody to give them to.
    async def one_is_left() -> bool:
        pending = int((await c.status()).get("pending", 0))
        return (len(await c.connected()), pending) == (1, 2)

    await c.until(one_is_left, "one of the two has handed its results to the other and left")
    assert await c.connected() < before
    await asyncio.to_thread(admin, "uncordon", node)
    await c.until_settled(2)
    await c.client.gather([*results, running])
    assert (51, 51, 0) == await c.counts()


async def test_outputs_of_a_shuffle_go_to_workers_that_were_still_on_their_way(
    start: Start,
) -> None:
    """A P2P shuffle gives its outputs to the workers that are there when it begins: it waits."""
    c = await start(policy={"minReplicas": 1, "maxReplicas": 3, "idleTimeout": "30s"})
    await c.until_settled(1)
    outputs: Any = c.client.persist(_to_shuffle())
    await wait(outputs)

    held = await c.client.has_what()
    of_outputs = {f.key for f in futures_of(outputs)}
    holders = {w for w, keys in held.items() if of_outputs & set(keys)}
    assert 3 == len(holders), f"outputs are on {len(holders)} of 3 workers"
    tally = await c.tally()
    assert (1, 1, 0) == (tally.shuffles, tally.max_shuffle_run, tally.redone)
    await c.until(lambda: c.events("ShuffleAhead"), "an event tells of it, with others")


def _to_shuffle() -> Any:
    """12 parts into 300: much to do once it has begun, so that it pays to wait."""
    import pandas as pd

    def part(i: int) -> pd.DataFrame:
        import time

        time.sleep(0.2)
        return pd.DataFrame({"x": range(i * 100, (i + 1) * 100), "k": range(100)})

    return p2p(part, 12, 300)
