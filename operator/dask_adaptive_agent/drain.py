"""
One worker on its way out, in the only order in which nothing is redone.

No new tasks; tasks not started go elsewhere; running tasks finish; last copies of results move; and
only then is the worker called drained. On what terms is in `Terms`; which worker drains is decided
in `drains.py`.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dask_adaptive_agent import wire
from dask_adaptive_agent.copying import Asked, Copier, Cordoned, is_stuck
from dask_adaptive_agent.gate import Gate, cancel_other, next_look_s
from dask_adaptive_agent.moving import Mover, arriving
from dask_adaptive_agent.naming import rename
from dask_adaptive_agent.words import duration, plural, size_of

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

logger = logging.getLogger(__name__)

#: The last part of the time is for data: nothing starts any more. At most so long, and this part.
MARGIN_S, MARGIN_PART = 30.0, 0.2
#: So long before the end, tasks that still run are given back; less where there is less time.
TAIL_S, TAIL_PART = 1.0, 0.1

#: A worker that is still here so long after its certain end did not end: who said so was wrong. One
#: that should have closed itself by then does not: it is closed.
OVERDUE_S = 60.0

#: Tasks named in a note.
NAMED = 10


class Phase(enum.Enum):
    """What a drain does now."""

    STAYING = "stays in service, because no other worker could take what it has"
    WAITING = "waits for tasks and pins"
    MOVING = "has no tasks, moves last copies"
    CLOSING = "its time is nearly up: starts nothing, moves last copies"
    DRAINED = "is drained"


class Veto(NamedTuple):
    """Why a worker must stay: one of `wire.V_*`, and a sentence."""

    code: str
    message: str


class Terms(NamedTuple):
    """
    On what terms a worker drains.

    Refusable: it is asked to, and an objection brings it back to service. Otherwise its process is
    about to end: it can only be waited for. If that is certain, it does not come back, and at its
    end data goes first, then tasks are given back.
    """

    reason: str
    left_s: float = math.inf
    is_refusable: bool = False
    is_certain: bool = False
    by_force: bool = False  # at a refusable one's deadline tasks are given up; else it comes back
    over_pins: frozenset[str] = frozenset()  # sources of pins that do not count
    #: By its own lifetime: it is waited for by whoever says so, and nobody has to repeat it.
    is_lifetime: bool = False


class Owner(Protocol):
    """What a drain asks of `Drains`."""

    @property
    def asked(self) -> Asked: ...

    @property
    def cordoned(self) -> Cordoned: ...

    def objection(self, drain: Drain) -> Veto | None: ...

    def is_spent(self, ws: WorkerState) -> bool: ...

    def pinned_by(self, ws: WorkerState, over: frozenset[str]) -> str: ...

    def lease_s(self) -> float: ...

    def tell(self, kind: str, message: str, names: list[str]) -> None: ...

    def back(self, gate: Gate) -> None: ...

    def ended(self, drain: Drain, veto: Veto | None) -> None: ...


class Drain:
    """
    From the first word of it until the worker is gone, or back in service.

    Args:
        scheduler: Its status of the worker is set at once.
        gate: Of the worker; it may be shut already.
        terms: May change, but for the better: a worker whose process ends is asked no more.
        owner: Told when it is over, once.
        clock: Seconds that never go backwards.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        gate: Gate,
        terms: Terms,
        *,
        owner: Owner,
        clock: Callable[[], float],
    ) -> None:
        self.ws = gate.ws
        self.name: Any = gate.ws.name  # before it was renamed
        self.gate = gate
        self.terms = terms
        self.phase = Phase.WAITING
        self.message = "has just been told to leave"
        self.is_over = self.is_forced = False
        #: For good, or over: one that may come back is drained only for now.
        self.is_drained = asyncio.Event()
        self.is_lifetime = terms.is_lifetime
        #: When what waited for its lifetime has gone on to close it.
        self.closes_since = math.inf
        self.since = clock()
        #: When somebody last said so, where that has to be repeated.
        self.renewed_at = -math.inf if terms.is_lifetime else self.since
        self.ends_at = self.since + terms.left_s
        self._certain_since = self.since
        self._scheduler = scheduler
        self._owner = owner
        self._clock = clock
        self._mover = Mover(scheduler, self.ws, clock)
        self._copier = Copier(scheduler, self.ws, owner.cordoned, owner.asked, clock)
        self._tasks_seen = len(self.ws.processing)
        #: It has been called drained, so the process may end at any moment: nothing starts here any
        #: more, whatever pin or task comes.
        self._is_final = False
        self._giving_back: asyncio.Future[None] | None = None
        self._task: asyncio.Future[None] | None = None

    @property
    def state(self) -> str:
        """One of `wire.ACTIVE` (over), DRAINING, DRAINED."""
        if self.is_over:
            return wire.ACTIVE
        return wire.DRAINED if self.phase is Phase.DRAINED else wire.DRAINING

    @property
    def left_s(self) -> float:
        """Seconds until its deadline; infinite where it waits as long as it takes."""
        return max(0.0, self.ends_at - self._clock())

    def notice(self, terms: Terms) -> None:
        """Hear that its process ends, perhaps once more; of several deadlines the first counts."""
        now = self._clock()
        until = now + terms.left_s
        if self.terms.is_refusable:
            self.since = now
            self.ends_at = until
            self.is_forced = False
            self.is_drained.clear()
            self.renewed_at = -math.inf
            self.terms = terms._replace(is_certain=False)
        if terms.is_lifetime:
            self.is_lifetime = True
        elif terms.is_certain:
            if not self.terms.is_certain:
                self._certain_since, self.ends_at = now, until
                self.terms = terms
        else:
            self.renewed_at = now
        if terms.is_certain or not self.terms.is_certain:
            self.ends_at = min(self.ends_at, until)

    def start(self) -> None:
        """Go on in the background. After the first look; once more is harmless."""
        if self._task is None and not self.is_over:
            self._task = asyncio.ensure_future(self._watch())

    def look(self) -> None:
        """Take the step that the worker's state asks for now; `state` is true when this returns."""
        if self.is_over or self._giving_back is not None:
            return
        if self._scheduler.workers.get(self.ws.address) is not self.ws:
            self.end(is_gone=True)
        elif not self._is_wanted():
            logger.info("Nobody wants worker %s gone any more", self.ws.address)
            self.end()
        elif self.terms.is_refusable and (veto := self._veto()) is not None:
            self.end(veto)
        elif self._is_indispensable():
            self._stay()
        else:
            self._step()

    def end(self, veto: Veto | None = None, *, is_gone: bool = False) -> None:
        """Back to service (unless the worker is gone). Harmless when it is over already."""
        if self.is_over:
            return
        self._stop()
        if is_gone:
            self._say_goodbye()
        else:
            rename(self._scheduler, self.ws, self.name)
            self._owner.back(self.gate)
        self._owner.ended(self, veto)

    def give_way(self) -> None:
        """Leave its name to another worker, which has just come with it."""
        rename(self._scheduler, self.ws, f"{self.name} (leaving)")

    def hand_over(self) -> Gate:
        """End it without bringing the worker back: somebody else goes on from here."""
        self._stop()
        self._owner.ended(self, None)
        return self.gate

    def _stop(self) -> None:
        self.is_over = True
        self.is_drained.set()
        for task in (self._task, self._giving_back):
            cancel_other(task)

    def _is_wanted(self) -> bool:
        now = self._clock()
        if self.is_lifetime:
            if now > self.closes_since + OVERDUE_S:
                # The worker has not heard that it may close: its connection was cut meanwhile.
                self.closes_since = now
                self._scheduler.close_worker(self.ws.address)
            return True
        if self.terms.is_certain:
            return now <= self.ends_at + OVERDUE_S
        return now - self.renewed_at <= self._owner.lease_s()

    def _veto(self) -> Veto | None:
        return self._owner.objection(self) or self._too_late()

    def _too_late(self) -> Veto | None:
        if self.phase is Phase.DRAINED or self.is_forced or self.left_s > 0:
            return None
        if self.terms.by_force:
            self.is_forced = True
            return None
        given = f"{self.terms.left_s:.0f} s"
        return Veto(wire.V_TIMEOUT, f"back to service: not drained within {given}; {self.message}")

    def _is_indispensable(self) -> bool:
        """No other worker is in service, this one is of use, and its process need not end now."""
        if self.terms.is_refusable or self.terms.is_certain:
            return False
        if any(other is not self.ws for other in self._scheduler.running):
            return False
        if self._owner.is_spent(self.ws):
            return False
        if self.ws.processing or is_stuck(self._scheduler, self.ws, self._owner.cordoned):
            return True
        return not self._is_final and bool(self._scheduler.queued or self._scheduler.unrunnable)

    def _stay(self) -> None:
        self.phase = Phase.STAYING
        self._is_final = False
        self.message = "stays in service until another worker can take its tasks and results"
        self.gate.open()

    def _step(self) -> None:
        self.gate.shut()
        waits_for = "" if self._is_final or self.is_forced else self._waits_for()
        # One that may come back copies nothing in vain.
        copies = [] if waits_for and self.terms.is_refusable else self._copier.step()
        if self.terms.is_certain and self.left_s <= self._margin_s(copies):
            self._close(copies)
        elif waits_for:
            self._wait(waits_for, copies)
        elif copies or (self.ws.processing and not self.is_forced):
            self._move(copies)
        else:
            self._rest()

    def _has_tasks(self) -> bool:
        if self.ws.processing or arriving(self._scheduler, self.ws):
            return True
        return bool(self._scheduler.unrunnable) and bool(self.gate.bound())

    def _waits_for(self) -> str:
        """In words; empty when nothing but data is left."""
        said = []
        if self._has_tasks():
            said.append(f"{plural(len(self.ws.processing), 'task')} to finish")
        if not self.terms.is_refusable:  # else these are objections
            if self.ws.actors:
                said.append(f"{plural(len(self.ws.actors), 'actor')} to be given up")
            if pins := self._owner.pinned_by(self.ws, self.terms.over_pins):
                said.append(f"the end of its pins ({pins})")
        return ", ".join(said)

    def _wait(self, waits_for: str, copies: list[TaskState]) -> None:
        self.phase = Phase.WAITING
        self.gate.thaw()
        self._tasks_seen += self.gate.admit()
        self._mover.ask()
        moves = f"; copies {_sizes(copies)} meanwhile" if copies else ""
        self.message = f"waits for {waits_for}{moves}"

    def _move(self, copies: list[TaskState]) -> None:
        # Before the first last copy goes: what a task leaves here later would be left behind.
        self.gate.freeze()
        self.phase = Phase.MOVING
        self._mover.ask()  # a task that was being stolen by this worker has come after all
        self.message = f"moves {_sizes(copies)} that no other worker holds"

    def _close(self, copies: list[TaskState]) -> None:
        self.gate.freeze()
        if not copies and not self.ws.processing and not self.ws.actors:
            self._rest()
            return
        left_s = self.left_s
        self.phase = Phase.CLOSING
        self._mover.ask()
        self.message = (
            f"starts nothing any more, {left_s:.0f} s are left; "
            f"{plural(len(self.ws.processing), 'task')} and {_sizes(copies)} are still here"
        )
        if left_s <= self._tail_s:
            self._giving_back = asyncio.ensure_future(self._give_back())

    def _rest(self) -> None:
        self._copier.drop()
        self.gate.freeze()
        self.phase = Phase.DRAINED
        self._is_final = not self.terms.is_refusable
        self.message = (
            "has no last copies; running tasks were given up at the deadline"
            if self.is_forced and self.ws.processing
            else "has no task and no last copies"
        )
        if self._is_final:
            self.is_drained.set()

    async def _give_back(self) -> None:
        """
        Have the scheduler forget the worker: its tasks go elsewhere, uncharged.

        Were the connection to break first, each would count as one that kills workers.
        """
        names = [str(self.name)]
        try:
            copies = self._copier.step()
            if self.ws.processing or copies:
                self._owner.tell(wire.N_TASKS_GIVEN_BACK, self._loss(copies), names)
            await self._scheduler.remove_worker(
                self.ws.address,
                stimulus_id=f"dask-adaptive-leave-{self._clock()}",
                close=True,
                **_uncharged(self._scheduler),
            )
        except Exception:
            # Fail open: the process ends anyway, and the scheduler will notice.
            logger.exception("Cannot give back the tasks of %s", self.ws.address)

    def _loss(self, copies: list[TaskState]) -> str:
        said = []
        if tasks := self.ws.processing:
            keys = ", ".join(str(ts.key) for ts in islice(tasks, NAMED))
            more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
            said.append(f"{plural(len(tasks), 'task')} given back: {keys}{more}")
        if copies:
            said.append(f"{_sizes(copies)} could not be moved in time")
        given = f"{duration(self._given_s)} to leave ({self.terms.reason})"
        return f"{self.name} had {given}; {'; '.join(said)}"

    def _say_goodbye(self) -> None:
        if self.terms.is_refusable or self.phase is not Phase.DRAINED:
            return
        if not self._tasks_seen and not self._copier.moved:
            return
        took = duration(self._clock() - self.since)
        size = size_of(self._copier.moved_bytes)
        self._owner.tell(
            wire.N_WORKER_LEFT,
            f"{self.name} has left after {took} ({self.terms.reason}); "
            f"it had {plural(self._tasks_seen, 'task')} and handed over "
            f"{plural(self._copier.moved, 'result')} ({size})",
            [str(self.name)],
        )

    @property
    def _given_s(self) -> float:
        return self.ends_at - self._certain_since

    def _margin_s(self, copies: list[TaskState]) -> float:
        needed_s = 2 * sum(ts.nbytes for ts in copies) / self._scheduler.bandwidth
        return max(min(MARGIN_S, MARGIN_PART * self._given_s), min(needed_s, self._given_s / 2))

    @property
    def _tail_s(self) -> float:
        return min(TAIL_S, TAIL_PART * self._given_s)

    async def _watch(self) -> None:
        while not self.is_over:
            pause_s = next_look_s(self._scheduler, self.ws)
            if self.terms.is_certain:  # not to sleep through the end
                pause_s = min(pause_s, max(0.05, self.left_s - self._tail_s))
            await asyncio.sleep(pause_s)
            try:
                self.look()
            except Exception:
                logger.exception("Cannot see to the drain of %s", self.ws.address)
                if self.terms.is_refusable:
                    # Fail closed: the worker stays, in service; the next request starts anew.
                    self.end()
                else:
                    # The process ends all the same: to try again may be the only chance.
                    await asyncio.sleep(1)


def _sizes(copies: Iterable[TaskState]) -> str:
    copies = list(copies)
    return f"{plural(len(copies), 'result')} ({size_of(sum([ts.nbytes for ts in copies]))})"


def _uncharged(scheduler: Scheduler) -> dict[str, bool]:
    """What `remove_worker` of this release calls it: `expected`, in older ones `safe`."""
    stock = type(scheduler).remove_worker
    name = "expected" if "expected" in inspect.signature(stock).parameters else "safe"
    return {name: True}
