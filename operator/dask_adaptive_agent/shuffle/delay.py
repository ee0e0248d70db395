"""
A P2P shuffle that is about to begin waits for requested workers, if that saves time.

Upstream gives a shuffle's outputs to the workers that are there when its first input is ready
(`ShuffleSchedulerPlugin.get_or_create`), and never to those that come later. Workers ask for it by
RPC (`_ShuffleRunManager._fetch`, without a time limit): here the answer to that is put off. The
handler is synchronous from 2023.5.0 to 2026.8.0, and `Server._handle_comm` awaits one that is not.
Whoever comes later takes part because all of it happens then: the choice of workers in the
scheduler, and what each worker keeps of the shuffle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from time import time as wall_clock
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.core import Status

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.demand.durations import Durations
from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.patching import Call, Patches
from dask_adaptive_agent.service.service import Service
from dask_adaptive_agent.shuffle.runs import BARRIER, Barriers, Upcoming, Work, work_of
from dask_adaptive_agent.text import duration, plural

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

logger = logging.getLogger(__name__)

#: Seconds between two checks of a shuffle that waits.
TICK_S = 0.2
#: Seconds within which an operator sees a shuffle that became known: it looks every 5 s.
UNSEEN_S = 6.0
#: Seconds within which an operator that has seen a shuffle announces workers for it.
ANSWER_S = 3.0
#: An operator that has been silent for longer does not look.
ALIVE_S = 10.0
#: The time that a worker takes to come which nobody has asked for yet, where it is not known.
GROW_S = 30.0
#: An overdue worker is expected within this, or in the time that it is overdue by.
OVERDUE_S = 2.0
#: The part of the whole by which a wait must at least shorten it: estimates are not exact.
MARGIN = 0.1

Request = Mapping[str, Any]


class Coming(NamedTuple):
    """Workers that are on their way, or threads of theirs."""

    number: int
    in_s: float


def pays(work: Work, threads: int, coming: Sequence[Coming], most_s: float) -> bool:
    """
    Tells whether a shuffle ends sooner if it begins when some of those on their way are there.

    While it waits nothing of it is computed: its first inputs hold the threads that would. Whoever
    comes after it has begun still helps with its inputs, and not with its outputs. It waits for
    `most_s` at most; `threads` are there now, `coming` are threads, too, in any order.
    """
    coming = sorted((one for one in coming if one.number > 0), key=lambda one: one.in_s)
    waits = [one.in_s for one in coming if 0 < one.in_s <= most_s]
    if threads <= 0 or not waits:
        return False
    soonest = min([_end_s(work, threads, coming, wait_s) for wait_s in waits])
    return soonest <= _end_s(work, threads, coming, 0.0) * (1 - MARGIN)


def _end_s(work: Work, threads: int, coming: Sequence[Coming], begin_s: float) -> float:
    """The end of the last output if the shuffle begins then."""
    for_outputs = threads + sum([one.number for one in coming if one.in_s <= begin_s])
    now_s, left_s, serving = begin_s, work.inputs_s, for_outputs
    for one in coming:
        if one.in_s > begin_s and left_s > (one.in_s - now_s) * serving:
            left_s -= (one.in_s - now_s) * serving
            now_s, serving = one.in_s, serving + one.number
    return now_s + left_s / serving + work.outputs_s / for_outputs


@dataclass(eq=False)
class Wait:
    """One shuffle whose creation is put off."""

    since: float
    before: frozenset[str]  # addresses of workers that were there
    calls: dict[asyncio.Future[None], str] = field(default_factory=dict)  # held, and their workers
    overdue_at: float = math.inf  # since when all that is on its way is overdue

    def let_go(self, but: Container[str] = ()) -> None:
        """Answer all calls, but those of the workers in `but`."""
        for call, worker in self.calls.items():
            if worker not in but and not call.done():
                call.set_result(None)


class ShuffleDelay(Component):
    """Stands between workers and the shuffle plugin of one scheduler."""

    def __init__(
        self, context: Context, service: Service, barriers: Barriers, durations: Durations
    ) -> None:
        super().__init__(context)
        self._service, self._barriers, self._durations = service, barriers, durations
        self._correction = DurationCorrection(self.scheduler)
        self.ongoing: dict[str, Wait] = {}  # by shuffle
        self._spent: dict[str, float] = {}  # by shuffle: seconds of waits that are over
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def install(self, patches: Patches) -> None:
        """Raises `Mismatch` where workers ask for shuffles in another way."""
        patches.put(patching.SHUFFLE_RPC, self._creating)
        # Before the others that listen already: they get runs without what these only waited.
        patches.listen(patching.TASK_FINISHED, self._correction.shorten)

    def _creating(self, stock: Call) -> Call:
        """The handler that workers ask for a shuffle: answers later where that pays."""

        @wraps(stock)
        def get_or_create(**request: Any) -> Any:
            id, wait = "", None
            # Fail open: it begins on the workers that are there, as upstream does.
            with logged(logger, "Failed to decide whether a shuffle should wait for workers"):
                id = _shuffle_of(request)
                wait = self._wait(id)
            if wait is None:
                return stock(**request)
            call = asyncio.get_running_loop().create_future()
            wait.calls[call] = request.get("worker", "")
            return self._later(stock, id, wait, call, request)

        return get_or_create

    def review(self) -> None:
        """End the waits that are over."""
        for id, wait in list(self.ongoing.items()):
            over = "of an error in the scheduler's log"
            # Fail open, as above.
            with logged(logger, "Failed to decide whether shuffle %s should wait on", id):
                # Threads of a worker that closes would keep it from that.
                wait.let_go(but=self.scheduler.workers)
                over = self._reason_to_end(id, wait)
            if over:
                self._end(id, wait, over)
        for id in [id for id in self._spent if not self._barriers.is_known(id)]:
            del self._spent[id]
        self._set_timer()

    def close(self) -> None:
        """End all waits, and begin no more. On the scheduler's event loop."""
        self._is_closed = True
        for wait in self.ongoing.values():
            wait.let_go()
        self.ongoing.clear()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.ongoing:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self.review)

    def _wait(self, id: str) -> Wait | None:
        """Return a shuffle's current or new wait; None: it may begin, or has begun."""
        upcoming = self._barriers.get(id)
        wait = self.ongoing.get(id)
        if self._is_closed or upcoming is None:
            return None  # `review` ends the wait, if there was one
        if wait is not None:
            return wait
        wait = Wait(self.clock(), frozenset(self.scheduler.workers))
        if self._why_not(upcoming, wait):
            return None
        self.ongoing[id] = wait
        if self._timer is None:
            self._set_timer()
        return wait

    async def _later(
        self, stock: Call, id: str, wait: Wait, call: asyncio.Future[None], request: Request
    ) -> Any:
        begin = wall_clock()
        try:
            await call
        finally:
            wait.calls.pop(call, None)
        worker = request.get("worker", "")
        if not self._is_wanted(id, worker, request.get("key")):
            return _closed(id)
        self._correction.add(id, worker, request.get("key"), begin, wall_clock())
        return stock(**request)

    def _is_wanted(self, id: str, worker: str, key: Any) -> bool:
        """
        Tells whether the task that has asked still needs the answer.

        It would be an error for the stock handler if not (`_raise_if_task_not_processing`), or,
        before 2023.8, a worker that has left would become a participant.
        """
        scheduler = self.scheduler
        if scheduler.status in (Status.closing, Status.closed) or worker not in scheduler.workers:
            return False
        if key is None:  # before 2023.8 the task is not named
            return self._barriers.is_known(id)
        ts = scheduler.tasks.get(key)
        return ts is not None and ts.state == "processing" and self._barriers.is_known(id)

    def _reason_to_end(self, id: str, wait: Wait) -> str:
        """The reason why a shuffle stops waiting; empty: it waits on."""
        upcoming = self._barriers.get(id)
        if upcoming is None:
            return "it has begun, or its result is no longer needed"
        if not wait.calls:
            return "no worker that asked to begin it is still connected"
        terminating = self._service.terminating()
        if any([worker in terminating for worker in wait.calls.values()]):
            return "a worker that holds an input is about to end"
        return self._why_not(upcoming, wait)

    def _why_not(self, upcoming: Upcoming, wait: Wait) -> str:
        """Return why a shuffle should not wait, or wait longer; empty: it should."""
        now = self.clock()
        most_s = self.context.settings.shuffle_wait_ms / 1000
        left_s = most_s - self._spent.get(upcoming.id, 0.0) - (now - wait.since)
        if left_s <= 0:
            return f"it may not wait any longer ({duration(most_s)})"
        if wait.calls and self.context.roster.is_settling():
            return ""
        workers = self._service.in_service()
        threads = sum(ws.nthreads for ws in workers)
        each = max(1, round(threads / len(workers))) if workers else 1
        coming = self._coming(wait, now) + self._may_come(upcoming, now)
        if not coming:
            return "no more workers are expected"
        if self._barriers.is_bound(upcoming.barrier):
            return "its outputs are bound to certain workers"
        work = work_of(upcoming.barrier, self._expected_s)
        more = [Coming(one.number * each, one.in_s) for one in coming]
        return "" if pays(work, threads, more, left_s) else "waiting longer would save no time"

    def _expected_s(self, ts: TaskState) -> float:
        mean_s = self._durations.mean_s(ts.prefix)
        return mean_s if mean_s >= 0 else float(self.scheduler.UNKNOWN_TASK_DURATION)

    def _coming(self, wait: Wait, now: float) -> list[Coming]:
        """Return the expected workers; the longer one is overdue, the later it is expected."""
        arriving = self.context.plans.arriving
        if not arriving or any(in_s > 0 for _, in_s in arriving):
            wait.overdue_at = math.inf
        else:
            wait.overdue_at = min(wait.overdue_at, now)
        overdue_s = max(OVERDUE_S, now - wait.overdue_at)
        return [Coming(n, in_s if in_s > 0 else overdue_s) for n, in_s in arriving]

    def _may_come(self, upcoming: Upcoming, now: float) -> list[Coming]:
        """Return the workers that an operator may request once it sees this shuffle."""
        plans = self.context.plans
        if not plans.can_grow or self.context.lease.silent_s > ALIVE_S:
            return []
        if now - upcoming.known_at > UNSEEN_S or now - upcoming.seen_at > ANSWER_S:
            return []
        grow_s = GROW_S if plans.grow_s is None else plans.grow_s
        tasks = len(upcoming.barrier.waiting_on or ()) + len(upcoming.barrier.dependents)
        return [Coming(min(plans.can_grow, tasks), grow_s)]

    def _end(self, id: str, wait: Wait, why: str) -> None:
        del self.ongoing[id]
        waited_s = self.clock() - wait.since
        self._spent[id] = self._spent.get(id, 0.0) + waited_s
        wait.let_go()
        if waited_s < 1.0 or self._barriers.get(id) is None:
            return
        workers = self._service.in_service()
        came = [str(ws.name) for ws in workers if ws.address not in wait.before]
        self.context.notes.add(
            wire.N_SHUFFLE_WAITED,
            f"shuffle {id} has waited {duration(waited_s)} for expected workers: "
            f"{plural(len(came), 'worker')} came, its outputs go to {len(workers)}; "
            f"it begins because {why}",
            came,
        )


def _shuffle_of(request: Request) -> str:
    """The id, as this release names it: `shuffle_id` since 2024.11; `spec` since 2023.8.1; `id`."""
    for name in ("shuffle_id", "id"):
        if name in request:
            return str(request[name])
    spec: Any = request["spec"]
    return str(getattr(spec, "data", spec).id)  # may be a ToPickle


def _closed(id: str) -> dict[str, Any]:
    """
    An error for the caller alone, as `Server._handle_comm` answers one, and not in anybody's log.

    Its task is cancelled, or runs again: that is what workers make of this error since 2023.8.1
    (`handle_transfer_errors`).
    """
    from distributed.core import error_message

    kind: Any = RuntimeError
    for module in ("_worker_plugin", "_worker_extension", "_exceptions"):
        with contextlib.suppress(ImportError, AttributeError):
            kind = import_module(f"distributed.shuffle.{module}").ShuffleClosedError
    error = kind(f"Shuffle {id} was cancelled while it waited for workers")
    return dict(error_message(error, status="uncaught-error"))


class _Hold(NamedTuple):
    """A worker's tasks of one shuffle waited then; seconds since 1970 on the scheduler's clock."""

    begin: float
    end: float
    prefix: str  # of the one that has asked, if it is known


class DurationCorrection:
    """
    Leaves such waits out of the durations that workers report.

    Else the mean duration of a shuffle's inputs would be that of the wait, and for some runs to
    come everything that reckons with it (`adaptive_target`, occupancy, stealing) would ask for far
    too many workers. Workers report durations on the scheduler's clock (`Worker.scheduler_delay`).
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self._holds: dict[str, dict[str, _Hold]] = {}  # by shuffle, by worker

    def add(self, id: str, worker: str, key: Any, begin: float, end: float) -> None:
        """
        Tasks of one worker, all that are inputs of the shuffle, have waited so long.

        One of them has asked for all (`_ShuffleRunManager._refresh_locks`): the others are of its
        prefix. It need not be what the barrier depends on. Before 2023.8 it is not named, and is.
        """
        ts = self.scheduler.tasks.get(key)
        prefix = "" if ts is None else ts.prefix.name
        holds = self._holds.setdefault(id, {})
        before = holds.get(worker, _Hold(begin, end, prefix))
        holds[worker] = _Hold(min(begin, before.begin), max(end, before.end), prefix)

    def shorten(self, msg: dict[str, Any]) -> None:
        """Leave the wait out of a report of a run that has succeeded."""
        tasks = self.scheduler.tasks
        for id in list(self._holds):
            barrier, ts = tasks.get(BARRIER + id), tasks.get(msg.get("key"))
            if barrier is None or barrier.state != "waiting":
                del self._holds[id]  # all its inputs are there
                continue
            hold = self._holds[id].get(msg.get("worker", ""))
            if hold is None or ts is None:
                continue
            if ts.prefix.name == hold.prefix or ts in barrier.dependencies:
                msg["startstops"] = [_cut(one, hold) for one in msg.get("startstops") or ()]
                return


def _cut(one: dict[str, Any], hold: _Hold) -> dict[str, Any]:
    waited = min(one["stop"], hold.end) - max(one["start"], hold.begin)
    if one["action"] != "compute" or waited <= 0:
        return one
    return {**one, "start": one["start"] + waited}
