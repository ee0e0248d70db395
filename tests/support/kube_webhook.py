"""The chart's webhook, registered with an API server so that it calls this process over TLS."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from dask_adaptive.controller.app import Operator
from dask_adaptive.controller.certificate import WebhookSettings
from dask_adaptive.kube.api import KubeApi
from support.kube_operator import running
from support.kube_server import Kubectl, rendered
from support.ports import free_port

HOST = "127.0.0.1"
SECRET = "r-dask-adaptive-certificate"
KIND = "MutatingWebhookConfiguration"


@contextlib.contextmanager
def registered(kubectl: Kubectl, *words: str, port: int) -> Iterator[tuple[str, ...]]:
    """
    The chart's webhook and its Secret, for one namespace only.

    The API server of tests can't reach a Service, so an URL is in its place; nothing else differs.
    """
    objects = rendered(*words, namespace=kubectl.namespace)
    bodies = [body for (kind, _), body in objects.items() if kind == KIND]
    for body in bodies:
        (hook,) = body["webhooks"]
        path = hook["clientConfig"]["service"]["path"]
        hook["clientConfig"] = {"url": f"https://{HOST}:{port}{path}"}
        namespaces = hook.setdefault("namespaceSelector", {}).setdefault("matchExpressions", [])
        here = {"operator": "In", "values": [kubectl.namespace]}
        namespaces.append({"key": "kubernetes.io/metadata.name", **here})
    secret = [body for (kind, _), body in objects.items() if kind == "Secret"]
    kubectl.apply(*bodies, *secret)
    try:
        yield tuple(f"{body['kind'].lower()}s/{body['metadata']['name']}" for body in bodies)
    finally:
        for body in bodies:
            kubectl("delete", body["kind"], body["metadata"]["name"])


@contextlib.asynccontextmanager
async def operator_with_webhooks(
    api: KubeApi, kubectl: Kubectl, *words: str, **more: Any
) -> AsyncIterator[Operator]:
    """Run an operator, which makes the certificate of its webhook."""
    port = free_port()
    with registered(kubectl, *words, port=port) as configurations:
        webhook = WebhookSettings(SECRET, HOST, makes=True, configurations=configurations)
        where = {"webhook": webhook, "webhook_port": port}
        async with running(api, kubectl.namespace, **where, **more) as operator:
            yield operator
