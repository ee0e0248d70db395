"""
One worker on its way out, in the only order in which nothing is redone.

No new tasks; tasks not started go elsewhere; running tasks finish; last copies of results move; and
only then is the worker called drained. What decides whether to retire a worker lives in
`retirements.py`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.copying import Copier
from dask_adaptive_agent.gate import Gate, cancel_other, next_look_s
from dask_adaptive_agent.moving import Mover, arriving
from dask_adaptive_agent.words import plural

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)


class Phase(enum.Enum):
    """What a retirement does now."""

    WAITING = "waits for tasks"
    MOVING = "moves last copies"
    DRAINED = "is drained"


class Veto(NamedTuple):
    """Why a worker must stay: one of `wire.V_*`, and a sentence."""

    code: str
    message: str


class Order(NamedTuple):
    """How a worker is to be retired."""

    reason: str
    deadline_s: float
    by_force: bool  # at the deadline: data moved, running tasks given up; else back to service
    over_pins: frozenset[str] = frozenset()  # sources of pins that do not count


class Retirement:
    """
    The retirement of one worker, from its request to drained and beyond, until it is gone.

    Args:
        scheduler: Its status of the worker is set at once.
        gate: Of the worker; it may be shut already.
        order: Why, until when, and what then.
        objection: Asked at each look; a veto sends the worker back to service.
        back: Takes the worker back to service, at the end.
        ended: Called once, with the veto that ended it, or None when it was cancelled.
        clock: Seconds that never go backwards.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        gate: Gate,
        order: Order,
        *,
        objection: Callable[[Retirement], Veto | None],
        back: Callable[[Gate], None],
        ended: Callable[[Retirement, Veto | None], None],
        clock: Callable[[], float],
    ) -> None:
        self.ws = gate.ws
        self.order = order
        self.phase = Phase.WAITING
        self.forced = False
        self.message = "has just been asked to drain"
        self.since = self.renewed_at = clock()
        self.gate = gate
        self._scheduler = scheduler
        self._objection = objection
        self._back = back
        self._ended = ended
        self._clock = clock
        self._mover = Mover(scheduler, self.ws, clock)
        self._copier = Copier(scheduler, self.ws, clock)
        self._is_over = False
        self._task: asyncio.Future[None] | None = None

    @property
    def state(self) -> str:
        """One of `wire.ACTIVE` (over), DRAINING, DRAINED."""
        if self._is_over:
            return wire.ACTIVE
        return wire.DRAINED if self.phase is Phase.DRAINED else wire.DRAINING

    @property
    def left_s(self) -> float:
        return max(0.0, self.since + self.order.deadline_s - self._clock())

    def start(self) -> None:
        """Take the worker out of service, take the first steps now, and go on in the background."""
        self.gate.shut()
        self.look()
        if not self._is_over:
            self._task = asyncio.ensure_future(self._watch())

    def look(self) -> None:
        """Take the step that the worker's state asks for now; `state` is true when this returns."""
        if self._is_over:
            return
        if self._scheduler.workers.get(self.ws.address) is not self.ws:
            self.end(None, is_gone=True)
            return
        veto = self._objection(self) or self._too_late()
        if veto is not None or self._is_over:
            self.end(veto)
        elif self._has_tasks() and not self.forced:
            self._await_tasks()
        else:
            self._empty()

    def end(self, veto: Veto | None, *, is_gone: bool = False) -> None:
        """Back to service (unless the worker is gone). Harmless when it is over already."""
        if self._is_over:
            return
        self._stop()
        if not is_gone:
            self._back(self.gate)
        self._ended(self, veto)

    def hand_over(self) -> Gate:
        """End it without bringing the worker back: somebody else goes on from here."""
        self._stop()
        self._ended(self, None)
        return self.gate

    def _stop(self) -> None:
        self._is_over = True
        cancel_other(self._task)

    def _has_tasks(self) -> bool:
        if self.ws.processing or arriving(self._scheduler, self.ws):
            return True
        return bool(self._scheduler.unrunnable) and bool(self.gate.bound())

    def _too_late(self) -> Veto | None:
        if self.phase is Phase.DRAINED or self.forced or self.left_s > 0:
            return None
        if self.order.by_force:
            self.forced = True
            return None
        return Veto(
            wire.V_TIMEOUT,
            f"back to service: not drained within {self.order.deadline_s:.0f} s; {self.message}",
        )

    def _await_tasks(self) -> None:
        self.phase = Phase.WAITING
        self.gate.thaw()
        self.gate.admit()
        self._mover.ask()
        self.message = f"waits for {plural(len(self.ws.processing), 'task')} to finish"

    def _empty(self) -> None:
        # Before the first copy: what a task leaves here later would be left behind.
        self.gate.freeze()
        count = len(self._copier.step())
        if count:
            self.phase = Phase.MOVING
            self.message = f"moves {plural(count, 'result')} that no other worker holds"
            return
        self._copier.drop()
        self.phase = Phase.DRAINED
        self.message = (
            "has no last copies; running tasks were given up at the deadline"
            if self.forced and self.ws.processing
            else "has no task and no last copies"
        )

    async def _watch(self) -> None:
        while not self._is_over:
            await asyncio.sleep(next_look_s(self._scheduler, self.ws))
            try:
                self.look()
            except Exception:
                # Fail closed: the worker stays, in service, and the next request starts anew.
                logger.exception("Retirement of %s failed; back to service", self.ws.address)
                self.end(None)
