"""
Calls that name workers to retire or to restart: obeyed, and it is told which pins they broke.

What names no worker (`retire_workers(n=…)`) goes through `workers_to_close`, which honours pins.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import wire

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

#: Set while `restart` runs: since 2024.3 or so it calls `restart_workers`, which has been told.
_within_restart: ContextVar[bool] = ContextVar("within_restart", default=False)

#: The address that the call has come from, if it has come over the network.
_caller: ContextVar[str] = ContextVar("caller", default="")

Call = Callable[..., Any]

#: Where something was put: the dict, its key, what was there before (None: nothing), and ours.
_Place = tuple[dict[str, Any], str, Any, Any]


class Orders:
    """Wraps `retire_workers`, `restart_workers` and `restart` of one scheduler."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._scheduler: Any = agent.scheduler
        self._places: list[_Place] = []

    @property
    def in_place(self) -> dict[str, bool]:
        """Which of the calls that we have wrapped are still ours, wherever they can be called."""
        out: dict[str, bool] = {}
        for where, name, _, ours in self._places:
            out[name] = out.get(name, True) and where.get(name) is ours
        return out

    def install(self) -> None:
        wrappers = {
            "retire_workers": self._retiring,
            "restart_workers": self._restarting,
            "restart": self._restarting_all,
        }
        handlers = self._scheduler.handlers
        # Before it had restart_workers, Client.restart_workers broadcast to nannies.
        if "restart_workers" not in handlers:
            wrappers["broadcast"] = self._broadcasting
        for name, wrapper in wrappers.items():
            if name in handlers:
                self._put(handlers, name, named(wraps(handlers[name])(wrapper(handlers[name]))))
            # Instance attributes: upstream's HTTP API calls scheduler.retire_workers.
            stock = getattr(self._scheduler, name, None)
            if callable(stock):
                self._put(self._scheduler.__dict__, name, wraps(stock)(wrapper(stock)))

    def uninstall(self) -> None:
        """Put back what is still ours; what somebody else has put over it stays."""
        for where, name, before, ours in self._places:
            if where.get(name) is ours:
                if before is None:
                    del where[name]
                else:
                    where[name] = before
        self._places = []

    def _put(self, where: dict[str, Any], name: str, ours: Call) -> None:
        self._places.append((where, name, where.get(name), ours))
        where[name] = ours

    def _retiring(self, stock: Call) -> Call:
        async def retire_workers(*args: Any, **kwargs: Any) -> Any:
            workers = args[0] if args else kwargs.get("workers")
            stimulus = str(kwargs.get("stimulus_id") or "")
            if stimulus.startswith(LIFETIME):
                # Never raises, unless it is cancelled: then the call is, too.
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
        async def restart_workers(*args: Any, **kwargs: Any) -> Any:
            if not _within_restart.get():
                workers = args[0] if args else kwargs.get("workers")
                stimulus = str(kwargs.get("stimulus_id") or "")
                every = self._scheduler.workers
                self._told("restart", every if workers is None else workers, None, stimulus)
            return await stock(*args, **kwargs)

        return restart_workers

    def _restarting_all(self, stock: Call) -> Call:
        async def restart(*args: Any, **kwargs: Any) -> Any:
            stimulus = str(kwargs.get("stimulus_id") or "")
            self._told("restart", self._scheduler.workers, None, stimulus)
            before = _within_restart.set(True)
            try:
                return await stock(*args, **kwargs)
            finally:
                _within_restart.reset(before)

        return restart

    def _broadcasting(self, stock: Call) -> Call:
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
