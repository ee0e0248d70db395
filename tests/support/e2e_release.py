"""The operator's Helm release, which some tests upgrade, break and remove."""

from __future__ import annotations

import json
from typing import Any

from dask_adaptive.controller.lease import LEASE_NAMESPACE, lease_name
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from support.kube_server import CHART, Kubectl

#: What an uninstalled release leaves, as `Release.leftovers` names it.
STAYS = {
    "CustomResourceDefinition /adaptivebudgets.dask-adaptive.dev",
    "CustomResourceDefinition /adaptivepolicies.dask-adaptive.dev",
    "APIService /v1alpha1.dask-adaptive.dev",  # the API server's own, for each CRD's group
}

_OPERATOR = ("--selector", "app.kubernetes.io/name=dask-adaptive-operator")


class Release:
    """The installed release; `restore` brings it back to the values it was found with."""

    def __init__(self, admin: Kubectl) -> None:
        self._admin = admin
        found = admin.json("get", "deployments", *_OPERATOR, "--all-namespaces")["items"][0]
        self.namespace = found["metadata"]["namespace"]
        self.name = found["metadata"]["labels"]["app.kubernetes.io/instance"]
        self.deployment = found["metadata"]["name"]
        self.kubectl = admin.within(self.namespace)
        self._values = self.helm("get", "values", self.name, "--output", "json")

    def helm(self, *words: str, stdin: str | None = None) -> str:
        return self.kubectl(*words, stdin=stdin, program="helm")

    def install(self, *more: str) -> None:
        """Install or upgrade with the values found at first, and `more`."""
        words = ["upgrade", "--install", self.name, str(CHART), "--values", "-", *more]
        self.helm(*words, "--wait", "--timeout", "120s", stdin=self._values)

    def uninstall(self) -> None:
        self.helm("uninstall", self.name, "--wait", "--timeout", "90s")

    def values(self) -> Any:
        return json.loads(self._values)

    def pods(self) -> list[str]:
        return self.kubectl("get", "pods", *_OPERATOR, "-o", "name").split()

    def leader(self) -> str:
        """Name of the pod that acts; empty if none does."""
        words = ("get", "lease", lease_name(DEFAULT_CONTROLLER), "-o")
        system = self._admin.within(LEASE_NAMESPACE)
        return system.run(*words, "jsonpath={.spec.holderIdentity}").stdout

    def certificate(self) -> tuple[str, str]:
        """That of the webhook, and the authority that the API server trusts."""
        secret = self.kubectl.json("get", "secret", f"{self.name}-certificate")
        hooks = self._admin.json(
            "get", "mutatingwebhookconfiguration", f"{self.namespace}-{self.name}"
        )
        return secret["data"]["tls.crt"], hooks["webhooks"][0]["clientConfig"]["caBundle"]

    def leftovers(self) -> set[str]:
        """All objects of the cluster with our name or labels, as `kind namespace/name`."""
        kinds = self._admin("api-resources", "--verbs=list", "-o", "name").split()
        wanted = ",".join(k for k in kinds if not k.startswith("events"))
        found = self._admin.json("get", wanted, "--all-namespaces", "--ignore-not-found")
        return {_called(body) for body in found["items"] if _is_ours(body)}


def _is_ours(body: dict[str, Any]) -> bool:
    meta = body["metadata"]
    labels = dict(meta.get("labels") or {})
    labels.pop("installed-by", None)  # install.sh's mark on upstream's release
    words = [meta["name"], *labels, *labels.values()]
    return body["kind"] != "Namespace" and any("dask-adaptive" in str(word) for word in words)


def _called(body: dict[str, Any]) -> str:
    meta = body["metadata"]
    return f"{body['kind']} {meta.get('namespace', '')}/{meta['name']}"
