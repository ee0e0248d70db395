"""When workers may be replaced: cron schedules in time zones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim

from dask_adaptive.model.recycle import Window


def is_open(windows: Sequence[Window], at: float) -> bool:
    """
    Whether workers may be replaced at an instant (seconds since 1970). No windows: always.

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


@lru_cache(maxsize=64)  # both questions are asked of each window, for each group
def _state(window: Window, at: float) -> tuple[bool, float]:
    """Whether a window is open, and when it closes or opens next."""
    since, last, later = at - window.duration_s, -math.inf, math.inf
    for opening in _openings(window, since, at):
        if since < opening <= at:
            last = max(last, opening)
        elif opening > at:
            later = opening
    is_open = last > -math.inf
    return is_open, last + window.duration_s if is_open else later


def _openings(window: Window, since: float, at: float) -> Iterator[float]:
    """Openings after `since`, up to the first after `at`; one before may be among them."""
    start = datetime.fromtimestamp(since, _zone(window.time_zone))
    for opening in CronSim(window.schedule, start):
        # In an hour that comes twice cronsim, which forgets which of the two it started in, may
        # name an opening of the first one: the caller skips it.
        yield opening.timestamp()
        if opening.timestamp() > at:
            return


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo | timezone:
    # cronsim is quicker with this one: it takes it as having no changes.
    return UTC if name == "UTC" else ZoneInfo(name)
