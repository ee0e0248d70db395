"""A `Status` as the JSON of an AdaptivePolicy's status, and back. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dask_adaptive.kube.api import Json
from dask_adaptive.kube.history import decision_json, decision_of
from dask_adaptive.loop.held import SLACK_S
from dask_adaptive.loop.status import Condition, GroupRow, HeldBy, PauseRow, Status
from dask_adaptive.model.history import Decision
from dask_adaptive.model.pins import instant, read_instant
from dask_adaptive.model.recycle import Replacing

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
        "heldBy": held_json(status.held_by, before.get("heldBy") or [], now=now),
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
        "groups": [_group_json(row) for row in status.groups],
        **_optional("lastDecision", _decision_json(status.last_decision, before), before),
        **_optional("pause", _pause_json(status.pause, before), before),
        "recycled": {str(reason): n for reason, n in status.recycled},
        "recentRecycles": [instant(at) for at in status.recent],
        "replacing": [_replacing_json(row) for row in status.replacing],
        "scheduler": _scheduler_json(status),
        "conditions": conditions_json(
            status.conditions, before.get("conditions") or [], generation=generation, now=now
        ),
    }


def _scheduler_json(status: Status) -> Json:
    return {
        "distributed": status.distributed,
        "agent": status.agent,
        "relief": [
            {"name": row.name, "state": row.state, "message": _cut(row.message)}
            for row in status.relief
        ],
        "config": [
            {"key": _cut(row.key), "state": row.state, "message": _cut(row.message)}
            for row in status.config
        ],
    }


def _group_json(row: GroupRow) -> Json:
    return {
        "name": row.name,
        "replicas": row.replicas,
        "desiredReplicas": row.desired,
        "wantedReplicas": row.wanted,
        "connected": row.connected,
        "pending": row.pending,
        "reason": str(row.reason),
        "message": _cut(row.message),
    }


def _optional(key: str, value: Any, before: Mapping[str, Any]) -> Json:
    """In a merge patch null takes away what was there; what was not there is left out."""
    return {} if value is None and before.get(key) is None else {key: value}


def _pause_json(row: PauseRow | None, before: Mapping[str, Any]) -> Json | None:
    if row is None:
        return None
    until = None if row.until is None else instant(row.until)
    return {"message": _cut(row.message), **_optional("until", until, before.get("pause") or {})}


def _decision_json(decision: Decision | None, before: Mapping[str, Any]) -> Json | None:
    """A merge patch adds to objects: figures of the last decision that this one lacks are null."""
    if decision is None:
        return None
    written = decision_json(decision)
    old = (before.get("lastDecision") or {}).get("inputs") or {}
    return {**written, "inputs": {**dict.fromkeys(old), **written["inputs"]}}


def last_decision_of(status: Mapping[str, Any]) -> Decision | None:
    """What a status says was decided last, for a process that has just begun."""
    written = status.get("lastDecision")
    if not isinstance(written, Mapping):
        return None
    figures = {k: v for k, v in (written.get("inputs") or {}).items() if v is not None}
    return decision_of({**written, "inputs": figures})


def _replacing_json(row: Replacing) -> Json:
    return {
        "worker": row.worker,
        "reason": str(row.reason),
        "state": row.state,
        "message": _cut(row.message),
    }


def recycles_of(status: Mapping[str, Any]) -> tuple[dict[str, int], tuple[float, ...]]:
    """
    What a status says of recycles, for a process that has just begun: how many there were by
    reason, and when those of this hour began, in seconds since 1970.
    """
    totals = {str(reason): int(n) for reason, n in (status.get("recycled") or {}).items()}
    instants = map(read_instant, status.get("recentRecycles") or ())
    return totals, tuple(at for at in instants if at is not None)


def held_json(
    rows: Iterable[HeldBy], before: Iterable[Mapping[str, Any]], *, now: str
) -> list[Json]:
    """Who holds which workers; an end that moves by less than half a minute stays as written."""
    old = {(r.get("source"), r.get("owner"), r.get("reason")): r.get("until") for r in before}
    rendered = []
    for row in rows:
        written: Json = {
            "source": row.source,
            "owner": _cut(row.owner),
            "reason": _cut(row.reason),
            "workers": list(row.workers),
            "count": row.count,
        }
        until = _until(row.left_s, now, old.get((row.source, written["owner"], written["reason"])))
        if until:
            written["until"] = until
        rendered.append(written)
    return rendered


def _until(left_s: float, now: str, written: str | None) -> str:
    seconds = read_instant(now)
    if seconds is None or left_s == math.inf:
        return ""
    ends = seconds + left_s
    before = read_instant(written) if written else None
    return written if written and before and abs(ends - before) < SLACK_S else instant(ends)


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
