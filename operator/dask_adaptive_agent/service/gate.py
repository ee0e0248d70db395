"""Takes workers out of service and back, and holds them between; decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from time import perf_counter
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent.component import Component

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

    from dask_adaptive_agent.agent import Agent

#: Seconds between two looks at a worker that is on its way out; a drained one is looked at as
#: often. The more there is to look at, the longer: all looks together take about 1 % of the loop.
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 2.0
#: A second at all workers together: looks, and tasks and results looked at.
LOOKS, ITEMS = 100, 8_000

#: Tasks at the head of the queue of which one that a worker still has time for is looked for.
OFFERED = 100

#: Looking through all tasks without a worker takes at most this part of the time.
LOOK_PART = 0.02


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
    (`PauseEvent` in `Worker.status`), so a task that nobody else may take would wait for ever:
    freeze it only when it has none, or when its time is up. It is told to serve again whoever has
    frozen it.
    """

    agent: Agent
    ws: WorkerState
    #: Something of ours keeps the worker out of service, or lets somebody else do so.
    is_held: bool = True
    is_shut: bool = False
    is_frozen: bool = False
    #: It was told to serve again, and has not confirmed it: that it was frozen may be heard yet,
    #: and would take it out of service again.
    is_settling: bool = False
    #: Calls of somebody else that retire the worker now: `Drains.others_retire`.
    others: int = 0

    def __post_init__(self) -> None:
        self.scheduler = self.agent.scheduler
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

    def release(self) -> None:
        """Back to service, for good."""
        self.is_held = False
        self.open()

    def freeze(self) -> None:
        if not self.is_frozen:
            self.is_frozen = True
            self._tell(Status.closing_gracefully)

    def thaw(self) -> None:
        if self.is_frozen:
            self.is_frozen = False
            self.is_settling = True
            self._tell(self.reported)

    def hears(self, status: Any) -> bool:
        """
        Whether the worker's report of its own status may reach the scheduler.

        A worker's memory monitor pauses and resumes it, and each time the worker reports its
        status: `running` would bring it back to service. It also confirms what it is told.
        """
        if self._is_ending:
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
            self._tell(Status.closing_gracefully)
        return False

    def bound(self, *, resources: bool = False) -> list[TaskState]:
        """
        Tasks that wait for this worker alone, because it is out of service.

        Such are outputs of a P2P shuffle, and what users bind with `workers=`. `valid_workers`
        leaves out whoever is not in `running`, so they would wait among the unrunnable for ever: no
        other worker will have this one's address. What wants a resource waits for any worker, so it
        is only counted with `resources`.
        """
        scheduler, ws = self.scheduler, self.ws
        if not scheduler.unrunnable or self._is_ending or self.agent.cordons.room(ws) <= 0:
            return []
        named = self.agent.gates.unrunnable(
            (ws.address, ws.host, *(ws.resources if resources else ()))
        )
        with self._in_running():
            return [ts for ts in named if ws in (scheduler.valid_workers(ts) or ())]

    def admit(self, *, resources: bool = False) -> int:
        """Give the worker, who must not be frozen, the tasks that are bound to it; how many."""
        if self.reported != Status.running:
            return 0
        bound = self.bound(resources=resources)
        if bound:
            most = self.agent.cordons.room(self.ws)
            if resources:  # the rest is for those that come and have them, too
                most = min(most, self._free)
            bound.sort(key=lambda ts: ts.priority or ())
            del bound[max(0, most) :]
            # As in bulk_schedule_unrunnable_after_adding_worker: processed last in, first out.
            bound.reverse()
            with self._in_running():
                self.scheduler.transitions({ts.key: "processing" for ts in bound}, self._stimulus())
        return len(bound)

    def offer(self, fits: Callable[[TaskState], bool]) -> None:
        """Give the worker, who must not be frozen, some tasks of the queue for its free threads."""
        queued, most = self.scheduler.queued, min(self._free, self.agent.cordons.room(self.ws))
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
    def _is_ending(self) -> bool:
        """Its process has said so; it may be a while until the scheduler forgets it."""
        return self.ws.status in (Status.closing, Status.closed)

    def _set_status(self, status: Status) -> None:
        if not self._is_ending:
            self.scheduler.handle_worker_status_change(status, self.ws, self._stimulus())

    def _tell(self, status: Status) -> None:
        """As `Scheduler.retire_workers` tells a worker; it confirms with a status change."""
        comm = self.scheduler.stream_comms.get(self.ws.address)
        if comm is not None and not self._is_ending:
            change = {"op": "worker-status-change", "status": status.name}
            with contextlib.suppress(Exception):  # it has just gone: remove_worker comes next
                comm.send({**change, "stimulus_id": self._stimulus()})

    def _stimulus(self) -> str:
        return f"dask-adaptive-{self.agent.clock()}"


class Gates(Component):
    """
    One gate for each worker that is held, or has not confirmed yet that it serves again.

    Cordons, drains and calls of somebody else take a worker over from each other with its gate.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._by_address: dict[str, Gate] = {}
        self._unrunnable: dict[str, list[TaskState]] | None = None  # by what they name

    def hold(self, ws: WorkerState) -> Gate:
        """The worker's gate, or a new one that is open."""
        gate = self.get(ws.address)
        if gate is None or gate.ws is not ws:
            gate = Gate(self.agent, ws)
            self._by_address[ws.address] = gate
        gate.is_held = True
        return gate

    def get(self, address: str) -> Gate | None:
        gate = self._by_address.get(address)
        if gate is not None and not gate.is_held and not gate.is_settling:
            del self._by_address[address]
            return None
        return gate

    def forget(self, address: str) -> None:
        self._by_address.pop(address, None)

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

    def hearing(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """The stream handler "worker-status-change" that does not hear a worker behind a gate."""

        @wraps(stock)
        def heard(**msg: Any) -> Any:
            gate = self.get(msg.get("worker", ""))
            if gate is None or gate.hears(msg.get("status")):
                return stock(**msg)
            return None

        return heard
