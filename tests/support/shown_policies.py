"""AdaptivePolicies as the API server has them, with all that a status may say."""

from __future__ import annotations

from typing import Any

DECISION: dict[str, Any] = {
    "at": "2026-02-01T10:00:00Z", "group": "etl-default", "before": 8, "wanted": 3, "desired": 5,
    "reason": "Underutilized", "message": "8 workers, 5 desired: 3 idle ones leave",
    "outcome": "Done", "askedBy": "load",
    "inputs": {"queued": 0, "processing": 4, "arrival_s": 12.5},
    "steps": [
        {"stage": "load", "replicas": 3, "reason": "DesiredWithinRange", "message": "12 s of work"},
        {"stage": "window", "replicas": 5, "reason": "ScaleDownStabilized",
         "message": "5 were wanted 40s ago"},
    ],
}  # fmt: skip

STATUS: dict[str, Any] = {
    "replicas": 8, "desiredReplicas": 5, "wantedReplicas": 3, "connected": 8, "pending": 0,
    "idle": 4, "busy": 4, "pinned": 2, "retiring": 1,
    "reason": "Underutilized", "message": "8 workers, 5 desired: 1 idle ones leave",
    "groups": [
        {"name": "etl-default", "replicas": 8, "desiredReplicas": 5, "wantedReplicas": 3,
         "connected": 8, "pending": 0, "reason": "ScaleDownStabilized",
         "message": "3 wanted, 5 held until the fall has lasted idleTimeout"},
        {"name": "etl-gpu", "replicas": 2, "desiredReplicas": 2, "wantedReplicas": 4,
         "connected": 0, "pending": 2, "reason": "Unschedulable", "message": "0/3 nodes are free"},
    ],
    "lastDecision": DECISION,
    "scheduler": {"distributed": "2026.8.0", "agent": "0.1.0"},
    "heldBy": [
        {"source": "shuffle", "owner": "ab12", "workers": ["w1", "w2"], "count": 2,
         "until": "2026-02-01T11:00:00Z"},
        {"source": "client", "owner": "notebook", "reason": "a look",
         "workers": ["w1", "w2", "w3", "w4"], "count": 12},
    ],
    "blockers": {"Busy": 1, "Pinned": 2},
    "pendingReasons": {"Unschedulable": 2},
    "workers": [
        {"name": "w1", "state": "Active", "reason": "Pinned",
         "message": "pinned by shuffle ab12"},
        {"name": "w9", "state": "Draining", "reason": "Retiring",
         "message": "2 results to move"},
        {"name": "w7", "state": "Due", "reason": "Lifetime", "message": ""},
    ],
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "Reconciled", "message": "served"},
        {"type": "Injected", "status": "False", "reason": "InjectionRefused",
         "message": "namespace team is annotated inject=false"},
        {"type": "SchedulerConfigured", "status": "Unknown", "reason": "AgentMissing",
         "message": "nobody compares"},
        {"type": "ScalingLimited", "status": "True", "reason": "Unschedulable",
         "message": "0/3 nodes are free"},
        {"type": "Paused", "status": "False", "reason": "Reconciled", "message": "mode is Auto"},
    ],
}  # fmt: skip


def policy(
    status: dict[str, Any] | None = None, *, name: str = "etl-policy", **spec: Any
) -> dict[str, Any]:
    return {
        "kind": "AdaptivePolicy",
        "metadata": {"namespace": "team", "name": name},
        "spec": {"clusterRef": {"name": "etl"}, "maxReplicas": 20, **spec},
        **({"status": status} if status is not None else {}),
    }


GPU = {"workerGroups": [{"name": "etl-gpu", "minReplicas": 1, "maxReplicas": 4}]}
HELD = {
    **STATUS,
    "conditions": [
        *STATUS["conditions"][:-1],
        {"type": "Paused", "status": "True", "reason": "ScalingPaused", "message": "by kubectl"},
    ],
}
#: Of an operator that tells of no groups and no decisions yet.
OLD = {k: v for k, v in STATUS.items() if k not in ("groups", "lastDecision")}
