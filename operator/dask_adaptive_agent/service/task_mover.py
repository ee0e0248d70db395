"""Moves tasks that have not started away from a worker, with the scheduler's own work stealing."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.demand.graph_shape import is_bound

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: Threads that are held for less than this are not missed: a worker that spills pauses for moments,
#: and cancelled runs are as of the last heartbeat.
LASTS_S = 1.0

#: Seconds between two looks at all workers: with 5,000 of them one takes a millisecond.
LOOK_S = 0.5

#: Workers looked at for who should take a task, or a copy: of more, so many by chance. To look at
#: 5,000 of them takes longer than a look may.
CONSIDERED = 500

#: Thieves considered for tasks without restrictions: enough to spread a worker's queue.
THIEVES = 32

#: Seconds until a task that stayed is asked for again: it runs already, or nobody else might
#: take it.
ASK_AGAIN_S = 5.0


def stealing(scheduler: Scheduler) -> Any:
    """`WorkStealing`, or None: there is none where `distributed.scheduler.work-stealing` is off."""
    extension = scheduler.extensions.get("stealing")
    return extension if hasattr(extension, "move_task_request") else None


def considered(workers: Iterable[WorkerState], but: WorkerState | None = None) -> list[WorkerState]:
    """Workers, or a sample of them, that may take the tasks of another one."""
    others = list(workers)
    if len(others) > CONSIDERED:
        others = random.sample(others, CONSIDERED)
    return [ws for ws in others if ws is not but]


def arriving(scheduler: Scheduler, ws: WorkerState) -> bool:
    """Tells whether a stolen task is on its way to this worker, soon to be in `processing`."""
    extension = stealing(scheduler)
    if extension is None or not extension.in_flight:
        return False
    return any(info["thief"] is ws for info in list(extension.in_flight.values()))


class Nobody:
    """
    A thief that has left: `WorkStealing.move_task_confirm` then lets the scheduler decide anew.

    As much of a WorkerState as is read before that.
    """

    address = "nobody"
    name = "nobody"
    status = Status.closed  # check_idle_saturated leaves it alone
    nthreads = 1
    occupancy = 0.0
    has_what: dict[Any, Any] = {}  # noqa: RUF012 - nothing is ever put into it
    processing: dict[Any, Any] = {}  # noqa: RUF012


class Mover(Component):
    """
    Asks one worker to give up its tasks that have not started, one request a task.

    The worker decides (`WorkerState._handle_steal_request`): it keeps what runs, and the scheduler
    reassigns the rest when the answer comes (`WorkStealing.move_task_confirm`), so no run is lost.
    A task that no other worker may take is not asked for: it runs here.
    """

    def __init__(self, context: Context, ws: WorkerState) -> None:
        super().__init__(context)
        self.ws = ws
        self.requested: dict[Any, float] = {}  # when, by key

    def ask(
        self,
        *,
        back: bool = False,
        but: Collection[WorkerState] = (),
        stays: Callable[[TaskState], bool] | None = None,
    ) -> None:
        """
        Ask for each task that has a taker and was not asked for lately, but for those that stay.

        With `back`, a task without a taker that anybody might take waits at the scheduler. Workers
        in `but` take none.
        """
        extension = stealing(self.scheduler)
        if extension is None or not self.ws.processing:
            return
        now = self.clock()
        self.requested = {key: at for key, at in self.requested.items() if now - at < ASK_AGAIN_S}
        takers = _Takers(self.scheduler, self.ws, but)
        for ts in list(self.ws.processing):
            if ts.key in self.requested or ts in self.ws.long_running or ts in extension.in_flight:
                continue
            if stays is not None and stays(ts):
                continue
            thief: Any = takers.best(ts)
            if thief is None and back and not is_bound(ts):
                thief = Nobody()
            if thief is not None:
                extension.move_task_request(ts, self.ws, thief)
            if thief is not None or is_bound(ts):
                self.requested[ts.key] = now


@dataclass(eq=False)
class _Takers:
    """Workers in service that may take tasks of one worker, the least loaded first."""

    scheduler: Scheduler
    victim: WorkerState
    but: Collection[WorkerState]

    def __post_init__(self) -> None:
        self._extra: dict[str, int] = {}  # requests of this round, by address
        self._least_loaded: list[WorkerState] | None = None
        self._allowed: dict[Any, list[WorkerState]] = {}  # by restrictions

    def best(self, ts: TaskState) -> WorkerState | None:
        """Choose as `WorkStealing._get_thief`: restrictions hold unless they are loose."""
        takers = self._allowed_for(ts) if is_bound(ts) else []
        if not takers and (ts.loose_restrictions or not is_bound(ts)):
            takers = self._anybody()
        if not takers:
            return None
        best = min(takers, key=self._load)
        self._extra[best.address] = self._extra.get(best.address, 0) + 1
        return best

    def _anybody(self) -> list[WorkerState]:
        # Looks at every worker: not before a task is there that anybody may take.
        if self._least_loaded is None:
            others = self._able(considered(self.scheduler.running, self.victim))
            self._least_loaded = heapq.nsmallest(THIEVES, others, key=self._load)
        return self._least_loaded

    def _able(self, workers: Iterable[WorkerState]) -> list[WorkerState]:
        running = self.scheduler.running
        out = (self.victim, *self.but)
        return [ws for ws in workers if ws in running and ws not in out]

    def _allowed_for(self, ts: TaskState) -> list[WorkerState]:
        restrictions = (
            frozenset(ts.worker_restrictions or ()),
            frozenset(ts.host_restrictions or ()),
            frozenset((ts.resource_restrictions or {}).items()),
        )
        allowed = self._allowed.get(restrictions)
        if allowed is None:
            valid = self.scheduler.valid_workers(ts) or ()
            # valid_workers leaves out workers that are not running only if there are any.
            allowed = self._allowed[restrictions] = self._able(valid)
        return allowed

    def _load(self, ws: WorkerState) -> tuple[float, str]:
        tasks = len(ws.processing) + self._extra.get(ws.address, 0)
        return tasks / max(1, ws.nthreads), ws.address


class StuckThreads(Component):
    """
    The threads of paused workers, and those that cancelled runs hold: a worker can't stop a thread,
    so the run goes on, and the scheduler takes the thread for a free one.

    Tasks that wait for a worker without any other thread move to workers that have one, and those
    that wait for a resource of their worker to idle ones that have it. Stock code leaves them
    there, and so do we where no operator governs the cluster.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.threads: dict[WorkerState, int] = {}
        self._held: dict[WorkerState, tuple[float, Mover]] = {}  # since when
        self._look_at = 0.0

    def look(self) -> None:
        now = self.clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        known, self._held, self.threads = self._held, {}, {}
        roster, paused = self.context.roster, Status.paused
        roster.read_reports(self.context.guard)
        entries = roster.entries.values()
        for entry in [e for e in entries if e.cancelled or e.ws.status is paused]:
            # By its report, in which cancelled seceded runs count, too.
            ws = entry.ws
            self._held[ws] = known.get(ws) or (now, Mover(self.context, ws))
            if now - self._held[ws][0] >= LASTS_S:
                is_paused = ws.status is paused
                self.threads[ws] = ws.nthreads if is_paused else min(ws.nthreads, entry.cancelled)
        if self.context.lease.silent_s < math.inf:
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
                Mover(self.context, ws).ask(
                    but=running - {taker},
                    stays=lambda ts: short.isdisjoint(ts.resource_restrictions or ()),  # noqa: B023
                )

    def rows(self) -> list[wire.StuckRow]:
        entries = self.context.roster.entries.values() if self.threads else ()
        stuck = [e for e in entries if e.ws in self.threads]
        return [{"slot": e.slot, "threads": self.threads[e.ws]} for e in stuck]


def _short(ws: WorkerState) -> set[str]:
    """Resources that tasks of a worker wait for: `used_resources` is wrong once one was stolen."""
    wanted: Counter[str] = Counter()
    for ts in ws.processing:
        wanted.update(ts.resource_restrictions or {})
    return {name for name, amount in wanted.items() if amount > ws.resources.get(name, 0)}
