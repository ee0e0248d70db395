"""The CLI against a real API server."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from dask_adaptive.cli.main import cli
from support.kube_server import ROOT, Kubectl

Run = Callable[..., Result]
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "w1-h-x",
        "labels": {"dask.org/component": "worker", "dask.org/cluster-name": "demo"},
    },
    "spec": {"containers": [{"name": "worker", "image": "x"}]},
}


@pytest.fixture
def run(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("KUBECONFIG", kubectl.kubeconfig)

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "-n", kubectl.namespace])

    return invoke


def notes(kubectl: Kubectl) -> dict[str, str]:
    found = kubectl.json("get", "pod", "w1-h-x")["metadata"].get("annotations", {})
    return {k.partition("/")[2]: v for k, v in found.items() if "dask-adaptive" in k}


def test_nothing_found_is_exit_code_1(run: Run) -> None:
    assert 1 == run("get").exit_code
    assert 1 == run("get", "-o", "json").exit_code
    assert 1 == run("explain", "nobody").exit_code
    assert 1 == run("pin", "nobody").exit_code
    assert 1 == run("unpin", "nobody").exit_code


def test_get_and_explain_before_the_operator_has_looked(run: Run, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(ROOT / "manifests/examples/policy.yaml"))
    listed, told = run("get"), run("explain", "demo")

    assert "demo" in listed.output.splitlines()[1]
    assert "not looked at yet" in listed.output
    assert "is it running?" in told.output
    assert ["demo"] == [
        p["metadata"]["name"] for p in json.loads(run("get", "-o", "json").output)["items"]
    ]
    assert "DaskCluster demo" == json.loads(run("explain", "demo", "-o", "json").output)["about"]


def test_pin_and_unpin(run: Run, kubectl: Kubectl) -> None:
    kubectl.apply(POD)

    assert "pinned (4h)" in run("pin", "w1-h-x", "--for", "4h", "--reason", "a look").output
    assert {"pin": "4h", "pin-reason": "a look"} == notes(kubectl)
    assert 0 == run("pin", "w1-h-x").exit_code
    assert {"pin": "true"} == notes(kubectl)
    assert 0 == run("unpin", "w1-h-x").exit_code
    assert {} == notes(kubectl)
    assert 1 == run("unpin", "w1-h-x").exit_code


def test_only_workers_can_be_pinned(run: Run, kubectl: Kubectl) -> None:
    meta = {**POD["metadata"], "labels": {"dask.org/component": "scheduler"}}
    kubectl.apply({**POD, "metadata": meta})
    result = run("pin", "w1-h-x")

    assert (2, True) == (result.exit_code, "not a Dask worker" in result.output)


def test_a_pod_that_can_not_start_is_explained(run: Run, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(ROOT / "manifests/examples/policy.yaml"))
    kubectl.apply(POD)

    assert "Pending" in run("explain", "w1-h-x").output
