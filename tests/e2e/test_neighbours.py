"""What is not ours stays as it is."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from support.e2e_cluster import LiveCluster
from support.e2e_objects import autoscaler, worker_group
from support.e2e_tasks import result

Start = Callable[..., Awaitable[LiveCluster]]


async def test_upstreams_autoscaler_and_clusters_without_a_policy_are_left_alone(
    start: Start,
) -> None:
    still = await start("still", policy=None, replicas=1)
    theirs = await start("theirs", policy=None, replicas=1)
    await theirs.apply(autoscaler("theirs", minimum=1, maximum=2))
    c = await start(policy={"maxReplicas": 1})
    await still.until_connected(1)
    alone = await still.deployments()

    work = theirs.client.map(result, range(40), seconds=0.5, pure=False)
    ours = c.client.map(result, range(10), seconds=0.5, pure=False)
    await theirs.until_connected(2)  # by upstream's own autoscaler
    assert 40 == len(await theirs.client.gather(work))
    assert 10 == len(await c.client.gather(ours))
    del ours
    await c.until_settled(0)

    assert (alone, 1) == (await still.deployments(), await still.replicas())
    assert ([], []) == (await still.events(), await theirs.events())
    assert (40, 40, 0) == await theirs.counts()


async def test_an_autoscaler_for_the_policys_cluster_is_a_conflict_and_nothing_is_touched(
    start: Start,
) -> None:
    c = await start(policy={"minReplicas": 1})
    await c.until_settled(1)
    rival = autoscaler(c.name, minimum=1, maximum=1)
    rest_until = str(time.time() + 3600)  # upstream's own timer shall rest: who acts, is us
    rival["metadata"]["annotations"] = {"kubernetes.dask.org/cooldown-until": rest_until}
    await c.apply(rival)

    async def is_conflict() -> bool:
        return await c.condition("Ready") == ("False", "OwnershipConflict")

    await c.until(is_conflict, "the conflict is told")
    before = await c.deployments()
    await c.edit(minReplicas=3)

    async def is_untouched() -> bool:
        return (before, 1) == (await c.deployments(), await c.replicas())

    await c.throughout(6.0, is_untouched, "one worker, as before")
    await c.kubectl("delete", "daskautoscaler", c.name)
    await c.until_settled(3)


async def test_another_worker_group_is_never_touched(start: Start) -> None:
    c = await start()
    await c.apply(worker_group(c.name, "second", replicas=2))
    await c.until_connected(2)
    second = await c.deployments("second")
    futures = c.client.map(result, range(240), seconds=0.5, pure=False)

    async def has_grown() -> bool:
        return len(await c.deployments()) == 3

    await c.until(has_grown, "three workers of the policy's group")
    assert 240 == len(await c.client.gather(futures))
    del futures

    async def has_shrunk() -> bool:
        return (await c.deployments(), await c.replicas()) == ({}, 0)

    await c.until(has_shrunk, "none of the policy's group")
    assert (second, 2) == (await c.deployments("second"), await c.replicas("second"))
    await c.until_connected(2)  # those of the pods that end are there until they have said so
    assert set(second) == await c.connected()
    assert (240, 240, 0) == await c.counts()
