"""Workers whose quota has run out are replaced, and no task notices."""

from __future__ import annotations

import asyncio
import json

from dask_adaptive.kube.api import PODS
from support.e2e_cluster import LiveCluster, Start
from support.tasks import result

RECYCLE = "dask-adaptive.dev/recycle"


async def test_no_task_starts_that_its_pod_does_not_outlive(start: Start) -> None:
    """Tasks of 6 s in pods that live for a minute, in place of 1 h in 6 h."""
    lifetime = {"minTaskDuration": "6s", "margin": "3s"}
    policy = {"minReplicas": 2, "maxReplicas": 2, "recycle": {"lifetime": lifetime}}
    c = await start(policy=policy)
    limiting = asyncio.ensure_future(_limit_pods(c, 60))
    await c.until_connected(2)
    futures = c.client.map(result, range(28), seconds=6.0, pure=False)
    await c.client.gather(futures)
    limiting.cancel()

    assert (28, 28, 0) == await c.counts()
    assert {"Lifetime"} == set(await c.recycled())


async def _limit_pods(c: LiveCluster, seconds: int) -> None:
    """Give workers' pods a deadline: Deployments cannot, so it is others who do, at admission."""
    limited: set[str] = set()
    patch = json.dumps({"spec": {"activeDeadlineSeconds": seconds}})
    selector = f"dask.org/component=worker,dask.org/cluster-name={c.name}"
    while True:
        for pod in await c.api.list(PODS.path(c.namespace), selector=selector):
            name = pod["metadata"]["name"]
            if name not in limited and not pod["metadata"].get("deletionTimestamp"):
                done = await c.kubectl_run("patch", "pod", name, "--patch", patch)
                limited |= {name} if done.returncode == 0 else set()
        await asyncio.sleep(0.3)


async def test_in_place_the_deployment_stays_and_the_pod_is_new(start: Start) -> None:
    recycle = {"strategy": {"type": "InPlace"}}
    c = await start(policy={"minReplicas": 2, "maxReplicas": 2, "recycle": recycle})
    await c.until_connected(2)
    before, old = await c.deployments(), min(await c.connected())
    pod = await c.pod_of(old)
    kept = c.client.map(result, range(20), seconds=0.1, pure=False)
    await c.client.gather(kept)
    futures = c.client.map(result, range(20), seconds=0.5, pure=False)
    await c.kubectl("annotate", "pod", pod, f"{RECYCLE}=now")

    async def is_new() -> bool:
        # Between the two pods there is none.
        return not {pod} >= set(await c.pods_of(old)) and old in await c.connected()

    await c.until(is_new, "another pod stands for the worker")
    await c.client.gather(futures)
    assert [100_000] * 20 == [len(r) for r in await c.client.gather(kept)]
    assert before == await c.deployments()
    assert (40, 40, 0) == await c.counts()
    assert {"RecycleRequested": 1} == await c.recycled()


async def test_a_change_of_the_group_rolls_out_and_so_does_a_word(start: Start) -> None:
    def flavour() -> str:  # sent as it is: workers can't import this file
        import os

        return os.environ["FLAVOUR"]

    c = await start(policy={"minReplicas": 2, "maxReplicas": 2})
    await c.until_connected(2)
    futures = c.client.map(result, range(30), seconds=0.5, pure=False)

    async def until_all_are_new(before: dict[str, str]) -> None:
        async def has_rolled() -> bool:
            found = await c.deployments()
            return len(found) == 2 and not set(found.values()) & set(before.values())

        await c.until(has_rolled, "all workers are new")
        await c.until_settled(2)

    before = await c.deployments()
    await c.change_workers("/env", [{"name": "FLAVOUR", "value": "new"}])
    await until_all_are_new(before)
    assert ["new"] * 2 == list((await c.client.run(flavour)).values())
    await c.client.gather(futures)
    assert (30, 30, 0) == await c.counts()
    assert {"Drifted": 2} == await c.recycled()

    before = await c.deployments()
    # All that are there at this instant, and no others.
    await c.kubectl("annotate", "daskcluster", c.name, f"{RECYCLE}=now")
    await until_all_are_new(before)
    assert {"Drifted": 2, "RecycleRequested": 2} == await c.recycled()

    async def are_two() -> bool:
        return (await c.recycled())["RecycleRequested"] == 2

    await c.throughout(5.0, are_two, "those that came since stay")
