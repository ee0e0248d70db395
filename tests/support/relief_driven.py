"""A real scheduler whose workers and client exist in its books only: its handlers are driven."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import distributed
from distributed import Scheduler
from distributed.comm import get_address_host
from distributed.scheduler import ClientState

from support.agent_fakes import clear_workers, fake_worker

CLIENT = "driven"


class Silent:
    """Stands for a connection."""

    def send(self, *messages: Any) -> None:
        pass

    def closed(self) -> bool:
        return False

    def abort(self) -> None:
        pass


def body() -> Any:
    """The body of a task, in whatever shape this release has for one."""
    try:
        from dask._task_spec import Task
    except ImportError:
        names = inspect.signature(Scheduler.send_task_to_worker).parameters
        is_old = distributed.__version__ < "2023.9" and bool(names)
        return {"function": b"", "args": b""} if is_old else (len, ((),), {})
    return Task("k", len, ())


def key_of(group: str, i: int) -> Any:
    """A key of a group of its own within a prefix; text before 2023.9.0, a tuple after."""
    key = (group, i)
    return str(key) if distributed.__version__ < "2023.9" else key


class Driven:
    """Tasks of one scheduler, taken through their lives one stimulus at a time."""

    def __init__(self, s: Any, n_workers: int = 4) -> None:
        self.s = s
        self._body = body()
        self._n_stimuli = 0
        self._n_workers = 0
        for callback in s.periodic_callbacks.values():
            callback.stop()
        s.clients[CLIENT] = ClientState(CLIENT)
        s.client_comms[CLIENT] = Silent()
        for _ in range(n_workers):
            self.add_worker()

    def _stimulus(self) -> str:
        self._n_stimuli += 1
        return f"driven-{self._n_stimuli}"

    def add_worker(self) -> None:
        ws = fake_worker(self.s, self._n_workers)
        self._n_workers += 1
        self.s.stream_comms[ws.address] = Silent()
        host = {"addresses": {ws.address}, "nthreads": ws.nthreads}
        self.s.host_info[get_address_host(ws.address)] = host
        self.s.check_idle_saturated(ws)
        for plugin in list(self.s.plugins.values()):
            plugin.add_worker(self.s, ws.address)
        self.s.stimulus_queue_slots_maybe_opened(stimulus_id=self._stimulus())

    def begin(self, key: Any) -> Any:
        """Submit one task."""
        ts = self.s.new_task(key, self._body, "released")
        ts.priority = (0, self._n_stimuli, 0)
        client = self.s.clients[CLIENT]
        if ts.who_wants is None:
            ts.who_wants = set()
        ts.who_wants.add(client)
        client.wants_what.add(ts)
        self.s.transitions({key: "waiting"}, self._stimulus())
        return ts

    def finish(self, ts: Any, typename: str, nbytes: int) -> None:
        start = float(self._n_stimuli)
        startstops = (
            {"action": "compute", "start": start, "stop": start + 0.1},
            {"action": "transfer", "start": start, "stop": start + 0.01, "source": "x"},
        )
        self.s.stream_handlers["task-finished"](
            key=ts.key, worker=ts.processing_on.address, stimulus_id=self._stimulus(),
            status="OK", nbytes=nbytes, type=b"", typename=typename, metadata={}, thread=1,
            startstops=startstops,
            **({"run_id": ts.run_id} if hasattr(ts, "run_id") else {}),
        )  # fmt: skip

    def release(self, ts: Any) -> None:
        self.s.client_releases_keys(keys=[ts.key], client=CLIENT, stimulus_id=self._stimulus())

    def hold(self, n_groups: int) -> None:
        """So many groups with one finished task each."""
        for i in range(n_groups):
            ts = self.s.new_task(key_of(f"load-{i:032x}", 0), None, "released")
            ts.state = "memory"
            ts.set_nbytes(100)

    def clear(self) -> None:
        """Forget workers and client, so that the scheduler can close."""
        clear_workers(self.s)
        self.s.clients.clear()
        self.s.client_comms.clear()
        self.s.stream_comms.clear()


@asynccontextmanager
async def alone(n_workers: int = 0) -> AsyncIterator[Driven]:
    """A scheduler that nobody else talks to."""
    async with Scheduler(port=0, dashboard=False, dashboard_address=":0", host="127.0.0.1") as s:
        driven = Driven(s, n_workers)
        try:
            yield driven
        finally:
            driven.clear()


def installed(kind: Any, s: Any) -> Any:
    """A relief at work in a scheduler, whatever its release needs."""
    # Late: schedulers that are measured beside ours have no copy of the agent.
    from dask_adaptive_agent.agent import Agent

    relief = kind(Agent(s, lambda: 0.0).reliefs)
    relief.install()
    return relief
