"""What an agent was told of limits: as a message, and whether it is still true. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask_adaptive.model.recycle import Limits, Profile
from dask_adaptive_agent.wire import LimitProfile

#: The end of a worker is told anew when it has moved by more than this.
SLACK_S = 1.0

#: An end that is further away (a century) is none; a larger number may not fit into a message.
_NEVER_S = 100 * 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Told:
    """Limits that an agent has heard."""

    limits: Limits
    at: float  # when, in seconds on the link's clock

    def is_still(self, limits: Limits, now: float) -> bool:
        """Whether nothing has changed since but the time, which the agent counts down by itself."""
        old = self.limits
        if (old.profiles, old.stops, old.others) != (limits.profiles, limits.stops, limits.others):
            return False
        if old.workers.keys() != limits.workers.keys():
            return False
        passed_s = now - self.at
        for name, limit in limits.workers.items():
            was = old.workers[name]
            if (was.runs, was.profile) != (limit.runs, limit.profile):
                return False
            if not _is_same_end(was.left_s - passed_s, limit.left_s):
                return False
        return True


def _is_same_end(told_s: float, left_s: float) -> bool:
    # Equal covers two ends that never come; what has passed stays passed.
    if told_s == left_s or (told_s <= 0 and left_s <= 0):
        return True
    return abs(told_s - left_s) <= SLACK_S


def limit_request(limits: Limits) -> dict[str, Any]:
    """`wire.LimitRequest`, less the session."""
    workers = limits.workers.values()
    return {
        "names": list(limits.workers),
        "runs": [limit.runs for limit in workers],
        "left_ms": [_milliseconds(limit.left_s) for limit in workers],
        "profile": [limit.profile for limit in workers],
        "profiles": [_profile(profile) for profile in limits.profiles],
        "stops": limits.stops,
        "others": -1 if limits.others is None else limits.others,
    }


def _milliseconds(seconds: float) -> int:
    return -1 if seconds >= _NEVER_S else round(max(0.0, seconds) * 1000)


def _profile(profile: Profile) -> LimitProfile:
    return {
        "exact": profile.exact,
        "failures": profile.failures,
        "window_ms": round(profile.window_s * 1000),
        "patterns": list(profile.patterns),
        "fresh_ms": _milliseconds(profile.fresh_s),
        "floor_ms": round(profile.floor_s * 1000),
        "deviations": profile.deviations,
        "measure": profile.measure,
        "runs": profile.runs,
    }
