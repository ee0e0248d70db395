"""The chart's webhooks, registered with an API server so that it calls this process over TLS."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trustme

from dask_adaptive.controller.app import Operator
from dask_adaptive.kube.api import KubeApi
from support.kube_operator import free_port, running
from support.kube_server import Kubectl, rendered

KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


@contextlib.asynccontextmanager
async def operator_with_webhooks(
    api: KubeApi, kubectl: Kubectl, folder: Path, *words: str, **more: Any
) -> AsyncIterator[Operator]:
    """Run an operator, its webhooks registered as the chart does, for one namespace only."""
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1")
    pair.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    pair.private_key_pem.write_to_path(folder / "tls.key")
    port = free_port()
    bodies = [
        body for (kind, _), body in rendered(*words, namespace=kubectl.namespace).items()
        if kind in KINDS
    ]  # fmt: skip
    for body in bodies:
        (hook,) = body["webhooks"]
        path = hook["clientConfig"]["service"]["path"]
        hook["clientConfig"] = {
            "url": f"https://127.0.0.1:{port}{path}",
            "caBundle": base64.b64encode(authority.cert_pem.bytes()).decode(),
        }
        hook["namespaceSelector"] = {
            "matchLabels": {"kubernetes.io/metadata.name": kubectl.namespace}
        }
    kubectl.apply(*bodies)
    try:
        where = {"certificates": folder, "webhook_port": port}
        async with running(api, kubectl.namespace, **where, **more) as operator:
            yield operator
    finally:
        for body in bodies:
            kubectl("delete", body["kind"], body["metadata"]["name"])
