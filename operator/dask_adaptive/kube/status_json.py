"""
A `Status` as the JSON of an AdaptivePolicy's status, and its decisions as the JSON lines of a
ConfigMap (oldest first); and back. Pure.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.kube.api import CONFIG_MAPS, POLICIES, Json
from dask_adaptive.kube.inject import MANAGED_LABELS
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.loop.status import Condition, GroupRow, HeldBy, Status, steady
from dask_adaptive.model.amounts import instant, read_instant
from dask_adaptive.model.plan import KEPT, Decision, Step
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.number.idle_time import IdleTime
from dask_adaptive.text import plain

_LONGEST = 1024  # characters of a message; Kubernetes allows 32768 in a condition


def status_json(status: Status, *, before: Mapping[str, Any], now: str) -> Json:
    """
    Render a status for a merge patch: every key is there each time, and lists replace lists.

    Args:
        before: The status as it stands, for the times of conditions that did not change.
        now: The instant that stamps conditions that did.
    """
    return {
        "observedGeneration": status.generation,
        "replicas": status.replicas,
        "desiredReplicas": status.desired,
        "wantedReplicas": status.wanted,
        "connected": status.connected,
        "pending": status.pending,
        "idle": status.idle,
        "busy": status.busy,
        "pinned": status.pinned,
        "retiring": status.retiring,
        "reason": str(status.reason),
        "message": _cut(status.message),
        "heldBy": held_json(status.held_by, before.get("heldBy") or [], now=now),
        "blockers": _instead(before.get("blockers"), {str(r): n for r, n in status.blockers}),
        "pendingReasons": _instead(
            before.get("pendingReasons"), {_cut(why): n for why, n in status.pending_reasons}
        ),
        "workers": _rows(status.workers, "name", "state", "reason", "message"),
        "groups": [_group_json(row) for row in status.groups],
        **_optional("lastDecision", _decision_json(status.last_decision, before), before),
        "recycled": {str(reason): n for reason, n in status.recycled},
        "recentRecycles": [instant(at) for at in status.recent],
        "scheduler": {
            "distributed": _cut(status.distributed),
            "agent": _cut(status.agent),
            "tlsSecretName": status.tls_secret,
            "relief": _instead(
                (before.get("scheduler") or {}).get("relief"),
                {_cut(row.name): _cut(row.state) for row in status.relief},
            ),
        },
        "conditions": conditions_json(
            status.conditions, before.get("conditions") or [], generation=status.generation, now=now
        ),
    }


def unable_json(ready: Condition, *, generation: int, before: Mapping[str, Any], now: str) -> Json:
    """The same where no pass could be made. Other conditions stay those of an earlier spec."""
    old: Sequence[Json] = before.get("conditions") or []
    (row,) = conditions_json([ready], old, generation=generation, now=now)
    return {
        **before,
        "observedGeneration": generation,
        "reason": str(ready.reason),
        "message": _cut(ready.message),
        "conditions": [row, *(c for c in old if c.get("type") != ready.type)],
    }


def _rows(rows: Iterable[object], *fields: str) -> list[Json]:
    """Rows of texts, and of nothing else."""
    return [{field: _cut(str(getattr(row, field))) for field in fields} for row in rows]


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
        **({} if row.idle is None else _idle_json(row.idle)),
    }


def _idle_json(idle: IdleTime) -> Json:
    return {"startSeconds": round(idle.start_s), "moveSeconds": round(idle.move_s)}


def idle_of(status: Mapping[str, Any]) -> dict[str, IdleTime]:
    """By group: what a status says that `idleTimeout: Auto` was made from."""
    found = {}
    for group in status.get("groups") or ():
        with suppress(KeyError):  # not Auto, or another version's
            found[group["name"]] = IdleTime(group["startSeconds"], group["moveSeconds"])
    return found


def _instead(old: Any, new: Json) -> Json:
    """
    A merge patch adds to objects: what is not in the new one is null. It replaces anything else,
    such as the lists that 0.1.0 wrote.
    """
    return {**dict.fromkeys(old if isinstance(old, Mapping) else ()), **new}


def _optional(key: str, value: Any, before: Mapping[str, Any]) -> Json:
    """In a merge patch null takes away what was there; what was not there is left out."""
    return {} if value is None and before.get(key) is None else {key: value}


def _decision_json(decision: Decision | None, before: Mapping[str, Any]) -> Json | None:
    if decision is None:
        return None
    written = decision_json(decision)
    old = (before.get("lastDecision") or {}).get("inputs") or {}
    return {**written, "inputs": _instead(old, written["inputs"])}


def last_decision_of(status: Mapping[str, Any]) -> Decision | None:
    """What a status says was decided last, for a process that has just begun."""
    written = status.get("lastDecision")
    if not isinstance(written, Mapping):
        return None
    figures = {k: v for k, v in (written.get("inputs") or {}).items() if v is not None}
    return decision_of({**written, "inputs": figures})


def leaving_of(status: Mapping[str, Any]) -> list[str]:
    """Workers that an earlier process had on their way out."""
    rows = status.get("workers") or []
    return [row["name"] for row in rows if row.get("state") in ("Draining", "Drained", "Going")]


def recycles_of(status: Mapping[str, Any]) -> tuple[dict[Reason, int], tuple[float, ...]]:
    """
    What a status says of recycles, for a process that has just begun: how many there were by
    reason, and when those of this hour began, in seconds since 1970.
    """
    words = {reason.value: reason for reason in Reason}
    counts = (status.get("recycled") or {}).items()
    totals = {words[word]: int(count) for word, count in counts if word in words}
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
            "source": _cut(row.source),
            "owner": _cut(row.owner),
            "reason": _cut(row.reason),
            "workers": list(map(_cut, row.workers)),
            "count": row.count,
        }
        claim = (written["source"], written["owner"], written["reason"])
        until = _until(row.left_s, now, old.get(claim))
        if until:
            written["until"] = until
        rendered.append(written)
    return rendered


def _until(left_s: float, now: str, written: str | None) -> str:
    seconds = read_instant(now)
    if seconds is None or left_s == math.inf:
        return ""
    return instant(steady(seconds + left_s, read_instant(written) if written else None))


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
    """Text as it is written: of schedulers and of annotations, it may hold anything."""
    text = plain(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


#: Of the ConfigMap's `data`.
KEY = "decisions.jsonl"

#: On our ConfigMaps, and on no other; the value is of no meaning.
HISTORY_LABEL = f"{DOMAIN}/history"

#: The API server refuses a ConfigMap above 1 MiB, and etcd a request above 1.5 MiB.
MOST_BYTES = 700_000

_SUFFIX = "-adaptive-history"
_LONGEST_NAME = 253


def history_name(policy: str) -> str:
    """The ConfigMap of a policy; the API server refuses names above 253 characters."""
    if len(policy) + len(_SUFFIX) <= _LONGEST_NAME:
        return policy + _SUFFIX
    digest = hashlib.sha256(policy.encode()).hexdigest()[:8]
    return f"{policy[: _LONGEST_NAME - len(_SUFFIX) - 9]}-{digest}{_SUFFIX}"


def decision_json(decision: Decision) -> Json:
    """A decision as JSON; `decision_of` reads it, but for inputs that are no finite numbers."""
    return {
        "at": datetime.fromtimestamp(decision.at, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z"),
        "group": decision.group,
        "before": decision.before,
        "wanted": decision.wanted,
        "desired": decision.desired,
        "reason": str(decision.reason),
        "message": _cut(decision.message),
        "outcome": _cut(decision.outcome),
        "askedBy": _cut(decision.asked_by),
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
                "message": _cut(step.message),
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


def merged(*several: Iterable[Decision]) -> tuple[Decision, ...]:
    """All decisions of several lists, each once, oldest first."""
    found = {
        (round(d.at, 3), d.group, _cut(d.message), _cut(d.outcome)): d
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
        **CONFIG_MAPS.head,
        "metadata": {
            "name": history_name(policy.meta.name),
            "namespace": policy.meta.namespace,
            "labels": {**MANAGED_LABELS, HISTORY_LABEL: "true"},
            "ownerReferences": [POLICIES.owner(policy.meta.name, policy.meta.uid)],
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
