"""
A scheduler with its agent, as the operator sees them over the wire; there are no tasks and no
workers. All else (connections, messages, settings, errors) is the code that real ones run.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from distributed.core import Server

from dask_adaptive_agent import wire
from dask_adaptive_agent.guard import guarded
from dask_adaptive_agent.protocol.changes import Signs, Watch
from dask_adaptive_agent.protocol.requests import AgentSettings

#: Long tasks: work for as many workers as there are tasks, whatever time a worker takes to come.
TASK_MS = 600_000
#: Moving a worker's data takes so long.
DRAIN_S = 0.5
#: Pins end so long after their scheduler has begun.
PINNED_S = 24 * 3600
MEMORY_LIMIT = 8 * 2**30
RELIEF = [
    {"name": name, "state": wire.R_ACTIVE, "message": "applied", "counts": {}}
    for name in wire.RELIEFS
]


@dataclass(slots=True)
class Worker:
    slot: int
    name: str
    address: str
    active_at: float
    busy: bool = False
    leaving_at: float | None = None
    reason: str = ""


class SimulatedScheduler:
    """
    One cluster's scheduler: `tasks` of ten minutes each, one on each worker.

    `retires` says when which worker was first asked to leave; a client holds those in `pinned`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.session = uuid4().hex
        self.workers: dict[str, Worker] = {}
        self.retires: list[tuple[str, float]] = []
        self.pinned: set[str] = set()
        self.observed = 0
        self.delay_s = 0.0
        self.held = 2**20  # bytes of results that only one worker has, each somewhat more
        self._tasks = self._slots = self._transitions = 0
        self._quiet_since = self._started_at = clock()
        self._settings = AgentSettings()
        self._watch = Watch(self._signs)

    def join(self, rows: Iterable[tuple[str, str]]) -> None:
        """Workers come, by name and address."""
        for name, address in rows:
            self.workers[name] = Worker(self._slots, name, address, self.clock())
            self._slots += 1
        self._assign()

    def leave(self, gone: Iterable[str]) -> None:
        for name in gone:
            self.workers.pop(name, None)
            self.pinned.discard(name)
        self._assign()

    def load(self, tasks: int) -> float:
        """There are so many tasks from now on; returns when that is."""
        self._transitions += abs(tasks - self._tasks)
        self._tasks = tasks
        self._assign()
        return self.clock()

    def slow_down(self, delay_s: float) -> None:
        """Answers take so long; for ever: connections are taken, and nothing is said."""
        self.delay_s = delay_s

    def handlers(self) -> dict[str, Callable[..., Any]]:
        messages = {
            wire.HELLO: self._hello,
            wire.CONFIGURE: self._configure,
            wire.OBSERVE: self._observe,
            wire.RETIRE: self._retire,
            wire.CANCEL: self._cancel,
            wire.LIMIT: lambda request: {"protocol": wire.PROTOCOL},
            wire.ANNOUNCE: lambda request: {"protocol": wire.PROTOCOL},
        }
        return {name: self._delayed(guarded(message)) for name, message in messages.items()}

    def _delayed(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(**request: Any) -> Any:
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            result = handler(**request)
            return await result if inspect.isawaitable(result) else result

        return answer

    def _signs(self) -> Signs:
        drains = [(w.slot, self._state(w)) for w in self.workers.values() if w.leaving_at]
        events = len(self.workers), self._slots, drains, sorted(self.pinned)
        load, activity = (self._tasks,), (self._transitions,)
        return Signs(events, load, activity, is_busy=self._tasks > 0)

    def _assign(self) -> None:
        """Who has a task keeps it while there are enough; a new worker takes one."""
        now = self.clock()
        serving = [w for w in self.workers.values() if w.leaving_at is None]
        busy = [w for w in serving if w.busy]
        for worker in busy[self._tasks :]:
            worker.busy, worker.active_at = False, now
        for worker in [w for w in serving if not w.busy][: max(0, self._tasks - len(busy))]:
            worker.busy = True
        if self._tasks:
            self._quiet_since = now

    def _hello(self, request: Any) -> wire.HelloAnswer:
        return {
            "protocol": wire.PROTOCOL,
            "agent": "simulated",
            "distributed": "2026.8.0",
            "session": self.session,
        }

    def _configure(self, request: Any) -> Any:
        self._settings.update(self._settings.read(request))
        return {"protocol": wire.PROTOCOL}

    def _observe(self, request: Any) -> Any:
        is_known = request.get("session") == self.session
        caller, version = request.get("caller", ""), request.get("version")
        take = partial(self._snapshot, request)
        if version is None:
            return take()
        version = version if is_known else 0
        if not request.get("wait_ms"):
            return self._watch.answer(caller, version, take)
        return self._watch.wait(caller, version, request["wait_ms"] / 1000, take)

    def _snapshot(self, request: Any) -> wire.Snapshot:
        self.observed += 1
        known = request.get("known", 0) if request.get("session") == self.session else 0
        workers, now_ms = list(self.workers.values()), self._ms_since(0.0)
        return {
            "protocol": wire.PROTOCOL,
            "session": self.session,
            "now_ms": now_ms,
            "known": self._slots,
            "introduced": _introduction([w for w in workers if w.slot >= known]),
            "workers": self._columns(workers, now_ms),
            "target": self._tasks,
            "closable": [w.slot for w in workers if self._is_closable(w)],
            "actors": [],
            "pins": [self._pin(now_ms)] if self.pinned else [],
            "pins_expired": {},
            "retirements": [self._retirement(w) for w in workers if w.leaving_at is not None],
            "departures": [],
            "notes": [],
            "shuffles": [],
            "stops": [],
            "stuck": [],
            "meters": _meters(len(workers)) if request.get("meters") else None,
            "has_lifetimes": False,
            "redone": {},
            "totals": self._totals(workers),
            "relief": RELIEF,
            "config_in_force": {},
            "demand": self._demand(workers) if request.get("demand") else None,
            "wants": [],
            "lapses": 0,
            "quiet": {
                "no_task_ms": 0 if self._tasks else self._ms_since(self._quiet_since),
                "no_client_ms": 0,
            },
            "serialized": None,
        }

    def _is_closable(self, worker: Worker) -> bool:
        return not worker.busy and worker.leaving_at is None and worker.name not in self.pinned

    def _pin(self, now_ms: int) -> wire.PinRow:
        began_ms = int(self._started_at * 1000)
        left_ms = began_ms + PINNED_S * 1000 - now_ms
        return {
            "source": wire.CLIENT, "owner": "notebook", "reason": "", "left_ms": left_ms,
            "latest_ms": left_ms, "for_ms": now_ms - began_ms,
            "slots": [self.workers[name].slot for name in sorted(self.pinned)],
        }  # fmt: skip

    def _columns(self, workers: list[Worker], now_ms: int) -> wire.Columns:
        idle = [0 if w.busy else max(0, now_ms - int(w.active_at * 1000)) for w in workers]
        tick = self.observed * 4096  # what workers report is never the same twice
        leaving = wire.STATUSES.index("closing_gracefully")
        return {
            "slot": [w.slot for w in workers],
            "status": [0 if w.leaving_at is None else leaving for w in workers],
            "processing": [int(w.busy) for w in workers],
            "idle_ms": idle,
            "sole_bytes": [self.held + w.slot for w in workers],
            "memory": [400 * 2**20 + tick + w.slot for w in workers],
        }

    def _retirement(self, worker: Worker) -> wire.RetirementRow:
        return {
            "slot": worker.slot,
            "state": self._state(worker),
            "reason": worker.reason,
            "left_ms": 900_000,
            "message": "its data is being moved",
        }

    def _demand(self, workers: list[Worker]) -> wire.DemandPart:
        busy = sum(w.busy for w in workers)
        row = {
            "name": "train", "mean_ms": TASK_MS, "running": busy, "ready": self._tasks - busy,
            "waiting": 0, "longest_ms": 0, "done": 1000, "width": 0, "level": 0, "fan_in": 0.0,
            "bound": 0,
        }  # fmt: skip
        prefixes: Any = {key: [value] if self._tasks else [] for key, value in row.items()}
        return {
            "prefixes": prefixes,
            "needs": [],
            "shuffles": [],
            "unknown_ms": 500,
            "incoming_ms": 0,
            "every_ms": 0,
            "trickle_ms": 0,
        }

    def _totals(self, workers: list[Worker]) -> wire.Totals:
        busy = sum(w.busy for w in workers)
        return {
            "processing": busy,
            "queued": self._tasks - busy,
            "unrunnable": 0,
            "memory": len(workers) * 2**20,
        }

    def _retire(self, request: Any) -> wire.RetireAnswer:
        reason = request.text("reason", "")

        def retire(worker: Worker) -> wire.RetireOutcome:
            if worker.busy and not request.get("busy_ok"):
                return _outcome(worker.name, wire.ACTIVE, wire.V_BUSY, "it has a task")
            if worker.leaving_at is None and worker.name in self.pinned:
                return _outcome(worker.name, wire.ACTIVE, wire.V_PINNED, "a client pins it")
            if worker.leaving_at is None:
                worker.leaving_at, worker.reason = self.clock(), reason
                self.retires.append((worker.name, worker.leaving_at))
            return _outcome(worker.name, self._state(worker))

        return self._each(request.names(), retire)

    def _cancel(self, request: Any) -> wire.RetireAnswer:
        def cancel(worker: Worker) -> wire.RetireOutcome:
            worker.leaving_at = None
            return _outcome(worker.name, wire.ACTIVE)

        answer = self._each(request.names(), cancel)
        self._assign()
        return answer

    def _each(
        self, asked: Iterable[str], do: Callable[[Worker], wire.RetireOutcome]
    ) -> wire.RetireAnswer:
        outcomes = [
            do(self.workers[name]) if name in self.workers else _outcome(name, "gone")
            for name in asked
        ]
        return {"protocol": wire.PROTOCOL, "outcomes": outcomes}

    def _state(self, worker: Worker) -> str:
        is_done = self._ms_since(worker.leaving_at or 0.0) >= DRAIN_S * 1000
        return wire.DRAINED if is_done and not worker.busy else wire.DRAINING

    def _ms_since(self, at: float) -> int:
        return max(0, int((self.clock() - at) * 1000))


def _introduction(workers: list[Worker]) -> wire.Introduction:
    return {
        "slot": [w.slot for w in workers],
        "name": [w.name for w in workers],
        "address": [w.address for w in workers],
        "nthreads": [1 for _ in workers],
        "memory_limit": [MEMORY_LIMIT for _ in workers],
        "joined_ms": [-1 for _ in workers],
    }


def _meters(count: int) -> wire.Meters:
    return {
        "runs": [100] * count,
        "failures": [0] * count,
        "managed": [2**20] * count,
        "matched": [],
        "lifetimes": [],
        "too_short": [],
        "held": 0,
        "expected_ms": TASK_MS,
    }


def _outcome(name: str, state: str, veto: str = "", message: str = "") -> wire.RetireOutcome:
    return {"name": name, "state": state, "veto": veto, "message": message}


async def serve(scheduler: SimulatedScheduler) -> tuple[Server, str]:
    """Listen on a port of this machine; returns the server and its address."""
    # Each directory that a server makes looks at those of all others.
    server = Server(scheduler.handlers(), needs_workdir=False)
    await server.listen("tcp://127.0.0.1:0")
    return server, server.address
