"""What is told of recycles, and what a fresh operator learns of those before it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dask_adaptive.model.observed import ObservedCluster, PlatformView
from dask_adaptive.model.plan import Plan
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Quota, Recycle, RecyclePast

#: Instants in one status.
MAX_RECENT = 200

#: So much of a quota used is reason to look again soon.
NEARLY = 0.8

_NO_QUOTA = Recycle()


@dataclass(frozen=True, slots=True)
class Recycles:
    """As the status tells it."""

    totals: tuple[tuple[Reason, int], ...] = ()
    recent: tuple[float, ...] = ()  # seconds since 1970, ascending
    unheard: str = ""  # not empty: why the agent could not be told of limits


NO_RECYCLES = Recycles()


class Calendar:
    """
    Puts instants of the monotonic clock on the calendar, each once: two readings of two clocks
    differ by milliseconds each time, and an unchanged world shall give an unchanged status.

    Args:
        recent: Seconds since 1970 at which recycles began, as an earlier process has told.
    """

    def __init__(self, recent: Iterable[float] = ()) -> None:
        self._recent = tuple(recent)
        self._at: dict[float, float] = {}

    def begun(self, view: PlatformView, now: float) -> tuple[float, ...]:
        """What an earlier process began, on the clock of `now`; only the first call says it."""
        if not self._recent or not view.at:
            return ()
        self._at = {now - (view.at - at): at for at in self._recent if at <= view.at}
        self._recent = ()
        return tuple(sorted(self._at))

    def dates(self, begun: Iterable[float], observed: ObservedCluster, now: float) -> list[float]:
        """The same instants in whole seconds since 1970."""
        if not observed.at:
            return []
        self._at = {b: self._at.get(b) or float(round(observed.at - (now - b))) for b in begun}
        return sorted(self._at[b] for b in begun)


def recycles(
    past: RecyclePast, calendar: Calendar, observed: ObservedCluster, *, now: float, unheard: str
) -> Recycles:
    dates = calendar.dates(past.begun, observed, now)
    totals = sorted(past.totals.items(), key=lambda item: item[0].value)
    return Recycles(tuple(totals), tuple(dates[-MAX_RECENT:]), unheard)


def wants_meters(view: PlatformView, policy: Policy) -> bool:
    """Whether anything has a quota: the policy, a group in it, or a single worker."""
    if policy.recycle != _NO_QUOTA or any(r != _NO_QUOTA for r in policy.group_recycle.values()):
        return True
    return any(w.quota_notes is not None or w.ends_in_s < math.inf for w in view.workers)


def is_pressing(decided: Plan) -> bool:
    """
    Whether to look again soon: something is being replaced, or nearly used up.

    Not what is due and waits its turn, nor a lifetime: they take their time.
    """
    if any(r.state != "Due" for r in decided.replacing):
        return True
    return any(NEARLY < u.ratio < 1 and u.quota is not Quota.LIFETIME for u in decided.uses)
