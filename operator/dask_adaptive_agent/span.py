"""A length of time as users write it."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any

SHORTEST_S = 1.0
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[dhms]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")


def seconds(ttl: Any) -> float:
    """Reads the length of a lease; ValueError says how to write one."""
    if isinstance(ttl, timedelta):
        ttl = ttl.total_seconds()
    if isinstance(ttl, str):
        text = ttl.replace(" ", "")
        if not _DURATION.fullmatch(text):
            raise ValueError(f"ttl={ttl!r} is no duration; write one like '90s', '30m' or '1h30m'")
        ttl = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not math.isfinite(ttl):
        raise ValueError(f"ttl={ttl!r} is no duration; write one like '90s', '30m' or '1h30m'")
    if ttl < SHORTEST_S:
        raise ValueError(
            f"ttl={ttl:g} s is too short to be renewed in time; ask for {SHORTEST_S:g} s or more: "
            "the pin ends with the block anyway"
        )
    return float(ttl)
