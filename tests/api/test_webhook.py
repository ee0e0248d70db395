"""The webhook behind the real API server: it runs in this process, called over TLS."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from dask_adaptive.kube.agent_zip import BOOT_PATH, PRELOAD, bundle
from dask_adaptive.kube.api import KubeApi
from support.kube_operator import free_port, running, until
from support.kube_server import ROOT, Kubectl, rendered

LABELS = {"dask.org/component": "scheduler", "dask.org/cluster-name": "demo"}


def scheduler(name: str, **metadata: Any) -> dict[str, Any]:
    container = {"name": "scheduler", "image": "x", "args": ["dask", "scheduler"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": LABELS, **metadata},
        "spec": {"containers": [container]},
    }


@pytest.fixture
async def webhook(api: KubeApi, kubectl: Kubectl, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """An operator with its webhook, registered as the chart does, for the test's namespace only."""
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    pair.private_key_pem.write_to_path(tmp_path / "tls.key")
    port = free_port()
    body = rendered(namespace=kubectl.namespace)[
        "MutatingWebhookConfiguration", f"{kubectl.namespace}-r-dask-adaptive"
    ]
    (hook,) = body["webhooks"]
    hook["clientConfig"] = {
        "url": f"https://127.0.0.1:{port}/mutate",
        "caBundle": base64.b64encode(authority.cert_pem.bytes()).decode(),
    }
    hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": kubectl.namespace}}
    kubectl("apply", "-f", str(ROOT / "manifests/examples/cluster.yaml"))
    kubectl.apply(body)
    try:
        where = {"certificates": tmp_path, "webhook_port": port}
        async with running(api, kubectl.namespace, **where):
            yield kubectl
    finally:
        kubectl("delete", "mutatingwebhookconfiguration", body["metadata"]["name"])


def create(kubectl: Kubectl, pod: dict[str, Any], *words: str) -> dict[str, Any]:
    text = kubectl("create", "-o", "json", *words, "-f", "-", stdin=yaml.safe_dump(pod))
    return dict(json.loads(text))


def is_injected(pod: dict[str, Any]) -> bool:
    return any(v["name"] == "dask-adaptive-agent" for v in pod["spec"].get("volumes", []))


async def first_injected(kubectl: Kubectl) -> dict[str, Any]:
    """The API server takes a moment to learn of a new webhook."""
    made: list[dict[str, Any]] = []

    def attempt() -> bool:
        made.append(create(kubectl, scheduler(f"first-{len(made)}"), "--dry-run=server"))
        return is_injected(made[-1])

    await until(attempt)
    return made[-1]


async def test_a_scheduler_gets_the_agent(webhook: Kubectl) -> None:
    await first_injected(webhook)
    assert [] == webhook.json("get", "configmaps", "-l", "app.kubernetes.io/part-of")["items"]
    pod = await asyncio.to_thread(create, webhook, scheduler("s"))

    (container,) = pod["spec"]["containers"]
    assert is_injected(pod)
    assert {PRELOAD: BOOT_PATH} == {e["name"]: e["value"] for e in container["env"]}
    assert "dask-adaptive.dev/injected" in pod["metadata"]["annotations"]
    config = webhook.json("get", "configmap", bundle().name)
    assert bundle().zip == config["binaryData"]["agent.zip"]
    assert config["immutable"]
    assert ["demo"] == [o["name"] for o in config["metadata"]["ownerReferences"]]


async def test_clusters_share_the_config_map(webhook: Kubectl) -> None:
    await first_injected(webhook)
    await asyncio.to_thread(create, webhook, scheduler("s1"))
    webhook("apply", "-f", str(ROOT / "manifests/examples/annotated-cluster.yaml"))
    other = scheduler("s2", labels={**LABELS, "dask.org/cluster-name": "annotated"})
    pod = await asyncio.to_thread(create, webhook, other)

    owners = webhook.json("get", "configmap", bundle().name)["metadata"]["ownerReferences"]
    assert is_injected(pod)
    assert {"demo", "annotated"} == {owner["name"] for owner in owners}


@pytest.mark.parametrize("target", ["pod", "daskcluster", "namespace"])
async def test_people_can_refuse(webhook: Kubectl, target: str) -> None:
    refused = {"dask-adaptive.dev/inject": "false"}
    if target == "daskcluster":
        await first_injected(webhook)
        webhook("annotate", target, "demo", "dask-adaptive.dev/inject=false")
    elif target == "namespace":  # before it is asked for the first time: answers are remembered
        webhook("annotate", target, webhook.namespace, "dask-adaptive.dev/inject=false")
    else:
        await first_injected(webhook)
    pod = scheduler("s", **({"annotations": refused} if target == "pod" else {}))
    if target == "namespace":
        await asyncio.sleep(1.5)
    made = await asyncio.to_thread(create, webhook, pod)

    assert not is_injected(made)
    assert [] == webhook.json("get", "configmaps", "-l", "app.kubernetes.io/part-of")["items"]


async def test_a_scheduler_of_no_cluster_is_left_alone(webhook: Kubectl) -> None:
    await first_injected(webhook)
    stray = scheduler("s", labels={**LABELS, "dask.org/cluster-name": "nobody"})

    assert not is_injected(await asyncio.to_thread(create, webhook, stray))


async def test_a_tampered_config_map_is_not_relied_on(webhook: Kubectl) -> None:
    await first_injected(webhook)
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": bundle().name}}
    webhook.apply({**other, "immutable": True, "data": {"boot": "other"}})

    assert not is_injected(await asyncio.to_thread(create, webhook, scheduler("s")))


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
