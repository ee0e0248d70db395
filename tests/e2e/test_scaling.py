"""Workers come and go under load, and nothing is redone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from distributed import Event

from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.resources import Resource
from support.e2e_cluster import LiveCluster, workers_in
from support.e2e_tasks import held, result, shuffled

Start = Callable[..., Awaitable[LiveCluster]]

NODES = Resource("", "v1", "nodes", "Node")


async def test_workers_come_and_go_with_tasks_running_and_nothing_is_redone(start: Start) -> None:
    c = await start(policy={"maxReplicas": 4})
    results = await c.grow_to(4, tasks=24)
    long = c.client.map(held, range(2), event="go", pure=False)
    await c.client.gather(results)
    before = await c.connected()

    async def busy() -> set[str]:
        return {w.name for w in (await c.observe()).workers if w.processing}

    async def are_apart() -> bool:
        return len(await busy()) == 2

    await c.until(are_apart, "Dask has spread the two long ones")
    at_work = await busy()
    await c.until_settled(2)  # while the long ones run

    assert not any(future.done() for future in long)
    assert at_work == await c.connected()
    assert [100_000] * 24 == [len(r) for r in await c.client.gather(results)]
    await Event("go", c.client).set()
    assert [b"\x00", b"\x01"] == await c.client.gather(long)
    await c.until_settled(1)  # the last copies of all results are there
    assert await c.connected() <= before
    assert [100_000] * 24 == [len(r) for r in await c.client.gather(results)]

    del results, long
    await c.until_settled(0)
    assert (26, 26, 0) == await c.counts()


async def test_a_shuffle_under_forced_scale_down_runs_once(start: Start) -> None:
    c = await start(policy={"minReplicas": 3})
    await c.until_connected(3)
    future: Any = c.client.compute(shuffled(slow_s=4.0))

    async def is_running() -> bool:
        return bool((await c.observe()).shuffles)

    await c.until(is_running, "the shuffle has begun")
    taking_part = await c.connected()
    await c.edit(minReplicas=0, maxReplicas=1)

    async def is_held() -> bool:
        status = await c.status()
        return bool(status.get("desiredReplicas") == 1 and status.get("pinned") == 3)

    await c.until(is_held, "one worker is desired, and three are pinned")
    assert await is_running()
    assert taking_part == await c.connected()
    found = await future

    assert (12_000, sum(range(12_000))) == (found["rows"].sum(), found["total"].sum())
    await c.until_settled(1)
    tally = (await c.observe()).tally
    assert tally is not None
    assert (1, 1, 0) == (tally.shuffles, tally.max_shuffle_run, tally.redone)


async def test_pods_that_find_no_room_cost_nothing_and_leave_first(
    api: KubeApi, start: Start
) -> None:
    """With upstream's own autoscaler this workload never ends: facts.md."""
    nodes = await api.list(NODES.path())
    big = max(nodes, key=lambda n: _kibibytes(n["status"]["allocatable"]["memory"]))
    share = int(_kibibytes(big["status"]["allocatable"]["memory"]) * 0.27)  # room for three
    c = await start(
        policy={"maxReplicas": 15},
        requests={"memory": f"{share}Ki"},
        node=big["metadata"]["labels"]["kubernetes.io/hostname"],
    )
    futures = c.client.map(result, range(240), seconds=0.5, pure=False)

    async def says_pending() -> bool:
        status = await c.status()
        return {"reason": "Unschedulable", "workers": 12} in status.get("pendingReasons", [])

    await c.until(says_pending, "12 of 15 find no room, and the status says so")
    await c.until_connected(3)
    assert 240 == len(await c.client.gather(futures))
    worked = await c.connected()

    async def only_worked_are_left() -> bool:
        return set(await c.deployments()) <= worked

    await c.until(only_worked_are_left, "the pending leave")
    assert worked == set(await c.deployments())  # all of them, before any other left
    del futures
    await c.until_settled(0)
    assert (240, 240, 0) == await c.counts()
    leaving = await c.events("NeverConnected", "Drained")
    assert 12 <= len(workers_in(e for e in leaving if e["reason"] == "NeverConnected"))
    assert worked == set(workers_in(e for e in leaving if e["reason"] == "Drained"))


def _kibibytes(quantity: str) -> int:
    assert quantity.endswith("Ki"), f"memory of the node is {quantity}, expected in Ki"
    return int(quantity.removesuffix("Ki"))


async def test_a_worker_with_a_bad_image_is_told_of_and_leaves_first(start: Start) -> None:
    # The change of the image would have the good one replaced, too.
    c = await start(policy={"minReplicas": 1, "recycle": {"drift": False}})
    await c.until_connected(1)
    good = await c.connected()
    patch = '[{"op": "replace", "path": "/spec/worker/spec/containers/0/image", "value": "%s"}]'
    await c.kubectl(
        "patch", "daskworkergroup", c.group, "--type=json", "--patch", patch % "localhost/none:1"
    )
    futures = c.client.map(result, range(90), seconds=0.5, pure=False)

    async def says_why() -> bool:
        reasons = {r["reason"]: r["workers"] for r in (await c.status()).get("pendingReasons", [])}
        return 2 == sum(reasons.get(r, 0) for r in ("ErrImagePull", "ImagePullBackOff"))

    await c.until(says_why, "two can't pull their image, and the status says so")
    assert good == await c.connected()
    await c.client.gather(futures)
    del futures
    await c.until_settled(1)

    assert good == await c.connected()
    assert {"NeverConnected"} == {e["reason"] for e in await c.events("NeverConnected", "Drained")}
    assert (90, 90, 0) == await c.counts()


async def test_an_annotated_cluster_needs_no_policy_of_its_own(start: Start) -> None:
    note = "dask-adaptive.dev"
    wishes = {f"{note}/max-replicas": "2", f"{note}/idle-timeout": "2s"}
    c = await start(policy=None, annotations=wishes)
    await c.until_ready()
    futures = await c.grow_to(2, tasks=40)
    assert 40 == len(await c.client.gather(futures))
    assert (40, 40, 0) == await c.counts()
    del futures
    await c.until_settled(0)

    await c.close()  # a client whose scheduler is gone calls whoever is at that address next
    await c.kubectl("delete", "daskcluster", c.name)

    async def is_gone() -> bool:
        return not (await c.kubectl("get", "dap", "-o", "name")).strip()

    await c.until(is_gone, "the policy goes with its cluster")
