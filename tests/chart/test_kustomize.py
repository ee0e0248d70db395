"""The kustomize base: made from the chart, with an image that an overlay has to set."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kube_server import ROOT, binary, rendered

BASE = ROOT / "manifests/kustomize"
IMAGE = {"name": "registry.invalid/dask-adaptive", "newName": "registry.example.com/ours"}


@pytest.fixture
def built(tmp_path: Path) -> list[dict[str, Any]]:
    """All objects of an overlay that sets the image, as `kubectl kustomize` prints them."""
    overlay = {
        "resources": [os.path.relpath(BASE, tmp_path.resolve())],
        "images": [{**IMAGE, "newTag": "v5"}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    done = subprocess.run(
        [binary("kubectl"), "kustomize", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def test_an_overlay_sets_the_image(built: list[dict[str, Any]]) -> None:
    (deployment,) = (one for one in built if one["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]

    assert "registry.example.com/ours:v5" == container["image"]
    assert "registry.invalid" in (BASE / "operator.yaml").read_text()
    for secret in (one for one in built if one["kind"] == "Secret"):
        assert not {"data", "stringData"} & secret.keys(), "all would share it"


def test_it_has_all_objects_but_hooks_and_nothing_of_helm(built: list[dict[str, Any]]) -> None:
    where = {"release": "dask-adaptive", "namespace": "dask-adaptive"}
    chart = {
        key
        for key, one in rendered(**where).items()
        if "helm.sh/hook" not in (one["metadata"].get("annotations") or {})
    }

    made = {(one["kind"], one["metadata"]["name"]) for one in built}
    assert chart | {("Namespace", "dask-adaptive")} == made
    for one in built:
        meta = one["metadata"]
        assert not [name for name in meta.get("annotations") or {} if "helm" in name], meta["name"]
        assert not [
            name for name, value in (meta.get("labels") or {}).items()
            if "helm" in name or value == "Helm"
        ], meta["name"]  # fmt: skip
