"""The pin annotation in words: `true`, a duration, or an instant. Pure."""

from __future__ import annotations

import datetime
import math

from dask_adaptive.model.duration import parse_duration
from dask_adaptive.model.observed import ManualPin

_FORMS = "write true, a duration like 4h, or an instant like 2026-12-31T18:00:00Z"


def read_pin(text: str, reason: str, *, set_at: float, now: float) -> ManualPin | None:
    """
    Read a pin annotation.

    Fail safe: what cannot be read pins the worker like `true`, and the result says what is wrong.

    Args:
        text: The annotation's value.
        reason: What the person gave as the reason, if anything.
        set_at: When the annotation was set, in epoch seconds: durations count from there. A time
            in the future (clocks differ) is taken as now.
        now: Epoch seconds.

    Returns:
        The pin with the time it has left (infinite for `true`: the policy's cap ends it), or None
        if the text says no, or its time has run out.
    """
    said = text.strip()
    if said.lower() in {"", "false", "no"}:
        return None
    since = min(set_at, now)
    if said.lower() in {"true", "yes"}:
        return ManualPin(math.inf, reason)
    try:
        until = _until(said, since)
    except ValueError:
        problem = f"the pin {text!r} cannot be read, so the worker is pinned; {_FORMS}"
        return ManualPin(math.inf, reason, problem)
    return ManualPin(until - now, reason) if until > now else None


def _until(said: str, since: float) -> float:
    try:
        return since + parse_duration(said)
    except ValueError:
        pass
    instant = datetime.datetime.fromisoformat(said.replace("Z", "+00:00"))
    if instant.tzinfo is None:
        raise ValueError("an instant without a time zone means different times to different people")
    return instant.timestamp()
