"""Which workers' processes are about to end: notices, answers, and those that are on their way."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, KeysView, Sequence
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import wire
from dask_adaptive_agent.departure import Departure, Notice
from dask_adaptive_agent.gate import Gate
from dask_adaptive_agent.naming import is_process_of
from dask_adaptive_agent.retirements import Retirements

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)


class Departures:
    """Every worker whose process is about to end, by address."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        retirements: Retirements,
        back: Callable[[Gate], None],
        pinned_by: Callable[[WorkerState], str],
        lease_s: Callable[[], float],
        lifetime_s: Callable[[], float],
        tell: Callable[[str, str, Sequence[str]], None],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._retirements = retirements
        self._back = back
        self._pinned_by = pinned_by
        self._lease_s = lease_s
        self._lifetime_s = lifetime_s
        self._tell = tell
        self._clock = clock
        self.ongoing: dict[str, Departure] = {}

    @property
    def addresses(self) -> KeysView[str]:
        return self.ongoing.keys()

    def leave(
        self, names: Iterable[str], hosts: Iterable[str], notice: Notice
    ) -> list[wire.RetireOutcome]:
        """Let workers depart, or say how far they are: one answer a worker, by its address."""
        found, unknown = self._found(names, hosts)
        for ws in found:
            departure = self._departing(ws, notice.reason)
            departure.notice(notice)
            self._look(departure)
        outcomes = [
            _outcome(d) if (d := self.ongoing.get(ws.address)) else _gone(ws.address)
            for ws in found
        ]
        return outcomes + [_gone(name) for name in unknown]

    async def lifetime(self, address: str) -> None:
        """
        A worker's own `--lifetime` is over: return when it may be closed without a loss.

        It waits for tasks and pins, but no longer than `lifetime_s`: then the worker goes as
        in stock. While no other worker is in service it stays, as long as it is of use, within
        the same bound. Never raises; cancelled, the worker is back in service.
        """
        ws = self._scheduler.workers.get(address)
        if ws is None or self._lifetime_s() <= 0:
            return
        departure: Departure | None = None
        try:
            departure = self._departing(ws, "its lifetime is over")
            departure.is_lifetime = True
            self._look(departure)
            await asyncio.wait_for(departure.is_drained.wait(), self._lifetime_s())
        except asyncio.TimeoutError:
            logger.info("Worker %s has not drained in %.0f s", address, self._lifetime_s())
        except asyncio.CancelledError:
            if departure is not None:
                departure.is_lifetime = False
                self._look(departure)  # comes back to service unless somebody else wants it gone
            raise
        except Exception:
            # Fail open: the worker closes as it would without us.
            logger.exception("Cannot wait for worker %s, whose lifetime is over", address)

    def outcome_of(self, ws: WorkerState) -> wire.RetireOutcome | None:
        """For those who want to retire a worker; None when it does not depart."""
        departure = self.ongoing.get(ws.address)
        if departure is None:
            return None
        self._look(departure)
        return None if departure.is_over else {**_outcome(departure), "name": str(departure.name)}

    def cancel(self, ws: WorkerState) -> wire.RetireOutcome | None:
        """Back to service, unless its process is sure to end; None when it does not depart."""
        departure = self.ongoing.get(ws.address)
        if departure is None:
            return None
        if departure.is_certain or departure.is_lifetime:
            return self.outcome_of(ws)
        departure.end()
        return {
            "name": str(ws.name),
            "state": wire.ACTIVE,
            "veto": "",
            "message": "back to service",
        }

    def rows(self) -> list[dict[str, Any]]:
        """Of `wire.DepartureRow`, with the worker's address instead of its slot."""
        now = self._clock()
        return [
            {
                "address": address,
                "name": str(departure.name),
                "state": departure.state,
                "reason": departure.reason,
                "for_ms": int((now - departure.since) * 1000),
                "left_ms": -1 if math.isinf(departure.ends_at) else int(departure.left_s * 1000),
                "message": departure.message,
            }
            for address, departure in self.ongoing.items()
        ]

    def name_of(self, ws: WorkerState) -> str:
        """The name by which others know a worker, also when it has been renamed."""
        departure = self.ongoing.get(ws.address)
        return str(ws.name if departure is None else departure.name)

    def gate_of(self, address: str) -> Gate | None:
        departure = self.ongoing.get(address)
        return None if departure is None else departure.gate

    def worker_left(self, address: str) -> None:
        departure = self.ongoing.get(address)
        if departure is not None:
            departure.end(is_gone=True)

    def close(self, *, is_closing: bool = False) -> None:
        """Stop all; back to service unless the scheduler itself closes."""
        for departure in list(self.ongoing.values()):
            departure.end(is_gone=is_closing)

    def _found(
        self, names: Iterable[str], hosts: Iterable[str]
    ) -> tuple[list[WorkerState], list[str]]:
        found: dict[str, WorkerState] = {}
        unknown = []
        for name in names:
            named = self._named(name)
            found.update((ws.address, ws) for ws in named)
            if not named:
                unknown.append(name)
        for host in hosts:
            # Not by looking at every worker: each pod of many that end at once asks every second.
            there = self._scheduler.host_info.get(host, {}).get("addresses", ())
            found.update((address, self._scheduler.workers[address]) for address in there)
            if not there:
                unknown.append(host)
        return list(found.values()), unknown

    def _named(self, name: str) -> list[WorkerState]:
        """Whom a name means; of two that had it one after the other, the one that departs."""
        if name in self._scheduler.workers:
            return [self._scheduler.workers[name]]
        workers = list(self._scheduler.workers.values())
        departing = [ws for ws in workers if ws.address in self.ongoing]
        for candidates in (departing, workers):
            exactly = [ws for ws in candidates if self.name_of(ws) == name]
            if exactly:
                return exactly
            its = [ws for ws in candidates if self._is_process_of(ws, name)]
            if its:
                # All of them, also those that have not been told yet.
                return its if candidates is workers else self._siblings(name, its, workers)
        return []

    def _siblings(
        self, name: str, its: list[WorkerState], workers: list[WorkerState]
    ) -> list[WorkerState]:
        taken = {self.name_of(ws) for ws in its}
        others = (ws for ws in workers if self._is_process_of(ws, name))
        return its + [ws for ws in others if self.name_of(ws) not in taken]

    def _is_process_of(self, ws: WorkerState, name: str) -> bool:
        return is_process_of(self.name_of(ws), name)

    def _departing(self, ws: WorkerState, reason: str) -> Departure:
        departure = self.ongoing.get(ws.address)
        if departure is None:
            gate = self._retirements.hand_over(ws.address)
            departure = Departure(
                self._scheduler,
                gate or Gate(self._scheduler, ws, self._clock),
                reason=reason,
                pinned_by=self._pinned_by,
                lease_s=self._lease_s,
                tell=self._tell,
                back=self._back,
                ended=self._ended,
                clock=self._clock,
            )
            self.ongoing[ws.address] = departure
            logger.info("Worker %s (%s) is about to end: %s", ws.name, ws.address, reason)
        return departure

    def _look(self, departure: Departure) -> None:
        departure.start()
        try:
            departure.look()
        except Exception:
            # Its own watch tries again: the process ends whatever goes wrong here.
            logger.exception("Cannot see to the departure of %s", departure.ws.address)

    def _ended(self, departure: Departure) -> None:
        if self.ongoing.get(departure.ws.address) is departure:
            del self.ongoing[departure.ws.address]


def _outcome(departure: Departure) -> wire.RetireOutcome:
    return {
        "name": departure.ws.address,
        "state": departure.state,
        "veto": "",
        "message": departure.message,
    }


def _gone(name: str) -> wire.RetireOutcome:
    return {"name": name, "state": "gone", "veto": "", "message": "no such worker"}
