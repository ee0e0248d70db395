"""The decisions of one policy as a ConfigMap keeps them: JSON lines, oldest first. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.kube.api import Json
from dask_adaptive.kube.inject import MANAGED_LABELS
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.kube.resources import CONFIG_MAPS, POLICIES
from dask_adaptive.model.history import KEPT, Decision, Step
from dask_adaptive.model.pins import read_instant
from dask_adaptive.model.reason import Reason

#: Of the ConfigMap's `data`.
KEY = "decisions.jsonl"

#: On our ConfigMaps, and on no other; the value is of no meaning.
HISTORY_LABEL = f"{DOMAIN}/history"

#: The API server refuses a ConfigMap above 1 MiB, and etcd a request above 1.5 MiB.
MOST_BYTES = 700_000

_SUFFIX = "-adaptive-history"
_LONGEST_NAME = 253
_LONGEST_TEXT = 1000  # characters of one message; more says nothing more


def history_name(policy: str) -> str:
    """The ConfigMap of a policy; the API server refuses names above 253 characters."""
    if len(policy) + len(_SUFFIX) <= _LONGEST_NAME:
        return policy + _SUFFIX
    digest = hashlib.sha256(policy.encode()).hexdigest()[:8]
    return f"{policy[: _LONGEST_NAME - len(_SUFFIX) - 9]}-{digest}{_SUFFIX}"


def decision_json(decision: Decision) -> Json:
    """A decision as JSON; `decision_of` reads it, but for inputs that are no finite numbers."""
    return {
        "at": datetime.fromtimestamp(decision.at, timezone.utc)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z"),
        "group": decision.group,
        "before": decision.before,
        "wanted": decision.wanted,
        "desired": decision.desired,
        "reason": str(decision.reason),
        "message": decision.message[:_LONGEST_TEXT],
        "outcome": decision.outcome[:_LONGEST_TEXT],
        "askedBy": decision.asked_by,
        "inputs": {
            name: round(float(value), 3)
            for name, value in decision.inputs.items()
            if math.isfinite(value)  # JSON has no word for the others
        },
        "steps": [
            {
                "stage": step.stage,
                "replicas": step.replicas,
                "reason": str(step.reason),
                "message": step.message[:_LONGEST_TEXT],
            }
            for step in decision.steps
        ],
    }


def decision_of(body: Mapping[str, Any]) -> Decision | None:
    """Read one decision; None if it is none that this version could have written."""
    try:
        at = read_instant(body["at"])
        if at is None:
            return None
        return Decision(
            at=at,
            group=str(body["group"]),
            before=int(body["before"]),
            wanted=int(body["wanted"]),
            desired=int(body["desired"]),
            reason=Reason(body["reason"]),
            message=str(body["message"]),
            outcome=str(body.get("outcome", "")),
            asked_by=str(body.get("askedBy", "load")),
            inputs={str(k): float(v) for k, v in (body.get("inputs") or {}).items()},
            steps=tuple(map(_step_of, body.get("steps") or ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _step_of(body: Mapping[str, Any]) -> Step:
    return Step(
        stage=str(body["stage"]),
        replicas=int(body["replicas"]),
        reason=Reason(body["reason"]),
        message=str(body["message"]),
    )


def history_of(config_map: Mapping[str, Any]) -> tuple[Decision, ...]:
    """All decisions in a ConfigMap that can be read, oldest first."""
    return tuple(d for d in map(_decision_in, _lines(config_map)) if d is not None)


def unreadable(config_map: Mapping[str, Any]) -> int:
    """How many lines of a ConfigMap are no decisions."""
    return sum(_decision_in(line) is None for line in _lines(config_map))


def merged(*several: Iterable[Decision]) -> tuple[Decision, ...]:
    """All decisions of several lists, each once, oldest first."""
    found = {
        (round(d.at, 3), d.group, d.message[:_LONGEST_TEXT], d.outcome[:_LONGEST_TEXT]): d
        for decisions in several
        for d in decisions
    }
    return tuple(sorted(found.values(), key=lambda d: d.at))


def _lines(config_map: Mapping[str, Any]) -> list[str]:
    data = config_map.get("data")
    text = data.get(KEY) if isinstance(data, Mapping) else None
    # Not splitlines(): a message may hold a line separator that JSON leaves as it is.
    return [line for line in str(text or "").split("\n") if line.strip()]


def _decision_in(line: str) -> Decision | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return decision_of(body) if isinstance(body, dict) else None


def history_body(policy: PolicyObject, decisions: Iterable[Decision]) -> Json:
    """The ConfigMap with the youngest of these decisions, as many as are kept and fit."""
    return {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": {
            "name": history_name(policy.meta.name),
            "namespace": policy.meta.namespace,
            "labels": {**MANAGED_LABELS, HISTORY_LABEL: "true"},
            "ownerReferences": [
                {
                    "apiVersion": POLICIES.api_version,
                    "kind": POLICIES.kind,
                    "name": policy.meta.name,
                    "uid": policy.meta.uid,
                }
            ],
        },
        "data": {KEY: _text(decisions)},
    }


def _text(decisions: Iterable[Decision]) -> str:
    """Lines, each with its newline; `MOST_BYTES` at most as they are sent, which is in JSON."""
    kept: list[str] = []
    left = MOST_BYTES
    for decision in reversed(list(decisions)[-KEPT:]):
        line = json.dumps(decision_json(decision), separators=(",", ":"), ensure_ascii=False) + "\n"
        left -= len(json.dumps(line).encode())
        if left < 0:
            break
        kept.append(line)
    return "".join(reversed(kept))
