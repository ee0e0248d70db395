"""
What annotations say of a worker's quotas, of its end, and of its replacement. Pure.

The nearest of pod, Deployment, DaskWorkerGroup and DaskCluster counts. Copies that dask-kubernetes
made (see `written`) don't: their original does, and can be changed. An exception is `expires-at`: a
copy whose original is gone is an instant all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from dask_adaptive import DOMAIN
from dask_adaptive.kube.written import writing
from dask_adaptive.model.amounts import parse_percent
from dask_adaptive.model.duration import parse_duration
from dask_adaptive.model.pins import lifts, read_instant
from dask_adaptive.model.recycle import QuotaNotes

PREFIX = f"{DOMAIN}/"
RECYCLE, EXPIRES = "recycle", "expires-at"

_INSTANT = "an instant such as 2026-01-31T18:00:00Z"

V = TypeVar("V", int, float)


@dataclass(frozen=True, slots=True)
class QuotaNote:
    """One annotation as it stands on one object."""

    holder: str  # the object, as people call it: "pod etl-default-worker-1-abc"
    name: str  # without our prefix
    value: str
    set_at: float | None = None  # seconds since 1970; None: nobody knows
    is_copy: bool = False  # written by who made the object

    def __str__(self) -> str:
        return f'{PREFIX}{self.name}: "{self.value}" on {self.holder}'


@dataclass(frozen=True, slots=True)
class Asked:
    """What people ask of one worker."""

    notes: QuotaNotes | None = None
    recycle: str = ""  # not empty: it is to be replaced; who says so
    expires_at: float = math.inf  # seconds since 1970


#: When an annotation was set, in seconds since 1970; None: nobody knows.
Since = Callable[[QuotaNote], float | None]


@dataclass(frozen=True, slots=True)
class _Reader(Generic[V]):
    """How one quota is written."""

    read: Callable[[str], V]  # raises ValueError
    off: V
    example: str


def _whole(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise ValueError(text)
    return number


def _part(text: str) -> float:
    part = parse_percent(text)
    if part <= 0:
        raise ValueError(text)
    return part


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(text)
    return seconds


_TASKS = _Reader(_whole, 0, 'a whole number such as "50"')
_LIFETIME = _Reader(_seconds, math.inf, 'a duration such as "2h"')
_SOFT = _Reader(_part, math.inf, 'a percentage such as "70%"')
_HARD = _Reader(_part, math.inf, 'a percentage such as "90%"')
_FAILURES = _Reader(_whole, 0, 'a whole number such as "5"')

#: Annotations that this module has to know, without our prefix.
NAMES = (
    RECYCLE,
    EXPIRES,
    "recycle-tasks",
    "recycle-lifetime",
    "recycle-memory-soft",
    "recycle-memory-hard",
    "recycle-failures",
)


def read_quota_notes(
    metadata: Mapping[str, Any], holder: str, *, made_by_upstream: bool
) -> tuple[QuotaNote, ...]:
    """
    The annotations about quotas that an object has.

    Args:
        metadata: `metadata` of the object, as JSON.
        holder: What to call the object when people are told of it.
        made_by_upstream: dask-kubernetes makes objects of this kind, so there may be copies.
    """
    annotations = metadata.get("annotations") or {}
    found = [name for name in NAMES if PREFIX + name in annotations] if annotations else []
    return tuple(_note(metadata, name, holder, made_by_upstream) for name in found)


def _note(metadata: Mapping[str, Any], name: str, holder: str, made_by_upstream: bool) -> QuotaNote:
    written = writing(metadata, PREFIX + name)
    value = str(metadata["annotations"][PREFIX + name]).strip()
    copied = made_by_upstream and written.at_creation
    return QuotaNote(holder, name, value, set_at=written.at, is_copy=copied)


def in_order(
    pod: Iterable[QuotaNote], deployment: Sequence[QuotaNote], above: Iterable[QuotaNote]
) -> list[QuotaNote]:
    """
    The annotations that count for one worker, nearest first.

    Args:
        above: Of its DaskWorkerGroup, then of its DaskCluster.
    """
    # What a pod was made with and its Deployment does not have came from neither: a webhook of
    # somebody's, say.
    inherited = {note.name for note in deployment}
    near = [n if n.name in inherited else replace(n, is_copy=False) for n in pod]
    every = [*near, *deployment, *above]
    own = [note for note in every if not note.is_copy]
    return [*own, *(note for note in every if note.is_copy and note.name == EXPIRES)]


def asked(notes: Sequence[QuotaNote], *, began_at: float, now: float, since: Since) -> Asked:
    """
    What people ask of one worker.

    Args:
        notes: Those that count, nearest first.
        began_at: When its pod was started, in seconds since 1970; 0: it has none.
        now: Seconds since 1970.
        since: When an annotation was set.
    """
    if not notes:
        return _NOTHING
    problems: list[str] = []

    def one(name: str, reader: _Reader[V]) -> V | None:
        return _nearest([n for n in notes if n.name == name], reader, problems)

    quotas = QuotaNotes(
        tasks=one("recycle-tasks", _TASKS),
        lifetime_s=one("recycle-lifetime", _LIFETIME),
        memory_soft=one("recycle-memory-soft", _SOFT),
        memory_hard=one("recycle-memory-hard", _HARD),
        failures=one("recycle-failures", _FAILURES),
    )
    expires_at = _expires_at([n for n in notes if n.name == EXPIRES], began_at, problems)
    wanted = [n for n in notes if n.name == RECYCLE]
    recycle = _recycle(wanted, began_at, now, since, problems) if began_at else ""
    quotas = replace(quotas, problem="; ".join(problems))
    return Asked(quotas if quotas != _NO_QUOTAS else None, recycle, expires_at)


_NOTHING, _NO_QUOTAS = Asked(), QuotaNotes()


def _nearest(notes: Sequence[QuotaNote], reader: _Reader[V], problems: list[str]) -> V | None:
    if not notes:
        return None
    note = notes[0]
    if note.value.lower() == "off":
        return reader.off
    try:
        return reader.read(note.value)
    except ValueError:
        problems.append(f'{note} is neither {reader.example} nor "off"; the policy counts')
        return None


def _expires_at(notes: Iterable[QuotaNote], began_at: float, problems: list[str]) -> float:
    for note in notes:
        if _lifted(note):
            break
        instant = read_instant(note.value)
        if instant is None:
            problems.append(f"{note} is not {_INSTANT}; it does not count")
        elif instant > began_at:  # else it was about a pod before this one
            return instant
    return math.inf


def _recycle(
    notes: Iterable[QuotaNote], began_at: float, now: float, since: Since, problems: list[str]
) -> str:
    for note in notes:
        if _lifted(note):
            break
        is_now = note.value.lower() == "now"
        instant = since(note) if is_now else read_instant(note.value)
        if instant is None:
            why = "counts from when it was set, which nobody noted; write"
            why = why if is_now else 'is neither "now" nor'
            problems.append(f"{note} {why} {_INSTANT}; nothing is replaced for it")
        elif began_at < instant <= now:
            return f"annotation {note}"
    return ""


def _lifted(note: QuotaNote) -> bool:
    return lifts(note.value) or note.value.lower() == "off"
