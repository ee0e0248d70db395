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
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from dask_adaptive import DOMAIN
from dask_adaptive.kube.api import CONFIG_MAPS, POLICIES, Json
from dask_adaptive.kube.inject import MANAGED_LABELS
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.loop.status import Condition, GroupRow, HeldBy, Status, WorkerRow, steady
from dask_adaptive.model.amounts import instant, read_instant
from dask_adaptive.model.plan import KEPT, Decision, Step
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.context import IdleTime
from dask_adaptive.text import plain

_LONGEST = 1024  # characters of a message; Kubernetes allows 32768 in a condition


_CODEC = Converter(detailed_validation=False)
_OMITTED = override(omit=True)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _declare(kind: Any, **others: Any) -> None:
    """Fields are written and read in camelCase, but for those of which `others` say otherwise."""
    names: Any = {f.name: override(rename=_camel(f.name)) for f in fields(kind)} | others
    _CODEC.register_unstructure_hook(kind, make_dict_unstructure_fn(kind, _CODEC, **names))
    _CODEC.register_structure_hook(kind, make_dict_structure_fn(kind, _CODEC, **names))


def status_json(status: Status, *, before: Mapping[str, Any], now: str) -> Json:
    """
    Render a status for a merge patch: every key is there each time, and lists replace lists.

    Args:
        before: The status as it stands, for the times of conditions that did not change.
        now: The instant that stamps conditions that did.
    """
    last = {"lastDecision": status.last_decision} if status.last_decision is not None else {}
    old: Sequence[Json] = before.get("conditions") or []
    new = {
        **_CODEC.unstructure(status),
        **_CODEC.unstructure(last),
        "heldBy": held_json(status.held_by, before.get("heldBy") or [], now=now),
        "blockers": {str(r): n for r, n in status.blockers},
        "pendingReasons": {_cut(why): n for why, n in status.pending_reasons},
        "groups": [_group_json(row) for row in status.groups],
        "recycled": {str(reason): n for reason, n in status.recycled},
        "recentRecycles": [instant(at) for at in status.recent],
        "scheduler": {
            "distributed": _cut(status.distributed),
            "agent": _cut(status.agent),
            "tlsSecretName": status.tls_secret,
            "relief": {_cut(row.name): _cut(row.state) for row in status.relief},
        },
        "conditions": conditions_json(
            status.conditions, old, generation=status.generation, now=now
        ),
    }
    return dict(_instead(before, new))


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


def _group_json(row: GroupRow) -> Json:
    idle = {} if row.idle is None else _CODEC.unstructure(row.idle)
    return {**_CODEC.unstructure(row), **idle}


def idle_of(status: Mapping[str, Any]) -> dict[str, IdleTime]:
    """By group: what a status says that `idleTimeout: Auto` was made from."""
    found = {}
    for group in status.get("groups") or ():
        with suppress(KeyError):  # not Auto, or another version's
            found[group["name"]] = IdleTime(group["startSeconds"], group["moveSeconds"])
    return found


def _instead(old: Any, new: Any) -> Any:
    """
    A merge patch adds to objects: what is not in the new one is null. It replaces anything else,
    such as the lists that 0.1.0 wrote.
    """
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    return dict.fromkeys(old) | {key: _instead(old.get(key), value) for key, value in new.items()}


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
        written: Json = _CODEC.unstructure(row)
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
    written: Json = _CODEC.unstructure(decision)
    return written


def decision_of(body: Mapping[str, Any]) -> Decision | None:
    """Read one decision; None if it is none that this version could have written."""
    try:
        return _CODEC.structure({k: v for k, v in body.items() if v is not None}, Decision)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _figures(inputs: Mapping[str, float]) -> dict[str, float]:
    """JSON has no word for numbers that are not finite."""
    return {n: round(float(value), 3) for n, value in inputs.items() if math.isfinite(value)}


def _written_at(at: float) -> str:
    said = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return said.replace("+00:00", "Z")


def _read_at(text: Any, _: type) -> float:
    at = read_instant(text)
    if at is None:
        raise ValueError(f"{text!r:.40} is no instant")
    return at


_NUMBERS = {
    "desired": override(rename="desiredReplicas"),
    "wanted": override(rename="wantedReplicas"),
}
_APART = (
    "held_by", "blockers", "pending_reasons", "groups", "last_decision", "recycled", "recent",
    "distributed", "agent", "tls_secret", "relief", "conditions",
)  # fmt: skip

_CODEC.register_unstructure_hook(str, lambda text: _cut(text))  # and so each Reason
_declare(Step)
_declare(
    Decision,
    at=override(unstruct_hook=_written_at, struct_hook=_read_at),
    asked_by=override(rename="askedBy"),
    inputs=override(unstruct_hook=_figures),
)
_declare(WorkerRow)
_declare(HeldBy, until=_OMITTED, left_s=_OMITTED)
_declare(
    IdleTime,
    start_s=override(rename="startSeconds", unstruct_hook=round),
    move_s=override(rename="moveSeconds", unstruct_hook=round),
)
_declare(GroupRow, idle=_OMITTED, **_NUMBERS)
_declare(
    Status,
    generation=override(rename="observedGeneration"),
    **_NUMBERS,
    **dict.fromkeys(_APART, _OMITTED),
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
