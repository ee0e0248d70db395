"""Time windows for replacements: cron schedules in time zones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim

from dask_adaptive.model.recycle import Window


def is_open(windows: Sequence[Window], at: float) -> bool:
    """
    True if workers may be replaced at an instant (seconds since 1970). No windows: always.

    A window opens when its schedule says so, on the clocks of its zone, and stays open for its
    duration in real time, whatever is done to the clocks meanwhile. What is scheduled for a time
    that is skipped opens when the skip is over; what is scheduled for one that comes twice opens
    the first time. A schedule of every hour or minute opens on every one there is.

    Source:
        Debian's cron, as `cronsim` follows it.
    """
    return not windows or any(_state(window, at)[0] for window in windows)


def turns_at(windows: Sequence[Window], at: float) -> float:
    """The first instant after `at` at which one of the windows opens or closes; or infinite."""
    return min((_state(window, at)[1] for window in windows), default=math.inf)


@dataclass(slots=True)
class _Openings:
    """The openings of a window around the instant that was asked about last."""

    last: float = math.inf  # the latest until then; -infinite: there is none
    later: float = -math.inf  # the first after it; infinite: there is none


@lru_cache(maxsize=4096)  # windows: between two openings of one nothing is searched
def _openings(_: Window) -> _Openings:
    return _Openings()


def _state(window: Window, at: float) -> tuple[bool, float]:
    """Return whether a window is open, and when it closes or opens next."""
    known = _openings(window)
    if not known.last <= at < known.later:
        known.last, known.later = _last(window, at), _later(window, at)
    closes_at = known.last + window.duration_s
    return (True, closes_at) if at < closes_at else (False, known.later)


def _last(window: Window, at: float) -> float:
    zone, after = _zone(window.time_zone), at // 60 * 60 + 60  # cronsim leaves out its first minute
    start = datetime.fromtimestamp(after, zone)
    if start.fold:
        # In an hour that comes twice cronsim goes back from the first one: begin behind both.
        overlap_s = after - start.replace(fold=0).timestamp()
        start = datetime.fromtimestamp(after + overlap_s, zone)
    found = (opening.timestamp() for opening in CronSim(window.schedule, start, reverse=True))
    return next((opening for opening in found if opening <= at), -math.inf)


def _later(window: Window, at: float) -> float:
    start = datetime.fromtimestamp(at, _zone(window.time_zone))
    found = (opening.timestamp() for opening in CronSim(window.schedule, start))
    # In an hour that comes twice cronsim goes on from the first one, and names some of it.
    return next((opening for opening in found if opening > at), math.inf)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo | timezone:
    # cronsim is quicker with this one: it takes it as having no changes.
    return UTC if name == "UTC" else ZoneInfo(name)
