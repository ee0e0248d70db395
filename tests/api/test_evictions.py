"""Evictions through a real API server, of the pod of a real worker of a real scheduler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from distributed import Client, Event, Scheduler, Worker

from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.objects import PodObject, PolicyObject
from dask_adaptive.scheduler.link import connect
from dask_adaptive_agent.loading.attach import install
from support.kube_bodies import pod, policy
from support.kube_operator import until
from support.kube_server import ROOT, Kubectl
from support.kube_webhook import operator_with_webhooks
from support.upstream_code import built_worker

WORKER = "demo-default-worker-1"
POD = f"{WORKER}-ab-cd"

#: Might be a worker by its name, and is none.
STRANGER = "no-worker-here"


def evict(kubectl: Kubectl, name: str, **options: Any) -> tuple[bool, str]:
    """Whether it was allowed; what was said."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": kubectl.namespace},
        "deleteOptions": {"gracePeriodSeconds": 0, **options},
    }
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{name}/eviction"
    done = kubectl.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
    return done.returncode == 0, done.stdout + done.stderr


class Scene:
    """A cluster `demo`: its worker is in this process, its pod only in the API."""

    def __init__(self, kubectl: Kubectl, client: Client, worker: Worker) -> None:
        self.kubectl, self.client, self.worker = kubectl, client, worker
        self.asked: Callable[[], float] = lambda: 0.0  # times, about pods that are not guarded

    async def evict(self, name: str = POD, **options: Any) -> tuple[bool, str]:
        return await asyncio.to_thread(evict, self.kubectl, name, **options)


@pytest.fixture
async def scene(api: KubeApi, kubectl: Kubectl) -> AsyncIterator[Scene]:
    kubectl("apply", "-f", str(ROOT / "manifests/examples/cluster.yaml"))
    labels = {"dask.org/cluster-name": "demo", "dask.org/component": "worker"}
    guarded = policy("demo", "demo", evictionGuard={"enabled": True})
    kubectl.apply(guarded, pod(POD, of=WORKER, labels=labels), pod("other"), pod(STRANGER))
    async with (
        Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as s,
        Worker(s.address, name=WORKER, nthreads=1) as worker,
        Worker(s.address, name="demo-default-worker-2", nthreads=1),
        Client(s.address, asynchronous=True) as client,
    ):
        install(s)

        def to_it(address: str, **how: Any) -> Any:
            assert "demo-scheduler" in address
            return connect(s.address, **how)

        words = ("--set", "evictionGuard.enabled=true")
        async with operator_with_webhooks(api, kubectl, *words, connect=to_it) as running:
            made = Scene(kubectl, client, worker)
            await until(lambda: all(map(running._world.all, (PodObject, PolicyObject))))

            async def is_asked() -> bool:
                """The API server takes a moment to learn of a new webhook."""
                await made.evict(STRANGER, dryRun=["All"])
                return made.asked() > 0

            made.asked = running._metrics.evictions.labels("not-guarded")._value.get
            await until(is_asked)
            yield made


def exists(kubectl: Kubectl, name: str) -> bool:
    return kubectl.run("get", "pod", name).returncode == 0


async def test_a_busy_worker_is_evicted_once_it_has_drained(scene: Scene) -> None:
    gate = Event("gate", client=scene.client)

    def wait() -> str:
        Event("gate").wait()
        return "done"

    task = scene.client.submit(wait, workers=[WORKER], allow_other_workers=True)
    await until(lambda: bool(scene.worker.state.executing))

    allowed, said = await scene.evict()
    assert not allowed
    assert "TooManyRequests" in said or "429" in said
    assert f"worker {WORKER} is draining" in said
    assert "evictionGuard, at most" in said
    assert exists(scene.kubectl, POD)
    assert not (await scene.evict())[0]

    await gate.set()
    assert "done" == await task

    async def evicted() -> bool:
        return (await scene.evict())[0]

    await until(evicted)
    assert not exists(scene.kubectl, POD)
    assert "done" == await scene.client.gather(task), "nothing was lost"

    events = scene.kubectl.json("get", "events")["items"]
    delayed = [e for e in events if e["reason"] == "EvictionDelayed"]
    assert {"Pod": 1, "AdaptivePolicy": 1} == {
        e["involvedObject"]["kind"]: e["count"] for e in delayed
    }


async def test_what_is_nobodys_worker_is_evicted_at_once(scene: Scene) -> None:
    allowed, said = await scene.evict("other")

    assert allowed, said
    assert not exists(scene.kubectl, "other")


async def test_a_dry_run_changes_nothing(scene: Scene) -> None:
    before = scene.worker.status
    allowed, said = await scene.evict(dryRun=["All"])

    assert allowed, said
    assert exists(scene.kubectl, POD)
    assert before == scene.worker.status


async def test_nobody_is_asked_about_what_is_no_worker(scene: Scene) -> None:
    asked = scene.asked()
    name = f"{scene.kubectl.namespace}-worker-1"
    system = scene.kubectl.within("kube-system")
    system.apply(pod(name))
    try:
        assert (await scene.evict("other"))[0]
        assert (await asyncio.to_thread(evict, system, name))[0]
    finally:
        system("delete", "pod", name, "--ignore-not-found", "--force", "--grace-period=0")

    assert asked == scene.asked()
    assert (await scene.evict(STRANGER))[0]
    assert asked < scene.asked()


@pytest.mark.parametrize("group", ["g", "g" * 40, "g" * 63])
async def test_each_pod_of_a_worker_may_be_one_by_its_name(scene: Scene, group: str) -> None:
    """As Kubernetes makes names of pods out of that of a Deployment (SimpleNameGenerator)."""
    deployment = built_worker(
        worker_group_name=group, namespace="ns", cluster_name="demo", uuid="0123456789",
        pod_spec={"containers": [{"name": "worker", "image": "x"}]}, annotations={}, labels={},
    )["metadata"]["name"]  # fmt: skip
    body = pod("", labels={"a": "b"})
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = f"{deployment}-5f7d8c9b4d-"
    made = json.loads(scene.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(body)))
    asked = scene.asked()
    assert (await scene.evict(made["metadata"]["name"]))[0]

    assert asked < scene.asked(), made["metadata"]["name"]
