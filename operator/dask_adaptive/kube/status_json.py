"""
Renders a `Status` as a merge patch of an AdaptivePolicy, with transition times; and decisions as
JSON lines of a ConfigMap, oldest first. Pure.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.kube.api import CONFIG_MAPS, POLICIES, Json
from dask_adaptive.kube.objects import MANAGED_LABELS, PolicyObject
from dask_adaptive.loop.status import Condition, HeldBy, Status, steady
from dask_adaptive.model.amounts import read_instant
from dask_adaptive.model.codec import cut, encode, recover
from dask_adaptive.model.plan import KEPT, Decision


def read_status(written: Any) -> Status:
    """Read a status of any version, ignoring parts that cannot be read."""
    return recover(Status, written) or Status()


def status_json(status: Status, *, before: Mapping[str, Any], now: str) -> Json:
    """
    Render a status as a merge patch with every key; lists replace lists.

    Args:
        before: The status as it stands, for the times of what did not change.
        now: The instant that stamps what did.
    """
    old = read_status({key: before.get(key) for key in ("heldBy", "conditions")})
    conditions = stamped(status.conditions, old.conditions, generation=status.generation, now=now)
    dated = replace(status, held_by=_dated(status.held_by, old.held_by, now), conditions=conditions)
    patch: Json = merge_patch(before, encode(dated))
    return patch


def unable_json(ready: Condition, *, generation: int, before: Mapping[str, Any], now: str) -> Json:
    """Render a status without a pass; other conditions stay those of an earlier spec."""
    old = read_status({"conditions": before.get("conditions")}).conditions
    rows = map(encode, stamped([ready], old, generation=generation, now=now))
    others = (c for c in before.get("conditions") or () if c.get("type") != ready.type)
    return {
        **before,
        "observedGeneration": generation,
        "reason": ready.reason,
        "message": cut(ready.message),
        "conditions": [*rows, *others],
    }


def merge_patch(old: Any, new: Any) -> Any:
    """
    Return a merge patch that sets missing keys of objects to null; anything else is replaced, such
    as lists of 0.1.0.
    """
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    changed = {key: merge_patch(old.get(key), value) for key, value in new.items()}
    return dict.fromkeys(old) | changed


def _dated(rows: Iterable[HeldBy], before: Iterable[HeldBy], now: str) -> tuple[HeldBy, ...]:
    """Convert ends of pins to dates; one that moves by less than half a minute stays."""
    old = {row.key: row.until for row in before}
    at = read_instant(now) or math.inf
    return tuple(replace(row, until=steady(at + row.left_s, old.get(row.key))) for row in rows)


def stamped(
    conditions: Iterable[Condition], before: Iterable[Condition], *, generation: int, now: str
) -> tuple[Condition, ...]:
    """Add times to conditions; `lastTransitionTime` moves only with `status`."""
    since = {(c.type, c.status): c.last_transition_time for c in before}
    return tuple(
        replace(
            condition,
            last_transition_time=since.get((condition.type, condition.status)) or now,
            observed_generation=generation,
        )
        for condition in conditions
    )


#: Key in the ConfigMap's `data`.
KEY = "decisions.jsonl"

#: Label of our ConfigMaps only; its value has no meaning.
HISTORY_LABEL = f"{DOMAIN}/history"

#: Limit below the API server's 1 MiB for a ConfigMap and etcd's 1.5 MiB for a request.
MOST_BYTES = 700_000

_SUFFIX = "-adaptive-history"
_LONGEST_NAME = 253


def history_name(policy: str) -> str:
    """Return a ConfigMap's name of at most 253 characters, as the API server requires."""
    if len(policy) + len(_SUFFIX) <= _LONGEST_NAME:
        return policy + _SUFFIX
    digest = hashlib.sha256(policy.encode()).hexdigest()[:8]
    return f"{policy[: _LONGEST_NAME - len(_SUFFIX) - 9]}-{digest}{_SUFFIX}"


def history_of(config_map: Mapping[str, Any]) -> tuple[Decision, ...]:
    """Return all readable decisions of a ConfigMap, oldest first."""
    return tuple(d for d in map(_decision_in, _lines(config_map)) if d is not None)


def merged(*several: Iterable[Decision]) -> tuple[Decision, ...]:
    """Merge lists of decisions, each once, oldest first."""
    found = {
        (round(d.at, 3), d.group, cut(d.message), cut(d.outcome)): d
        for decisions in several
        for d in decisions
    }
    return tuple(sorted(found.values(), key=lambda d: d.at))


def _lines(config_map: Mapping[str, Any]) -> list[str]:
    data = config_map.get("data")
    text = data.get(KEY) if isinstance(data, Mapping) else None
    # Not splitlines(): JSON leaves other line separators in messages.
    return [line for line in str(text or "").split("\n") if line.strip()]


def _decision_in(line: str) -> Decision | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return recover(Decision, body, whole=True)


def history_body(policy: PolicyObject, decisions: Iterable[Decision]) -> Json:
    """Render the ConfigMap with the youngest decisions, as many as fit."""
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
    """Join lines, keeping at most `MOST_BYTES` as sent in JSON."""
    kept: list[str] = []
    left = MOST_BYTES
    for decision in reversed(list(decisions)[-KEPT:]):
        line = json.dumps(encode(decision), separators=(",", ":"), ensure_ascii=False) + "\n"
        left -= len(json.dumps(line).encode())
        if left < 0:
            break
        kept.append(line)
    return "".join(reversed(kept))
