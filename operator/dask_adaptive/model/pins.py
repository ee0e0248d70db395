"""The pin annotation in words: `true`, a duration, or an instant. Pure."""

from __future__ import annotations

import datetime
import math

from dask_adaptive.model.duration import parse_duration


def read_instant(text: str) -> float | None:
    """Read an RFC 3339 instant as seconds since 1970; None if it is none."""
    try:
        read = datetime.datetime.fromisoformat(text.strip().upper().replace("Z", "+00:00"))
    except ValueError:
        return None
    # Without a time zone it would mean different times to different people.
    return read.timestamp() if read.tzinfo is not None else None


def instant(seconds: float) -> str:
    """Write seconds since 1970 as Kubernetes does."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


def lifts(value: str) -> bool:
    """Whether a pin annotation says that there is no pin."""
    return value.strip().lower() in ("", "false")


def pin_end(value: str, since: float) -> tuple[float, str]:
    """
    When a pin ends, and what is wrong with it.

    Fail safe: what cannot be read pins like `true`, and the second value says how to mend it.

    Args:
        value: The annotation's value; see `lifts` for those that are no pin.
        since: When the annotation was set, in seconds since 1970; durations count from there.

    Returns:
        The end in seconds since 1970, infinite for `true` (the caller applies the policy's cap),
        and a sentence, empty if nothing is wrong.
    """
    said = value.strip()
    if said.lower() == "true":
        return math.inf, ""
    end = read_instant(said)
    if end is not None:
        return end, ""
    try:
        return since + parse_duration(said), ""
    except ValueError:
        problem = (
            f'the pin {value!r} is none of "true", a duration such as 4h, or an instant such as'
            " 2026-01-31T18:00:00Z; it pins until it is mended or removed"
        )
        return math.inf, problem
