"""What an agent was told of plans: as a message, and whether that needs to be said again. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dask_adaptive.loop.ports import Told
from dask_adaptive.model.plan import Arriving

#: The bounds of `wire.AnnounceRequest`; an agent cuts what is beyond.
ARRIVALS, WORKERS, DECISIONS, LETTERS = 50, 200, 50, 200

#: Workers on their way are told of anew when they are expected so much earlier or later …
SLACK_S = 1.0
#: … and in any case after so long: an agent gives overdue ones up.
COUNT_AGAIN_S = 3.0

#: Sentences hold figures that change with every pass: they are not told more often than this …
WORDS_S = 5.0
#: … and all of it again after so long: an agent forgets it while no operator is there.
AGAIN_S = 60.0

#: No worker is expected later than in a month.
_LONGEST_S = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Announcement:
    """What an agent has heard."""

    arriving: tuple[Arriving, ...]
    told: Told
    at: float = -math.inf  # when, in seconds on the link's clock

    def is_still(self, arriving: Sequence[Arriving], told: Told, now: float) -> bool:
        """Whether it need not hear this: nothing has changed that could not wait."""
        old, passed_s = self.told, now - self.at
        is_empty = not arriving and told == Told()
        if is_empty and not self.arriving and old == Told():
            return True
        if (old.policy, old.decisions) != (told.policy, told.decisions):
            return False
        if bool(old.can_grow) != bool(told.can_grow):
            return False
        if not self._is_still_coming(arriving, passed_s):
            return False
        if passed_s >= WORDS_S and old != told:
            return False
        return passed_s < AGAIN_S

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
NOTHING = Announcement((), Told())


def announce_request(arriving: Iterable[Arriving], told: Told) -> dict[str, Any]:
    """`wire.AnnounceRequest`, within its bounds: the soonest and the last ones are kept."""
    coming = sorted((row.in_s, row.workers) for row in arriving if row.workers > 0)[:ARRIVALS]
    return {
        "arriving": [(workers, _milliseconds(in_s)) for in_s, workers in coming],
        "can_grow": max(0, told.can_grow),
        **({} if told.grow_s is None else {"grow_ms": _milliseconds(told.grow_s)}),
        "policy": told.policy[:LETTERS],
        "message": told.message[:LETTERS],
        "workers": [(name[:LETTERS], said[:LETTERS]) for name, said in told.workers[:WORKERS]],
        "decisions": [
            (round(at * 1000), group[:LETTERS], why[:LETTERS], said[:LETTERS])
            for at, group, why, said in told.decisions[-DECISIONS:]
        ],
    }


def _milliseconds(seconds: float) -> int:
    return round(min(max(0.0, seconds), _LONGEST_S) * 1000)
