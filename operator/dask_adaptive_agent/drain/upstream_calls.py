"""
Calls that name workers to retire: obeyed, and noted if they break pins, as a restart of all is.

What names no worker (`retire_workers(n=…)`) goes through `workers_to_close`, which honours pins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.failing import logged
from dask_adaptive_agent.patching import Call, Patches
from dask_adaptive_agent.protocol.operator_side import Noting

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

    from dask_adaptive_agent.drain.drains import Drains

logger = logging.getLogger(__name__)

#: Our own calls begin their stimulus_id so.
OURS = "dask-adaptive"

#: `Worker.close_gracefully` begins its stimulus_id so: the worker's own --lifetime has ended.
LIFETIME = "worker-close-gracefully"

#: `Scheduler.check_worker_ttl` begins its stimulus_id so: those workers do not answer any more.
NOT_ANSWERING = "check-worker-ttl"


@dataclass(eq=False)
class UpstreamCalls(Noting):
    """Wraps `retire_workers` of one scheduler, and hears of `restart`."""

    drains: Drains  # drain whose lifetime is over; leave those that a call names to it
    leaving: Callable[[], Collection[str]]  # addresses: their pins have been respected
    pinned_by: Callable[[WorkerState], str]  # in words

    def install(self, patches: Patches) -> None:
        # Upstream's HTTP API calls the method.
        patches.put(patching.RETIRE_WORKERS, self._retiring)
        patches.put(patching.RETIRE_WORKERS_RPC, self._retiring)

    def restarts(self) -> None:
        """`SchedulerPlugin.restart`: `Scheduler.restart` is about to restart all workers."""
        self._note_pins("restart", list(self.scheduler.workers.values()), "restart")

    def _retiring(self, stock: Call) -> Call:
        @wraps(stock)
        async def retire_workers(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _readable(args, kwargs)
            workers = args[0] if args else kwargs.get("workers")
            stimulus = str(kwargs.get("stimulus_id") or "")
            if stimulus.startswith(LIFETIME):
                # Never raises, unless it is cancelled: then the call is, too.
                for address in workers or ():
                    await self.drains.lifetime(address)
                return await stock(*args, **kwargs)
            named = self._named(workers or (), kwargs.get("names"))
            self._note_pins("retire", named, stimulus)
            with self.drains.others_retire(named) as retired:
                answer = await stock(*args, **kwargs)
                retired.update(answer)
            return answer

        return retire_workers

    def _named(self, addresses: Iterable[str], names: Iterable[Any] | None) -> list[WorkerState]:
        """Those of these names, or else addresses."""
        known = self.scheduler.workers
        try:
            if names is not None:
                texts = {str(name) for name in names}  # as Scheduler.retire_workers compares them
                return [ws for ws in known.values() if str(ws.name) in texts]
            return [known[address] for address in dict.fromkeys(addresses) if address in known]
        except Exception:
            # Fail open: upstream's code judges its arguments.
            logger.exception("Failed to find the workers that a call names")
            return []

    def _note_pins(self, verb: str, named: list[WorkerState], stimulus: str) -> None:
        """Note the pins that a call breaks, if any."""
        if stimulus.startswith((OURS, NOT_ANSWERING)):
            return
        # Fail open: the call is obeyed, noted or not.
        with logged(logger, "Failed to find the pins that a call to %s workers has broken", verb):
            leaving = self.leaving()
            staying = [ws for ws in named if ws.address not in leaving]
            pinned = [(ws, by) for ws in staying if (by := self.pinned_by(ws))]
            if not pinned:
                return
            shown = [f"{ws.name} ({by})" for ws, by in pinned[:3]]
            if len(pinned) > 3:
                shown.append(f"{len(pinned) - 3} more")
            call = f" ({stimulus})" if stimulus else ""
            message = f"somebody{call} named pinned workers to {verb}, and was "
            names = [str(ws.name) for ws, _ in pinned]
            self.note(wire.N_PINS_OVERRIDDEN, f"{message}obeyed: {'; '.join(shown)}", names)


def _readable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments with a list for each iterator, which can be read but once."""

    def readable(value: Any) -> Any:
        return list(value) if isinstance(value, Iterator) else value

    return tuple(map(readable, args)), {name: readable(value) for name, value in kwargs.items()}
