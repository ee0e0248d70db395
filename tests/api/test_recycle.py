"""What recycling reads and does, on a real API server: its defaults, its clocks, its owners."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.cache.world import KINDS, World
from dask_adaptive.kube.platform import KubePlatform
from dask_adaptive.kube.view import view
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformWorker
from support.kube_bodies import cluster_of_one, pod
from support.kube_objects import platform_of, resync
from support.kube_server import Kubectl
from support.upstream_code import built_worker

KIND = {k.resource.kind: k for k in KINDS}
HOUR = 3600.0
RECYCLE = "dask-adaptive.dev/recycle"

POD_SPEC = yaml.safe_load(Path(__file__).with_name("drifting_pod.yaml").read_text())
CONTAINER: dict[str, Any] = POD_SPEC["containers"][0]


class Scene:
    """A worker group, and a worker that dask-kubernetes' own builder made of it."""

    def __init__(self, api: KubeApi, kubectl: Kubectl) -> None:
        self.api, self.kubectl = api, kubectl
        self.key = ClusterKey(kubectl.namespace, "etl")

    def make(self, pod_spec: dict[str, Any], **annotations: str) -> None:
        for body in cluster_of_one("w1", pod_spec, **annotations)[:2]:
            self._create(body, "kr8s")
        self.built("w1", **annotations)

    def built(self, uid: str, **annotations: str) -> None:
        """One more worker, of the group as it is now."""
        group = self.kubectl.json("get", "daskworkergroup", "etl-default")
        body = built_worker(
            worker_group_name="etl-default",
            namespace=self.kubectl.namespace,
            cluster_name="etl",
            uuid=uid,
            pod_spec=group["spec"]["worker"]["spec"],
            annotations=annotations,
            labels={"dask.org/cluster-name": "etl"},
        )
        self._create(body, "kr8s")

    def change(self, pod_spec: dict[str, Any]) -> None:
        """Of the group's workers."""
        patch = json.dumps({"spec": {"worker": {"spec": pod_spec}}})
        self.kubectl("patch", "daskworkergroup", "etl-default", "--type=merge", "-p", patch)

    def pod(self, worker: str, **more: Any) -> str:
        """Its pod, as the ReplicaSet controller makes it; returns the name."""
        template = self.kubectl.json("get", "deployment", worker)["spec"]["template"]
        name = f"{worker}-ab-{uuid.uuid4().hex[:5]}"
        metadata = {**template["metadata"], "name": name}
        made = pod(spec={**template["spec"], **more}, of=worker, **metadata)
        self._create(made, "kube-controller-manager")
        return name

    def _create(self, body: dict[str, Any], manager: str) -> None:
        self.kubectl("create", "-f", "-", f"--field-manager={manager}", stdin=json.dumps(body))

    async def world(self, *, group_is_old: bool | None = None) -> World:
        """As the API has it; `group_is_old`: the group was made an hour ago, or just now."""
        world = World()
        await resync(world, self.api, [self.kubectl.namespace])
        if group_is_old is not None:
            body = self.kubectl.json(
                "get", "daskworkergroup", "etl-default", "--show-managed-fields"
            )
            body["metadata"]["creationTimestamp"] = _hours_ago(1 if group_is_old else 0)
            world.take(KIND["DaskWorkerGroup"], "MODIFIED", body)
        return world

    async def workers(self, **how: Any) -> list[PlatformWorker]:
        world = await self.world(**how)
        return list(view(world, self.key, now=time.time()).workers)

    def platform(self, world: World) -> KubePlatform:
        return platform_of(self.key, world, self.api)


def _hours_ago(hours: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - hours * HOUR))


@pytest.fixture
def scene(api: KubeApi, kubectl: Kubectl) -> Scene:
    return Scene(api, kubectl)


CHANGES = [
    ({"image": "ghcr.io/dask/dask:2026.8.0"}, "image is ghcr.io/dask/dask:2026.7.0"),
    ({"env": CONTAINER["env"][1:]}, "variable PLAIN"),
    ({"resources": {"limits": {"cpu": "2"}}}, "limits.cpu"),
]


async def test_drift_is_what_a_person_has_changed_and_nothing_else(scene: Scene) -> None:
    scene.make(POD_SPEC)
    scene.kubectl("scale", "daskworkergroup", "etl-default", "--replicas=2")

    async def drift() -> list[str]:
        return [w.drift for w in await scene.workers(group_is_old=True)]

    assert [""] == await drift(), "made by upstream of the group as it is"
    for change, said in CHANGES:
        scene.change({"containers": [{**CONTAINER, **change}]})
        (told,) = await drift()
        assert f"container worker: {said}" in told
    fresh = await scene.workers(group_is_old=False)
    assert [""] == [w.drift for w in fresh], "its group was made a moment ago"
    scene.change(POD_SPEC)
    assert [""] == await drift()


async def test_a_new_worker_has_no_drift(scene: Scene) -> None:
    scene.make(POD_SPEC)
    scene.change({"containers": [{"name": "worker", "image": "new"}]})
    scene.built("w2")
    seen = {w.name: bool(w.drift) for w in await scene.workers(group_is_old=True)}

    assert {"etl-default-worker-w1": True, "etl-default-worker-w2": False} == seen


async def test_a_pod_is_deleted_only_if_it_is_still_that_one(scene: Scene) -> None:
    scene.make({"containers": [{"name": "worker", "image": "x"}]})
    name = scene.pod("etl-default-worker-w1")
    (worker,) = await scene.workers()
    platform = scene.platform(World())

    assert (name, "") == (worker.pod, worker.recycle_request)
    await platform.restart_worker(worker.name, name, "another-uid")
    assert [name] == [w.pod for w in await scene.workers()]
    await platform.restart_worker(worker.name, name, worker.pod_uid)
    await platform.restart_worker(worker.name, name, worker.pod_uid)
    (left,) = await scene.workers()
    assert (worker.name, "", "") == (left.name, left.pod, left.pod_uid)


async def test_now_is_said_of_those_who_are_there(scene: Scene) -> None:
    scene.make({"containers": [{"name": "worker", "image": "x"}]}, **{RECYCLE: "now"})
    scene.pod("etl-default-worker-w1")
    platform = scene.platform(world := await scene.world())

    async def asked() -> str:
        await resync(world, scene.api, [scene.kubectl.namespace])
        return (await platform.look()).workers[0].recycle_request

    assert not await asked(), "copied to a worker that is younger"
    (worker,) = (await platform.look()).workers
    _wait_for_the_next_second()
    scene.kubectl("annotate", "daskcluster", "etl", "other=1")
    assert not await asked(), "somebody wrote something else"
    scene.kubectl("annotate", "pod", worker.pod, f"{RECYCLE}=now", "--overwrite",
                  "--field-manager=kubectl")  # fmt: skip
    assert not await asked(), "the same value is no write"
    scene.kubectl("annotate", "pod", worker.pod, f"{RECYCLE}-")
    scene.kubectl("annotate", "pod", worker.pod, f"{RECYCLE}=now")
    assert f'annotation {RECYCLE}: "now" on pod {worker.pod}' == await asked()
    await platform.restart_worker(worker.name, worker.pod, worker.pod_uid)
    scene.pod(worker.name)
    assert not await asked()


def _wait_for_the_next_second() -> None:
    """Times in Kubernetes are whole seconds."""
    now = int(time.time())
    while int(time.time()) == now:
        time.sleep(0.02)
