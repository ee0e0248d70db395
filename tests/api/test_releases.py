"""Releases of the chart side by side, installed by Helm on a real API server; no pod runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from support.kube_server import CHART, ROOT, Kubectl, helm, namespace

CRD = "adaptivepolicies.dask-adaptive.dev"
CRDS = (CRD, "adaptivebudgets.dask-adaptive.dev")
OWNERS = ("meta.helm.sh/release-name", "meta.helm.sh/release-namespace")


class Releases:
    """Installs releases, and removes them at the end."""

    def __init__(self, admin: Kubectl) -> None:
        self.admin, self._made = admin, list[tuple[str, str]]()

    def install(self, name: str, where: str, *sets: str) -> str:
        """What Helm says against it; empty if it is installed."""
        # Nobody would answer a webhook here, and pods of other tests would wait for it.
        values = ["image.repository=x", "webhook.enabled=false", *sets]
        words = [word for value in values for word in ("--set", value)]
        words = ["install", name, str(CHART), "--namespace", where, *words]
        done = self.admin.run(*words, program="helm")
        if done.returncode == 0:
            self._made.append((name, where))
        return done.stderr if done.returncode else ""

    def remove(self) -> None:
        while self._made:
            name, where = self._made.pop()
            # The hook's Job would never end.
            words = ("uninstall", name, "--namespace", where, "--no-hooks")
            self.admin(*words, program="helm")


@pytest.fixture
def releases(admin: Kubectl) -> Iterator[Releases]:
    helm()
    made = Releases(admin)
    yield made
    made.remove()


@pytest.fixture
def namespaces(admin: Kubectl) -> Iterator[list[str]]:
    with namespace(admin) as one, namespace(admin) as other, namespace(admin) as third:
        yield [one.namespace, other.namespace, third.namespace]


def named(admin: Kubectl, kind: str, where: str) -> list[str]:
    """Names of a kind that belongs to no namespace, of the releases of one."""
    found = admin.json("get", kind)["items"]
    notes = ((o["metadata"]["name"], o["metadata"].get("annotations") or {}) for o in found)
    return sorted(name for name, note in notes if note.get(OWNERS[1]) == where)


def test_two_releases_for_all_namespaces_and_one_for_some(
    releases: Releases, namespaces: list[str], admin: Kubectl
) -> None:
    first, second, third = namespaces
    some = (f"watch.namespaces={{{third}}}", "watch.nodes=true")
    for where, more in ((first, ()), (second, ()), (third, some)):
        assert "" == releases.install("dask-adaptive", where, *named_after(where), *more)

    roles = [named(admin, "clusterroles", where) for where in namespaces]
    ours = [f"dask-adaptive-operator-{where}" for where in namespaces]
    for where, own, found in zip(
        namespaces, (ours[0], ours[1], f"{ours[2]}:nodes"), roles, strict=True
    ):
        assert sorted([own, *(f"{where}-dask-adaptive-{end}" for end in ("edit", "view"))]) == found
        assert 8 == len(named(admin, "validatingadmissionpolicies", where))
        assert 8 == len(named(admin, "validatingadmissionpolicybindings", where))


def named_after(controller: str) -> tuple[str, ...]:
    """Values of a release beside others."""
    return "crds.install=false", f"controllerName={controller}"


@pytest.mark.parametrize("overlaps", [True, False])
def test_helm_refuses_a_second_operator_of_the_same_name(
    releases: Releases, namespaces: list[str], overlaps: bool
) -> None:
    """Whichever namespaces they watch: they meet in that of the Lease."""
    first, second, third = namespaces
    mine = named_after(first)
    assert "" == releases.install("a", second, *mine, f"watch.namespaces={{{first}}}")
    watched = f"watch.namespaces={{{first if overlaps else third}}}"
    refused = releases.install("b", third, *mine, watched)

    assert "cannot be imported" in refused
    assert f"dask-adaptive-operator-{first}" in refused


@pytest.mark.parametrize("overlaps", [True, False])
def test_with_a_lease_of_its_own_it_is_refused_where_the_namespaces_overlap(
    releases: Releases, namespaces: list[str], overlaps: bool
) -> None:
    first, second, third = namespaces
    other = first if overlaps else third
    for name, where, watched in (("a", second, first), ("b", third, other)):
        own = (f"lease.namespace={where}", f"watch.namespaces={{{watched}}}")
        said = releases.install(name, where, *named_after(first), *own)

    assert overlaps == ("cannot be imported" in said)
    assert overlaps or "" == said


MANAGED = "app.kubernetes.io/managed-by"


@pytest.fixture
def crd(admin: Kubectl) -> Iterator[CrdOwner]:
    """The CRD's owner, which is put back: a release of the user's may have it."""
    owner = CrdOwner(admin)
    before = owner.read()
    yield owner
    owner.write(before)


class CrdOwner:
    """By what Helm knows whose the CRDs are: two annotations and a label."""

    def __init__(self, admin: Kubectl) -> None:
        self._admin = admin

    def read(self) -> list[str | None]:
        meta = self._admin.json("get", "crd", CRD)["metadata"]
        notes, labels = meta.get("annotations") or {}, meta.get("labels") or {}
        return [*(notes.get(name) for name in OWNERS), labels.get(MANAGED)]

    def write(self, owner: list[str | None]) -> None:
        meta = {
            "annotations": dict(zip(OWNERS, owner, strict=False)),
            "labels": {MANAGED: owner[2]},
        }
        change = json.dumps({"metadata": meta})
        self._admin("patch", "crd", *CRDS, "--type=merge", f"--patch={change}")


def test_the_crd_belongs_to_one_release_and_can_be_handed_over(
    releases: Releases, namespaces: list[str], admin: Kubectl, crd: CrdOwner
) -> None:
    first, second, _ = namespaces
    crd.write(["other", first, "Helm"])
    own = f"controllerName={second}"
    assert "invalid ownership metadata" in releases.install("mine", second, own)

    page = (ROOT / "docs/howto/upgrade.md").read_text()
    for command in re.findall(r"^    kubectl ((?:label|annotate) .*--overwrite.*)$", page, re.M):
        words = command.replace("RELEASE", "mine").replace("NAMESPACE", second)
        admin(*words.split())
    assert "" == releases.install("mine", second, own)
    releases.remove()
    assert CRD in admin("get", "crd", CRD, "-o", "name"), "crds.keep is on"
