"""Workers come and go under load, and nothing is redone."""

from __future__ import annotations

from distributed import Event

from dask_adaptive.kube.api import KubeApi, Resource
from support.e2e_cluster import LiveCluster, Start, count_workers, workers_in
from support.e2e_objects import adaptive_policy, autoscaler, worker_group
from support.tasks import held, result

NOTE = "dask-adaptive.dev"
NODES = Resource("", "v1", "nodes", "Node")


async def test_an_annotated_clusters_workers_come_and_go_and_nothing_is_redone(
    start: Start,
) -> None:
    wishes = {f"{NOTE}/max-replicas": "4", f"{NOTE}/idle-timeout": "2s"}
    c = await start(policy=None, annotations=wishes)
    await c.until_ready()
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
    await c.close()  # a client whose scheduler is gone calls whoever is at that address next
    await c.kubectl("delete", "daskcluster", c.name)
    await c.until(lambda: _none_of(c, "dap"), "the policy goes with its cluster")


async def test_pods_that_find_no_room_cost_nothing_and_leave_first(
    api: KubeApi, start: Start
) -> None:
    """With upstream's own autoscaler this workload never ends: tests/bench/upstream."""
    nodes = await api.list(NODES.path())
    big = max(nodes, key=lambda n: _kibibytes(n["status"]["allocatable"]["memory"]))
    # Room for three, beside what other tests ask for.
    share = int(_kibibytes(big["status"]["allocatable"]["memory"]) * 0.26)
    c = await start(
        policy={"maxReplicas": 15},
        requests={"memory": f"{share}Ki"},
        node=big["metadata"]["labels"]["kubernetes.io/hostname"],
    )
    futures = c.client.map(held, range(90), event="go", pure=False)

    async def says_pending() -> bool:
        status = await c.status()
        return 12 == status.get("pendingReasons", {}).get("Unschedulable")

    await c.until(says_pending, "12 of 15 find no room, and the status says so")
    await c.until_connected(3)
    await Event("go", c.client).set()
    assert 90 == len(await c.client.gather(futures))
    worked = await c.connected()

    async def only_worked_are_left() -> bool:
        return set(await c.deployments()) <= worked

    await c.until(only_worked_are_left, "the pending leave")
    assert worked == set(await c.deployments())  # all of them, before any other left
    del futures
    await c.until_settled(0)
    assert (90, 90, 0) == await c.counts()
    # Events are gathered, and come after what they tell of: whose name is first, first.
    await c.until_event("NeverConnected")
    for name in worked:
        await c.until_event("Underutilized", name)
    leaving = await c.events("NeverConnected", "Underutilized")
    assert 12 <= count_workers([e for e in leaving if e["reason"] == "NeverConnected"])
    assert worked == set(workers_in(e for e in leaving if e["reason"] == "Underutilized"))


def _kibibytes(quantity: str) -> int:
    assert quantity.endswith("Ki"), f"memory of the node is {quantity}, expected in Ki"
    return int(quantity.removesuffix("Ki"))


async def test_workers_with_a_bad_image_are_told_of_and_leave_first(start: Start) -> None:
    # The change of the image would have the good one replaced, too.
    recycle = {"drift": False, "strategy": {"readyTimeout": "8s"}}
    c = await start(policy={"minReplicas": 1, "recycle": recycle})
    await c.until_connected(1)
    (good,) = await c.connected()
    await c.change_workers("/image", "localhost/none:1")
    await c.kubectl("annotate", "pod", await c.pod_of(good), f"{NOTE}/recycle=now")
    await c.until_event("RecycleAborted", good)  # no replacement comes: it goes on
    await c.until_settled(1)  # what never came is gone

    futures = c.client.map(held, range(20), event="go", pure=False)

    async def says_why() -> bool:
        reasons = (await c.status()).get("pendingReasons", {})
        return 2 <= sum(reasons.get(r, 0) for r in ("ErrImagePull", "ImagePullBackOff"))

    await c.until(says_why, "two can't pull their image, and the status says so")
    await Event("go", c.client).set()
    await c.client.gather(futures)
    del futures
    await c.until_settled(1)

    assert {good} == await c.connected()
    await c.until_event("NeverConnected")
    left = await c.events("NeverConnected", "Underutilized")
    assert {"NeverConnected"} == {e["reason"] for e in left}
    assert (20, 20, 0) == await c.counts()


async def test_a_quota_of_the_namespace_is_not_run_against(start: Start) -> None:
    c = await start(policy={"maxReplicas": 5})
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team"},
        "spec": {"hard": {"pods": "3"}},  # one of them is the scheduler's
    }
    await c.apply(quota)

    async def is_counted() -> bool:
        used = await c.kubectl("get", "quota", "team", "-o", "jsonpath={.status.used.pods}")
        return used == "1"

    await c.until(is_counted, "the quota's controller has counted the scheduler")
    futures = c.client.map(held, range(40), event="go", pure=False)

    await c.until_connected(2)
    await c.until_condition("ScalingLimited", "True", "QuotaExceeded")
    assert "team" in str((await c.status())["conditions"])
    assert 2 == len(await c.deployments())  # nothing was asked for in vain
    await Event("go", c.client).set()
    assert 40 == len(await c.client.gather(futures))
    del futures
    await c.until_settled(0)
    assert (40, 40, 0) == await c.counts()


async def test_an_idle_cluster_is_deleted_where_the_policy_says_so(start: Start) -> None:
    c = await start(policy={"maxReplicas": 1})
    assert 100_000 == len(await c.client.submit(result, 0, seconds=0.5))
    idle = {"after": "12s", "action": "DeleteCluster"}  # upstream may take longer to make it
    await c.apply(adaptive_policy(c.name, maxReplicas=1, idle=idle))
    await c.close()
    await c.until(lambda: _none_of(c, "daskclusters"), "the cluster is deleted")


async def _none_of(c: LiveCluster, kind: str) -> bool:
    return not (await c.kubectl("get", kind, "-o", "name")).strip()


async def test_the_group_that_a_task_needs_gets_the_workers_from_zero(start: Start) -> None:
    """And one without bounds, beside it, stays as it is."""
    gpu, theirs = "c-gpu", "c-theirs"
    groups = [{"name": gpu, "maxReplicas": 2, "idleTimeout": "4s"}]
    c = await start(policy={"maxReplicas": 3, "workerGroups": groups})
    second = worker_group(c.name, gpu, replicas=0)
    second["spec"]["worker"]["spec"]["containers"][0]["args"] += ["--resources", "GPU=1"]
    await c.apply(second, worker_group(c.name, theirs, replicas=1))
    await c.until_connected(1)
    untouched = await c.deployments(theirs)

    bound = c.client.map(result, range(6), seconds=1, pure=False, resources={"GPU": 1})

    async def have_come() -> bool:
        return len(await c.deployments(gpu)) == 2

    await c.until(have_come, "two workers of the group that has the resource")
    assert {} == await c.deployments()  # nothing is there for any other
    assert 6 == len(await c.client.gather(bound))
    assert 0 == await c.replicas()

    free = c.client.map(held, range(60), event="go", pure=False)

    async def is_served() -> bool:
        return bool(await c.deployments())

    await c.until(is_served, "the default group serves what any worker may run")
    await Event("go", c.client).set()
    assert 60 == len(await c.client.gather(free))
    del bound, free

    async def have_gone() -> bool:
        numbers = (await c.replicas(), await c.replicas(gpu))
        return numbers == (0, 0) and await c.connected() == set(untouched)

    await c.until(have_gone, "both groups are at zero")
    assert (untouched, 1) == (await c.deployments(theirs), await c.replicas(theirs))
    assert (66, 66, 0) == await c.counts()
    told = {g["name"]: g["desiredReplicas"] for g in (await c.status())["groups"]}
    assert {c.group: 0, gpu: 0} == told


async def test_a_cluster_of_upstreams_autoscaler_is_left_alone(start: Start) -> None:
    theirs = await start("theirs", policy=None, replicas=1)
    await theirs.apply(autoscaler("theirs", minimum=1, maximum=2))
    c = await start(policy={"maxReplicas": 1})
    # On a busy machine upstream's autoscaler has looked after two minutes only.
    work = theirs.client.map(result, range(30), seconds=4.0, pure=False)
    ours = c.client.map(result, range(6), seconds=0.5, pure=False)
    await theirs.until_connected(2)  # by upstream's own autoscaler
    assert 30 == len(await theirs.client.gather(work))
    assert 6 == len(await c.client.gather(ours))
    del ours
    await c.until_settled(0)
    assert [] == await theirs.events()
    assert (30, 30, 0) == await theirs.counts()
