"""Copies results away from a worker that is about to leave, while it still works."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.core import Status

from dask_adaptive_agent.failing import logged
from dask_adaptive_agent.service.task_mover import considered

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

    from dask_adaptive_agent.quotas.cordons import Cordons

logger = logging.getLogger(__name__)

#: A copy on a worker with one of these statuses is safe; others are leaving, or not there yet.
IN_SERVICE = (Status.running, Status.paused)

#: Copies that are under way at once: the scheduler's loop is not to be blocked by many.
WINDOW = 10_000

#: Recipients of one step, those with the fewest bytes of results: `WorkerState.memory` is computed
#: at each access, which costs 5 us.
RECIPIENTS = 64

#: A worker that was asked for copies, and has got none for so long and four times as long as the
#: network should need, is given up: another one is asked.
PATIENCE_S = 10.0


def last_copies(ws: WorkerState, cordons: Cordons) -> list[TaskState]:
    """
    Results that would be lost with this worker.

    A copy on another worker that is leaving too is no copy: `RetireWorker.done` counts it as one,
    so two workers retired at once may each rely on the other. Actors can't be copied.
    """
    return [
        ts
        for ts in ws.has_what
        if not ts.actor and (len(ts.who_has or ()) < 2 or not _is_safe(ts, ws, cordons))
    ]


def _is_safe(ts: TaskState, ws: WorkerState, cordons: Cordons) -> bool:
    return any(
        other is not ws and (other.status in IN_SERVICE or cordons.is_cordoned(other))
        for other in ts.who_has or ()
    )


def is_stuck(scheduler: Scheduler, ws: WorkerState, cordons: Cordons) -> bool:
    """Tells whether a worker has last copies that no other worker could take."""
    for workers in (scheduler.running, cordons.recipients()):
        if any(other is not ws for other in workers):
            return False
    return bool(last_copies(ws, cordons))


class _Request(NamedTuple):
    ts: TaskState
    recipient: WorkerState
    at: float


@dataclass(eq=False)
class RequestedCopies:
    """
    Who was asked for which copies, by whichever drain, and may have yet to fetch them.

    A worker that is told to compute what it has yet to fetch fails in its own state machine
    (`RecommendationsConflict`), and closes with all that it has. So it is told to forget the copy
    when the scheduler does: before that has the result computed again, by whomever.
    """

    scheduler: Scheduler
    _addresses: dict[Any, set[str]] = field(default_factory=dict)

    def __contains__(self, key: Any) -> bool:
        return key in self._addresses

    def add(self, key: Any, ws: WorkerState) -> None:
        self._addresses.setdefault(key, set()).add(ws.address)

    def arrived(self, key: Any, ws: WorkerState) -> None:
        addresses = self._addresses.get(key, set())
        addresses.discard(ws.address)
        if not addresses:
            self._addresses.pop(key, None)

    def forget(self, key: Any) -> None:
        """The result is not in memory any more: released, or lost with a worker."""
        for address in self._addresses.pop(key):
            if address in self.scheduler.stream_comms:
                stimulus = f"dask-adaptive-forget-{key}"
                message = {"op": "free-keys", "keys": [key], "stimulus_id": stimulus}
                self.scheduler.worker_send(address, message)

    def releasing(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """The stream handler "release-worker-data", after which the scheduler's books are right."""

        @wraps(stock)
        def released(**msg: Any) -> Any:
            answer = stock(**msg)
            # Fail open: the traffic to this worker is estimated too low, as with stock code.
            with logged(logger, "Failed to count who needs %s", msg["key"]):
                self._count_needs(self.scheduler.tasks.get(msg["key"]), msg["worker"])
            return answer

        return released

    def _count_needs(self, ts: Any, address: str) -> None:
        """Tasks that a worker was given while it held a result have to fetch that now."""
        ws: Any = self.scheduler.workers.get(address)
        if ts is None or ws is None or ts in ws.has_what or ts in ws.needs_what:
            return
        for waiter in ts.waiters or ():
            if waiter.processing_on is ws:
                ws._inc_needs_replica(ts)


@dataclass(eq=False)
class Copier:
    """
    Asks workers in service to fetch what one worker alone holds; without any, cordoned ones.

    Not `Scheduler.retire_workers`: it freezes the worker, gives up when one task can't be moved,
    moves nothing that comes later, and in older releases lets one worker wait for another
    (`Scheduler._lock`). As the active memory manager does, it asks a worker in service, which
    fetches and reports (`request_acquire_replicas`). `ReduceReplicas` then drops the copy of the
    worker that is out of service, not the new one (`_find_dropper`). It can't tell a cordoned
    worker from the one that leaves, so of what a cordoned one has fetched the old copy is dropped
    at once.
    """

    scheduler: Scheduler
    ws: WorkerState
    cordons: Cordons
    every: RequestedCopies
    clock: Callable[[], float]
    moved: int = 0
    moved_bytes: int = 0

    def __post_init__(self) -> None:
        self._asked: dict[Any, _Request] = {}
        self._heard: dict[str, float] = {}  # when a recipient last got something, by address

    def step(self) -> list[TaskState]:
        """Ask for what was not asked for; returns all that would be lost now."""
        copies = last_copies(self.ws, self.cordons)
        self._account(copies)
        asked, running, now = self._asked, self.scheduler.running, self.clock()
        missing = [
            ts
            for ts in copies
            if (request := asked.get(ts.key)) is None
            or request.ts is not ts
            or not (request.recipient in running or self.cordons.is_cordoned(request.recipient))
            or not (now - request.at < PATIENCE_S or self._is_coming(request, now))
        ]
        under_way = len(copies) - len(missing)
        if missing and under_way < WINDOW:
            self._ask(missing[: WINDOW - under_way])
        return copies

    def drop(self) -> None:
        """
        Have the scheduler forget the copies that this worker holds; each has another that is safe.

        As long as they count, `RetireWorker` and `ReduceReplicas` may drop the other copy in favour
        of this one, and then the process ends: results were lost that way when one worker was
        deleted in the moment in which the next began to drain. What a task that runs here needs
        stays: the worker's state machine fails when it is told to release that.
        """
        self._drop(self.ws.has_what)

    def _drop(self, copies: Iterable[TaskState]) -> None:
        keys = [
            ts.key
            for ts in copies
            if not ts.actor and not any(w.processing_on is self.ws for w in ts.waiters or ())
        ]
        if keys:
            self._tell(self.scheduler.request_remove_replicas, self.ws.address, keys, "drop")

    def _tell(self, request: Callable[..., None], address: str, keys: list[Any], why: str) -> None:
        """Ask a worker; one whose connection has just broken is about to be removed."""
        with suppress(OSError):  # CommClosedError: these requests do not go by `worker_send`
            request(address, keys, stimulus_id=f"dask-adaptive-{why}-{self.clock()}")

    def _account(self, copies: Iterable[TaskState]) -> None:
        left = {ts.key for ts in copies}
        superfluous = []
        for key in self._asked.keys() - left:
            request = self._asked.pop(key)
            holders = request.ts.who_has or ()
            if request.recipient in holders:
                self._heard[request.recipient.address] = self.clock()
                self.every.arrived(key, request.recipient)
                if self.ws in holders and self.cordons.is_cordoned(request.recipient):
                    superfluous.append(request.ts)
            if holders:
                self.moved += 1
                self.moved_bytes += max(0, request.ts.nbytes)
        self._drop(superfluous)

    def _is_coming(self, request: _Request, now: float) -> bool:
        since = max(request.at, self._heard.get(request.recipient.address, 0.0))
        return now - since < PATIENCE_S + 4 * request.ts.nbytes / self.scheduler.bandwidth

    def _ask(self, missing: list[TaskState]) -> None:
        now = self.clock()
        by_recipient: dict[str, list[Any]] = {}
        recipients = self._recipients()
        for ts in sorted(missing, key=lambda ts: ts.nbytes, reverse=True):
            failed = self._asked.get(ts.key)
            recipient = recipients.take(ts.nbytes, but=failed.recipient if failed else None)
            if recipient is None:
                continue  # nobody can: a worker that joins may take it
            self._asked[ts.key] = _Request(ts, recipient, now)
            self.every.add(ts.key, recipient)
            by_recipient.setdefault(recipient.address, []).append(ts.key)
        for address, keys in by_recipient.items():
            self._tell(self.scheduler.request_acquire_replicas, address, keys, "copy")

    def _recipients(self) -> _Recipients:
        promised: dict[str, int] = {}
        for request in self._asked.values():
            address = request.recipient.address
            promised[address] = promised.get(address, 0) + request.ts.nbytes
        others = considered(self.scheduler.running, self.ws)
        if not others:
            others = considered(self.cordons.recipients(), self.ws)
        if len(others) > RECIPIENTS:
            others = heapq.nsmallest(
                RECIPIENTS, others, key=lambda ws: ws.nbytes + promised.get(ws.address, 0)
            )
        return _Recipients(
            (ws.memory.optimistic + promised.get(ws.address, 0), ws.address, ws) for ws in others
        )


class _Recipients:
    """Workers that may be asked, the one with the least in memory first (`_find_recipient`)."""

    def __init__(self, loads: Iterable[tuple[int, str, WorkerState]]) -> None:
        self._heap = list(loads)
        heapq.heapify(self._heap)

    def take(self, nbytes: int, *, but: WorkerState | None) -> WorkerState | None:
        """The next recipient, to whom `nbytes` are promised; `but` only when there is no other."""
        if not self._heap:
            return None
        first = heapq.heappop(self._heap)
        chosen = first
        if first[2] is but and self._heap:
            chosen = heapq.heappop(self._heap)
            heapq.heappush(self._heap, first)
        heapq.heappush(self._heap, (chosen[0] + nbytes, *chosen[1:]))
        return chosen[2]
