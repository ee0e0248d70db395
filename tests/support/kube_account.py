"""The operator's service account as the chart makes it, for tests of what it may do."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from support.kube_server import Kubectl, rendered

RBAC = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
ADMISSION = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}

#: As long as this is let through, the API server does not know the policies yet.
_FORGED = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"name": "forged"},
    "involvedObject": {},
    "reportingComponent": "somebody-else",
}


def is_hook(body: dict[str, Any]) -> bool:
    """Whether it is there only while the chart is being uninstalled."""
    return "helm.sh/hook" in (body["metadata"].get("annotations") or {})


class Account:
    """The chart's service account, in all namespaces or in one, bound by all that binds it."""

    def __init__(
        self, kubectl: Kubectl, *, namespaced: bool, hooks: bool = False, words: Sequence[str] = ()
    ) -> None:
        self.kubectl = kubectl
        where = kubectl.namespace
        words = (*words, "--set", f"watch.namespaces={{{where}}}") if namespaced else words
        # Names of its own for release and operator: cluster roles of tests must not meet.
        words = (*words, "--set", f"controllerName={where},lease.namespace={where}")
        self.objects = [
            body
            for (kind, _), body in rendered(*words, namespace=where, release=where).items()
            if kind in RBAC | ADMISSION and (hooks or not is_hook(body))
        ]
        (self.name,) = (
            o["metadata"]["name"] for o in self.objects if o["kind"] == "ServiceAccount"
        )
        kubectl.apply(*self.objects)
        self._until_bound()

    def _until_bound(self) -> None:
        """The API server learns of policies by a watch, of all at once."""
        forged = {**_FORGED, "involvedObject": {"namespace": self.kubectl.namespace}}
        words = ("create", "--dry-run=server", "-f", "-", f"--as={self.user}")
        end = time.monotonic() + 30.0
        while self.kubectl.run(*words, stdin=json.dumps(forged)).returncode == 0:
            assert time.monotonic() < end, "the API server does not enforce the policies"
            time.sleep(0.1)

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.kubectl.namespace}:{self.name}"

    def remove(self) -> None:
        objects = yaml.safe_dump_all(self.objects)
        self.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=objects)

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig with a token of the account."""
        config = self.kubectl.json("config", "view", "--raw", "--minify")
        token = self.kubectl("create", "token", self.name).strip()
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def can(self, verb: str, resource: str, *words: str) -> bool:
        user = f"--as={self.user}"
        return self.kubectl.run("auth", "can-i", user, verb, resource, *words).returncode == 0
