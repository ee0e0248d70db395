"""Copies results away from a worker that is about to leave, while it still works."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from distributed.core import Status

from dask_adaptive_agent.moving import considered

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

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


class Cordoned(Protocol):
    """
    Workers that get no new tasks, but stay: they hold results, and may fetch more.

    None that drains is among them, or two could rely on each other.
    """

    def is_cordoned(self, ws: WorkerState) -> bool: ...

    def recipients(self) -> Iterator[WorkerState]:
        """Those that fetch what they are asked for: a paused worker does not."""
        ...


def last_copies(ws: WorkerState, cordoned: Cordoned) -> list[TaskState]:
    """
    Results that would be lost with this worker.

    A copy on another worker that is leaving too is no copy: `RetireWorker.done` counts it as one,
    so two workers retired at once may each rely on the other. Actors can't be copied.
    """
    return [
        ts
        for ts in ws.has_what
        if not ts.actor and (len(ts.who_has or ()) < 2 or not _is_safe(ts, ws, cordoned))
    ]


def _is_safe(ts: TaskState, ws: WorkerState, cordoned: Cordoned) -> bool:
    return any(
        other is not ws and (other.status in IN_SERVICE or cordoned.is_cordoned(other))
        for other in ts.who_has or ()
    )


def is_stuck(scheduler: Scheduler, ws: WorkerState, cordoned: Cordoned) -> bool:
    """Tells whether a worker has last copies that no other worker could take."""
    for workers in (scheduler.running, cordoned.recipients()):
        if any(other is not ws for other in workers):
            return False
    return bool(last_copies(ws, cordoned))


class _Request(NamedTuple):
    ts: TaskState
    recipient: WorkerState
    at: float


class Asked:
    """
    Who was asked for which copies, by whichever drain, and may have yet to fetch them.

    A worker that is told to compute what it has yet to fetch fails in its own state machine
    (`RecommendationsConflict`), and closes with all that it has. So it is told to forget the copy
    when the scheduler does: before that has the result computed again, by whomever.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._addresses: dict[Any, set[str]] = {}

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
            if address in self._scheduler.stream_comms:
                stimulus = f"dask-adaptive-forget-{key}"
                message = {"op": "free-keys", "keys": [key], "stimulus_id": stimulus}
                self._scheduler.worker_send(address, message)


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

    def __init__(
        self,
        scheduler: Scheduler,
        ws: WorkerState,
        cordoned: Cordoned,
        every: Asked,
        clock: Callable[[], float],
    ) -> None:
        self.moved = self.moved_bytes = 0
        self._scheduler = scheduler
        self._ws = ws
        self._cordoned = cordoned
        self._every = every
        self._clock = clock
        self._asked: dict[Any, _Request] = {}
        self._heard: dict[str, float] = {}  # when a recipient last got something, by address

    def step(self) -> list[TaskState]:
        """Ask for what was not asked for; returns all that would be lost now."""
        copies = last_copies(self._ws, self._cordoned)
        self._account(copies)
        asked, running, now = self._asked, self._scheduler.running, self._clock()
        missing = [
            ts
            for ts in copies
            if (request := asked.get(ts.key)) is None
            or request.ts is not ts
            or not (request.recipient in running or self._cordoned.is_cordoned(request.recipient))
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
        self._drop(self._ws.has_what)

    def _drop(self, copies: Iterable[TaskState]) -> None:
        keys = [
            ts.key
            for ts in copies
            if not ts.actor and not any(w.processing_on is self._ws for w in ts.waiters or ())
        ]
        if keys:
            self._scheduler.request_remove_replicas(
                self._ws.address, keys, stimulus_id=f"dask-adaptive-drop-{self._clock()}"
            )

    def _account(self, copies: Iterable[TaskState]) -> None:
        left = {ts.key for ts in copies}
        superfluous = []
        for key in self._asked.keys() - left:
            request = self._asked.pop(key)
            holders = request.ts.who_has or ()
            if request.recipient in holders:
                self._heard[request.recipient.address] = self._clock()
                self._every.arrived(key, request.recipient)
                if self._ws in holders and self._cordoned.is_cordoned(request.recipient):
                    superfluous.append(request.ts)
            if holders:
                self.moved += 1
                self.moved_bytes += max(0, request.ts.nbytes)
        self._drop(superfluous)

    def _is_coming(self, request: _Request, now: float) -> bool:
        since = max(request.at, self._heard.get(request.recipient.address, 0.0))
        return now - since < PATIENCE_S + 4 * request.ts.nbytes / self._scheduler.bandwidth

    def _ask(self, missing: list[TaskState]) -> None:
        now = self._clock()
        by_recipient: dict[str, list[Any]] = {}
        recipients = self._recipients()
        for ts in sorted(missing, key=lambda ts: ts.nbytes, reverse=True):
            failed = self._asked.get(ts.key)
            recipient = recipients.take(ts.nbytes, but=failed.recipient if failed else None)
            if recipient is None:
                continue  # nobody can: a worker that joins may take it
            self._asked[ts.key] = _Request(ts, recipient, now)
            self._every.add(ts.key, recipient)
            by_recipient.setdefault(recipient.address, []).append(ts.key)
        for address, keys in by_recipient.items():
            self._scheduler.request_acquire_replicas(
                address, keys, stimulus_id=f"dask-adaptive-copy-{now}"
            )

    def _recipients(self) -> _Recipients:
        promised: dict[str, int] = {}
        for request in self._asked.values():
            address = request.recipient.address
            promised[address] = promised.get(address, 0) + request.ts.nbytes
        others = considered(self._scheduler.running, self._ws)
        if not others:
            others = considered(self._cordoned.recipients(), self._ws)
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
