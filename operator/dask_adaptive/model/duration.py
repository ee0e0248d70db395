"""Durations as Kubernetes writes them: `90s`, `15m`, `1h30m`, `500ms`."""

from __future__ import annotations

import re

#: The same pattern stands in the CRD's schema.
PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")


def parse_duration(text: str) -> float:
    """
    Read a duration as seconds.

    Raises:
        ValueError: Not a duration; the message says what one looks like.
    """
    if not isinstance(text, str) or not re.match(PATTERN, text):
        raise ValueError(f"{text!r} is not a duration; write one like 90s, 15m or 1h30m")
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))


def format_duration(seconds: float) -> str:
    """Write seconds as people read them: at most two units, none that is zero."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms" if seconds > 0 else "0s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h" + (f"{minutes}m" if minutes else f"{left}s" if left else "")
    if minutes:
        return f"{minutes}m{left}s" if left else f"{minutes}m"
    return f"{left}s"
