"""
Knows which workers are in service, and takes them out and back with gates.

Decides nothing: cordons, drains and stock calls that retire workers are given a worker, or give it
back, by `Service.hand`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.core import Status

from dask_adaptive_agent import patching
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.patching import Patches
from dask_adaptive_agent.service.task_mover import Mover

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: Seconds between two looks at a worker that is on its way out; a drained one is looked at as
#: often. The more there is to look at, the longer: all looks together take about 1 % of the loop.
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 2.0
#: A second at all workers together: looks, and tasks and results looked at.
LOOKS, ITEMS = 100, 8_000

#: Tasks at the head of the queue of which one that a worker still has time for is looked for.
OFFERED = 100

#: Looking through all tasks without a worker takes at most this part of the time.
LOOK_PART = 0.02

#: A worker with one of these statuses is on its way out, by whoever's decision.
LEAVING = frozenset({Status.closing_gracefully, Status.closing, Status.closed, Status.failed})

#: The kind of a cordon of a worker that is short of time. Not on the wire: see `Meters.too_short`.
SHORT = "short"

#: The number of tasks that a worker may still be given.
Room = Callable[["WorkerState"], int]


def next_look_s(scheduler: Scheduler, ws: WorkerState) -> float:
    work = len(ws.has_what) + len(ws.processing)
    leaving = max(1, len(scheduler.workers) - len(scheduler.running))
    return min(LONGEST_LOOK_S, max(SHORTEST_LOOK_S, leaving * work / ITEMS, leaving / LOOKS))


def cancel_other(task: asyncio.Future[Any] | None) -> None:
    """Cancel a task, unless it is what runs this very line: it would end before it is done."""
    try:
        current = asyncio.current_task()
    except RuntimeError:
        current = None
    if task is not None and task is not current:
        task.cancel()


@dataclass(eq=False)
class Gate:
    """
    The status of one worker, in the scheduler and in the worker's own process.

    Shut: the scheduler's status alone is `closing_gracefully`, so no new task is given to it; the
    worker does not know, and starts what it has. Frozen: the worker has been told as well, by us or
    by somebody else (`Scheduler.retire_workers`). It then starts no task and fetches nothing
    (`PauseEvent` in `Worker.status`), so a task that nobody else may take would wait forever:
    freeze it only when it has none, or when its time is up. It is told to serve again whoever has
    frozen it.
    """

    service: Service
    ws: WorkerState
    #: Something of ours keeps the worker out of service, or lets somebody else do so.
    is_held: bool = True
    is_shut: bool = False
    is_frozen: bool = False
    #: It was told to serve again, and has not confirmed it: that it was frozen may be heard yet,
    #: and would take it out of service again.
    is_settling: bool = False
    #: Calls of somebody else that retire the worker now: `Drains.install`.
    others: int = 0

    def __post_init__(self) -> None:
        self.scheduler = self.service.scheduler
        #: What the worker says of itself: to be restored, and not to be heard meanwhile. One that
        #: is registering says that it runs as soon as it does.
        self.reported: Status = Status.running if self.ws.status == Status.init else self.ws.status

    def shut(self) -> None:
        if not self.is_shut:
            self.is_shut = True
            if self.ws.status in (Status.running, Status.paused):
                self.reported = self.ws.status  # anything else is what somebody has told it
            self._set_status(Status.closing_gracefully)

    def open(self) -> None:
        """Back to service. Harmless when it is in service."""
        self.thaw()
        if self.is_shut:
            self.is_shut = False
            # Last: the scheduler assigns what waits at once, and the worker may be shut out again.
            self._set_status(self.reported)

    def freeze(self) -> None:
        if not self.is_frozen:
            self.is_frozen = True
            self._send(Status.closing_gracefully)

    def thaw(self) -> None:
        if self.is_frozen:
            self.is_frozen = False
            self.is_settling = True
            self._send(self.reported)

    def hears(self, status: Any) -> bool:
        """
        True if the worker's report of its own status may reach the scheduler.

        A worker's memory monitor pauses and resumes it, and each time the worker reports its
        status: `running` would bring it back to service. It also confirms what it is told.
        """
        if self._is_closing:
            return False  # told to serve as its process ended, it says that it does
        was_settling = self.is_settling
        if status == "closing_gracefully":
            return not was_settling
        if status not in ("running", "paused"):
            return True  # its process ends, whatever it was told
        self.is_settling = False
        self.reported = Status[status]
        if not self.is_shut:
            # Not while somebody retires it: when he gives up, it is told to serve once more.
            return not self.is_frozen
        if self.is_frozen and not was_settling:
            # `Scheduler.retire_workers` has given up, and told it to serve again.
            self._send(Status.closing_gracefully)
        return False

    def bound(self, room: Room, *, resources: bool = False) -> list[TaskState]:
        """
        Tasks that wait for this worker alone, because it is out of service.

        Such are outputs of a P2P shuffle, and what users bind with `workers=`. `valid_workers`
        leaves out whoever is not in `running`, so they would wait among the unrunnable for ever: no
        other worker will have this one's address. What wants a resource waits for any worker, so it
        is only counted with `resources`.
        """
        scheduler, ws = self.scheduler, self.ws
        if not scheduler.unrunnable or self._is_closing or room(ws) <= 0:
            return []
        names = (ws.address, ws.host, *(ws.resources if resources else ()))
        named = self.service.unrunnable(names)
        with self._in_running():
            return [ts for ts in named if ws in (scheduler.valid_workers(ts) or ())]

    def admit(self, room: Room, *, resources: bool = False) -> int:
        """Give the worker, who must not be frozen, the tasks that are bound to it; how many."""
        if self.reported != Status.running:
            return 0
        bound = self.bound(room, resources=resources)
        if bound:
            most = room(self.ws)
            if resources:  # the rest is for those that come and have them, too
                most = min(most, self._free)
            bound.sort(key=lambda ts: ts.priority or ())
            del bound[max(0, most) :]
            # As in bulk_schedule_unrunnable_after_adding_worker: processed last in, first out.
            bound.reverse()
            with self._in_running():
                self.scheduler.transitions({ts.key: "processing" for ts in bound}, self._stimulus())
        return len(bound)

    def offer(self, fits: Callable[[TaskState], bool], room: Room) -> None:
        """Give the worker, who must not be frozen, some tasks of the queue for its free threads."""
        queued, most = self.scheduler.queued, min(self._free, room(self.ws))
        if not queued or most <= 0 or self.reported != Status.running:
            return
        for ts in [ts for ts in queued.peekn(OFFERED) if fits(ts)][:most]:
            with self._in_running():
                self.scheduler.transitions({ts.key: "processing"}, self._stimulus())

    @property
    def _free(self) -> int:
        """Threads without a task."""
        return self.ws.nthreads + len(self.ws.long_running) - len(self.ws.processing)

    @contextlib.contextmanager
    def _in_running(self) -> Any:
        # Only for calls that return at once. The status stays, so check_idle_saturated counts the
        # worker neither as idle nor as saturated, and nothing else is offered to it.
        books = (self.scheduler.running, self.scheduler.idle_task_count)
        added = [book for book in books if self.ws not in book]
        for book in added:
            book.add(self.ws)
        try:
            yield
        finally:
            for book in added:
                book.discard(self.ws)

    @property
    def _is_closing(self) -> bool:
        """Its process has said so; it may be a while until the scheduler forgets it."""
        return self.ws.status in (Status.closing, Status.closed)

    def _set_status(self, status: Status) -> None:
        if not self._is_closing:
            self.scheduler.handle_worker_status_change(status, self.ws, self._stimulus())

    def _send(self, status: Status) -> None:
        """Send a status as `Scheduler.retire_workers` does; the worker confirms it."""
        comm = self.scheduler.stream_comms.get(self.ws.address)
        if comm is not None and not self._is_closing:
            change = {"op": "worker-status-change", "status": status.name}
            with contextlib.suppress(Exception):  # it has just gone: remove_worker comes next
                comm.send({**change, "stimulus_id": self._stimulus()})

    def _stimulus(self) -> str:
        return f"dask-adaptive-{self.service.clock()}"


class Why(NamedTuple):
    """The limit that a worker has come to: `SHORT`, or one of `wire.S_*`; and a sentence."""

    kind: str
    message: str
    is_bounded: bool = True  # no more than `LimitRequest.stops` at once
    is_exact: bool = False  # whatever pins the worker, and whatever is bound to it


class Cordon(NamedTuple):
    """The worker behind a gate gets no new tasks, and stays."""

    gate: Gate
    why: Why
    since: float
    mover: Mover
    group: str  # of the operator's, whose cordons count together


class Service(Component):
    """
    Every worker that is out of service, by address: cordoned, draining, or retired by stock calls.

    One gate for each worker that is held, or has not confirmed yet that it serves again: who takes
    a worker over gets its gate with it.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.cordoned: OrderedDict[str, Cordon] = OrderedDict()
        self.draining: dict[str, Any] = {}  # `Drain`s
        #: Cordoned since the last request for limits, out of service ever since, and handed to
        #: somebody else: they use up a cordon all the same, or more workers would be missing than
        #: the operator has allowed. The groups by address.
        self.taken_over: dict[str, str] = {}
        self._gates: dict[str, Gate] = {}
        self._unrunnable: dict[str, list[TaskState]] | None = None  # by what they name

    def install(self, patches: Patches) -> None:
        patches.put(patching.STATUS_CHANGE, self._hearing)

    def hand(self, gate: Gate, to: Any = None) -> None:
        """
        Hand a worker to a `Cordon` or a `Drain`; None: back to service. The books come first.

        To open a gate has the scheduler assign tasks at once, and whoever is asked meanwhile must
        find the worker where it is now.
        """
        address = gate.ws.address
        if to is None:
            self.cordoned.pop(address, None)
            gate.is_held = False
            gate.open()
        elif isinstance(to, Cordon):
            self.cordoned[address] = to
            gate.thaw()
            gate.shut()
        else:
            self._take_over(address)
            self.draining[address] = to  # it shuts the gate itself, when it needs to

    def hand_to_stock(self, ws: WorkerState) -> Gate:
        """A call of somebody else that retires the worker goes on from here."""
        self._take_over(ws.address)
        gate = self.hold(ws)
        gate.others += 1
        gate.is_frozen = True  # they are about to tell it
        return gate

    def forget(self, address: str) -> None:
        """The worker has left, or only stock code handles it from here on."""
        self._take_over(address)
        self._gates.pop(address, None)

    def _take_over(self, address: str) -> None:
        cordon = self.cordoned.pop(address, None)
        if cordon is not None and cordon.why.is_bounded:
            self.taken_over[address] = cordon.group

    def hold(self, ws: WorkerState) -> Gate:
        """The worker's gate, or a new one that is open."""
        gate = self.gate_of(ws.address)
        if gate is None or gate.ws is not ws:
            gate = self._gates[ws.address] = Gate(self, ws)
        gate.is_held = True
        return gate

    def gate_of(self, address: str) -> Gate | None:
        gate = self._gates.get(address)
        if gate is not None and not gate.is_held and not gate.is_settling:
            del self._gates[address]
            return None
        return gate

    def out_of_service(self) -> Collection[str]:
        """Addresses of workers that we have taken out of service."""
        some = (self.draining, self.cordoned)
        return frozenset().union(*some) if any(some) else ()

    def in_service(self, workers: Collection[WorkerState] | None = None) -> list[WorkerState]:
        """The `workers` (None: all, in the scheduler's order) that do not leave."""
        scheduler, leaving = self.scheduler, self.out_of_service()
        if workers is None:
            # A sorted dict is quicker by its keys than by its values.
            every = scheduler.workers
            staying = [every[address] for address in every if address not in leaving]
        else:
            staying = [ws for ws in workers if ws.address not in leaving]
        # Scheduler.running is kept in step with statuses, and enums hash in Python code.
        if len(scheduler.running) < len(staying):
            staying = [ws for ws in staying if ws in scheduler.running or ws.status not in LEAVING]
        return staying

    def is_draining(self, address: str) -> bool:
        """True if a worker drains, or somebody else retires it or waits for his turn to."""
        gate = self.gate_of(address)
        return address in self.draining or (gate is not None and gate.others > 0)

    def is_short(self, address: str) -> bool:
        """Tells whether a worker is cordoned because it is short of time."""
        cordon = self.cordoned.get(address)
        return cordon is not None and cordon.why.kind == SHORT

    def is_cordoned(self, ws: WorkerState) -> bool:
        """
        Tells whether a worker gets no new tasks, but stays: its copies are safe.

        None that drains is among them, or two could rely on each other, and none that closes.
        """
        cordon = self.cordoned.get(ws.address)
        is_same = cordon is not None and cordon.gate.ws is ws
        return is_same and ws.status == Status.closing_gracefully

    def recipients(self) -> Iterator[WorkerState]:
        """Cordoned ones that may fetch copies: neither paused, nor frozen as far as they know."""
        for cordon in self.cordoned.values():
            gate = cordon.gate
            is_running = gate.reported == Status.running and not gate.is_settling
            if is_running and self.is_cordoned(gate.ws):
                yield gate.ws

    def terminating(self) -> dict[str, Any]:
        """Drains that cannot be refused: the process is about to end."""
        return {a: one for a, one in self.draining.items() if not one.terms.is_refusable}

    def name_of(self, ws: WorkerState) -> str:
        """The name by which others know a worker, also when it has been renamed."""
        drain = self.draining.get(ws.address)
        return str(ws.name if drain is None else drain.name)

    def unrunnable(self, names: Iterable[str]) -> list[TaskState]:
        """
        Tasks without a worker that name one of these addresses, hosts, or resources, as of the last
        look, which goes through all of them once and not for each worker.
        """
        if self._unrunnable is None:
            self._unrunnable = self._by_name()
        found = [ts for n in names for ts in self._unrunnable.get(n, ()) if ts.state == "no-worker"]
        return list(dict.fromkeys(found))

    def _by_name(self) -> dict[str, list[TaskState]]:
        began = perf_counter()
        by_name: dict[str, list[TaskState]] = {}
        for ts in self.scheduler.unrunnable:
            for named in (ts.worker_restrictions, ts.host_restrictions, ts.resource_restrictions):
                for name in named or ():
                    by_name.setdefault(name, []).append(ts)
        pause_s = (perf_counter() - began) / LOOK_PART
        self.scheduler.loop.asyncio_loop.call_later(pause_s, setattr, self, "_unrunnable", None)
        return by_name

    def _hearing(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """The stream handler "worker-status-change" that ignores workers behind a gate."""

        @wraps(stock)
        def heard(**msg: Any) -> Any:
            gate = self.gate_of(msg.get("worker", ""))
            if gate is None or gate.hears(msg.get("status")):
                return stock(**msg)
            return None

        return heard
