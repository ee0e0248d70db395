"""Which workers may be retired, and those that are: vetoes, leases, answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from dask_adaptive_agent import wire
from dask_adaptive_agent.copying import last_copies
from dask_adaptive_agent.gate import Gate
from dask_adaptive_agent.moving import arriving
from dask_adaptive_agent.retirement import Order, Retirement, Veto
from dask_adaptive_agent.stops import Stops
from dask_adaptive_agent.words import plural

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)

#: Says in words why a worker must stay, pins of these sources left aside, or nothing. Raises when
#: that can't be known.
PinnedBy = Callable[["WorkerState", Collection[str]], str]

#: How long the veto that ended a retirement waits to be told to the next who asks.
VERDICT_S = 60.0


class Retirements:
    """Every worker on its way out, by address."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        pinned_by: PinnedBy,
        stops: Stops,
        lease_s: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._pinned_by = pinned_by
        self._stops = stops
        self._lease_s = lease_s
        self._clock = clock
        self.ongoing: dict[str, Retirement] = {}
        self._verdicts: dict[str, tuple[float, Veto]] = {}

    def retire(self, ws: WorkerState, order: Order, *, busy_ok: bool) -> wire.RetireOutcome:
        """Start to drain a worker, or say how far it is, as of now."""
        ongoing = self.ongoing.get(ws.address)
        if ongoing is not None:
            ongoing.renewed_at = self._clock()
            ongoing.look()
            veto = None if ongoing.state != wire.ACTIVE else self._verdict(ws)
            return outcome(ws, ongoing.state, veto, ongoing.message)
        veto = self._verdict(ws) or self._veto(ws, order, busy_ok=busy_ok)
        if veto is not None:
            return outcome(ws, wire.ACTIVE, veto)
        return self._start(ws, order)

    def cancel(self, ws: WorkerState) -> wire.RetireOutcome:
        """Back to service."""
        ongoing = self.ongoing.get(ws.address)
        self._verdicts.pop(ws.address, None)
        if ongoing is None:
            return outcome(ws, wire.ACTIVE, None, "was not being retired")
        ongoing.end(None)
        return outcome(ws, wire.ACTIVE, None, "back to service")

    def review(self) -> None:
        """Somebody is still interested in all of them: renew their leases, and be up to date."""
        now = self._clock()
        for ongoing in list(self.ongoing.values()):
            ongoing.renewed_at = now
            ongoing.look()

    def worker_left(self, address: str) -> None:
        self._verdicts.pop(address, None)
        ongoing = self.ongoing.get(address)
        if ongoing is not None:
            ongoing.end(None, is_gone=True)

    def close(self, *, is_closing: bool = False) -> None:
        """Stop all; back to service unless the scheduler itself closes."""
        for ongoing in list(self.ongoing.values()):
            ongoing.end(None, is_gone=is_closing)

    def hand_over(self, address: str) -> Gate | None:
        """
        End the retirement or the stop of a worker, if any, and leave it out of service: for a
        departure.
        """
        ongoing = self.ongoing.get(address)
        self._verdicts.pop(address, None)
        return self._stops.hand_over(address) if ongoing is None else ongoing.hand_over()

    def _start(self, ws: WorkerState, order: Order) -> wire.RetireOutcome:
        retirement = Retirement(
            self._scheduler,
            self._stops.hand_over(ws.address) or Gate(self._scheduler, ws, self._clock),
            order,
            objection=self._objection,
            back=self._stops.take_back,
            ended=self._ended,
            clock=self._clock,
        )
        self.ongoing[ws.address] = retirement
        logger.info("Draining worker %s (%s): %s", ws.name, ws.address, order.reason)
        try:
            retirement.start()
        except Exception:
            retirement.end(None)
            raise
        veto = self._verdict(ws) if retirement.state == wire.ACTIVE else None
        return outcome(ws, retirement.state, veto, retirement.message)

    def obstacle_to(self, ws: WorkerState) -> Veto | None:
        """Why a worker that is not pinned could not be retired now, without waiting for tasks."""
        return self._obstacle(ws) or self._busy(ws)

    def _veto(self, ws: WorkerState, order: Order, *, busy_ok: bool) -> Veto | None:
        """Objections to a retirement that has not begun, the weightiest first."""
        return self._standing(ws, order) or (None if busy_ok else self._busy(ws))

    def _standing(self, ws: WorkerState, order: Order) -> Veto | None:
        """Objections that hold before and during a retirement."""
        return self._pinned(ws, order.over_pins) or self._obstacle(ws)

    def _busy(self, ws: WorkerState) -> Veto | None:
        tasks = len(ws.processing)
        if not tasks and not arriving(self._scheduler, ws):
            return None
        return Veto(wire.V_BUSY, f"has {plural(max(1, tasks), 'task')}")

    def _pinned(self, ws: WorkerState, over: Collection[str]) -> Veto | None:
        # Fail closed: what can't be read counts as a pin.
        try:
            pinned_by = self._pinned_by(ws, over)
        except Exception as error:
            logger.exception("Cannot read pins; holding worker %s", ws.address)
            pinned_by = f"pins that can't be read ({error!r})"
        return Veto(wire.V_PINNED, f"pinned by {pinned_by}") if pinned_by else None

    def _obstacle(self, ws: WorkerState) -> Veto | None:
        if ws.actors or any(ts.actor for ts in ws.processing):
            return Veto(wire.V_ACTORS, "holds actors, which can't be moved")
        if not any(other is not ws for other in self._scheduler.running):
            if ws.processing:
                return Veto(wire.V_NO_RECIPIENT, "has tasks, and no other worker is in service")
            if last_copies(ws):
                return Veto(wire.V_NO_RECIPIENT, "no other worker in service could take its data")
        return None

    def _objection(self, ongoing: Retirement) -> Veto | None:
        silent_s = self._clock() - ongoing.renewed_at
        if silent_s > self._lease_s():
            # Not a verdict on the worker: whoever asks again starts anew.
            ongoing.end(None)
            logger.info("Nobody asked about %s for %.0f s", ongoing.ws.address, silent_s)
            return None
        return self._standing(ongoing.ws, ongoing.order)

    def _ended(self, ended: Retirement, veto: Veto | None) -> None:
        self.ongoing.pop(ended.ws.address, None)
        if veto is not None:
            self._verdicts[ended.ws.address] = (self._clock(), veto)
            logger.info("Worker %s stays: %s", ended.ws.address, veto.message)

    def _verdict(self, ws: WorkerState) -> Veto | None:
        """Why the last retirement of this worker ended, told once."""
        at, veto = self._verdicts.pop(ws.address, (0.0, None))
        return veto if veto is not None and self._clock() - at < VERDICT_S else None


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
        return {"name": name, "state": "gone", "veto": "", "message": "no such worker"}
    order = (wire.ACTIVE, wire.DRAINING, wire.DRAINED)
    least = min(outcomes, key=lambda one: order.index(one["state"]))
    return {**least, "name": name}
