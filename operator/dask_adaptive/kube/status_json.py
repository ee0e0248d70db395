"""A `Status` as the JSON of an AdaptivePolicy's status, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dask_adaptive.kube.api import Json
from dask_adaptive.loop.status import Condition, Status

_LONGEST = 1024  # characters of a message; Kubernetes allows 32768 in a condition


def status_json(status: Status, *, generation: int, before: Mapping[str, Any], now: str) -> Json:
    """
    Render a status for a merge patch: every key is there each time, and lists replace lists.

    Args:
        generation: Of the spec that was acted upon.
        before: The status as it stands, for the times of conditions that did not change.
        now: The instant that stamps conditions that did.
    """
    return {
        "observedGeneration": generation,
        "replicas": status.replicas,
        "desiredReplicas": status.desired,
        "wantedReplicas": status.wanted,
        "target": status.target,
        "connected": status.connected,
        "pending": status.pending,
        "idle": status.idle,
        "busy": status.busy,
        "pinned": status.pinned,
        "retiring": status.retiring,
        "reason": str(status.reason),
        "message": _cut(status.message),
        "pins": [{"source": source, "workers": n} for source, n in status.pins],
        "blockers": [{"reason": str(reason), "workers": n} for reason, n in status.blockers],
        "pendingReasons": [
            {"reason": _cut(why), "workers": n} for why, n in status.pending_reasons
        ],
        "workers": [
            {
                "name": row.name,
                "pod": row.pod,
                "state": row.state,
                "reason": str(row.reason),
                "message": _cut(row.message),
            }
            for row in status.workers
        ],
        "scheduler": {"distributed": status.distributed, "agent": status.agent},
        "conditions": conditions_json(
            status.conditions, before.get("conditions") or [], generation=generation, now=now
        ),
    }


def conditions_json(
    conditions: Iterable[Condition],
    before: Iterable[Mapping[str, Any]],
    *,
    generation: int,
    now: str,
) -> list[Json]:
    """Conditions as Kubernetes writes them; `lastTransitionTime` moves only with `status`."""
    old = {c.get("type"): c for c in before}
    rendered = []
    for condition in conditions:
        word = {True: "True", False: "False", None: "Unknown"}[condition.status]
        last = old.get(condition.type, {})
        unchanged = last.get("status") == word and last.get("lastTransitionTime")
        rendered.append(
            {
                "type": condition.type,
                "status": word,
                "reason": str(condition.reason),
                "message": _cut(condition.message),
                "lastTransitionTime": last["lastTransitionTime"] if unchanged else now,
                "observedGeneration": generation,
            }
        )
    return rendered


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
