"""The CLI against a real API server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dask_adaptive.cli.main import cli
from support.kube_bodies import cluster_of_one, pod, policy
from support.kube_server import ROOT, Kubectl

Run = Callable[..., Result]
LABELS = {"dask.org/component": "worker", "dask.org/cluster-name": "demo"}


def test_status_and_explain_before_the_operator_has_looked(run: Run, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(ROOT / "manifests/examples/policy.yaml"))
    listed, told = run("status"), run("explain", "demo")

    assert "demo" in listed.output.splitlines()[1]
    assert "not processed yet" in listed.output
    assert "is it running?" in told.output
    assert ["demo"] == [
        p["policy"] for p in json.loads(run("status", "-o", "json").output)["items"]
    ]
    about = json.loads(run("explain", "dap/demo", "-o", "json").output)["about"]
    assert about.startswith("DaskCluster demo in ")


@pytest.mark.usefixtures("demo")
def test_a_worker_is_explained_by_its_pod(run: Run, kubectl: Kubectl) -> None:
    kubectl.apply(*cluster_of_one("w1", name="demo")[1:], pod("w1-h-x", of="w1", labels=LABELS))

    for subject in ("pod/w1-h-x", "worker/w1"):
        told = json.loads(run("explain", subject, "-o", "json").output)
        assert told["about"].startswith("worker w1, under AdaptivePolicy demo")
    assert 1 == run("explain", "worker/nobody").exit_code


def worker(name: str, **annotations: str) -> dict[str, Any]:
    return pod(name, labels=LABELS, annotations=annotations)


def annotations(kubectl: Kubectl) -> dict[str, Any]:
    """Those of each pod, but for kubectl's own."""
    found = {}
    for one in kubectl.json("get", "pods")["items"]:
        notes = one["metadata"].get("annotations") or {}
        found[one["metadata"]["name"]] = {k: v for k, v in notes.items() if "kubectl" not in k}
    return found


def test_tidy_removes_what_is_ours_and_nothing_else(run: Run, kubectl: Kubectl) -> None:
    users = {"mine": "1", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    ours = {
        "dask-adaptive.dev/hints": "karpenter.sh/do-not-disrupt",
        "karpenter.sh/do-not-disrupt": "true",
        "dask-adaptive.dev/pinned-by": "shuffle ab",
    }
    theirs = {"dask-adaptive.dev/pin": "4h", "dask-adaptive.dev/injected": "1"}
    kubectl.apply(worker("a", **users, **ours), worker("b", **theirs), worker("c", **ours))
    planned = run("tidy", "--dry-run")
    assert (0, True) == (planned.exit_code, "nothing was written" in planned.output)
    assert 1 == run("tidy").exit_code, "nobody has said yes"
    assert ours.keys() <= annotations(kubectl)["c"].keys()
    result = run("tidy", "--yes")

    assert 0 == result.exit_code, result.output
    assert {"a": users, "b": theirs, "c": {}} == annotations(kubectl)
    assert f"{kubectl.namespace}/a: dask-adaptive.dev/hints" in result.output
    assert "annotations removed from 2 pods" in result.output
    assert "annotations removed from 0 pods" in run("tidy", "--yes").output


def test_tidy_leaves_clusters_of_another_operator_alone(run: Run, kubectl: Kubectl) -> None:
    kubectl.apply(
        policy("p", LABELS["dask.org/cluster-name"], controllerName="b"),
        worker("a", **{"dask-adaptive.dev/pinned-by": "shuffle ab"}),
    )
    kubectl("label", "dap", "p", "dask-adaptive.dev/managed-by=annotations")
    assert "annotations removed from 0 pods" in run("tidy", "--yes").output
    assert annotations(kubectl)["a"]
    dry = run("tidy", "--dry-run", "--controller-name", "b")
    assert "p: deleted" in dry.output
    assert "nothing was written" in dry.output
    result = run("tidy", "--yes", "--controller-name", "b")

    assert "annotations removed from 1 pod" in result.output
    assert "p: deleted" in result.output


def test_tidy_keeps_to_the_namespaces_with_the_labels(
    kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubectl.kubeconfig)
    run, label = partial(CliRunner().invoke, cli), f"team={kubectl.namespace}"
    kubectl.apply(worker("a", **{"dask-adaptive.dev/pinned-by": "shuffle ab"}))
    tidied = ("tidy", "--yes", "--namespace-selector", label)

    assert "annotations removed from 0 pods" in run(tidied).output, "none has them"
    kubectl("label", "namespace", kubectl.namespace, label)
    assert "annotations removed from 1 pod" in run(tidied).output


def test_tidy_waits_for_the_operator_to_stop(run: Run, kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "operator", "--image=x", "--replicas=2")
    kubectl.apply(
        pod("operator-x", labels={"app": "operator"}),
        worker("a", **{"dask-adaptive.dev/pinned-by": "x"}),
    )
    target = f"{kubectl.namespace}/operator"

    def scaled() -> bool:
        found = kubectl.json("get", "deployment", "operator")
        return int(found["spec"]["replicas"]) == 0

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, "tidy", "--yes", "--stop", target)
        while not scaled():
            assert not running.done(), running.result().output
            time.sleep(0.2)
        time.sleep(1.5)
        assert not running.done(), "it goes on while a pod of the operator is there"
        assert annotations(kubectl)["a"], "nothing is written before"
        kubectl("delete", "pod", "operator-x", "--grace-period=0", "--force")
        result = running.result(timeout=20)

    assert 0 == result.exit_code, result.output
    assert f"deployment {target} stopped" in result.output
    assert {} == annotations(kubectl)["a"]


def test_tidy_without_an_operator(run: Run, kubectl: Kubectl) -> None:
    result = run("tidy", "--yes", "--stop", f"{kubectl.namespace}/nobody")

    assert (0, True) == (result.exit_code, "is gone already" in result.output)
    assert 2 == run("tidy", "--stop", "nobody").exit_code
