"""Two worker groups under one policy, each with what its workers have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from support.e2e_cluster import LiveCluster
from support.e2e_objects import worker_group
from support.e2e_tasks import result

Start = Callable[..., Awaitable[LiveCluster]]


async def test_the_group_that_a_task_needs_gets_the_workers_from_zero(start: Start) -> None:
    gpu = "c-gpu"
    groups = [{"name": gpu, "maxReplicas": 2, "idleTimeout": "4s"}]
    c = await start(policy={"maxReplicas": 3, "workerGroups": groups})
    second = worker_group(c.name, gpu, replicas=0)
    second["spec"]["worker"]["spec"]["containers"][0]["args"] += ["--resources", "GPU=1"]
    await c.apply(second)

    bound = c.client.map(result, range(6), seconds=1, pure=False, resources={"GPU": 1})

    async def have_come() -> bool:
        return len(await c.deployments(gpu)) == 2

    await c.until(have_come, "two workers of the group that has the resource")
    assert {} == await c.deployments()  # nothing is there for any other
    assert 6 == len(await c.client.gather(bound))
    assert 0 == await c.replicas()

    free = c.client.map(result, range(40), seconds=0.5, pure=False)

    async def is_served() -> bool:
        return bool(await c.deployments())

    await c.until(is_served, "the default group serves what any worker may run")
    assert 40 == len(await c.client.gather(free))
    del bound, free

    async def have_gone() -> bool:
        numbers = (await c.replicas(), await c.replicas(gpu))
        return numbers == (0, 0) and not await c.connected()

    await c.until(have_gone, "both groups are at zero")
    assert (46, 46, 0) == await c.counts()
    told = {g["name"]: g["desiredReplicas"] for g in (await c.status())["groups"]}
    assert {c.group: 0, gpu: 0} == told


async def test_a_group_without_bounds_is_not_touched_beside_one_that_has(start: Start) -> None:
    groups = [{"name": "c-more", "minReplicas": 1, "maxReplicas": 2}]
    c = await start(policy={"maxReplicas": 2, "workerGroups": groups})
    await c.apply(worker_group(c.name, "c-more", 0), worker_group(c.name, "c-theirs", 1))

    async def are_there() -> bool:
        return (await c.replicas("c-more"), len(await c.connected())) == (1, 2)

    await c.until(are_there, "the minimum of the one, and the one that nobody scales")
    theirs = await c.deployments("c-theirs")
    futures = c.client.map(result, range(60), seconds=0.4, pure=False)
    assert 60 == len(await c.client.gather(futures))
    del futures

    async def has_shrunk() -> bool:
        return (await c.replicas(), await c.replicas("c-more")) == (0, 1)

    await c.until(has_shrunk, "both are at their minimum")
    assert (theirs, 1) == (await c.deployments("c-theirs"), await c.replicas("c-theirs"))
    assert (60, 60, 0) == await c.counts()
