"""
Calls that name workers to retire or to restart: obeyed, and it is told which pins they broke.

What names no worker (`retire_workers(n=…)`) goes through `workers_to_close`, which honours pins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
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


class Orders:
    """Hears of calls of `retire_workers`, `restart_workers` and `restart` of one scheduler."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._scheduler: Any = agent.scheduler

    def install(self, patches: Patches) -> None:
        # Upstream's HTTP API calls the method.
        patches.put(patching.RETIRE_WORKERS, self._retiring)
        patches.put(patching.RETIRE_WORKERS_RPC, lambda stock: self._retiring(stock, by_rpc=True))
        # Before it had restart_workers, Client.restart_workers broadcast to nannies.
        if "restart_workers" in self._scheduler.handlers:
            patches.put(patching.RESTART_WORKERS_RPC, self._restarting)
        else:
            patches.put(patching.BROADCAST_RPC, self._broadcasting)

    def restarts(self) -> None:
        """`SchedulerPlugin.restart`: `Scheduler.restart` is about to restart all workers."""
        self._told("restart", self._scheduler.workers, None, "restart")

    def _retiring(self, stock: Call, *, by_rpc: bool = False) -> Call:
        @wraps(stock)
        async def retire_workers(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _readable(args, kwargs)
            workers = args[0] if args else kwargs.get("workers")
            stimulus = str(kwargs.get("stimulus_id") or "")
            if stimulus.startswith(LIFETIME):
                # Never raises, unless it is cancelled: then the call is, too.
                self._agent.expect_gates()
                for address in workers or ():
                    await self._agent.drains.lifetime(address)
                return await stock(*args, **kwargs)
            names = kwargs.get("names")
            op = "retire_workers" if by_rpc else ""
            self._told("retire", workers, names, stimulus, op)
            with self._agent.drains.others_retire(self._named(workers, names)) as retired:
                answer = await stock(*args, **kwargs)
                retired.update(answer)
            return answer

        return retire_workers

    def _restarting(self, stock: Call) -> Call:
        @wraps(stock)
        async def restart_workers(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _readable(args, kwargs)
            workers = args[0] if args else kwargs.get("workers")
            stimulus = str(kwargs.get("stimulus_id") or "")
            every = self._scheduler.workers
            named = every if workers is None else workers
            self._told("restart", named, None, stimulus, "restart_workers")
            return await stock(*args, **kwargs)

        return restart_workers

    def _broadcasting(self, stock: Call) -> Call:
        @wraps(stock)
        async def broadcast(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _readable(args, kwargs)
            msg = kwargs.get("msg")
            if isinstance(msg, dict) and msg.get("op") == "restart" and kwargs.get("nanny"):
                workers = kwargs.get("workers")
                every = self._scheduler.workers
                named = every if workers is None else workers
                self._told("restart", named, None, "", "broadcast")
            return await stock(*args, **kwargs)

        return broadcast

    def _told(
        self,
        verb: str,
        workers: Iterable[str] | None,
        names: Iterable[Any] | None,
        stimulus: str,
        op: str = "",
    ) -> None:
        """Make a note of the pins that the call breaks, if any; `op`: of an RPC."""
        if stimulus.startswith((OURS, NOT_ANSWERING)):
            return
        try:
            pinned = [(ws, by) for ws in self._named(workers, names) if (by := self._holders(ws))]
            if pinned:
                self._note(verb, pinned, stimulus, self._callers(op))
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

    def _callers(self, op: str) -> list[str]:
        """
        Whoever has this RPC answered now: addresses.

        Not by a handler that asks for its connection: what others have put over it need not pass
        one on.
        """
        comms: dict[Any, Any] = getattr(self._scheduler, "_comms", {}) if op else {}
        return sorted({str(comm.peer_address) for comm, its in comms.items() if its == op})

    def _note(
        self,
        verb: str,
        pinned: list[tuple[WorkerState, list[str]]],
        stimulus: str,
        callers: list[str],
    ) -> None:
        told = [f"{ws.name} ({', '.join(by)})" for ws, by in pinned[:SHOWN]]
        if len(pinned) > SHOWN:
            told.append(f"{len(pinned) - SHOWN} more")
        caller = f" at {' or '.join(callers)}" if callers else ""
        call = f" ({stimulus})" if stimulus else ""
        message = f"somebody{caller}{call} named pinned workers to {verb}, and was obeyed: "
        names = [str(ws.name) for ws, _ in pinned]
        self._agent.notes.add(wire.N_PINS_OVERRIDDEN, message + "; ".join(told), names)


def _readable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments with a list for each iterator, which can be read but once."""

    def readable(value: Any) -> Any:
        return list(value) if isinstance(value, Iterator) else value

    return tuple(map(readable, args)), {name: readable(value) for name, value in kwargs.items()}
