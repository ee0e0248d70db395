"""The Platform and the Reporter against a real API server."""

from __future__ import annotations

import time

import pytest

from dask_adaptive.kube.annotated import suspension_notes, woken_notes
from dask_adaptive.kube.api import AUTOSCALERS, CLUSTERS, DEPLOYMENTS, GROUPS, NODES, PODS, KubeApi
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.kube.reporter import EventPoster, KubeReporter
from dask_adaptive.loop.ports import Event, EventType, PlatformError
from dask_adaptive.loop.status import READY, Condition, Status
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformWorker
from dask_adaptive.model.reason import Reason
from support.kube_bodies import autoscaler, body, cluster_of_one, pod, policy
from support.kube_objects import platform_of, resync
from support.kube_server import Kubectl

WORKER = "etl-default-worker-1"
DAY_S = 24 * 3600.0


class Scene:
    """A DaskCluster with one worker, made as dask-kubernetes makes it: annotations are copied."""

    def __init__(self, api: KubeApi, kubectl: Kubectl) -> None:
        self.api, self.kubectl = api, kubectl
        self.key = ClusterKey(kubectl.namespace, "etl")
        self.world = World()
        self.platform = platform_of(self.key, self.world, api, most_s=DAY_S)

    async def make(self, **annotations: str) -> None:
        notes = {f"dask-adaptive.dev/{k}": v for k, v in annotations.items()}
        bodies = cluster_of_one(WORKER, replicas=2, **notes)
        labels = bodies[-1]["metadata"]["labels"]
        bodies.append(pod(f"{WORKER}-ab-cd", of=WORKER, labels=labels, annotations=notes))
        for kind, made in zip((CLUSTERS, GROUPS, DEPLOYMENTS, PODS), bodies, strict=True):
            await self.api.create(kind.path(self.key.namespace), made)

    async def bind(self, node: str) -> None:
        """Put the pod on a node, as the scheduler of Kubernetes does."""
        name, target = f"{WORKER}-ab-cd", {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
        path = PODS.path(self.key.namespace, name, "binding")
        await self.api.create(path, {**binding, "target": target})

    async def worker(self) -> PlatformWorker:
        await resync(self.world, self.api)
        (worker,) = (await self.platform.look()).workers
        return worker

    async def pin_left_s(self) -> float | None:
        pin = (await self.worker()).manual_pin
        return pin and pin.until - time.time()


@pytest.fixture
def scene(api: KubeApi, kubectl: Kubectl) -> Scene:
    return Scene(api, kubectl)


async def test_a_cluster_is_deleted_only_if_it_is_still_that_one(scene: Scene) -> None:
    await scene.make()
    await scene.platform.delete_cluster("another-uid")
    (cluster,) = scene.kubectl.json("get", "daskclusters")["items"]
    assert "deletionTimestamp" not in cluster["metadata"]
    await scene.platform.delete_cluster(cluster["metadata"]["uid"])
    await scene.platform.delete_cluster(cluster["metadata"]["uid"])

    assert [] == scene.kubectl.json("get", "daskclusters")["items"]


async def test_nothing_is_scaled_once_a_taken_over_autoscaler_is_gone(scene: Scene) -> None:
    """`cluster.scale(3)` deletes it, and the cache may be behind."""
    await scene.make()
    resting = autoscaler("etl", **suspension_notes(time.time() + 400, time.time() - 60))
    path = AUTOSCALERS.path(scene.key.namespace)
    await scene.api.create(path, resting)
    await resync(scene.world, scene.api)
    await scene.platform.set_replicas("etl-default", 3)
    woken = {"metadata": {"annotations": woken_notes()}}
    await scene.api.patch(f"{path}/etl", woken)
    with pytest.raises(PlatformError, match="gone or active"):
        await scene.platform.set_replicas("etl-default", 4)
    scene.kubectl("delete", "daskautoscaler", "etl")
    with pytest.raises(PlatformError, match="gone or active"):
        await scene.platform.set_replicas("etl-default", 4)
    await scene.api.create(path, autoscaler("etl"))
    await resync(scene.world, scene.api)
    with pytest.raises(PlatformError, match="as well"):
        await scene.platform.set_replicas("etl-default", 4)
    found = scene.kubectl.json("get", "daskworkergroup", "etl-default")
    assert 3 == found["spec"]["worker"]["replicas"]


async def test_replicas_are_set_through_the_scale_subresource(scene: Scene) -> None:
    await scene.make()
    await resync(scene.world, scene.api)

    def replicas() -> int:
        group = scene.kubectl.json("get", "daskworkergroup", "etl-default")
        return int(group["spec"]["worker"]["replicas"])

    for number in (5, 6):  # the second one goes on from the answer to the first
        await scene.platform.set_replicas("etl-default", number)
        assert number == replicas()
    scene.kubectl("scale", "--replicas=9", "daskworkergroup", "etl-default")
    with pytest.raises(PlatformError, match="another client has changed"):
        await scene.platform.set_replicas("etl-default", 7)
    assert (9, 9) == (replicas(), (await scene.platform.look()).groups[0].replicas)
    await scene.platform.set_replicas("etl-default", 7)
    assert 7 == replicas()
    with pytest.raises(PlatformError, match="nobody is gone"):
        await scene.platform.set_replicas("nobody", 5)


async def test_a_worker_is_deleted_only_if_it_is_still_that_one(scene: Scene) -> None:
    await scene.make()
    worker = await scene.worker()

    await scene.platform.delete_worker(WORKER, "another-uid")
    assert WORKER == (await scene.worker()).name
    await scene.platform.delete_worker(WORKER, worker.uid)
    await scene.platform.delete_worker(WORKER, worker.uid)
    await resync(scene.world, scene.api)
    assert () == (await scene.platform.look()).workers


async def test_a_pin_on_the_cluster_ends_with_the_clusters_annotation(scene: Scene) -> None:
    await scene.make(pin="true")

    assert DAY_S == pytest.approx(await scene.pin_left_s(), abs=60)
    scene.kubectl("annotate", "daskcluster", "etl", "dask-adaptive.dev/pin-")
    assert await scene.pin_left_s() is None, "the copies on the children live on"


async def test_a_person_overrules_the_copy(scene: Scene) -> None:
    await scene.make(pin="true")
    target = f"pod/{WORKER}-ab-cd"
    scene.kubectl("annotate", "--overwrite", target, "dask-adaptive.dev/pin=10m")

    assert 600 == pytest.approx(await scene.pin_left_s(), abs=60)
    scene.kubectl("annotate", "--overwrite", target, "dask-adaptive.dev/pin=false")
    assert await scene.pin_left_s() is None


def reporter_of(scene: Scene) -> KubeReporter:
    found = scene.world.get(PolicyObject, scene.key.namespace, "p")
    assert found is not None
    events = EventPoster(scene.api, time.time)
    return KubeReporter(
        found, api=scene.api, world=scene.world, events=events, wall_clock=time.time
    )


@pytest.fixture
async def governed(scene: Scene) -> Scene:
    """The same, under a policy; reports go to that."""
    await scene.make()
    scene.kubectl.apply(policy("p"))
    await resync(scene.world, scene.api)
    return scene


async def test_a_status_is_written_once(governed: Scene) -> None:
    status = Status(
        generation=1,
        replicas=2,
        blockers={Reason.PINNED: 1},
        conditions=(Condition(READY, True, Reason.RECONCILED, "fine"),),
    )

    async def version() -> str:
        return str(governed.kubectl.json("get", "dap", "p")["metadata"]["resourceVersion"])

    await reporter_of(governed).status(status)
    first = await version()
    stored = governed.kubectl.json("get", "dap", "p")["status"]
    assert (2, 1, "True") == (
        stored["replicas"],
        stored["observedGeneration"],
        stored["conditions"][0]["status"],
    )
    await resync(governed.world, governed.api)
    await reporter_of(governed).status(status)  # as an operator that has just started
    assert first == await version()
    await reporter_of(governed).status(Status())
    assert {} == governed.kubectl.json("get", "dap", "p")["status"]["blockers"]


async def test_the_same_news_is_one_event(governed: Scene) -> None:
    reporter = reporter_of(governed)
    event = Event(EventType.WARNING, Reason.INVALID_ANNOTATION, "mend it", worker=WORKER)
    await reporter.tell([Event(EventType.NORMAL, Reason.UNDERUTILIZED, "x", would=True)])
    for _ in range(3):
        await reporter.tell([event])

    events = governed.kubectl.json("get", "events")["items"]
    told = {(e["involvedObject"]["kind"], e["reason"], e.get("count")) for e in events}
    assert {
        ("AdaptivePolicy", "InvalidAnnotation", 3),
        ("AdaptivePolicy", "WouldUnderutilized", 1),
    } == told


async def test_reporting_to_a_policy_that_is_gone_is_no_error(governed: Scene) -> None:
    reporter = reporter_of(governed)
    governed.kubectl("delete", "dap", "p")

    await reporter.status(Status(replicas=1))


async def test_a_pod_that_is_being_deleted_is_an_ending(scene: Scene) -> None:
    await scene.make()
    name, node = f"{WORKER}-ab-cd", f"n-{scene.key.namespace}"
    await scene.api.create(NODES.path(), body(NODES, node))
    try:
        await scene.bind(node)
        status = {"status": {"podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}}
        await scene.api.patch(PODS.path(scene.key.namespace, name, "status"), status)
        # A pod on a node is only marked: its kubelet would end it, and there is none here.
        scene.kubectl("delete", "pod", name, "--grace-period=120", "--wait=false")
        await resync(scene.world, scene.api)
        (ending,) = (await scene.platform.look()).terminating

        assert (WORKER, name, ("10.1.2.3",)) == (ending.worker, ending.pod, ending.addresses)
        assert 120 == pytest.approx(ending.left_s, abs=20)
    finally:
        scene.kubectl("delete", "node", node)
