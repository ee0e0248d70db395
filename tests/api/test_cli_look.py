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

from dask_adaptive.kube.api import CONFIG_MAPS, EVENTS, SECRETS, Json
from dask_adaptive.kube.objects import parse_policy_object
from dask_adaptive.kube.status_json import history_body
from dask_adaptive.model.plan import Decision, Step
from dask_adaptive.model.reason import Reason
from support.kube_bodies import body, cluster_of_one, labels_of, pod
from support.kube_server import Kubectl
from support.shown_policies import STATUS

Run = Callable[..., Result]
SECRET = "hunter2-planted"

#: Conditions of an object have times, which those that are shown have not.
SHOWN = {key: value for key, value in STATUS.items() if key != "conditions"}
LAST = STATUS["lastDecision"]["message"]


@pytest.fixture(autouse=True)
def _told(demo: None, kubectl: Kubectl) -> None:
    say(kubectl, **SHOWN)


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

    assert [LAST] == told(), "the status has the last one"
    now = time.time()
    keep(kubectl, decision(now - 7200, "long ago"), decision(now - 60, "just now"))
    assert [LAST, "long ago", "just now"] == told()


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


def event(kubectl: Kubectl, kind: str, name: str, reason: str, message: str) -> Json:
    about = {"kind": kind, "name": name, "namespace": kubectl.namespace}
    made = body(EVENTS, f"about-{name}")
    return {**made, "involvedObject": about, "reason": reason, "message": message}


def strew(kubectl: Kubectl) -> None:
    """Secrets wherever people put them."""
    container = {
        "name": "worker", "image": "x", "args": ["dask-worker", "--password", SECRET],
        "command": ["sh", "-c", f"login {SECRET}"],
        "env": [{"name": "API_TOKEN", "value": SECRET}, {"name": "HOME", "value": SECRET}],
    }  # fmt: skip
    spec = {"containers": [container], "imagePullSecrets": [{"name": SECRET}],
            "volumes": [{"name": "v", "secret": {"secretName": SECRET}}]}  # fmt: skip
    marks: dict[str, Any] = {"labels": {**labels_of("worker", "demo"), "team": SECRET}}
    notes = {"mine": SECRET, "dask-adaptive.dev/pin-reason": f"password={SECRET}"}
    deployment = cluster_of_one("w1", spec, name="demo")[-1]
    deployment["metadata"] |= {**marks, "annotations": {"mine": SECRET}}
    kubectl.apply(
        pod("w1", spec, annotations=notes, **marks),
        {**body(SECRETS, "s"), "stringData": {"k": SECRET}},
        {**body(CONFIG_MAPS, "demo-other"), "data": {"k": SECRET}},
        deployment,
        event(kubectl, "Pod", "w1", "Failed", f"can't pull https://me:{SECRET}@registry/x"),
        event(kubectl, "Secret", "s", "Other", SECRET),
    )
    config = {"spec": {"scheduler": {"config": {"s3": {"key": SECRET}}}}}
    kubectl("patch", "dap", "demo", "--type=merge", "-p", json.dumps(config))
    worker = {"spec": {"worker": {"spec": {"containers": [container]}}}}
    kubectl("patch", "daskcluster", "demo", "--type=merge", "-p", json.dumps(worker))
    say(kubectl, message=f"the proxy wants authorization: Bearer {SECRET}")
    keep(kubectl, decision(time.time(), f"token={SECRET}"))


def test_no_planted_secret_is_in_a_report(run: Run, kubectl: Kubectl, tmp_path: Path) -> None:
    strew(kubectl)
    told = run("report", "-f", str(tmp_path / "r.zip"))

    assert 0 == told.exit_code, told.output
    assert "review it" in told.output
    with zipfile.ZipFile(tmp_path / "r.zip") as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert not [name for name, text in files.items() if SECRET in text]
    objects = {n.removesuffix(".json"): json.loads(t) for n, t in files.items() if "/" not in n}
    assert ["w1"] == [p["metadata"]["name"] for p in objects["pods"]]
    assert ["w1"] == [d["metadata"]["name"] for d in objects["deployments"]]
    assert ["demo"] == [p["metadata"]["name"] for p in objects["policies"]]
    assert ["Failed"] == [e["reason"] for e in objects["events"]], "about our kinds alone"
    assert 1 == len(objects["history"])


def test_record_says_that_there_is_no_scheduler(run: Run, tmp_path: Path) -> None:
    none = run("record", "demo", "-f", str(tmp_path / "t.jsonl"), "--for", "2s")
    assert (1, True) == (none.exit_code, "nothing was recorded" in none.output)
