"""What keeps a number where it is: people, quotas, schedulers that are away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from support.e2e_cluster import LiveCluster
from support.e2e_tasks import result

Start = Callable[..., Awaitable[LiveCluster]]

NOTE = "dask-adaptive.dev"


async def test_a_pause_ends_by_itself(start: Start) -> None:
    c = await start(policy={"minReplicas": 1})
    await c.until_settled(1)
    await c.kubectl("annotate", "dap", c.name, f"{NOTE}/paused-until=20s")

    async def is_paused() -> bool:
        return (await c.condition("Paused"))[0] == "True"

    await c.until(is_paused, "the condition says so")
    before = await c.deployments()
    await c.edit(minReplicas=3)

    async def is_held() -> bool:
        return not await is_paused() or before == await c.deployments()

    await c.throughout(8.0, is_held, "one worker, as before")
    await c.until_settled(3)
    assert ("False",) == (await c.condition("Paused"))[:1]


async def test_scale_in_is_paused_and_scale_out_is_not(start: Start) -> None:
    c = await start(policy={"maxReplicas": 2})
    await c.kubectl("annotate", "daskcluster", c.name, f"{NOTE}/paused-scale-in=true")
    futures = await c.grow_to(2, tasks=20)
    assert 20 == len(await c.client.gather(futures))
    del futures

    async def says_why() -> bool:
        return "ScaleInPaused" in str(await c.status())

    await c.until(says_why, "the status says who holds them")
    assert 2 == len(await c.deployments())
    await c.kubectl("annotate", "daskcluster", c.name, f"{NOTE}/paused-scale-in-")
    await c.until_settled(0)


async def test_a_quota_of_the_namespace_is_not_run_against(start: Start) -> None:
    c = await start(policy={"maxReplicas": 5})
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team"},
        "spec": {"hard": {"pods": "3"}},  # one of them is the scheduler's
    }
    await c.apply(quota)
    await asyncio.sleep(3)  # its controller counts
    futures = c.client.map(result, range(60), seconds=0.5, pure=False)

    async def says_so() -> bool:
        return await c.condition("ScalingLimited") == ("True", "QuotaExceeded")

    await c.until(says_so, "the condition names the quota")
    await c.until_connected(2)
    assert 2 == len(await c.deployments())  # nothing was asked for in vain
    assert "team" in str((await c.status())["conditions"])
    assert 60 == len(await c.client.gather(futures))
    del futures
    await c.until_settled(0)
    assert (60, 60, 0) == await c.counts()


async def test_a_scheduler_that_starts_anew_is_served_anew(start: Start) -> None:
    c = await start(policy={"minReplicas": 1, "maxReplicas": 3})
    await c.until_settled(1)
    pod = (await c.scheduler_pod())["metadata"]["name"]
    await c.kubectl("delete", "pod", pod, "--wait=true")

    async def is_back() -> bool:
        return (await c.condition("SchedulerConnected"))[0] == "True"

    assert 1 <= len(await c.deployments())
    await c.close()  # a client gives up after a while, and its futures with it
    await c.open()  # to the next one, which may be there before anybody has missed the other
    await c.until(is_back, "the next one answers the operator, too")
    await c.until_connected(1)
    futures = c.client.map(result, range(30), seconds=0.5, pure=False)
    assert 30 == len(await c.client.gather(futures))
    del futures
    await c.until_settled(1)
    assert (30, 30, 0) == await c.counts()


async def test_a_load_that_comes_and_goes_near_the_window_moves_nothing(start: Start) -> None:
    """A period of 8 s, a window of 10 s: what upstream follows with 5 or 6 changes."""
    c = await start(policy={"maxReplicas": 3, "idleTimeout": "10s"})
    first = await c.grow_to(3, tasks=30)
    await c.client.gather(first)
    there = await c.deployments()
    for _ in range(4):
        await asyncio.sleep(5)
        futures = c.client.map(result, range(18), seconds=0.5, pure=False)
        await c.client.gather(futures)
        del futures
    assert there == await c.deployments()
    assert (102, 102, 0) == await c.counts()


async def test_an_idle_cluster_is_deleted_where_the_policy_says_so(start: Start) -> None:
    c = await start(policy={"maxReplicas": 2, "idle": {"after": "12s", "action": "DeleteCluster"}})
    futures = c.client.map(result, range(8), seconds=0.5, pure=False)
    assert 8 == len(await c.client.gather(futures))
    del futures
    await c.close()

    async def is_gone() -> bool:
        return not (await c.kubectl("get", "daskclusters", "-o", "name")).strip()

    await c.until(is_gone, "the cluster is deleted")
