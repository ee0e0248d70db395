"""
Builds the messages with plans and limits for an agent, and decides whether a change is worth
sending. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask_adaptive.loop.ports import PageContent
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.recycle import Limits, Profile
from dask_adaptive_agent.wire import (
    MOST_ARRIVALS,
    MOST_DECISIONS,
    MOST_SENTENCES,
    SHORT_LETTERS,
    LimitProfile,
)

#: Ends and arrivals are sent again when they have moved by more than this.
SLACK_S = 1.0

#: Arrivals are sent again after this long in any case: the agent drops overdue ones.
COUNT_AGAIN_S = 3.0

#: Shortest time between messages of changed sentences: their figures change with every pass.
WORDS_S = 5.0
#: Everything is sent again after this long: the agent forgets it while no operator is there.
AGAIN_S = 60.0

#: Latest arrival that is sent: a month ahead.
_LONGEST_S = 30 * 24 * 3600.0

#: Ends beyond a century are not sent; larger numbers may not fit into a message.
_NEVER_S = 100 * 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class SentPlans:
    """Plans that were sent to an agent."""

    arriving: tuple[Arriving, ...]
    content: PageContent
    at: float = -math.inf  # when, in seconds on the link's clock

    def holds(self, arriving: Sequence[Arriving], content: PageContent, now: float) -> bool:
        """True if the last message is still good enough."""
        old, passed_s = self.content, now - self.at
        is_empty = not arriving and content == PageContent()
        if is_empty and not self.arriving and old == PageContent():
            return True
        if (old.policy, old.decisions) != (content.policy, content.decisions):
            return False
        if bool(old.can_grow) != bool(content.can_grow):
            return False
        if not self._is_still_coming(arriving, passed_s):
            return False
        return passed_s < (AGAIN_S if old == content else WORDS_S)

    def _is_still_coming(self, arriving: Sequence[Arriving], passed_s: float) -> bool:
        if [row.workers for row in self.arriving] != [row.workers for row in arriving]:
            return False
        if arriving and passed_s >= COUNT_AGAIN_S:
            return False
        return all(
            abs(max(0.0, was.in_s - passed_s) - max(0.0, row.in_s)) <= SLACK_S
            for was, row in zip(self.arriving, arriving, strict=True)
        )


#: Before the first message.
NOTHING = SentPlans((), PageContent())


def announce_request(arriving: Iterable[Arriving], content: PageContent) -> dict[str, Any]:
    """Build `wire.AnnounceRequest` within its bounds: soonest arrivals, last decisions."""
    rows = [row for row in arriving if row.workers > 0]
    coming = sorted((row.in_s, row.workers, row.group) for row in rows)[:MOST_ARRIVALS]
    decisions = content.decisions[-MOST_DECISIONS:]
    return {
        "arriving": [(workers, milliseconds(in_s)) for in_s, workers, _ in coming],
        "groups": [group for *_, group in coming],
        "can_grow": max(0, content.can_grow),
        **({} if content.grow_s is None else {"grow_ms": milliseconds(content.grow_s)}),
        "policy": _short(content.policy),
        "message": _short(content.message),
        "workers": [tuple(map(_short, row)) for row in content.workers[:MOST_SENTENCES]],
        "decisions": [(round(at * 1000), *map(_short, texts)) for at, *texts in decisions],
    }


def _short(text: str) -> str:
    return text[:SHORT_LETTERS]


def milliseconds(seconds: float) -> int:
    return round(min(max(0.0, seconds), _LONGEST_S) * 1000)


@dataclass(frozen=True, slots=True)
class SentLimits:
    """Limits that were sent to an agent."""

    limits: Limits
    at: float  # when, in seconds on the link's clock

    def holds(self, limits: Limits, now: float) -> bool:
        """True if only time has passed, which the agent counts down itself."""
        old = self.limits
        if replace(old, workers={}) != replace(limits, workers={}):
            return False
        if old.workers.keys() != limits.workers.keys():
            return False
        passed_s = now - self.at
        for name, limit in limits.workers.items():
            was = old.workers[name]
            if (was.runs, was.profile) != (limit.runs, limit.profile):
                return False
            # Past ends stay past; infinite ends are equal.
            sent_s, left_s = max(was.left_s - passed_s, 0.0), max(limit.left_s, 0.0)
            if sent_s != left_s and abs(sent_s - left_s) > SLACK_S:
                return False
        return True


def limit_request(limits: Limits) -> dict[str, Any]:
    """Build `wire.LimitRequest`, without the session."""
    workers = limits.workers.values()
    return {
        "names": list(limits.workers),
        "runs": [limit.runs for limit in workers],
        "left_ms": [_end_ms(limit.left_s) for limit in workers],
        "profile": [limit.profile for limit in workers],
        "profiles": [_profile(profile) for profile in limits.profiles],
        "stops": limits.cordons,
        "group_stops": dict(limits.group_cordons),
        "others": -1 if limits.others is None else limits.others,
    }


def _end_ms(seconds: float) -> int:
    return -1 if seconds >= _NEVER_S else round(max(0.0, seconds) * 1000)


def _profile(profile: Profile) -> LimitProfile:
    return {
        "exact": profile.exact,
        "failures": profile.failures,
        "window_ms": round(profile.window_s * 1000),
        "patterns": list(profile.patterns),
        "fresh_ms": _end_ms(profile.fresh_s),
        "floor_ms": round(profile.floor_s * 1000),
        "runs": profile.runs,
        "group": profile.group,
    }
