"""The CRD: defaults, refusals with sentences that help, columns; and the examples."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from dask_adaptive.kube.annotated import wanted_spec
from dask_adaptive.kube.objects import parse_cluster
from dask_adaptive.model.policy import Policy, parse_policy
from support.kube_server import ROOT, Kubectl

EXAMPLES = sorted((ROOT / "manifests/examples").glob("*.yaml"))


def policy(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "dask-adaptive.dev/v1alpha1",
        "kind": "AdaptivePolicy",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "etl"}, "maxReplicas": 5, **spec},
    }


def test_defaults_are_those_of_the_model(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    stored = kubectl.json("get", "dap", "p")["spec"]

    assert Policy(cluster="etl", maximum=5) == parse_policy(stored)
    assert "60s" == stored["idleTimeout"]
    assert {"enabled": True, "timeout": "1h"} == stored["pins"]["shuffle"]
    assert {"enabled": True, "maxDuration": "4h"} == stored["pins"]["client"]
    assert {"enabled": False, "maxDelay": "10m"} == stored["evictionGuard"]
    assert {"nodeSignals": "Drain", "hints": True} == stored["disruption"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"minReplicas": 9},
            ["spec.minReplicas (9)", "spec.maxReplicas (5)", "lower the one or raise the other"],
        ),
        ({"minReplicas": -1}, ["spec.minReplicas", "greater than or equal to 0"]),
        ({"maxReplicas": "many"}, ["spec.maxReplicas", "integer"]),
        ({"idleTimeout": "-5s"}, ["spec.idleTimeout must be a duration such as 90s"]),
        ({"idleTimeout": "5"}, ["spec.idleTimeout must be a duration such as 90s"]),
        ({"idleTimeout": 60}, ["spec.idleTimeout", "string"]),
        ({"target": {"duration": "soon"}}, ["spec.target.duration must be a duration such as 5s"]),
        ({"target": {"duration": "0s"}}, ["spec.target.duration must be longer than 0s"]),
        ({"mode": "auto"}, ["spec.mode", '"Auto", "Advise", "Paused"']),
        ({"retirement": {"onTimeout": "Kill"}}, ["spec.retirement.onTimeout", '"Abort", "Force"']),
        ({"retirement": {"maxConcurrent": 0}}, ["spec.retirement.maxConcurrent"]),
        ({"retirement": {"gracePeriod": "1d"}}, ["spec.retirement.gracePeriod must be a duration"]),
        ({"pins": {"shuffle": {"timeout": "x"}}}, ["spec.pins.shuffle.timeout must be"]),
        ({"pins": {"manual": {"maxDuration": "x"}}}, ["spec.pins.manual.maxDuration must be"]),
        ({"pins": {"client": {"maxDuration": "1d"}}}, ["spec.pins.client.maxDuration must be"]),
        ({"evictionGuard": {"maxDelay": "soon"}}, ["spec.evictionGuard.maxDelay must be a dur"]),
        ({"evictionGuard": {"enabled": "yes"}}, ["spec.evictionGuard.enabled", "boolean"]),
        ({"disruption": {"nodeSignals": "drain"}}, ["nodeSignals", '"Drain", "Ignore"']),
        ({"disruption": {"hint": True}}, ["unknown field", "spec.disruption.hint"]),
        ({"idelTimeout": "5s"}, ["unknown field", "spec.idelTimeout"]),
        ({"workerGroups": []}, ["unknown field", "spec.workerGroups"]),
        ({"clusterRef": {"name": ""}}, ["spec.clusterRef.name"]),
        ({"maxReplicas": None}, ["spec.maxReplicas", "Required"]),
    ],
)
def test_nonsense_is_refused_with_a_sentence(
    kubectl: Kubectl, spec: dict[str, Any], words: list[str]
) -> None:
    said = kubectl.refusal(policy(**spec))

    assert all(word in said for word in words), said


def test_what_the_server_refuses_a_rehearsal_refuses_too() -> None:
    for duration in ("-5s", "5", "1d", ""):
        with pytest.raises(ValueError, match=r"spec\.idleTimeout"):
            parse_policy(policy(idleTimeout=duration)["spec"])


def test_the_cluster_of_a_policy_cannot_be_changed(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    said = kubectl.refusal(policy(clusterRef={"name": "other"}))

    assert "delete this policy and create one for the other cluster" in said


def test_columns(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    head = kubectl("get", "dap").splitlines()[0].split()

    assert head[1:8] == "CLUSTER MODE REPLICAS DESIRED PENDING IDLE PINNED".split()  # noqa: SIM905
    assert head[8:] == ["RETIRING", "READY", "REASON", "AGE"]
    assert "p " in kubectl("get", "dask")


def test_explain_describes_every_field(kubectl: Kubectl) -> None:
    told = kubectl("explain", "adaptivepolicies.spec", "--recursive")

    assert "maxConcurrent" in told
    for field in ("retirement", "evictionGuard", "disruption", "pins.client"):
        assert "<no description>" not in kubectl("explain", f"adaptivepolicies.spec.{field}")


def test_a_status_says_who_holds_which_workers(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    row = {
        "source": "client",
        "owner": "Client-1",
        "reason": "a look",
        "until": "2026-02-01T00:00:00Z",
        "workers": ["a", "b"],
        "count": 12,
    }
    patch = json.dumps({"status": {"heldBy": [row]}})
    kubectl("patch", "dap", "p", "--subresource=status", "--type=merge", "-p", patch)

    assert [row] == kubectl.json("get", "dap", "p")["status"]["heldBy"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_are_accepted(kubectl: Kubectl, path: Any) -> None:
    kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(path))
    for body in yaml.safe_load_all(path.read_text()):
        if body["kind"] == "AdaptivePolicy":
            parse_policy(body["spec"])
        else:
            notes = body["metadata"].get("annotations", {})
            if notes:
                assert 20 == wanted_spec(parse_cluster(body))["maxReplicas"]


def test_the_full_example_names_every_field(kubectl: Kubectl) -> None:
    crd = kubectl.json("get", "crd", "adaptivepolicies.dask-adaptive.dev")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    full = yaml.safe_load((ROOT / "manifests/examples/full-policy.yaml").read_text())["spec"]

    def fields(node: dict[str, Any]) -> Any:
        return {k: fields(v) if "properties" in v else None for k, v in node["properties"].items()}

    def keys(node: Any) -> Any:
        return {k: keys(v) for k, v in node.items()} if isinstance(node, dict) else None

    assert fields(schema) == keys(full)
