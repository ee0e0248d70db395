"""The rules of `check`: what is in order, what is not, and that each fault says how to mend it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.cli import check_install, check_rules
from dask_adaptive.cli.check import lines_of
from dask_adaptive.cli.check_facts import OURS, THEIRS, Facts, Missing, crd_names
from dask_adaptive.cli.check_finding import Level
from dask_adaptive.cli.check_rules import findings
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.reason import Reason
from support.golden import compare

Json = dict[str, Any]

#: The release that this program has for these tests.
OURS_IS = "1.2.3"


@pytest.fixture(autouse=True)
def _one_release(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (check_install, check_rules):
        monkeypatch.setattr(module, "__version__", OURS_IS)


def deployment(name: str, *, ready: int = 1, version: str = OURS_IS) -> Json:
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/version": version}
    return {
        "metadata": {"namespace": "system", "name": name, "labels": labels},
        "spec": {"replicas": 1, "template": {"spec": {"serviceAccountName": name}}},
        "status": {"readyReplicas": ready},
    }


def crd(name: str, *lacks: str, scale: bool = True) -> Json:
    fields = ("clusterRef", "maxReplicas", "pins", "recycle", "scheduler", "behavior", "schedules",
              "idle", "fallback", "worker", "cluster")  # fmt: skip
    spec: Json = {f: {} for f in fields if f not in lacks}
    if "worker" in spec:
        spec["worker"] = {"properties": {} if "replicas" in lacks else {"replicas": {}}}
    version = {
        "name": "v1", "served": True,
        "schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": spec}}}},
        "subresources": {"scale": {}} if scale else {},
    }  # fmt: skip
    return {"metadata": {"name": name}, "spec": {"versions": [version]}}


def policy(name: str = "etl", cluster: str = "etl", **status: Any) -> Json:
    usual = {"reason": "DesiredWithinRange", "message": "2 workers wanted and there"}
    return {
        "metadata": {"namespace": "team", "name": name},
        "spec": {"clusterRef": {"name": cluster}, "maxReplicas": 5},
        "status": {**usual, **status},
    }


def pod(component: str, **more: Any) -> Json:
    labels = {"dask.org/cluster-name": "etl", "dask.org/component": component}
    notes = {"dask-adaptive.dev/injected": "0.1.0", **more.pop("annotations", {})}
    meta = {"name": f"etl-{component}", "labels": labels, "annotations": notes}
    return {"metadata": meta, "spec": {"containers": [{"name": component, **more}]}}


WEBHOOK = {
    "webhooks": [
        {"clientConfig": {"caBundle": "x", "service": {"namespace": "system", "name": "hook"}}}
    ]
}
AGENT = ObservedScheduler(distributed="2026.8.0", agent=OURS_IS)
FINE = Facts(
    namespace="team",
    crds={name: crd(name) for name in crd_names()},
    operators=[deployment("dask-adaptive-operator")],
    upstream=[deployment("dask-kubernetes-operator", version="2026.3.0")],
    lease={"spec": {"holderIdentity": "operator-1"}},
    webhooks=[WEBHOOK],
    webhook_ready=1,
    policies=[policy()],
    clusters=[{"metadata": {"name": "etl"}}],
    groups=[],
    autoscalers=[],
    quotas=[{"metadata": {"name": "q"}, "status": {"hard": {"pods": "5"}, "used": {"pods": "2"}}}],
    workers=[pod("scheduler"), pod("worker")],
    our_rights=dict.fromkeys(OURS, True),
    their_rights=dict.fromkeys(THEIRS, True),
    schedulers={"etl": AGENT},
)
GONE, HIDDEN = Missing("not found", is_absent=True), Missing("may not list")


def test_golden_all_in_order() -> None:
    found = findings(FINE)

    assert {Level.OK} == {f.level for f in found}
    compare("check", lines_of(found))


NOT_READY = {"type": "Ready", "status": "False", "reason": "OwnershipConflict", "message": "two"}
CASES = [
    ("crd", {"crds": {**FINE.crds, crd_names()[0]: GONE}}, Level.ERROR, "is not installed"),
    ("crd-hidden", {"crds": {**FINE.crds, crd_names()[0]: HIDDEN}}, Level.WARNING, "not known"),
    (
        "crd-old", {"crds": {**FINE.crds, crd_names()[0]: crd("x", "behavior", "idle")}},
        Level.ERROR, "lacks spec.behavior, spec.idle",
    ),
    (
        "upstream-crd-old",
        {"crds": {**FINE.crds, crd_names()[2]: crd("x", "replicas", scale=False)}},
        Level.ERROR, "lacks the subresource scale, spec.worker.replicas",
    ),
    ("no-operator", {"operators": []}, Level.ERROR, "operator: is not installed"),
    ("operators-hidden", {"operators": HIDDEN}, Level.WARNING, "operator: not known"),
    (
        "operator-down", {"operators": [deployment("o", ready=0)]}, Level.ERROR,
        "system/o: 0 of 1 replicas ready",
    ),
    (
        "operator-of-another-release", {"operators": [deployment("o", version="9.9")]},
        Level.WARNING, "is 9.9, this program",
    ),
    (
        "two-operators", {"operators": [deployment("o"), deployment("p")]}, Level.WARNING,
        "installed 2 times: system/o, system/p",
    ),
    ("no-lease", {"lease": GONE}, Level.ERROR, "leader: there is none"),
    ("nobody-leads", {"lease": {"spec": {"holderIdentity": ""}}}, Level.ERROR, "no replica leads"),
    ("no-webhook", {"webhooks": []}, Level.WARNING, "is not registered"),
    (
        "webhook-untrusted", {"webhooks": [{"webhooks": [{"clientConfig": {}}]}]}, Level.ERROR,
        "has no caBundle",
    ),
    ("webhook-silent", {"webhook_ready": 0}, Level.ERROR, "nobody answers it"),
    ("no-upstream", {"upstream": []}, Level.WARNING, "was not found"),
    (
        "upstream-down", {"upstream": [deployment("u", ready=0)]}, Level.ERROR, "0 of 1",
    ),
    ("no-policy", {"policies": []}, Level.WARNING, "there is none in namespace team"),
    (
        "two-policies", {"policies": [policy("a"), policy("b")]}, Level.ERROR,
        "several policies: a, b",
    ),
    (
        "bad-policy",
        {"policies": [{**policy(), "spec": {"clusterRef": {"name": "etl"}, "maxReplicas": -1}}]},
        Level.ERROR, "maxReplicas",
    ),
    ("no-cluster", {"clusters": []}, Level.WARNING, "there is no DaskCluster etl"),
    ("not-looked-at", {"policies": [{**policy(), "status": {}}]}, Level.ERROR, "has not looked"),
    (
        "not-ready", {"policies": [policy(conditions=[NOT_READY])]}, Level.ERROR,
        "Ready=False, OwnershipConflict: two",
    ),
    (
        "autoscaler",
        {"policies": [policy(conditions=[NOT_READY])],
         "autoscalers": [{"metadata": {"name": "etl"}, "spec": {"cluster": "etl"}}]},
        Level.ERROR, "DaskAutoscaler etl: scales etl next to its policy",
    ),
    (
        "no-agent",
        {"schedulers": {"etl": ObservedScheduler(problem=Reason.AGENT_MISSING, message="none")}},
        Level.WARNING, "runs without the agent",
    ),
    (
        "protocol",
        {"schedulers": {"etl": ObservedScheduler(
            problem=Reason.PROTOCOL_MISMATCH, message="its agent speaks protocol 9")}},
        Level.ERROR, "speaks protocol 9",
    ),
    (
        "agent-of-another-release",
        {"schedulers": {"etl": dataclasses.replace(AGENT, agent="9.9")}}, Level.WARNING,
        "agent 9.9, injected",
    ),
    (
        "not-reached", {"schedulers": {"etl": ObservedScheduler(message="kubectl is not there")}},
        Level.WARNING, "kubectl is not there",
    ),
    (
        "tls", {"workers": [pod("scheduler", args=["dask-scheduler", "--protocol", "tls"])]},
        Level.ERROR, "wants TLS",
    ),
    (
        "pin", {"workers": [pod("worker", annotations={"dask-adaptive.dev/pin": "soon"})]},
        Level.ERROR, "pin of pod etl-worker: the pin 'soon' is none of",
    ),
    (
        "quota",
        {"quotas": [{"metadata": {"name": "q"}, "status": {
            "hard": {"limits.cpu": "2"}, "used": {"limits.cpu": "2000m"}}}]},
        Level.WARNING, "is used up: limits.cpu 2000m of 2",
    ),
    (
        "our-rights", {"our_rights": {**FINE.our_rights, OURS[0]: False}}, Level.WARNING,
        "your rights: may not list adaptivepolicies",
    ),
    (
        "their-rights", {"their_rights": {**FINE.their_rights, THEIRS[4]: False}}, Level.ERROR,
        "the operator's rights: may not patch daskworkergroups/scale",
    ),
    (
        "nobody-says", {"their_rights": dict.fromkeys(THEIRS)}, Level.WARNING, "does not say",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "level", "said"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_fault(change: Json, level: Level, said: str) -> None:
    found = findings(dataclasses.replace(FINE, **change))

    faults = [f for f in found if f.level is not Level.OK]
    assert any(f.level is level and said in f"{f.what}: {f.message}" for f in faults), faults
    assert all(f.mend for f in faults)
    assert level is Level.ERROR or not any(f.level is Level.ERROR for f in found)


def test_golden_all_wrong() -> None:
    changes: Json = {}
    for _, change, *_ in CASES:
        changes |= change
    compare("check-wrong", lines_of(findings(dataclasses.replace(FINE, **changes))))


def test_golden_nothing_may_be_seen() -> None:
    blind = {
        name: HIDDEN
        for name in ("operators", "upstream", "lease", "webhooks", "webhook_ready", "policies",
                     "clusters", "groups", "autoscalers", "quotas", "workers")
    }  # fmt: skip
    facts = dataclasses.replace(
        FINE, crds=dict.fromkeys(crd_names(), HIDDEN), our_rights={}, their_rights={},
        schedulers={}, **blind,
    )  # fmt: skip
    found = findings(facts)

    assert {Level.WARNING} == {f.level for f in found}
    compare("check-blind", lines_of(found))
