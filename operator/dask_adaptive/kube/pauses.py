"""
What people hold by annotation, on the AdaptivePolicy or its DaskCluster. Pure.

The policy's annotation wins over one of the same name on the cluster. Copies that dask-kubernetes
makes of a cluster's annotations are on neither, so they never count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.kube.written import writing
from dask_adaptive.model.duration import parse_duration
from dask_adaptive.model.pins import instant, lifts, read_instant
from dask_adaptive.model.scaling import NO_PAUSE, Pause

PREFIX = f"{DOMAIN}/"
ALL, UNTIL, IN, OUT, REPLICAS = (
    "paused",
    "paused-until",
    "paused-scale-in",
    "paused-scale-out",
    "paused-replicas",
)

#: Annotations that this module has to know, without our prefix.
NAMES = (ALL, UNTIL, IN, OUT, REPLICAS)

_TIMES = "a duration such as 2h or an instant such as 2026-01-31T18:00:00Z"
_HOW = {
    ALL: f'"true", {_TIMES}',
    UNTIL: _TIMES,
    IN: f'"true", {_TIMES}',
    OUT: f'"true", {_TIMES}',
    REPLICAS: 'a whole number such as "3"',
}


@dataclass(frozen=True, slots=True)
class PauseNote:
    """One annotation as it stands on one object."""

    holder: str  # the object, as people call it: "AdaptivePolicy etl"
    name: str  # without our prefix
    value: str
    set_at: float | None = None  # seconds since 1970; None: nobody knows

    def __str__(self) -> str:
        return f'{PREFIX}{self.name}: "{self.value}" on {self.holder}'


#: When an annotation was set, in seconds since 1970, as far as anybody knows.
Since = Callable[[PauseNote], float]


@dataclass(frozen=True, slots=True)
class _Held:
    """What one annotation holds."""

    note: PauseNote
    until: float  # seconds since 1970; infinite: until it is taken back
    replicas: int | None = None
    problem: str = ""

    @property
    def message(self) -> str:
        end = "" if math.isinf(self.until) else f" until {instant(self.until)}"
        return f"{self.note}{end}"


def read_pause_notes(metadata: Mapping[str, Any], holder: str) -> tuple[PauseNote, ...]:
    """
    The annotations about pauses that an object has.

    Args:
        metadata: `metadata` of the object, as JSON.
        holder: What to call the object when people are told of it.
    """
    annotations = metadata.get("annotations") or {}
    return tuple(
        PauseNote(
            holder, name, str(annotations[PREFIX + name]).strip(),
            writing(metadata, PREFIX + name).at,
        )
        for name in NAMES
        if PREFIX + name in annotations
    )  # fmt: skip


def pause_of(
    policy: Iterable[PauseNote], cluster: Iterable[PauseNote], *, now: float, since: Since
) -> Pause:
    """
    What is held now.

    Fail safe: what can't be read pauses what it is about, until it is mended. An instant that has
    passed holds nothing, so a pause ends by itself.

    Args:
        policy: Of the AdaptivePolicy.
        cluster: Of the DaskCluster.
        now: Seconds since 1970.
        since: When an annotation was set; durations count from there.
    """
    notes = {note.name: note for note in (*cluster, *policy)}
    found = [_held(notes[name], since) for name in NAMES if name in notes]
    holding = [held for held in found if held is not None and held.until > now]
    if not holding:
        return NO_PAUSE
    until = max(held.until for held in holding)
    names = {held.note.name for held in holding}
    replicas = next((h.replicas for h in holding if h.replicas is not None), None)
    return Pause(
        all=bool(names & {ALL, UNTIL}) or (REPLICAS in names and replicas is None),
        scale_in=IN in names,
        scale_out=OUT in names,
        replicas=replicas,
        left_s=None if math.isinf(until) else until - now,
        message="; ".join(held.message for held in holding),
        problem="; ".join(held.problem for held in holding if held.problem),
    )


def _held(note: PauseNote, since: Since) -> _Held | None:
    """What an annotation holds, over or not; None if it says that it holds nothing."""
    if lifts(note.value):
        return None
    if note.name == REPLICAS:
        is_number = note.value.isascii() and note.value.isdigit()
        return _Held(note, math.inf, int(note.value)) if is_number else _malformed(note)
    if note.value.lower() == "true" and note.name != UNTIL:
        return _Held(note, math.inf)
    at = read_instant(note.value)
    if at is not None:
        return _Held(note, at)
    try:
        return _Held(note, since(note) + parse_duration(note.value))
    except ValueError:
        return _malformed(note)


def _malformed(note: PauseNote) -> _Held:
    problem = f"{note} is not {_HOW[note.name]}; it pauses until it is mended or removed"
    return _Held(note, math.inf, problem=problem)
