"""
A P2P shuffle that is about to begin waits for workers that are on their way, as long as it pays.

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
from collections.abc import Callable, Container, Mapping
from functools import wraps
from importlib import import_module
from time import time as wall_clock
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.closing import in_service
from dask_adaptive_agent.held_transfers import HeldTransfers
from dask_adaptive_agent.patching import Patches
from dask_adaptive_agent.shuffle_work import is_bound, work_of
from dask_adaptive_agent.words import duration, plural
from dask_adaptive_agent.worth import Coming, worthwhile_wait_s

if TYPE_CHECKING:
    from dask_adaptive_agent.agent import Agent
    from dask_adaptive_agent.barriers import Upcoming

logger = logging.getLogger(__name__)

#: While a shuffle waits it is considered again so often.
TICK_S = 0.2
#: So long after a shuffle became known an operator may not have seen it: it looks every 5 s.
UNSEEN_S = 6.0
#: So long after the operator's look it has said what it does about it.
ANSWER_S = 3.0
#: Who has not been heard of for so long does not look.
ALIVE_S = 10.0
#: How long a worker that nobody has asked for yet takes, where that is not known.
GROW_S = 30.0
#: An overdue worker is expected within this, or in the time that it is overdue by.
OVERDUE_S = 2.0
#: A worker that has registered sets up its plugins, and then runs, within moments.
SETTLING_S = 5.0
#: Waits shorter than this are not worth a word.
TOLD_S = 1.0

Request = Mapping[str, Any]


class Wait:
    """One shuffle whose creation is put off."""

    def __init__(self, since: float, before: frozenset[str]) -> None:
        self.since = since
        self.before = before  # addresses of workers that were there
        self.calls: dict[asyncio.Future[None], str] = {}  # that are held, and their workers
        self.came: dict[str, float] = {}  # workers that came and did not run yet: seen first
        self.overdue_at = math.inf  # since when all that is on its way is overdue

    def let_go(self, but: Container[str] = ()) -> None:
        """Whoever has asked hears now, unless it is a worker in `but`."""
        for call, worker in self.calls.items():
            if worker not in but and not call.done():
                call.set_result(None)


class ShuffleWait:
    """Stands between workers and the shuffle plugin of one scheduler."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._scheduler: Any = agent.scheduler
        self._clock = agent.clock
        self.held = HeldTransfers(agent.scheduler)
        self.ongoing: dict[str, Wait] = {}  # by shuffle
        self._spent: dict[str, float] = {}  # by shuffle: seconds of waits that are over
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def install(self, patches: Patches) -> None:
        """Raises `Mismatch` where workers ask for shuffles in another way."""
        patches.put(patching.SHUFFLE_RPC, self._creating)
        # First: all others hear of runs without what they only waited.
        patches.listen(patching.TASK_FINISHED, self.held.shorten, first=True)

    def _creating(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """The handler that workers ask for a shuffle: answers later where that pays."""

        @wraps(stock)
        def get_or_create(**request: Any) -> Any:
            try:
                id = _shuffle_of(request)
                wait = self._wait(id)
            except Exception:
                # Fail open: it begins on the workers that are there, as upstream does.
                logger.exception("Cannot tell whether a shuffle should wait for workers")
                return stock(**request)
            if wait is None:
                return stock(**request)
            call = asyncio.get_running_loop().create_future()
            wait.calls[call] = request.get("worker", "")
            return self._later(stock, id, wait, call, request)

        return get_or_create

    def review(self) -> None:
        """End what need not wait any more."""
        for id, wait in list(self.ongoing.items()):
            try:
                # Threads of a worker that closes would keep it from that.
                wait.let_go(but=self._scheduler.workers)
                over = self._reason_to_end(id, wait)
            except Exception:
                # Fail open, as above.
                logger.exception("Cannot tell whether shuffle %s should wait on", id)
                over = "of an error in the scheduler's log"
            if over:
                self._end(id, wait, over)
        for id in [id for id in self._spent if not self._agent.barriers.is_known(id)]:
            del self._spent[id]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self.ongoing:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self.review)

    def close(self) -> None:
        """Let everybody go on, from now on at once. On the scheduler's event loop."""
        self._is_closed = True
        for wait in self.ongoing.values():
            wait.let_go()
        self.ongoing.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, id: str) -> Wait | None:
        """The wait that a shuffle is in, or enters now; None: it may begin, or has."""
        upcoming = self._agent.barriers.get(id)
        wait = self.ongoing.get(id)
        if self._is_closed or upcoming is None:
            return None  # `review` ends the wait, if there was one
        if wait is not None:
            return wait
        wait = Wait(self._clock(), frozenset(self._scheduler.workers))
        if self._why_not(upcoming, wait):
            return None
        self.ongoing[id] = wait
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self.review)
        return wait

    async def _later(
        self,
        stock: Callable[..., Any],
        id: str,
        wait: Wait,
        call: asyncio.Future[None],
        request: Request,
    ) -> Any:
        begin = wall_clock()
        try:
            await call
        finally:
            wait.calls.pop(call, None)
        worker = request.get("worker", "")
        if not self._is_wanted(id, worker, request.get("key")):
            return _closed(id)
        self.held.add(id, worker, request.get("key"), begin, wall_clock())
        return stock(**request)

    def _is_wanted(self, id: str, worker: str, key: Any) -> bool:
        """
        Whether whoever has asked still wants to know.

        It would be an error for the stock handler if not (`_raise_if_task_not_processing`), or,
        before 2023.8, a worker that has left would become a participant.
        """
        scheduler = self._scheduler
        if scheduler.status in (Status.closing, Status.closed) or worker not in scheduler.workers:
            return False
        if key is None:  # before 2023.8 the task is not named
            return self._agent.barriers.is_known(id)
        ts = scheduler.tasks.get(key)
        return ts is not None and ts.state == "processing" and self._agent.barriers.is_known(id)

    def _reason_to_end(self, id: str, wait: Wait) -> str:
        """Why a shuffle waits no more; empty: it waits on."""
        upcoming = self._agent.barriers.get(id)
        if upcoming is None:
            return "it has begun, or nobody wants it any more"
        if not wait.calls:
            return "nobody who has asked for it is there any more"
        departing = self._agent.drains.departures()
        if any(worker in departing for worker in wait.calls.values()):
            return "a worker that has an input of it is about to end"
        return self._why_not(upcoming, wait)

    def _why_not(self, upcoming: Upcoming, wait: Wait) -> str:
        """Why a shuffle should not wait (any longer); empty: it should."""
        now = self._clock()
        most_s = self._agent.settings.shuffle_wait_ms / 1000
        left_s = most_s - self._spent.get(upcoming.id, 0.0) - (now - wait.since)
        if left_s <= 0:
            return f"that is as long as it may ({duration(most_s)})"
        if wait.calls and self._is_settling(wait):
            return ""
        workers = in_service(self._scheduler, self._agent.leaving())
        threads = sum(ws.nthreads for ws in workers)
        each = max(1, round(threads / len(workers))) if workers else 1
        coming = self._coming(wait, now) + self._may_come(upcoming, now)
        if not coming:
            return "no more are on their way"
        if is_bound(upcoming.barrier, self._agent.shuffles.has_begun):
            return "its outputs are bound to certain workers"
        work = work_of(upcoming.barrier, self._scheduler.UNKNOWN_TASK_DURATION)
        more = [Coming(n * each, in_s) for n, in_s in coming]
        if not worthwhile_wait_s(work, threads, more, most_s=left_s):
            return "to wait for more does not pay"
        return ""

    def _coming(self, wait: Wait, now: float) -> list[tuple[int, float]]:
        """Workers on their way, those overdue expected later the longer they are."""
        arriving = self._agent.announced.arriving
        if not arriving or any(in_s > 0 for _, in_s in arriving):
            wait.overdue_at = math.inf
        else:
            wait.overdue_at = min(wait.overdue_at, now)
        overdue_s = max(OVERDUE_S, now - wait.overdue_at)
        return [(workers, in_s if in_s > 0 else overdue_s) for workers, in_s in arriving]

    def _may_come(self, upcoming: Upcoming, now: float) -> list[tuple[int, float]]:
        """Workers that an operator that has not seen this shuffle yet may ask for because of it."""
        announced = self._agent.announced
        if not announced.can_grow or announced.silent_s > ALIVE_S:
            return []
        if now - upcoming.known_at > UNSEEN_S or now - upcoming.seen_at > ANSWER_S:
            return []
        grow_s = GROW_S if announced.grow_s is None else announced.grow_s
        tasks = len(upcoming.barrier.waiting_on or ()) + len(upcoming.barrier.dependents)
        return [(min(announced.can_grow, tasks), grow_s)]

    def _is_settling(self, wait: Wait) -> bool:
        """Whether somebody has just come and does not run yet: its plugins may not be there."""
        scheduler, now = self._scheduler, self._clock()
        if len(scheduler.running) == len(scheduler.workers):
            return False
        return any(
            ws.status is Status.init and now - wait.came.setdefault(address, now) < SETTLING_S
            for address, ws in scheduler.workers.items()
            if address not in wait.before
        )

    def _end(self, id: str, wait: Wait, why: str) -> None:
        del self.ongoing[id]
        waited_s = self._clock() - wait.since
        self._spent[id] = self._spent.get(id, 0.0) + waited_s
        wait.let_go()
        if waited_s < TOLD_S or self._agent.barriers.get(id) is None:
            return
        workers = in_service(self._scheduler, self._agent.leaving())
        came = [str(ws.name) for ws in workers if ws.address not in wait.before]
        self._agent.notes.add(
            wire.N_SHUFFLE_WAITED,
            f"shuffle {id} has waited {duration(waited_s)} for workers on their way: "
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
    error = kind(f"Shuffle {id} was given up while it waited for workers")
    return dict(error_message(error, status="uncaught-error"))
