"""The webhook behind the real API server: it runs in this process, called over TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import dask.config
import pytest
import yaml

from dask_adaptive.kube.agent_config import BOOT_PATH, PRELOAD, SOURCES, bundle
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.inject import GRACE, HOOK
from dask_adaptive.kube.objects import INJECTED
from support.kube_bodies import dask_pod, group, pod, policy
from support.kube_operator import until
from support.kube_server import ROOT, Kubectl, rendered
from support.kube_webhook import operator_with_webhook
from support.ports import free_port


def scheduler(name: str, cluster: str = "demo", **metadata: Any) -> dict[str, Any]:
    made = dask_pod("scheduler", cluster=cluster)
    return pod(name, made["spec"], **made["metadata"], **metadata)


@pytest.fixture
async def webhook(api: KubeApi, kubectl: Kubectl) -> AsyncIterator[Kubectl]:
    """An operator with its webhook, registered as the chart does, for the test's namespace only."""
    kubectl("apply", "-f", str(ROOT / "manifests/examples/cluster.yaml"))
    async with operator_with_webhook(api, kubectl):
        yield kubectl


def create(kubectl: Kubectl, pod: dict[str, Any], *words: str) -> dict[str, Any]:
    text = kubectl("create", "-o", "json", *words, "-f", "-", stdin=yaml.safe_dump(pod))
    return dict(json.loads(text))


def worker(name: str, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    made = dask_pod("worker", container, cluster="demo", **spec)
    return pod(name, made["spec"], **made["metadata"])


def hook_of(pod: dict[str, Any]) -> Any:
    return pod["spec"]["containers"][0].get("lifecycle", {}).get("preStop")


def is_injected(pod: dict[str, Any]) -> bool:
    return INJECTED in pod["metadata"].get("annotations", {})


async def first_injected(kubectl: Kubectl) -> None:
    """The API server takes a moment to learn of a new webhook."""
    await until(lambda: is_injected(create(kubectl, scheduler("first"), "--dry-run=server")))


@pytest.fixture
async def injecting(webhook: Kubectl) -> Kubectl:
    """The API server has learned of it."""
    await first_injected(webhook)
    return webhook


async def test_a_scheduler_gets_the_agent(injecting: Kubectl) -> None:
    assert [] == injecting.json("get", "configmaps", "-l", "app.kubernetes.io/part-of")["items"]
    made = await asyncio.to_thread(create, injecting, scheduler("s"))

    (container,) = made["spec"]["containers"]
    assert "dask-adaptive-agent" in {v["name"] for v in made["spec"]["volumes"]}
    assert {PRELOAD: BOOT_PATH} == {e["name"]: e["value"] for e in container["env"]}
    assert is_injected(made)
    config = injecting.json("get", "configmap", bundle().name)
    assert bundle().sources == config["binaryData"][SOURCES]
    assert config["immutable"]
    assert ["demo"] == [o["name"] for o in config["metadata"]["ownerReferences"]]


def variables(pod: dict[str, Any]) -> dict[str, str]:
    found = pod["spec"]["containers"][0].get("env", [])
    return {e["name"]: e["value"] for e in found if e["name"] not in (PRELOAD, GRACE)}


async def test_pods_start_with_what_the_policy_says(injecting: Kubectl) -> None:
    """Also one that comes in the same breath as the policy, before the watch tells of it."""
    config = {"distributed": {"scheduler": {"worker-ttl": "10m"}, "logging": {"a.b": "info"}}}
    asked = {"relief": {"clientInfo": "Disabled"}, "config": config}
    injecting.apply(policy("p", "demo", scheduler=asked))
    found = variables(await asyncio.to_thread(create, injecting, scheduler("s")))

    assert "clientInfo=Disabled" == found["DASK_ADAPTIVE_RELIEF"]
    assert "10m" == found["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"]
    inherited: Any = dask.config.deserialize(found["DASK_INTERNAL_INHERIT_CONFIG"])
    assert {"distributed": {"logging": {"a.b": "info"}}} == inherited
    # For workers, what the watch has said is asked.
    await until(lambda: not variables(create(injecting, worker("w"), "--dry-run=server")))


async def test_clusters_share_the_config_map(injecting: Kubectl) -> None:
    await asyncio.to_thread(create, injecting, scheduler("s1"))
    injecting("apply", "-f", str(ROOT / "manifests/examples/annotated-cluster.yaml"))
    other = scheduler("s2", "annotated")
    made = await asyncio.to_thread(create, injecting, other)

    owners = injecting.json("get", "configmap", bundle().name)["metadata"]["ownerReferences"]
    assert is_injected(made)
    assert {"demo", "annotated"} == {owner["name"] for owner in owners}


@pytest.mark.parametrize("target", ["pod", "daskcluster", "namespace"])
async def test_people_can_refuse(webhook: Kubectl, target: str) -> None:
    refused = {"annotations": {"dask-adaptive.dev/inject": "false"}} if target == "pod" else {}
    if target == "namespace":  # before it is asked for the first time: answers are remembered
        webhook("annotate", target, webhook.namespace, "dask-adaptive.dev/inject=false")
        await asyncio.sleep(1.5)
    else:
        await first_injected(webhook)
    if target == "daskcluster":
        webhook("annotate", target, "demo", "dask-adaptive.dev/inject=false")

        def is_known() -> bool:  # for workers, what the watch has said is asked
            return not is_injected(create(webhook, worker("w"), "--dry-run=server"))

        await until(is_known)
    for body in (scheduler("s", **refused), worker("w", metadata=refused)):
        made = await asyncio.to_thread(create, webhook, body)
        assert not is_injected(made)
        assert hook_of(made) is None
        assert 30 == made["spec"]["terminationGracePeriodSeconds"]
    assert [] == webhook.json("get", "configmaps", "-l", "app.kubernetes.io/part-of")["items"]


async def test_a_scheduler_of_no_cluster_is_left_alone(injecting: Kubectl) -> None:
    stray = scheduler("s", "nobody")

    assert not is_injected(await asyncio.to_thread(create, injecting, stray))


async def test_a_tampered_config_map_is_not_relied_on(injecting: Kubectl) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": bundle().name}}
    injecting.apply({**other, "immutable": True, "data": {"boot": "other"}})

    assert not is_injected(await asyncio.to_thread(create, injecting, scheduler("s")))


async def test_a_webhook_that_is_down_stops_nobody(api: KubeApi, kubectl: Kubectl) -> None:
    body = rendered(namespace=kubectl.namespace)[
        "MutatingWebhookConfiguration", f"{kubectl.namespace}-r-dask-adaptive"
    ]
    (hook,) = body["webhooks"]
    hook["clientConfig"] = {"url": f"https://127.0.0.1:{free_port()}/mutate"}
    kubectl.apply(body)
    try:
        assert not is_injected(create(kubectl, scheduler("s")))
    finally:
        kubectl("delete", "mutatingwebhookconfiguration", body["metadata"]["name"])


async def test_a_worker_gets_the_hook_and_the_time_for_it(injecting: Kubectl) -> None:
    injecting.apply(group("demo"))
    made = await asyncio.to_thread(create, injecting, worker("w"))

    assert is_injected(made)
    assert ["/bin/sh", "-c", HOOK, "dask-adaptive", "30"] == hook_of(made)["exec"]["command"]
    assert 300 == made["spec"]["terminationGracePeriodSeconds"]
    assert {"name": GRACE, "value": "300"} in made["spec"]["containers"][0]["env"]
    assert [] == injecting.json("get", "configmaps", "-l", "app.kubernetes.io/part-of")["items"]
