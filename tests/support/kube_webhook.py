"""The chart's webhook, registered with an API server so that it calls this process over TLS."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

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
def registered(kubectl: Kubectl, *, port: int) -> Iterator[str]:
    """
    The chart's webhook and its Secret, for one namespace only; the name of its configuration.

    The API server of tests can't reach a Service, so an URL is in its place; nothing else differs.
    """
    objects = rendered(namespace=kubectl.namespace)
    ((name, body),) = ((name, one) for (kind, name), one in objects.items() if kind == KIND)
    (hook,) = body["webhooks"]
    path = hook["clientConfig"]["service"]["path"]
    hook["clientConfig"] = {"url": f"https://{HOST}:{port}{path}"}
    namespaces = hook.setdefault("namespaceSelector", {}).setdefault("matchExpressions", [])
    here = {"operator": "In", "values": [kubectl.namespace]}
    namespaces.append({"key": "kubernetes.io/metadata.name", **here})
    secret = [one for (kind, _), one in objects.items() if kind == "Secret"]
    kubectl.apply(body, *secret)
    try:
        yield name
    finally:
        kubectl("delete", KIND, name)


@contextlib.asynccontextmanager
async def operator_with_webhook(api: KubeApi, kubectl: Kubectl) -> AsyncIterator[Operator]:
    """Run an operator, which makes the certificate of its webhook."""
    port = free_port()
    with registered(kubectl, port=port) as configuration:
        webhook = WebhookSettings(SECRET, HOST, makes=True, configuration=configuration)
        where = {"webhook": webhook, "webhook_port": port}
        async with running(api, kubectl.namespace, **where) as operator:
            yield operator
