"""Threads of connected workers that can take no task now; what waits for them is moved."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.protocol.operator_side import Component, OperatorLease
from dask_adaptive_agent.service.task_mover import Mover, considered

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

    from dask_adaptive_agent.quotas.roster import Entry

#: Threads that are held for less than this are not missed: a worker that spills pauses for moments,
#: and cancelled runs are as of the last heartbeat.
LASTS_S = 1.0

#: Seconds between two looks at all workers: with 5,000 of them one takes a millisecond.
LOOK_S = 0.5


@dataclass(eq=False)
class StuckThreads(Component):
    """
    The threads of paused workers, and those that cancelled runs hold: a worker can't stop a thread,
    so the run goes on, and the scheduler takes the thread for a free one.

    Tasks that wait for a worker without any other thread move to workers that have one, and those
    that wait for a resource of their worker to idle ones that have it. Stock code leaves them
    there, and so do we where no operator governs the cluster.
    """

    entries: dict[str, Entry]  # the roster's, by address; the same dict for ever
    lease: OperatorLease

    def __post_init__(self) -> None:
        self.threads: dict[WorkerState, int] = {}
        self._held: dict[WorkerState, tuple[float, Mover]] = {}  # since when
        self._look_at = 0.0

    def look(self) -> None:
        now = self.clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        known, self._held, self.threads = self._held, {}, {}
        for ws in [entry.ws for entry in self.entries.values()]:
            if threads := _held(ws):
                mover = Mover(self.scheduler, ws, self.clock)
                self._held[ws] = known.get(ws) or (now, mover)
                if now - self._held[ws][0] >= LASTS_S:
                    self.threads[ws] = threads
        if self.lease.silent_s < math.inf:
            full = {ws for ws, threads in self.threads.items() if threads >= ws.nthreads}
            for ws in full:
                self._held[ws][1].ask(but=full)
            self._spread()

    def _spread(self) -> None:
        """Stock code steals from no worker that has at most a task for each thread."""
        running = self.scheduler.running
        able = [ws for ws in considered(running) if ws.resources]
        idle = [ws for ws in able if not ws.processing]
        for ws in [ws for ws in able if idle and 1 < len(ws.processing) <= ws.nthreads]:
            short = _short(ws)
            taker = next((t for t in idle if short and short <= t.resources.keys()), None)
            if taker is not None:
                idle.remove(taker)
                Mover(self.scheduler, ws, self.clock).ask(
                    but=running - {taker},
                    stays=lambda ts: short.isdisjoint(ts.resource_restrictions or ()),  # noqa: B023
                )

    def rows(self) -> list[wire.StuckRow]:
        stuck = [e for e in self.entries.values() if e.ws in self.threads] if self.threads else []
        return [{"slot": e.slot, "threads": self.threads[e.ws]} for e in stuck]


def _held(ws: WorkerState) -> int:
    """As the worker has reported. Of a seceded run that was cancelled it says the same."""
    if ws.status == Status.paused:
        return ws.nthreads
    counts = ws.metrics.get("task_counts") or {}
    return min(ws.nthreads, int(counts.get("cancelled", 0)))


def _short(ws: WorkerState) -> set[str]:
    """Resources that tasks of a worker wait for: `used_resources` is wrong once one was stolen."""
    claimed: Counter[str] = Counter()
    for ts in ws.processing:
        claimed.update(ts.resource_restrictions or {})
    return {name for name, amount in claimed.items() if amount > ws.resources.get(name, 0)}
