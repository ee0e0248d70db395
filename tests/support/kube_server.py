"""A real API server for tests: that of KUBECONFIG, or one that localnode boots."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "helm/dask-adaptive-operator/files/crds"
_CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
CACHE = Path(os.environ.get("DASK_ADAPTIVE_CACHE") or _CACHES / "dask-adaptive")
CHART = ROOT / "helm/dask-adaptive-operator"

#: The chart has no image by itself.
IMAGE = "image.repository"

#: scripts/test-versions.sh sets these two.
DASK_KUBERNETES = os.environ.get("DASK_KUBERNETES", "2026.3.0")
KUBE_VERSION = os.environ.get("KUBE_VERSION", "1.34.0")

_UPSTREAM_CHART = "dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator"


def ran(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command that may fail; its output is text."""
    return subprocess.run(words, **{"capture_output": True, "text": True, "check": False, **more})


def stand_in_kubectl(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be found before any other kubectl on PATH."""
    program = folder / "bin/kubectl"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


#: Of `kubectl port-forward`, which is not there for a scheduler without a pod.
FORWARDS = 'echo "Forwarding from 127.0.0.1:{port} -> 8786"; exec sleep 600'


def lacking(why: str) -> NoReturn:
    """Skip the test, or fail it where all that tests need has to be there."""
    if os.environ.get("DASK_ADAPTIVE_REQUIRE_K8S") == "1":
        pytest.fail(why)
    pytest.skip(why)


class Unavailable(Exception):
    """There is no API server, and why."""


def boot() -> str:
    """The path of a kubeconfig. Raises `Unavailable`."""
    if os.environ.get("KUBECONFIG"):
        return os.environ["KUBECONFIG"]
    return _localnode("up.sh", {})


@contextmanager
def another(folder: Path) -> Iterator[str]:
    """
    The same of a server beside that one, with nothing on it, for as long as it is needed.

    Args:
        folder: For its state.
    """
    where = {
        "LOCALNODE_API_STATE": str(folder),
        "LOCALNODE_API_PORT": str(free_port()),
        "LOCALNODE_API_ETCD_PORT": str(free_port(in_a_row=2)),
    }
    try:
        yield _localnode("up.sh", where, "--no-build")
    finally:
        _localnode("down.sh", where, "--wipe")


def _localnode(script: str, where: Mapping[str, str], *words: str) -> str:
    """The kubeconfig that it tells of."""
    program = str(ROOT / "localnode" / script)
    done = ran(program, "--api-only", *words, env={**os.environ, **where})
    if done.returncode:
        raise Unavailable(done.stderr.strip().splitlines()[-1])
    told = shlex.split(done.stdout)
    return next((w.partition("=")[2] for w in told if w.startswith("KUBECONFIG=")), "")


def binary(name: str) -> str:
    """One of localnode's programs, else the one on PATH."""
    local = CACHE / "bin" / name
    return str(local) if local.exists() else name


def helm() -> str:
    """The path of helm; without it the test is skipped."""
    return shutil.which(binary("helm")) or lacking("no helm; build it with: localnode/build.sh")


def built(script: str, *words: str) -> str:
    """The path of a program that a script here builds or finds; without it the test is skipped."""
    done = ran(str(ROOT / script), *words)
    if done.returncode:
        lacking(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip().splitlines()[-1]


def upstream_crds() -> list[Path]:
    """dask-kubernetes' CRDs, out of its PyPI package."""
    folder = CACHE / f"dask-kubernetes-{DASK_KUBERNETES}"
    crds = folder / _UPSTREAM_CHART / "crds"
    if not crds.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Tests run side by side: each makes a whole one, and the first that is done counts.
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run(
                [*download, "--dest", made, f"dask-kubernetes=={DASK_KUBERNETES}"], check=True
            )
            (wheel,) = Path(made).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(made, [n for n in archive.namelist() if "/crds/" in n])
            with suppress(OSError):  # another one was first
                Path(made).rename(folder)
    return sorted(crds.glob("*.yaml"))


class Kubectl:
    """kubectl, or helm, against one server, optionally in one namespace."""

    def __init__(self, kubeconfig: str, namespace: str = "") -> None:
        self.kubeconfig, self.namespace = kubeconfig, namespace

    def within(self, namespace: str) -> Kubectl:
        return Kubectl(self.kubeconfig, namespace)

    def run(
        self, *words: str, stdin: str | None = None, program: str = "kubectl"
    ) -> subprocess.CompletedProcess[str]:
        scope = ["--namespace", self.namespace] if self.namespace else []
        given = [binary(program), "--kubeconfig", self.kubeconfig, *scope, *words]
        return ran(*given, input=stdin)

    def __call__(self, *words: str, stdin: str | None = None, program: str = "kubectl") -> str:
        """Output of a command that must succeed."""
        done = self.run(*words, stdin=stdin, program=program)
        assert done.returncode == 0, f"{program} {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json"))

    def apply(self, *objects: dict[str, Any], **more: str) -> str:
        return self("apply", "-f", "-", stdin=yaml.safe_dump_all(objects), **more)

    def refusal(self, obj: dict[str, Any]) -> str:
        """What the API server says to an object that it must refuse."""
        done = self.run("apply", "-f", "-", stdin=yaml.safe_dump(obj))
        assert done.returncode != 0, f"accepted: {done.stdout}"
        return done.stderr


@contextmanager
def namespace(admin: Kubectl, prefix: str = "t") -> Iterator[Kubectl]:
    """kubectl in a new namespace, which goes in the background."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    admin("create", "namespace", name)
    try:
        yield admin.within(name)
    finally:
        admin("delete", "namespace", name, "--wait=false")


def helm_template(
    *words: str, release: str = "r", namespace: str = "ns", stdin: str | None = None
) -> str:
    """What the chart renders. Raises CalledProcessError, whose stderr says why."""
    options = ["--namespace", namespace, "--kube-version", KUBE_VERSION]
    options += ["--set", f"{IMAGE}=x/y"] if stdin is None else []
    command = [binary("helm"), "template", release, str(CHART), *options, *words]
    return ran(*command, input=stdin, check=True).stdout


def rendered(*words: str, **where: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Rendered objects by kind and name."""
    docs = yaml.safe_load_all(helm_template(*words, **where))
    return {(d["kind"], d["metadata"]["name"]): d for d in docs if d}


def add_crds(kubectl: Kubectl, *ours: Path) -> None:
    """dask-kubernetes' CRDs, and others."""
    for path in [*ours, *upstream_crds()]:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
