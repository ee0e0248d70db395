"""The CLI against a real API server."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dask_adaptive.cli.main import cli
from dask_adaptive.kube.objects import ADOPTED, COOLDOWN, MANAGED_BY
from support.kube_bodies import autoscaler, pod, policy
from support.kube_server import Kubectl

Run = Callable[..., Result]


def managed(name: str = "ours", **spec: Any) -> dict[str, Any]:
    made = policy(name, "demo", **spec)
    made["metadata"]["labels"] = {MANAGED_BY: "adoption"}
    return made


def policies(kubectl: Kubectl) -> set[str]:
    return {one["metadata"]["name"] for one in kubectl.json("get", "dap")["items"]}


def test_tidy_removes_what_is_ours_and_nothing_else(run: Run, kubectl: Kubectl) -> None:
    ours = {ADOPTED: "2026-01-01T00:00:00Z", COOLDOWN: "4000000000"}
    kubectl.apply(managed(), policy("theirs"), autoscaler("demo", mine="1", **ours))
    planned = run("tidy", "--dry-run")
    assert (0, True) == (planned.exit_code, "nothing was written" in planned.output)
    assert 1 == run("tidy").exit_code, "nobody has said yes"
    assert {"ours", "theirs"} == policies(kubectl)
    result = run("tidy", "--yes")

    assert 0 == result.exit_code, result.output
    assert {"theirs"} == policies(kubectl)
    left = kubectl.json("get", "daskautoscaler", "demo")["metadata"]["annotations"]
    assert ("1", set()) == (left["mine"], ours.keys() & left.keys())
    assert "DaskAutoscalers given back: 1" in result.output
    assert "policies deleted: 0" in run("tidy", "--yes").output


def test_tidy_leaves_clusters_of_another_operator_alone(run: Run, kubectl: Kubectl) -> None:
    kubectl.apply(managed(controllerName="b"))
    assert 0 == run("tidy", "--yes").exit_code
    assert {"ours"} == policies(kubectl)
    dry = run("tidy", "--dry-run", "--controller-name", "b")
    assert "ours: deleted" in dry.output
    assert "nothing was written" in dry.output
    result = run("tidy", "--yes", "--controller-name", "b")

    assert "ours: deleted" in result.output
    assert set() == policies(kubectl)


def test_tidy_keeps_to_the_namespaces_with_the_labels(
    kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubectl.kubeconfig)
    run, label = partial(CliRunner().invoke, cli), f"team={kubectl.namespace}"
    kubectl.apply(managed())
    tidied = ("tidy", "--yes", "--namespace-selector", label)

    assert "policies deleted: 0" in run(tidied).output, "none has them"
    kubectl("label", "namespace", kubectl.namespace, label)
    assert "policies deleted: 1" in run(tidied).output


def test_tidy_waits_for_the_operator_to_stop(run: Run, kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "operator", "--image=x", "--replicas=2")
    kubectl.apply(pod("operator-x", labels={"app": "operator"}), managed())
    own = ("--lease-namespace", kubectl.namespace)
    target = f"{kubectl.namespace}/operator"

    def scaled() -> bool:
        found = kubectl.json("get", "deployment", "operator")
        return int(found["spec"]["replicas"]) == 0

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, "tidy", "--yes", "--stop", target, *own)
        while not scaled():
            assert not running.done(), running.result().output
            time.sleep(0.2)
        time.sleep(1.5)
        assert not running.done(), "it goes on while a pod of the operator is there"
        assert policies(kubectl), "nothing is written before"
        kubectl("delete", "pod", "operator-x", "--grace-period=0", "--force")
        result = running.result(timeout=20)

    assert 0 == result.exit_code, result.output
    assert f"deployment {target} stopped" in result.output
    assert not policies(kubectl)


def test_tidy_without_an_operator(run: Run, kubectl: Kubectl) -> None:
    own = ("--lease-namespace", kubectl.namespace)
    result = run("tidy", "--yes", "--stop", f"{kubectl.namespace}/nobody", *own)

    assert (0, True) == (result.exit_code, "is gone already" in result.output)
    assert 2 == run("tidy", "--stop", "nobody").exit_code
