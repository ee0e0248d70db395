"""Which workers may drain, on what terms, and those that do: vetoes, leases, answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import lifespan, wire
from dask_adaptive_agent.copying import Asked, Cordoned, is_stuck
from dask_adaptive_agent.cordons import Cordons
from dask_adaptive_agent.drain import Drain, Terms, Veto
from dask_adaptive_agent.gate import Gate
from dask_adaptive_agent.moving import arriving
from dask_adaptive_agent.naming import is_process_of
from dask_adaptive_agent.orders import LIFETIME
from dask_adaptive_agent.words import plural

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)

#: Says in words why a worker must stay, pins of these sources left aside, or nothing. Raises when
#: that can't be known.
PinnedBy = Callable[["WorkerState", Collection[str]], str]

#: How long the veto that ended a drain waits to be told to the next who asks.
VERDICT_S = 60.0

OWN_END = Terms("its lifetime is over", is_lifetime=True)


class Drains:
    """
    Every worker on its way out, by address.

    Args:
        scheduler: Whose workers they are.
        cordons: Workers that get no more tasks: taken over from there, and given back to it.
        pinned_by: As above.
        lease_s: How long a request holds that nobody repeats.
        lifetime_s: How long a worker may drain whose own lifetime is over; 0: not at all.
        tell: Makes a note: kind, message, names of workers.
        clock: Seconds that never go backwards.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        cordons: Cordons,
        pinned_by: PinnedBy,
        lease_s: Callable[[], float],
        lifetime_s: Callable[[], float],
        tell: Callable[[str, str, Sequence[str]], None],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._cordons = cordons
        self._pinned_by = pinned_by
        self._lifetime_s = lifetime_s
        self._clock = clock
        self.lease_s = lease_s
        self.tell = tell
        self.ongoing: dict[str, Drain] = {}
        self.asked = Asked(scheduler)
        #: Workers that somebody else retires now, and how many calls do.
        self._others: dict[str, tuple[Gate, int]] = {}
        #: Of workers that have come back and have not confirmed it.
        self._settling: dict[str, Gate] = {}
        self._verdicts: dict[str, tuple[float, Veto]] = {}
        self._background: set[asyncio.Future[Any]] = set()

    def retire(self, ws: WorkerState, terms: Terms, *, busy_ok: bool) -> wire.RetireOutcome:
        """Start to drain a worker that may refuse, or say how far it is, as of now."""
        drain = self.ongoing.get(ws.address)
        if drain is not None:
            if drain.terms.is_refusable:
                drain.renewed_at = self._clock()
                drain.look()
            else:
                self._look(drain)
            return self._outcome(drain)
        if ws.address in self._others:
            return outcome(ws, wire.DRAINING, None, "is being retired by somebody else")
        veto = self._verdict(ws)
        if veto is None or veto.code != wire.V_TIMEOUT:
            # Any other objection is one only as long as it stands.
            veto = self._veto(ws, terms, busy_ok=busy_ok)
        if veto is not None:
            return outcome(ws, wire.ACTIVE, veto)
        drain = self._begin(ws, terms)
        try:
            drain.look()
        except Exception:
            drain.end()
            raise
        drain.start()
        return self._outcome(drain)

    def cancel(self, ws: WorkerState) -> wire.RetireOutcome:
        """Back to service, unless its process is sure to end."""
        drain = self.ongoing.get(ws.address)
        self._verdicts.pop(ws.address, None)
        if drain is None:
            return outcome(ws, wire.ACTIVE, None, "was not being retired")
        if drain.terms.is_certain or drain.is_lifetime:
            self._look(drain)
            return self._outcome(drain)
        drain.end()
        return outcome(ws, wire.ACTIVE, None, "back to service")

    def leave(
        self, names: Iterable[str], hosts: Iterable[str], terms: Terms
    ) -> list[wire.RetireOutcome]:
        """Let workers go whose processes end, or say how far they are; each by its address."""
        found, unknown = self._found(names, hosts)
        for ws in found:
            self._look(self._leaving(ws, terms))
        outcomes = [_gone(ws.address) for ws in found]
        for one in outcomes:
            drain = self.ongoing.get(one["name"])
            if drain is not None:
                one["state"], one["message"] = drain.state, drain.message
        return outcomes + [_gone(name) for name in unknown]

    def comes(self, name: Any) -> None:
        """
        A worker is about to register as `name`: one whose process is sure to end gives way.

        The replacement of a pod comes at once, under the same name, and the scheduler refuses a
        name that is taken (`Scheduler.add_worker`).
        """
        drain = self.ongoing.get(self._scheduler.aliases.get(name, ""))
        if drain is not None and drain.terms.is_certain:
            drain.give_way()

    async def lifetime(self, address: str) -> None:
        """
        A worker's own `--lifetime` is over: return when it may be closed without a loss.

        It waits for tasks and pins, but no longer than `lifetime_s`: then the worker goes as
        in stock. While no other worker is in service it stays, as long as it is of use, within
        the same bound. Never raises; cancelled, the worker is back in service.
        """
        ws = self._scheduler.workers.get(address)
        if ws is None:
            return
        if self._lifetime_s() <= 0:
            # Stock code moves its data now: the end of a cordon must not bring it back meanwhile.
            self._cordons.hand_over(address)
            return
        drain: Drain | None = None
        try:
            drain = self._leaving(ws, OWN_END)
            self._look(drain)
            await asyncio.wait_for(drain.is_drained.wait(), self._lifetime_s())
        except asyncio.TimeoutError:
            logger.info("Worker %s has not drained in %.0f s", address, self._lifetime_s())
        except asyncio.CancelledError:
            if drain is not None:
                drain.is_lifetime = False
                self._look(drain)  # comes back to service unless somebody else wants it gone
            raise
        except Exception:
            # Fail open: the worker closes as it would without us.
            logger.exception("Cannot wait for worker %s, whose lifetime is over", address)
        if drain is not None:
            drain.closes_since = self._clock()

    @contextlib.contextmanager
    def others_retire(self, workers: Iterable[WorkerState]) -> Iterator[dict[str, Any]]:
        """
        While somebody's own `retire_workers` runs: put what it returns into what is given.

        A drain that may be refused ends here: the worker is theirs now. `Scheduler.retire_workers`
        gives back the status that it has found, which may have been ours, so those that it could
        not retire are brought back to service here.
        """
        taken = [self._taken_over(ws) for ws in workers]
        retired: dict[str, Any] = {}
        try:
            yield retired
        finally:
            for gate in taken:
                self._others_are_done(gate, is_retired=gate.ws.address in retired)

    def is_others(self, address: str) -> bool:
        """Whether somebody else retires a worker, or waits for his turn to: it is his."""
        return address in self._others

    def _taken_over(self, ws: WorkerState) -> Gate:
        self._verdicts.pop(ws.address, None)
        drain = self.ongoing.get(ws.address)
        gate, calls = self._others.get(ws.address, (None, 0))
        if drain is not None:
            gate = drain.hand_over() if drain.terms.is_refusable else drain.gate
        elif gate is None:
            gate = self._gate(ws)
        gate.others_froze()
        self._others[ws.address] = (gate, calls + 1)
        return gate

    def _others_are_done(self, gate: Gate, *, is_retired: bool) -> None:
        address = gate.ws.address
        kept, calls = self._others.get(address, (None, 0))
        if kept is not gate:
            return  # the worker is gone
        if calls > 1:
            self._others[address] = (gate, calls - 1)
            return
        del self._others[address]
        gate.others_froze()
        if address in self.ongoing:
            return
        if not is_retired:
            self.back(gate)
        elif gate.is_settling:  # that it served before is not to be heard any more
            self._settling[address] = gate

    def review(self) -> None:
        """Somebody is still interested in all of them: renew their leases, and be up to date."""
        now = self._clock()
        for drain in list(self.ongoing.values()):
            if drain.terms.is_refusable:
                drain.renewed_at = now
                drain.look()

    def departures(self) -> dict[str, Drain]:
        """Those whose process is about to end."""
        return {a: one for a, one in self.ongoing.items() if not one.terms.is_refusable}

    def retirements(self) -> dict[str, Drain]:
        """Those that may come back."""
        return {a: one for a, one in self.ongoing.items() if one.terms.is_refusable}

    def name_of(self, ws: WorkerState) -> str:
        """The name by which others know a worker, also when it has been renamed."""
        drain = self.ongoing.get(ws.address)
        return str(ws.name if drain is None else drain.name)

    def gate_of(self, address: str) -> Gate | None:
        """Whatever holds a worker out of service, or has until it confirms that it serves."""
        drain = self.ongoing.get(address)
        if drain is not None:
            return drain.gate
        if address in self._others:
            return self._others[address][0]
        gate = self._cordons.gate_of(address)
        if gate is not None:  # since it came back: its word that it serves opens nothing
            self._settling.pop(address, None)
            return gate
        gate = self._settling.get(address)
        if gate is not None and not gate.is_settling:
            del self._settling[address]
            return None
        return gate

    def worker_left(self, address: str) -> None:
        self._verdicts.pop(address, None)
        self._others.pop(address, None)
        self._settling.pop(address, None)
        drain = self.ongoing.get(address)
        if drain is not None:
            drain.end(is_gone=True)

    def close(self, *, is_closing: bool = False) -> None:
        """Stop all; back to service unless the scheduler itself closes."""
        for drain in list(self.ongoing.values()):
            drain.end(is_gone=is_closing)
        if is_closing:  # else whoever has outlived its lifetime still has to go
            for task in self._background:
                task.cancel()

    def obstacle_to(self, ws: WorkerState) -> Veto | None:
        """Why a worker that is not pinned could not be retired now, without waiting for tasks."""
        return self._obstacle(ws) or self._busy(ws)

    # What a drain asks (`drain.Owner`).

    @property
    def cordoned(self) -> Cordoned:
        return self._cordons

    def objection(self, drain: Drain) -> Veto | None:
        """Objections that hold before a refusable drain and during it."""
        return self._standing(drain.ws, drain.terms)

    def is_spent(self, ws: WorkerState) -> bool:
        return self._cordons.is_spent(ws)

    def pinned_by(self, ws: WorkerState, over: Collection[str] = ()) -> str:
        # Fail closed: what can't be read counts as a pin.
        try:
            return self._pinned_by(ws, over)
        except Exception as error:
            logger.exception("Cannot read pins; holding worker %s", ws.address)
            return f"pins that can't be read ({error!r})"

    def back(self, gate: Gate) -> None:
        """To service, or to what else keeps it out of it."""
        if gate.ws.address in self._others:
            return  # when they are done
        self._cordons.take_back(gate)
        if gate.is_settling:
            self._settling[gate.ws.address] = gate
        if lifespan.left_s(gate.ws) <= 0 and gate.ws.address in self._scheduler.workers:
            self._live_out(gate.ws)

    def ended(self, drain: Drain, veto: Veto | None) -> None:
        self.ongoing.pop(drain.ws.address, None)
        if veto is not None:
            self._verdicts[drain.ws.address] = (self._clock(), veto)
            logger.info("Worker %s stays: %s", drain.ws.address, veto.message)

    def _live_out(self, ws: WorkerState) -> None:
        """
        Its lifetime has passed while it was frozen: it comes back, and would stay for ever.

        `Worker.close_gracefully` does nothing when somebody else has said that the worker closes.
        """
        task = asyncio.ensure_future(
            self._scheduler.retire_workers(
                workers=[ws.address],
                close_workers=True,
                stimulus_id=f"{LIFETIME}-{self._clock()}",
            )
        )
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _begin(self, ws: WorkerState, terms: Terms) -> Drain:
        logger.info("Draining worker %s (%s): %s", ws.name, ws.address, terms.reason)
        gate = self._others[ws.address][0] if ws.address in self._others else self._gate(ws)
        drain = Drain(self._scheduler, gate, terms, owner=self, clock=self._clock)
        self.ongoing[ws.address] = drain
        return drain

    def _gate(self, ws: WorkerState) -> Gate:
        gate = self._cordons.hand_over(ws.address) or self._settling.pop(ws.address, None)
        return gate or self._cordons.gate(ws)

    def _leaving(self, ws: WorkerState, terms: Terms) -> Drain:
        self._verdicts.pop(ws.address, None)
        drain = self.ongoing.get(ws.address)
        if drain is None:
            return self._begin(ws, terms)
        drain.notice(terms)
        return drain

    def _look(self, drain: Drain) -> None:
        drain.start()
        try:
            drain.look()
        except Exception:
            # Its own watch tries again: the process ends whatever goes wrong here.
            logger.exception("Cannot see to the drain of %s", drain.ws.address)

    def _outcome(self, drain: Drain) -> wire.RetireOutcome:
        veto = self._verdict(drain.ws) if drain.is_over else None
        answer = outcome(drain.ws, drain.state, veto, drain.message)
        return {**answer, "name": str(drain.name)}

    def _veto(self, ws: WorkerState, terms: Terms, *, busy_ok: bool) -> Veto | None:
        """Objections to a drain that has not begun, the weightiest first."""
        return self._standing(ws, terms) or (None if busy_ok else self._busy(ws))

    def _standing(self, ws: WorkerState, terms: Terms) -> Veto | None:
        if pinned_by := self.pinned_by(ws, terms.over_pins):
            return Veto(wire.V_PINNED, f"pinned by {pinned_by}")
        return self._obstacle(ws)

    def _busy(self, ws: WorkerState) -> Veto | None:
        tasks = len(ws.processing)
        if not tasks and not arriving(self._scheduler, ws):
            return None
        return Veto(wire.V_BUSY, f"has {plural(max(1, tasks), 'task')}")

    def _obstacle(self, ws: WorkerState) -> Veto | None:
        if ws.actors or any(ts.actor for ts in ws.processing):
            return Veto(wire.V_ACTORS, "holds actors, which can't be moved")
        if ws.processing and not any(other is not ws for other in self._scheduler.running):
            return Veto(wire.V_NO_RECIPIENT, "has tasks, and no other worker is in service")
        if is_stuck(self._scheduler, ws, self._cordons):
            return Veto(wire.V_NO_RECIPIENT, "no other worker could take its data")
        return None

    def _verdict(self, ws: WorkerState) -> Veto | None:
        """Why the last drain of this worker ended, told once."""
        at, veto = self._verdicts.pop(ws.address, (0.0, None))
        return veto if veto is not None and self._clock() - at < VERDICT_S else None

    def _found(
        self, names: Iterable[str], hosts: Iterable[str]
    ) -> tuple[list[WorkerState], list[str]]:
        found: dict[str, WorkerState] = {}
        unknown = []
        for name in names:
            named = self.named(name)
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

    def named(self, name: str) -> list[WorkerState]:
        """Whom a name means; of two that had it one after the other, the one that leaves."""
        if name in self._scheduler.workers:
            return [self._scheduler.workers[name]]
        workers = list(self._scheduler.workers.values())
        departures = self.departures()
        departing = [ws for ws in workers if ws.address in departures]
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


def outcome(
    ws: WorkerState, state: str, veto: Veto | None, message: str = ""
) -> wire.RetireOutcome:
    return {
        "name": str(ws.name),
        "state": state,
        "veto": veto.code if veto else "",
        "message": veto.message if veto else message,
    }


def combined(name: str, outcomes: Sequence[wire.RetireOutcome]) -> wire.RetireOutcome:
    """One answer for the workers that share a name: the least advanced of them speaks for all."""
    if not outcomes:
        return _gone(name)
    order = (wire.ACTIVE, wire.DRAINING, wire.DRAINED)
    least = min(outcomes, key=lambda one: order.index(one["state"]))
    return {**least, "name": name}


def _gone(name: str) -> wire.RetireOutcome:
    return {"name": name, "state": "gone", "veto": "", "message": "no such worker"}
