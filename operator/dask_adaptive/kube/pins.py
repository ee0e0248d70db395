"""
Pins that people set by annotation: what one says, whose it is, and when it ends. Pure.

A copy that dask-kubernetes made (see `written`) must not outlive its original, so it never counts:
what counts is the original itself, which is read anyway. Without managedFields an annotation
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.kube.written import writing
from dask_adaptive.model.observed import ManualPin
from dask_adaptive.model.pins import lifts, pin_end

PIN = f"{DOMAIN}/pin"
PIN_REASON = f"{DOMAIN}/pin-reason"


@dataclass(frozen=True, slots=True)
class PinNote:
    """One annotation as it stands on one object."""

    holder: str  # the object, as people call it: "pod etl-default-worker-1-abc"
    value: str
    reason: str = ""
    set_at: float | None = None  # seconds since 1970; None: nobody knows


def read_pin(metadata: Mapping[str, Any], holder: str, *, made_by_upstream: bool) -> PinNote | None:
    """
    Read the pin that a person set on an object, if there is one.

    Args:
        metadata: `metadata` of the object, as JSON.
        holder: What to call the object when people are told of it.
        made_by_upstream: dask-kubernetes makes objects of this kind, so it may be a copy.
    """
    annotations = metadata.get("annotations") or {}
    if PIN not in annotations:
        return None
    written = writing(metadata, PIN)
    if made_by_upstream and written.at_creation:
        return None
    return PinNote(
        holder=holder,
        value=str(annotations[PIN]).strip(),
        reason=str(annotations.get(PIN_REASON, "")),
        set_at=written.at,
    )


def manual_pin(
    notes: Iterable[PinNote | None], *, now: float, first_seen: float, max_s: float
) -> ManualPin | None:
    """
    The pin that holds a worker now, if any.

    An ended pin is as none: the next object is asked. `"false"` on a near object lifts a pin on a
    far one.

    Args:
        notes: Nearest first: pod, Deployment, DaskWorkerGroup, DaskCluster.
        now: Seconds since 1970.
        first_seen: When this operator first saw the pin; used where nobody noted when it was set.
        max_s: The longest that a pin may last: the policy's `pins.manual.maxDuration`.
    """
    for note in notes:
        if note is None:
            continue
        if lifts(note.value):
            return None
        since = note.set_at if note.set_at is not None else first_seen
        lasts_until, problem = pin_end(note.value, since)
        left_s = min(lasts_until, since + max_s) - now
        if left_s > 0:
            return ManualPin(left_s=left_s, reason=_sentence(note), problem=problem)
    return None


def _sentence(note: PinNote) -> str:
    return f"{note.reason} ({note.holder})" if note.reason else f"annotated on {note.holder}"
