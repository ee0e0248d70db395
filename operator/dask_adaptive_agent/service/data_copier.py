"""Copies results away from a worker that is about to leave, while it still works."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.core import Status

from dask_adaptive_agent import patching
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.demand.graph_shape import is_bound
from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.patching import Patches
from dask_adaptive_agent.service.service import Service
from dask_adaptive_agent.service.task_mover import considered
from dask_adaptive_agent.text import Group, group_of

if TYPE_CHECKING:
    from distributed.scheduler import TaskState, WorkerState

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

#: A result that so many workers have failed to copy, each of them asked for nothing else, can't be
#: copied. One may fail because its image lacks a class; each leaves tracebacks in two logs.
TRIES = 4

#: Copies that were asked for together may have failed for one of them: so much fewer come next.
FEWER = 10

#: Stands for the number of copies where one was asked for alone, and failed. It is asked for again
#: at once: after a fetch that failed the next one over the same connection fails as well, because
#: who could not unpickle has not said so, and `Worker.get_data` takes the request for that word.
AGAIN = 0

#: A task may need several results that can't be copied, and they may be on different workers.
CALLS_HOME = 3

#: A recipient with more of its memory in use comes last (`distributed.worker.memory.target`).
FULL = 0.6


def last_copies(service: Service, ws: WorkerState) -> list[TaskState]:
    """
    Results that would be lost with this worker.

    A copy on another worker that is leaving too is no copy: `RetireWorker.done` counts it as one,
    so two workers retired at once may each rely on the other. Actors can't be copied.
    """
    return [
        ts
        for ts in ws.has_what
        if not ts.actor and (len(ts.who_has or ()) < 2 or not _is_safe(service, ts, ws))
    ]


def _is_safe(service: Service, ts: TaskState, ws: WorkerState) -> bool:
    return any(
        other is not ws and (other.status in IN_SERVICE or service.is_cordoned(other))
        for other in ts.who_has or ()
    )


def is_stuck(service: Service, ws: WorkerState) -> bool:
    """Tells whether a worker has last copies that no other worker could take."""
    for workers in (service.scheduler.running, service.recipients()):
        if any(other is not ws for other in workers):
            return False
    return bool(last_copies(service, ws))


class _Request(NamedTuple):
    ts: TaskState
    recipient: WorkerState
    at: float


class _Home(NamedTuple):
    """A task was bound to the worker that holds what it needs."""

    ts: TaskState
    address: str
    bound_to: Any  # without us
    calls: int


class RequestedCopies(Component):
    """
    Who was asked for which copies, by whichever drain, and may have yet to fetch them; and who has
    failed to.

    A worker that is told to compute what it has yet to fetch fails in its own state machine
    (`RecommendationsConflict`), and closes with all that it has. So it is told to forget the copy
    when the scheduler does: before that has the result computed again, by whomever.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        #: By key and address: how many were asked for at once. Empty: nobody is asked now.
        self.requested: dict[Any, dict[str, int]] = {}
        self.most: dict[Any, int] = {}  # that may be asked for together with it
        self.failures: dict[Any, dict[str, str]] = {}  # why, asked for it alone
        self.recipients: dict[Group, _Recipients] = {}  # as of this turn of the loop
        self._homes: dict[Any, _Home] = {}

    def install(self, patches: Patches) -> None:
        patches.put(patching.RELEASED, self.releasing)
        patches.listen(patching.TASK_ERRED, self.failed)

    def __contains__(self, key: Any) -> bool:
        return key in self.requested

    def add(self, key: Any, ws: WorkerState, together: int) -> None:
        self.requested.setdefault(key, {})[ws.address] = together

    def arrived(self, key: Any, ws: WorkerState) -> None:
        requested = self.requested.get(key, {})
        requested.pop(ws.address, None)
        if not requested and key not in self.failures:
            self.requested.pop(key, None)
            self.most.pop(key, None)

    def forget(self, key: Any) -> None:
        """The result is no longer in memory: released, or lost with a worker."""
        for address in self.requested.pop(key):
            self._free(key, address)
        self.most.pop(key, None)
        self.failures.pop(key, None)

    def failed(self, msg: dict[str, Any]) -> None:
        """
        Hears "task-erred" of a worker that has not run the task: it was to fetch the result.

        A recipient fetches many results at once, and if one can't be pickled, or unpickled there,
        all of them fail.
        """
        key, address = msg["key"], msg["worker"]
        ts: Any = self.scheduler.tasks.get(key)
        ws: Any = self.scheduler.workers.get(address)
        if ts is None or ws is None or not ts.who_has or ws in ts.who_has:
            return
        together = self.requested.get(key, {}).pop(address, None)
        if together == AGAIN:
            self.failures.setdefault(key, {})[address] = str(msg.get("exception_text") or "")
        elif together is not None and together > 1:
            self.most[key] = max(1, together // FEWER)
        self._call_home(ts, ws)
        self._free(key, address)
        if together == 1:
            self.add(key, ws, AGAIN)
            self.scheduler.request_acquire_replicas(
                address, [key], stimulus_id=f"dask-adaptive-again-{key}"
            )

    def uncopyable(self, ws: WorkerState) -> str:
        """A result that this worker alone can hold, in words; empty: there is none."""
        for key, failed in self.failures.items():
            holders = getattr(self.scheduler.tasks.get(key), "who_has", None) or ()
            if ws in holders and len(holders) == 1 and self.is_uncopyable(key, ws):
                why, _, _ = next(iter(failed.values())).partition("\\n")  # the text is a `repr`
                return f"holds {key!s:.80}, which can't be copied ({why:.120})"
        return ""

    def is_uncopyable(self, key: Any, ws: WorkerState) -> bool:
        """Tells whether nobody is left who might copy a result of this worker."""
        failed = self.failures.get(key, {})
        if not failed or len(failed) >= TRIES:
            return bool(failed)
        others = self.scheduler.running
        return all(other is ws or other.address in failed for other in others)

    def worker_left(self, address: str | None) -> None:
        """Its results are elsewhere now, or will be recomputed; None: all workers'."""
        for key, home in list(self._homes.items()):
            if address in (None, home.address):
                del self._homes[key]
                home.ts.worker_restrictions = home.bound_to

    def _call_home(self, ts: TaskState, ws: WorkerState) -> None:
        """
        Have tasks that wait on this worker for a result run where that is.

        The worker has given the result up (dask/distributed#6705): they would wait forever.
        """
        tasks = self.scheduler.tasks
        self._homes = {key: one for key, one in self._homes.items() if tasks.get(key) is one.ts}
        address = next(iter(ts.who_has or ())).address
        called = []
        for waiter in ts.waiters or ():
            home = self._homes.get(waiter.key)
            if home is None and (waiter.loose_restrictions or not is_bound(waiter)):
                home = _Home(waiter, address, waiter.worker_restrictions, 0)
            if waiter.processing_on is ws and home is not None and home.calls < CALLS_HOME:
                waiter.worker_restrictions = {address}
                self._homes[waiter.key] = home._replace(address=address, calls=home.calls + 1)
                called.append(waiter.key)
        stimulus = f"dask-adaptive-home-{ts.key}"
        self.scheduler.transitions(dict.fromkeys(called, "released"), stimulus)

    def _free(self, key: Any, address: str) -> None:
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


class Copier(Component):
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
        self, context: Context, service: Service, every: RequestedCopies, ws: WorkerState
    ) -> None:
        super().__init__(context)
        self.service, self.every, self.ws = service, every, ws
        self.moved = self.moved_bytes = 0
        self._requests: dict[Any, _Request] = {}
        self._heard: dict[str, float] = {}  # when a recipient last got something, by address

    def step(self) -> list[TaskState]:
        """Ask for what was not asked for; returns all that would be lost now."""
        copies = last_copies(self.service, self.ws)
        self._account(copies)
        requests, running = self._requests, self.scheduler.running
        now, every = self.clock(), self.every
        missing = [
            ts
            for ts in copies
            if (request := requests.get(ts.key)) is None
            or request.ts is not ts
            or request.recipient.address not in every.requested.get(ts.key, ())  # has failed
            or not (request.recipient in running or self.service.is_cordoned(request.recipient))
            or not (now - request.at < PATIENCE_S or self._is_coming(request, now))
        ]
        under_way = len(copies) - len(missing)
        missing = [ts for ts in missing if not every.is_uncopyable(ts.key, self.ws)]
        # Those that have failed together wait until nothing else is under way: each may be to blame
        # for others.
        most = max([every.most.get(ts.key, WINDOW) for ts in missing], default=0)
        if missing and under_way < (WINDOW if most == WINDOW else 1):
            together = [ts for ts in missing if every.most.get(ts.key, WINDOW) == most]
            self._ask(together[: most - under_way], under_way)
        return copies

    def drop(self, copies: Iterable[TaskState]) -> None:
        """
        Have the scheduler forget copies that this worker holds; each has another that is safe.

        As long as they count, `RetireWorker` and `ReduceReplicas` may drop the other copy in favour
        of this one, and then the process ends: results were lost that way when one worker was
        deleted in the moment in which the next began to drain. What a task that runs here needs
        stays: the worker's state machine fails when it is told to release that.
        """
        keys = [
            ts.key
            for ts in copies
            if not ts.actor and not any(w.processing_on is self.ws for w in ts.waiters or ())
        ]
        if keys:
            self._send(self.scheduler.request_remove_replicas, self.ws.address, keys, "drop")

    def _send(self, request: Callable[..., None], address: str, keys: list[Any], why: str) -> None:
        """Ask a worker; one whose connection has just broken is about to be removed."""
        with suppress(OSError):  # CommClosedError: these requests do not go by `worker_send`
            request(address, keys, stimulus_id=f"dask-adaptive-{why}-{self.clock()}")

    def _account(self, copies: Iterable[TaskState]) -> None:
        left = {ts.key for ts in copies}
        superfluous = []
        for key in self._requests.keys() - left:
            request = self._requests.pop(key)
            holders = request.ts.who_has or ()
            if request.recipient in holders:
                self._heard[request.recipient.address] = self.clock()
                self.every.arrived(key, request.recipient)
                if self.ws in holders and self.service.is_cordoned(request.recipient):
                    superfluous.append(request.ts)
            if holders:
                self.moved += 1
                self.moved_bytes += max(0, request.ts.nbytes)
        self.drop(superfluous)

    def _is_coming(self, request: _Request, now: float) -> bool:
        since = max(request.at, self._heard.get(request.recipient.address, 0.0))
        return bool(now - since < PATIENCE_S + 4 * request.ts.nbytes / self.scheduler.bandwidth)

    def _ask(self, missing: list[TaskState], under_way: int) -> None:
        now = self.clock()
        by_recipient: dict[str, list[Any]] = {}
        recipients = self._recipients()
        for ts in sorted(missing, key=lambda ts: ts.nbytes, reverse=True):
            failed, last = self.every.failures.get(ts.key, {}), self._requests.get(ts.key)
            late = [last.recipient.address] if last else []
            recipient = recipients.take(ts.nbytes, but={*failed, *late}) or recipients.take(
                ts.nbytes, but=failed
            )
            if recipient is None:
                continue  # nobody can: a worker that joins may take it
            self._requests[ts.key] = _Request(ts, recipient, now)
            self.every.add(ts.key, recipient, len(missing) + under_way)
            by_recipient.setdefault(recipient.address, []).append(ts.key)
        for address, keys in by_recipient.items():
            self._send(self.scheduler.request_acquire_replicas, address, keys, "copy")

    def _recipients(self) -> _Recipients:
        """Those that all drains of a group share until the scheduler's loop goes on."""
        own, shared = group_of(self.ws), self.every.recipients
        if not shared:
            self.scheduler.loop.asyncio_loop.call_soon(shared.clear)
        if own not in shared:
            shared[own] = self._recipients_of(own)
        return shared[own]

    def _recipients_of(self, own: Group) -> _Recipients:
        promised: dict[str, int] = {}
        for request in self._requests.values():
            address = request.recipient.address
            promised[address] = promised.get(address, 0) + request.ts.nbytes
        others = considered(self.scheduler.running, self.ws)
        if not others:
            others = considered(self.service.recipients(), self.ws)
        rows = [
            _Recipient(group_of(ws) != own, ws.nbytes + promised.get(ws.address, 0), ws.address, ws)
            for ws in others
        ]
        if len(rows) > RECIPIENTS:
            rows = heapq.nsmallest(RECIPIENTS, rows)
        return _Recipients(
            self.service,
            (
                row._replace(load=row.ws.memory.optimistic + promised.get(row.address, 0))
                for row in rows
            ),
        )


class _Recipient(NamedTuple):
    """In the order in which they are asked: workers of another group may lack what it takes."""

    is_other: bool
    load: int
    address: str
    ws: WorkerState


class _Recipients:
    """Workers that may be asked, the one with the least in memory first (`_find_recipient`)."""

    def __init__(self, service: Service, rows: Iterable[_Recipient]) -> None:
        self._service = service
        self._heap = [(_is_full(row), row) for row in rows]
        heapq.heapify(self._heap)

    def take(self, nbytes: int, *, but: Collection[str]) -> WorkerState | None:
        """The next recipient that is not of `but`, to whom `nbytes` are promised."""
        passed = []
        while self._heap and not self._may_take(self._heap[0][1], but):
            passed.append(heapq.heappop(self._heap))
        chosen = None
        if self._heap:
            _, row = self._heap[0]
            chosen, row = row.ws, row._replace(load=row.load + nbytes)
            heapq.heapreplace(self._heap, (_is_full(row), row))
        for one in passed:
            heapq.heappush(self._heap, one)
        return chosen

    def _may_take(self, row: _Recipient, but: Collection[str]) -> bool:
        """Another drain that shares them may have begun since."""
        serves = row.ws in self._service.scheduler.running or self._service.is_cordoned(row.ws)
        return serves and row.address not in but


def _is_full(row: _Recipient) -> bool:
    return bool(row.ws.memory_limit) and row.load > FULL * row.ws.memory_limit
