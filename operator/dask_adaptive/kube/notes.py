"""
Annotations on the objects of a cluster by which people ask for something: pins, pauses, and a
worker's end or replacement. Pure.

dask-kubernetes copies a DaskCluster's annotations to its children when it creates them, and nobody
removes the copies. A copy is told from a person's own annotation by who owns it: the manager who
owns a copy also owns the label `dask.org/component`, which only dask-kubernetes sets, in the same
write (`metadata.managedFields`; the ReplicaSet controller makes pods of templates: the same holds
there). Without managedFields an annotation counts.

* Pins: a copy must not outlive its original, so it never counts; the original is read anyway.
* Pauses: the policy's annotation wins over one of the same name on the cluster.
* A worker's end and its replacement: the nearest of pod, Deployment, DaskWorkerGroup and
  DaskCluster counts. Copies don't, except `expires-at`: a copy whose original is gone is an instant
  all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.model.amounts import end_of, instant, lifts, read_instant
from dask_adaptive.model.observed import ManualPin
from dask_adaptive.model.scaling import NO_PAUSE, Pause

PREFIX = f"{DOMAIN}/"

#: Maximum characters of an annotation's value: Kubernetes allows 256 KiB, and messages quote it.
LONGEST = 200

#: dask-kubernetes sets it on all its objects: `build_worker_deployment_spec` and its siblings.
_CREATION_LABEL = "f:dask.org/component"


def writing(metadata: Mapping[str, Any], annotation: str) -> tuple[float | None, bool]:
    """
    Return an annotation's last write: its time (seconds since 1970, or None), and whether the
    object's creator wrote it in the same write.
    """
    name = f"f:{annotation}"
    owners = [
        entry
        for entry in metadata.get("managedFields") or []
        if name in _owned(entry, "f:metadata", "f:annotations")
    ]
    if not owners:
        return None, False
    last = max(owners, key=lambda entry: str(entry.get("time", "")))
    made = _CREATION_LABEL in _owned(last, "f:metadata", "f:labels")
    return read_instant(str(last.get("time") or "")), made


def worker_spec_written_at(metadata: Mapping[str, Any]) -> float | None:
    """Return when a DaskWorkerGroup's pod spec was last written, or None."""
    times = [
        read_instant(str(entry.get("time") or ""))
        for entry in metadata.get("managedFields") or []
        if "f:spec" in _owned(entry, "f:spec", "f:worker")
    ]
    return max((at for at in times if at is not None), default=None)


def _owned(entry: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Yield the fields below one that a manager owns."""
    node: Mapping[str, Any] = entry.get("fieldsV1") or {}
    for name in path:
        node = node.get(name) or {}
    return node


PIN = f"{PREFIX}pin"
PIN_REASON = f"{PREFIX}pin-reason"


@dataclass(frozen=True, slots=True)
class Note:
    """One annotation by which people request something, on one object."""

    holder: str  # the object, as people call it: "pod etl-default-worker-1-abc"
    name: str  # without our prefix
    value: str
    set_at: float | None = None  # seconds since 1970; None: nobody knows
    is_copy: bool = False  # written by the object's creator
    reason: str = ""  # of a pin, in another annotation

    def __str__(self) -> str:
        return f'{PREFIX}{self.name}: "{self.value}" on {self.holder}'


#: Returns when an annotation was set, or first seen if that was not recorded, in seconds since
#: 1970.
Since = Callable[[Note], float]


def read_notes(
    metadata: Mapping[str, Any], holder: str, *, made_by_upstream: bool = False
) -> tuple[Note, ...]:
    """
    Return an object's annotations about pins, pauses, ends and replacements.

    Args:
        holder: What to call the object when people are told of it.
        made_by_upstream: dask-kubernetes makes objects of this kind, so there may be copies.
    """
    annotations = metadata.get("annotations") or {}
    found = []
    for name in _NAMES if annotations else ():
        if (key := PREFIX + name) in annotations:
            set_at, at_creation = writing(metadata, key)
            is_copy = made_by_upstream and at_creation
            reason = _bounded(annotations.get(PIN_REASON, "")) if key == PIN else ""
            value = _bounded(annotations[key])
            found.append(Note(holder, name, value, set_at, is_copy, reason))
    return tuple(found)


def _bounded(written: Any) -> str:
    """Return an annotation's value; one that is too long is cut, which makes it unreadable."""
    text = str(written).strip()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def manual_pin(
    notes: Iterable[Note], *, now: float, since: Since, max_s: float
) -> ManualPin | None:
    """
    Return the pin that holds a worker now, if any.

    An ended pin is as none: the next object is asked. `"false"` on a near object lifts a pin on a
    far one.

    Args:
        notes: Nearest first: pod, Deployment, DaskWorkerGroup, DaskCluster.
        since: Used where nobody noted when a pin was set.
        max_s: The longest that a pin may last: the policy's `pins.manual.maxDuration`.
    """
    pins = [note for note in notes if note.name == "pin" and not note.is_copy]
    # Evaluate all of them, so that a far one counts from its first sight.
    dated = [(note, since(note) if note.set_at is None else note.set_at) for note in pins]
    for note, set_at in dated:
        held = _held(note, set_at)
        if held is None:
            return None
        until = min(held.until, set_at + max_s)
        if until > now:
            why = f"{note.reason} ({note.holder})" if note.reason else f"annotated on {note.holder}"
            return ManualPin(until, reason=why, problem=held.problem)
    return None


ALL, IN, OUT = PAUSES = "paused", "paused-scale-in", "paused-scale-out"

_HOW = '"true", a duration such as 4h or an instant such as 2026-01-31T18:00:00Z'


@dataclass(frozen=True, slots=True)
class _Held:
    """A pin or pause by one annotation."""

    note: Note
    until: float  # seconds since 1970; infinite: until it is taken back
    problem: str = ""

    @property
    def message(self) -> str:
        end = "" if math.isinf(self.until) else f" until {instant(self.until)}"
        return f"{self.note}{end}"


def pause_of(policy: Iterable[Note], cluster: Iterable[Note], *, now: float, since: Since) -> Pause:
    """
    The pause by annotations of an AdaptivePolicy and its DaskCluster.

    Fail safe: what can't be read pauses what it is about, until it is mended. An instant that has
    passed holds nothing, so a pause ends by itself.
    """
    notes = {note.name: note for note in (*cluster, *policy)}
    found = [_held(note, since(note)) for name, note in notes.items() if name in PAUSES]
    holding = [held for held in found if held is not None and held.until > now]
    if not holding:
        return NO_PAUSE
    until = max(held.until for held in holding)
    names = {held.note.name for held in holding}
    return Pause(
        all=ALL in names,
        scale_in=IN in names,
        scale_out=OUT in names,
        left_s=None if math.isinf(until) else until - now,
        message="; ".join(held.message for held in holding),
        problem="; ".join(held.problem for held in holding if held.problem),
    )


def _held(note: Note, set_at: float) -> _Held | None:
    """Return a pin or a pause, ended or not; None if the annotation holds nothing."""
    if lifts(note.value):
        return None
    until = end_of(note.value, set_at)
    if until is not None:
        return _Held(note, until)
    verb = "pins" if note.name == "pin" else "pauses"
    problem = f"{note} is not {_HOW}; it {verb} until it is corrected or removed"
    return _Held(note, math.inf, problem)


def turns_in_s(notes: Iterable[Note], *, now: float, since: Since) -> float:
    """Return seconds until time changes the meaning of an annotation."""
    times = [end_of(note.value, since(note)) for note in notes]
    return min((at - now for at in times if at is not None and at > now), default=math.inf)


RECYCLE, EXPIRES = ENDS = "recycle", "expires-at"

_INSTANT = "an instant such as 2026-01-31T18:00:00Z"


@dataclass(frozen=True, slots=True)
class Wishes:
    """Requests by annotation for one worker."""

    recycle: str = ""  # not empty: it is to be replaced; who says so
    expires_at: float = math.inf  # seconds since 1970
    problem: str = ""  # not empty: what can't be read, and how to correct it


#: All annotations that people may set.
_NAMES = ("pin", *PAUSES, *ENDS)


def in_order(pod: Iterable[Note], deployment: Sequence[Note], above: Iterable[Note]) -> list[Note]:
    """
    Return the annotations about a worker's end or replacement that count, nearest first.

    Args:
        above: Of its DaskWorkerGroup, then of its DaskCluster.
    """
    # An annotation on the pod but not on its Deployment came from neither: perhaps a webhook.
    inherited = {note.name for note in deployment}
    near = [n if n.name in inherited else replace(n, is_copy=False) for n in pod]
    every = [note for note in (*near, *deployment, *above) if note.name in ENDS]
    own = [note for note in every if not note.is_copy]
    return [*own, *(note for note in every if note.is_copy and note.name == EXPIRES)]


def wishes_of(notes: Sequence[Note], *, began_at: float, now: float, since: Since) -> Wishes:
    """
    Requests by annotation for one worker.

    Args:
        notes: Those that count, nearest first.
        began_at: When its pod was started, in seconds since 1970; 0: it has none.
    """
    problems: list[str] = []
    expires_at = _expires_at([n for n in notes if n.name == EXPIRES], began_at, problems)
    wanted = [n for n in notes if n.name == RECYCLE]
    recycle = _recycle(wanted, began_at, now, since, problems) if began_at else ""
    return Wishes(recycle, expires_at, "; ".join(problems))


def _expires_at(notes: Iterable[Note], began_at: float, problems: list[str]) -> float:
    for note in notes:
        if _lifted(note):
            break
        instant = read_instant(note.value)
        if instant is None:
            problems.append(f"{note} is not {_INSTANT}; it is ignored")
        elif instant > began_at:  # else it was about an earlier pod
            return instant
    return math.inf


def _recycle(
    notes: Iterable[Note], began_at: float, now: float, since: Since, problems: list[str]
) -> str:
    for note in notes:
        if _lifted(note):
            break
        is_now = note.value.lower() == "now"
        instant = read_instant(note.value)
        if is_now and note.set_at is not None:
            instant = since(note)
        if instant is None:
            why = "counts from when it was set, which was not recorded; write"
            why = why if is_now else 'is neither "now" nor'
            problems.append(f"{note} {why} {_INSTANT}; it is ignored")
        elif began_at < instant <= now:
            return f"annotation {note}"
    return ""


def _lifted(note: Note) -> bool:
    return lifts(note.value) or note.value.lower() == "off"
