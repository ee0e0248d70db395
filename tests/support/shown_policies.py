"""AdaptivePolicies as the API server has them, with all that a status may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

STATUS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("shown_status.yaml").read_text())


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
