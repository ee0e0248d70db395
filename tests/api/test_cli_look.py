"""The commands that only look, against a real API server."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from dask_adaptive.kube.objects import parse_policy_object
from dask_adaptive.kube.status_json import history_body
from dask_adaptive.model.plan import Decision, Step
from dask_adaptive.model.reason import Reason
from support.kube_server import Kubectl

Run = Callable[..., Result]
SECRET = "hunter2-planted"

STATUS = {
    "replicas": 3, "desiredReplicas": 1, "wantedReplicas": 1, "connected": 3, "pending": 0,
    "idle": 2, "busy": 1, "pinned": 1, "retiring": 0, "reason": "NoCandidates",
    "message": "2 of 3 workers not needed, none may leave",
    "groups": [{"name": "demo-default", "replicas": 3, "desiredReplicas": 1, "wantedReplicas": 1,
                "connected": 3, "pending": 0, "reason": "NoCandidates", "message": "so"}],
    "lastDecision": {"at": "2026-02-01T10:00:00Z", "group": "demo-default", "before": 3,
                     "wanted": 1, "desired": 1, "reason": "NoCandidates", "message": "so",
                     "outcome": "Held", "askedBy": "load", "inputs": {"queued": 0},
                     "steps": [{"stage": "load", "replicas": 1, "reason": "NoCandidates",
                                "message": "so"}]},
    "blockers": {"Pinned": 1, "Busy": 1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _told(demo: None, kubectl: Kubectl) -> None:
    say(kubectl, **STATUS)


def say(kubectl: Kubectl, **status: Any) -> None:
    """What the operator would write."""
    patch = json.dumps({"status": status})
    kubectl("patch", "dap", "demo", "--subresource=status", "--type=merge", "-p", patch)


def keep(kubectl: Kubectl, *decisions: Decision) -> None:
    policy = parse_policy_object(kubectl.json("get", "dap", "demo"))
    kubectl.apply(history_body(policy, decisions))


def decision(at: float, message: str) -> Decision:
    step = Step("load", 4, Reason.LOAD_INCREASED, "12 s of work")
    return Decision(at, "demo-default", 1, 4, 4, Reason.LOAD_INCREASED, message, "Done",
                    inputs={"queued": 12.0}, steps=(step,))  # fmt: skip


def test_explain_has_the_last_decisions(run: Run, kubectl: Kubectl) -> None:
    def told() -> list[str]:
        answer = json.loads(run("explain", "demo", "-o", "json").output)
        return [row["message"] for row in answer["decisions"]]

    assert ["so"] == told(), "the status has the last one"
    now = time.time()
    keep(kubectl, decision(now - 7200, "long ago"), decision(now - 60, "just now"))
    assert ["so", "long ago", "just now"] == told()


def test_check(run: Run, kubectl: Kubectl) -> None:
    told = run("check", "-o", "json")
    found = {(f["what"], f["level"]) for f in json.loads(told.output)["items"]}

    assert 1 == told.exit_code, "there is no operator"
    assert ("CRD adaptivepolicies.dask-adaptive.dev", "ok") in found
    assert ("CRD daskworkergroups.kubernetes.dask.org", "ok") in found
    assert ("operator", "error") in found
    row = {"name": "w1", "state": "Active", "reason": "InvalidAnnotation"}
    say(kubectl, workers=[{**row, "message": "'soon' is no pin"}])
    text = run("check").output
    assert "worker w1: 'soon' is no pin" in text
    assert "fix: correct that annotation" in text


def strew(kubectl: Kubectl) -> None:
    """Secrets wherever people put them."""
    labels = {"dask.org/cluster-name": "demo", "dask.org/component": "worker"}
    container = {
        "name": "worker", "image": "x", "args": ["dask-worker", "--password", SECRET],
        "command": ["sh", "-c", f"login {SECRET}"],
        "env": [{"name": "API_TOKEN", "value": SECRET}, {"name": "HOME", "value": SECRET}],
    }  # fmt: skip
    spec = {"containers": [container], "imagePullSecrets": [{"name": SECRET}],
            "volumes": [{"name": "v", "secret": {"secretName": SECRET}}]}  # fmt: skip
    meta = {"name": "w1", "labels": {**labels, "team": SECRET}, "annotations": {"mine": SECRET}}
    notes = {**meta, "annotations": {
        "mine": SECRET, "dask-adaptive.dev/pin-reason": f"password={SECRET}"}}  # fmt: skip
    template = {"metadata": {"labels": {**labels, "app": "w1"}}, "spec": spec}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": notes, "spec": spec},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
         "stringData": {"k": SECRET}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo-other"},
         "data": {"k": SECRET}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta,
         "spec": {"selector": {"matchLabels": {"app": "w1"}}, "template": template}},
        {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "Failed",
         "involvedObject": {"kind": "Pod", "name": "w1", "namespace": kubectl.namespace},
         "message": f"can't pull https://me:{SECRET}@registry/x"},
        {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e2"}, "reason": "Other",
         "involvedObject": {"kind": "Secret", "name": "s", "namespace": kubectl.namespace},
         "message": SECRET},
    )  # fmt: skip
    config = {"spec": {"scheduler": {"config": {"s3": {"key": SECRET}}}}}
    kubectl("patch", "dap", "demo", "--type=merge", "-p", json.dumps(config))
    worker = {"spec": {"worker": {"spec": {"containers": [container]}}}}
    kubectl("patch", "daskcluster", "demo", "--type=merge", "-p", json.dumps(worker))
    say(kubectl, message=f"the proxy wants authorization: Bearer {SECRET}")
    keep(kubectl, decision(time.time(), f"token={SECRET}"))


def test_no_planted_secret_is_in_a_report(run: Run, kubectl: Kubectl, tmp_path: Path) -> None:
    strew(kubectl)
    told = run("report", "-o", str(tmp_path / "r.zip"))

    assert 0 == told.exit_code, told.output
    assert "look into it before you send it" in told.output
    with zipfile.ZipFile(tmp_path / "r.zip") as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert not [name for name, text in files.items() if SECRET in text]
    objects = {n.removesuffix(".json"): json.loads(t) for n, t in files.items() if "/" not in n}
    assert ["w1"] == [pod["metadata"]["name"] for pod in objects["pods"]]
    assert ["w1"] == [d["metadata"]["name"] for d in objects["deployments"]]
    assert ["demo"] == [p["metadata"]["name"] for p in objects["policies"]]
    assert ["Failed"] == [e["reason"] for e in objects["events"]], "about our kinds alone"
    assert 1 == len(objects["history"])
    assert objects["manifest"]["never in"]


def test_record_says_that_there_is_no_scheduler(run: Run, tmp_path: Path) -> None:
    none = run("record", "demo", "-o", str(tmp_path / "t.jsonl"), "--for", "2s")
    assert (1, True) == (none.exit_code, "nothing was recorded" in none.output)
