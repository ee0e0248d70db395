"""Who compares the chart with the cluster finds no difference, though the operator has written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dask_adaptive.controller.certificate import CertificateKeeper, WebhookSettings
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.api import KubeApi
from support.kube_server import CHART, IMAGE, Kubectl, rendered

#: kubectl's own memory of what it applied.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

#: Both take over the fields that they name, as Helm does. None names ours.
FORCE = ("--server-side", "--force-conflicts", "--field-manager")

#: What the API server counts and stamps itself.
STAMPS = ("managedFields", "resourceVersion", "generation")


class Release:
    """The chart, installed by Helm; nothing runs, where there is no node."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl, self.name = kubectl, kubectl.namespace  # its cluster roles are its own
        mine = f"controllerName={self.name},lease.namespace={self.name},{IMAGE}=x/y"
        self.words = ("--set", f"crds.install=false,{mine}")

    def helm(self, *words: str) -> str:
        return self.kubectl(*words, program="helm")

    def install(self) -> None:
        self.helm("upgrade", "--install", self.name, str(CHART), *self.words)

    def live(self) -> dict[tuple[str, str], dict[str, Any]]:
        """What is in the cluster of all that the chart makes."""
        text = self.kubectl(
            "get", "-f", "-", "-o", "yaml", stdin=self.helm("get", "manifest", self.name)
        )
        return {
            (o["kind"], o["metadata"]["name"]): stampless(o) for o in yaml.safe_load(text)["items"]
        }


def stampless(body: dict[str, Any]) -> dict[str, Any]:
    body["metadata"] = {k: v for k, v in body["metadata"].items() if k not in STAMPS}
    return body


@pytest.fixture
def release(kubectl: Kubectl) -> Iterator[Release]:
    made = Release(kubectl)
    made.install()
    yield made
    made.helm("uninstall", made.name, "--no-hooks")


async def look(api: KubeApi, release: Release) -> None:
    """The operator's part."""
    objects = rendered(*release.words, namespace=release.name, release=release.name)
    (deployment,) = (o for (kind, _), o in objects.items() if kind == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    told = {e["name"].removeprefix("DASK_ADAPTIVE_"): e.get("value", "") for e in container["env"]}
    settings = WebhookSettings(
        told["CERTIFICATE_SECRET"], told["WEBHOOK_HOST"], told["MAKE_CERTIFICATE"] == "true",
        told["WEBHOOK_CONFIGURATION"],
    )  # fmt: skip
    ends_at = Metrics().certificate.labels(settings.secret)
    assert await CertificateKeeper(api, release.name, settings, ends_at).look()


async def test_no_difference_is_found(api: KubeApi, release: Release) -> None:
    await look(api, release)
    before = release.live()
    manifest = release.helm("get", "manifest", release.name)
    hooks = [o["webhooks"][0] for (kind, _), o in before.items() if kind.endswith("Configuration")]
    assert [True] == [bool(hook["clientConfig"].get("caBundle")) for hook in hooks]
    (data,) = (o["data"] for (kind, _), o in before.items() if kind == "Secret")
    assert {"ca.crt", "tls.crt", "tls.key"} == set(data)

    # As Argo CD does, like kubectl; and as Flux, which asks the server what it would change.
    diff = release.kubectl.run("diff", "-f", "-", stdin=manifest)
    assert (0, "") == (diff.returncode, diff.stdout)
    for manager in ("argocd-controller", "helm-controller"):
        words = (*FORCE, manager, "--dry-run=server", "-o", "yaml")
        text = release.kubectl("apply", *words, "-f", "-", stdin=manifest)
        found = {
            (o["kind"], o["metadata"]["name"]): stampless(o) for o in yaml.safe_load(text)["items"]
        }
        assert before == found

    # And each of them, when it has written.
    release.kubectl("apply", "-f", "-", stdin=manifest)
    release.kubectl("apply", *FORCE, "flux", "-f", "-", stdin=manifest)
    release.install()
    after = release.live()
    for body in after.values():
        (body["metadata"].get("annotations") or {}).pop(LAST_APPLIED, None)
        if body["metadata"].get("annotations") == {}:
            del body["metadata"]["annotations"]
    assert before == after
