"""The rules of `check`: what is in order, what is not, and that each fault says how to fix it."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive.cli import check
from dask_adaptive.cli.check import CRD_NAMES, ERROR, OK, WARNING, Missing, findings, lines_of
from dask_adaptive.cli.status_view import PolicyView, views_of
from support import shown_policies
from support.golden import compare_text, rendered

Json = dict[str, Any]

#: The release that this program has for these tests.
OURS_IS = "1.2.3"


@pytest.fixture(autouse=True)
def _one_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "__version__", OURS_IS)


def deployment(name: str, *, ready: int = 1, version: str = OURS_IS) -> Json:
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/version": version}
    return {
        "metadata": {"namespace": "system", "name": name, "labels": labels},
        "spec": {"replicas": 1, "template": {"spec": {"serviceAccountName": name}}},
        "status": {"readyReplicas": ready},
    }


def crd(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"versions": [{"name": "v1", "served": True}]}}


def webhook(**client: str) -> list[Json]:
    return [{"webhooks": [{"clientConfig": client}]}]


def policy(*conditions: Json, **status: Any) -> PolicyView:
    usual = {"reason": "DesiredWithinRange", "message": "2 workers wanted and present"}
    seen = {**usual, "scheduler": {"agent": OURS_IS}, "conditions": list(conditions), **status}
    return views_of([shown_policies.policy(seen, name="etl")])[0]


UNSEEN = {key: part for key, part in policy().body.items() if key != "status"}


def condition(kind: str, status: str, reason: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": "so it is"}


def worker(reason: str, message: str) -> Json:
    return {"name": "w1", "reason": reason, "message": message}


FINE: Json = {
    **{f"CRD {name}": crd(name) for name in CRD_NAMES},
    "operator": [deployment("dask-adaptive-operator")],
    "leader": {"spec": {"holderIdentity": "operator-1"}},
    "webhook": webhook(caBundle="x"),
    "dask-kubernetes": [deployment("dask-kubernetes-operator", version="2026.3.0")],
    "policies": [
        policy(
            condition("Ready", "True", "Reconciled"),
            condition("ScalingLimited", "True", "TooManyReplicas"),
            condition("Injected", "Unknown", "SchedulerUnreachable"),
        )
    ],
}
GONE, HIDDEN = Missing("not found", is_absent=True), Missing("may not list")


def test_all_in_order() -> None:
    assert {OK} == {f.level for f in findings(FINE)}


OURS = f"CRD {CRD_NAMES[0]}"
CASES = [
    ("crd", {OURS: GONE}, ERROR, "is missing"),
    ("crd-hidden", {OURS: HIDDEN}, WARNING, "cannot be read: may not list"),
    ("upstream-crd", {f"CRD {CRD_NAMES[2]}": GONE}, ERROR, "is missing"),
    ("no-operator", {"operator": []}, ERROR, "operator: is not installed"),
    ("operators-hidden", {"operator": HIDDEN}, WARNING, "operator: cannot be read"),
    ("operator-down", {"operator": [deployment("o", ready=0)]}, ERROR,
     "system/o: 0 of 1 replicas ready"),
    ("operator-of-another-release", {"operator": [deployment("o", version="9.9")]},
     WARNING, "is version 9.9, this program"),
    ("no-lease", {"leader": GONE}, ERROR, "leader: is missing"),
    ("nobody-leads", {"leader": {"spec": {"holderIdentity": ""}}}, ERROR, "is the leader"),
    ("no-webhook", {"webhook": []}, WARNING, "is not registered"),
    ("webhook-untrusted", {"webhook": webhook()}, ERROR, "has no caBundle"),
    ("no-upstream", {"dask-kubernetes": []}, WARNING, "no operator with its label"),
    ("upstream-down", {"dask-kubernetes": [deployment("u", ready=0)]}, ERROR, "0 of 1"),
    ("no-policy", {"policies": []}, WARNING, "the namespace has none"),
    ("not-looked-at", {"policies": views_of([UNSEEN])}, ERROR, "has not processed"),
    *(
        (reason, {"policies": [policy(condition(kind, status, reason))]}, level,
         f"{kind}={status}, {reason}: so it is")
        for kind, status, reason, level in (
            ("Ready", "False", "OwnershipConflict", ERROR),
            ("Ready", "False", "ClusterNotFound", WARNING),
            ("SchedulerConnected", "False", "AgentMissing", WARNING),
            ("Injected", "False", "AgentMissing", WARNING),
            ("SchedulerConfigured", "False", "PendingRestart", WARNING),
            ("AbleToScale", "False", "ActionFailed", ERROR),
            ("ScalingLimited", "True", "QuotaExceeded", WARNING),
            ("Paused", "True", "InvalidAnnotation", WARNING),
        )
    ),
    ("pin", {"policies": [policy(workers=[worker("InvalidAnnotation", "'soon' is none of")])]},
     ERROR, "worker w1: 'soon' is none of"),
    ("agent-of-another-release", {"policies": [policy(scheduler={"agent": "9.9"})]},
     WARNING, "its scheduler has agent 9.9"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "level", "said"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_fault(change: Json, level: str, said: str) -> None:
    found = findings({**FINE, **change})

    faults = [f for f in found if f.level != OK]
    assert any(f.level == level and said in f"{f.what}: {f.message}" for f in faults), faults
    assert all(f.fix for f in faults)
    assert level == ERROR or not any(f.level == ERROR for f in found)


def test_all_wrong_is_golden() -> None:
    changes: Json = {}
    for _, change, *_ in CASES:
        changes |= {**change, "policies": changes.get("policies", []) + change.get("policies", [])}
    found = findings({**FINE, **changes})

    compare_text("check.txt", rendered(lines_of(found), colours=False))


def test_nothing_may_be_seen() -> None:
    assert {WARNING} == {f.level for f in findings(dict.fromkeys(FINE, HIDDEN))}
