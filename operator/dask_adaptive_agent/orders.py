"""
Calls that name workers to retire or to restart: obeyed, and it is told which pins they broke.

What names no worker (`retire_workers(n=…)`) goes through `workers_to_close`, which honours pins.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.patching import Call, Patches

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

    from dask_adaptive_agent.agent import Agent

logger = logging.getLogger(__name__)

#: Our own calls begin their stimulus_id so.
OURS = "dask-adaptive"

#: `Worker.close_gracefully` begins its stimulus_id so: the worker's own --lifetime has ended.
LIFETIME = "worker-close-gracefully"

#: `Scheduler.check_worker_ttl` begins its stimulus_id so: those workers do not answer any more.
NOT_ANSWERING = "check-worker-ttl"

#: How many pinned workers a note tells of in words.
SHOWN = 3

#: The address that the call has come from, if it has come over the network.
_caller: ContextVar[str] = ContextVar("caller", default="")


class Orders:
    """Hears of calls of `retire_workers`, `restart_workers` and `restart` of one scheduler."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._scheduler: Any = agent.scheduler

    def install(self, patches: Patches) -> None:
        # Upstream's HTTP API calls the method.
        patches.put(patching.RETIRE_WORKERS, self._retiring)
        patches.put(patching.RETIRE_WORKERS_RPC, lambda stock: named(self._retiring(stock)))
        # Before it had restart_workers, Client.restart_workers broadcast to nannies.
        if "restart_workers" in self._scheduler.handlers:
            patches.put(patching.RESTART_WORKERS_RPC, lambda stock: named(self._restarting(stock)))
        else:
            patches.put(patching.BROADCAST_RPC, lambda stock: named(self._broadcasting(stock)))

    def restarts(self) -> None:
        """`SchedulerPlugin.restart`: `Scheduler.restart` is about to restart all workers."""
        self._told("restart", self._scheduler.workers, None, "restart")

    def _retiring(self, stock: Call) -> Call:
        @wraps(stock)
        async def retire_workers(*args: Any, **kwargs: Any) -> Any:
            workers = args[0] if args else kwargs.get("workers")
            stimulus = str(kwargs.get("stimulus_id") or "")
            if stimulus.startswith(LIFETIME):
                # Never raises, unless it is cancelled: then the call is, too.
                self._agent.expect_gates()
                for address in workers or ():
                    await self._agent.drains.lifetime(address)
                return await stock(*args, **kwargs)
            names = kwargs.get("names")
            self._told("retire", workers, names, stimulus)
            with self._agent.drains.others_retire(self._named(workers, names)) as retired:
                answer = await stock(*args, **kwargs)
                retired.update(answer)
            return answer

        return retire_workers

    def _restarting(self, stock: Call) -> Call:
        @wraps(stock)
        async def restart_workers(*args: Any, **kwargs: Any) -> Any:
            workers = args[0] if args else kwargs.get("workers")
            stimulus = str(kwargs.get("stimulus_id") or "")
            every = self._scheduler.workers
            self._told("restart", every if workers is None else workers, None, stimulus)
            return await stock(*args, **kwargs)

        return restart_workers

    def _broadcasting(self, stock: Call) -> Call:
        @wraps(stock)
        async def broadcast(*args: Any, **kwargs: Any) -> Any:
            msg = kwargs.get("msg")
            if isinstance(msg, dict) and msg.get("op") == "restart" and kwargs.get("nanny"):
                workers = kwargs.get("workers")
                every = self._scheduler.workers
                self._told("restart", every if workers is None else workers, None, "")
            return await stock(*args, **kwargs)

        return broadcast

    def _told(
        self, verb: str, workers: Iterable[str] | None, names: Iterable[Any] | None, stimulus: str
    ) -> None:
        """Make a note of the pins that the call breaks, if any."""
        if stimulus.startswith((OURS, NOT_ANSWERING)):
            return
        try:
            pinned = [(ws, by) for ws in self._named(workers, names) if (by := self._holders(ws))]
            if pinned:
                self._note(verb, pinned, stimulus)
        except Exception:
            # Fail open: the call is obeyed, told or not.
            logger.exception("Cannot tell which pins a call to %s workers has broken", verb)

    def _named(
        self, workers: Iterable[str] | None, names: Iterable[Any] | None
    ) -> list[WorkerState]:
        known = self._scheduler.workers
        if names is not None:
            texts = {str(name) for name in names}  # as Scheduler.retire_workers compares them
            return [ws for ws in known.values() if str(ws.name) in texts]
        return [known[address] for address in dict.fromkeys(workers or ()) if address in known]

    def _holders(self, ws: WorkerState) -> list[str]:
        # Those that we bring out ourselves have had their pins respected.
        if ws.address in self._agent.leaving():
            return []
        return self._agent.pinned_by(ws)

    def _note(self, verb: str, pinned: list[tuple[WorkerState, list[str]]], stimulus: str) -> None:
        told = [f"{ws.name} ({', '.join(by)})" for ws, by in pinned[:SHOWN]]
        if len(pinned) > SHOWN:
            told.append(f"{len(pinned) - SHOWN} more")
        caller = f" at {_caller.get()}" if _caller.get() else ""
        call = f" ({stimulus})" if stimulus else ""
        message = f"somebody{caller}{call} named pinned workers to {verb}, and was obeyed: "
        names = [str(ws.name) for ws, _ in pinned]
        self._agent.notes.add(wire.N_PINS_OVERRIDDEN, message + "; ".join(told), names)


def named(handler: Call) -> Call:
    """
    The handler, which also knows who calls: a server hands the connection to a handler whose first
    argument is called `comm` (`distributed.core._expects_comm`).

    One that takes `serializers` or the connection itself is left alone: the server asks for both by
    the names of its arguments.
    """
    arguments = inspect.signature(handler).parameters
    if "comm" in arguments or "serializers" in arguments:
        return handler

    async def handled(comm: Any, **kwargs: Any) -> Any:
        before = _caller.set(str(getattr(comm, "peer_address", "")))
        try:
            return await handler(**kwargs)
        finally:
            _caller.reset(before)

    return handled
