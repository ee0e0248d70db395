"""What a rehearsal amounts to in figures: gathered pass by pass, shown as a table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.ports import Event
from dask_adaptive.model.observed import Tally
from dask_adaptive.model.reason import Reason


@dataclass(frozen=True, slots=True)
class Figures:
    """One rehearsal. Times in seconds; None where it never happened."""

    tally: Tally | None
    lasted_s: float
    peak_workers: int
    worker_s: float  # sum over all workers of the time each existed
    fixed_worker_s: float  # the same for a cluster that always has maxReplicas
    to_connected_s: tuple[float, ...]  # from load to the workers it asked for, each time
    to_gone_s: tuple[float, ...]  # from a worker's last task to its end, each worker
    recycled: tuple[tuple[Reason, int], ...] = ()  # workers replaced, by reason


@dataclass(frozen=True, slots=True)
class Sample:
    """What is added up of one moment."""

    present: int  # workers that exist, connected or not
    idle_s: Mapping[str, float]  # of each connected worker; 0 while it has a task
    wanted: int
    desired: int
    tally: Tally | None
    recycled: tuple[tuple[Reason, int], ...] = ()


class Recorder:
    """A `Watcher` that adds up. `clock` in seconds."""

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._maximum, self._clock = maximum, clock
        self._began = self._last = clock()
        self._tally: Tally | None = None
        self._recycled: tuple[tuple[Reason, int], ...] = ()
        self._peak, self._worker_s, self._present = 0, 0.0, 0
        self._rising_since: float | None = None
        self._to_connected: list[float] = []
        self._to_gone: list[float] = []
        self._busy_at: dict[str, float] = {}

    def happened(self, event: Event) -> None:
        """Events are for the view."""

    def saw(self, result: PassResult) -> None:
        workers = [w for g in result.observed.groups for w in g.workers]
        self.add(
            Sample(
                present=len(workers),
                idle_s={w.name: w.idle_s for w in workers if w.is_connected},
                wanted=result.plan.wanted,
                desired=result.plan.desired,
                tally=result.observed.scheduler.tally,
                recycled=result.status.recycled,
            )
        )

    def add(self, sample: Sample) -> None:
        """Add one moment to the figures; the time since the last one counts with its workers."""
        now = self._clock()
        self._worker_s += self._present * (now - self._last)
        self._present, self._last = sample.present, now
        self._peak = max(self._peak, len(sample.idle_s))
        self._tally = sample.tally or self._tally
        self._recycled = sample.recycled
        self._time_rise(sample.desired, sample.wanted, len(sample.idle_s), now)
        self._time_leaving(sample.idle_s, now)

    @property
    def present(self) -> int:
        """Workers that existed at the last look."""
        return self._present

    def figures(self) -> Figures:
        lasted = self._last - self._began
        return Figures(
            tally=self._tally,
            lasted_s=lasted,
            peak_workers=self._peak,
            worker_s=self._worker_s,
            fixed_worker_s=self._maximum * lasted,
            to_connected_s=tuple(self._to_connected),
            to_gone_s=tuple(self._to_gone),
            recycled=self._recycled,
        )

    def _time_rise(self, desired: int, wanted: int, connected: int, now: float) -> None:
        if self._rising_since is None:
            if min(wanted, desired) > connected:
                self._rising_since = now
        elif connected >= desired:
            self._to_connected.append(now - self._rising_since)
            self._rising_since = None

    def _time_leaving(self, idle_s: Mapping[str, float], now: float) -> None:
        for name in self._busy_at.keys() - idle_s.keys():
            self._to_gone.append(now - self._busy_at.pop(name))
        for name, seconds in idle_s.items():
            self._busy_at[name] = now - seconds
