"""When each worker ends, as far as it is known: as the operator said, or by its own lifetime."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from dask_adaptive_agent import lifetimes
from dask_adaptive_agent.lifespan import METRIC
from dask_adaptive_agent.limits import UNNAMED, Limits

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState


class End(NamedTuple):
    """Of one worker; `at` is on the clock of its `Ends`."""

    at: float
    floor_s: float  # no task is expected to take less
    deviations: float


class Ends:
    """
    The ends of all workers that have one, by address.

    Args:
        scheduler: Its workers.
        limits: What the operator has said.
        clock: That of `limits`.
    """

    def __init__(self, scheduler: Scheduler, limits: Limits, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._limits = limits
        self._clock = clock
        self.by_address: dict[str, End] = {}
        self.latest_at = math.inf  # of those in service; infinite: one of them has no end
        #: How long a new worker would live; infinite where nothing is known of its end.
        self.fresh_s = math.inf
        self.floor_s, self.deviations = UNNAMED.floor_s, UNNAMED.deviations
        #: Those in service, the longest-lived first, and when each of them ends, negated.
        self.lasting: list[WorkerState] = []
        self.lasting_until: list[float] = []

    def refresh(self) -> None:
        """Read all of them anew."""
        workers: Iterable[WorkerState] = self._scheduler.workers.values()
        if not self._limits.have_ends:  # the common case: 5,000 workers must cost next to nothing
            workers = [ws for ws in workers if METRIC in ws.metrics]
        self.by_address = {ws.address: end for ws in workers if (end := self._end(ws)) is not None}
        profiles = self._limits.profiles
        self.fresh_s = max([p.fresh_s for p in profiles], default=math.inf)
        self.floor_s = max([p.floor_s for p in profiles], default=UNNAMED.floor_s)
        self.deviations = max([p.deviations for p in profiles], default=UNNAMED.deviations)
        self.latest_at = math.inf
        self.lasting = []
        if self.by_address:
            self.lasting = sorted(self._scheduler.running, key=self.at, reverse=True)
        self.lasting_until = [-self.at(ws) for ws in self.lasting]
        if self.lasting:
            self.latest_at = -self.lasting_until[0]
            # A new one has a lifetime of its own if each of these has.
            lifetimes_s = [lifetimes.lifetime_s(ws) for ws in self.lasting]
            self.fresh_s = min(self.fresh_s, max(lifetimes_s))

    def joined(self, ws: WorkerState) -> None:
        end = self._end(ws)
        if end is not None:
            self.by_address[ws.address] = end
        self.latest_at = max(self.latest_at, math.inf if end is None else end.at)

    def left(self, address: str) -> None:
        self.by_address.pop(address, None)

    def at(self, ws: WorkerState) -> float:
        end = self.by_address.get(ws.address)
        return math.inf if end is None else end.at

    @property
    def are_measured(self) -> bool:
        """Whether somebody wants to know what workers' runs take."""
        return any(p.measure for p in self._limits.profiles)

    def _end(self, ws: WorkerState) -> End | None:
        limit = self._limits.of_worker(ws)
        at = min(limit.ends_at, self._clock() + lifetimes.left_s(ws))
        if math.isinf(at):
            return None
        return End(at, limit.profile.floor_s, limit.profile.deviations)
