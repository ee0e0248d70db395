"""
One worker on its way out of service, in the only order in which nothing is redone.

It gets no new tasks; tasks that have not started go elsewhere; running tasks finish; last copies of
results move; only then is it called drained. `drains.py` decides which worker drains.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.pins.pinned_workers import KNOWN
from dask_adaptive_agent.quotas.cordons import Cordons
from dask_adaptive_agent.service.data_copier import Copier, is_stuck
from dask_adaptive_agent.service.service import Gate, cancel_other, next_look_s
from dask_adaptive_agent.service.task_mover import Mover, arriving
from dask_adaptive_agent.service.vetoes import Veto, Vetoes
from dask_adaptive_agent.text import duration, plural, size_of

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

logger = logging.getLogger(__name__)

#: The last part of the time is for data: no task starts. At most this time and part.
MARGIN_S, MARGIN_PART = 30.0, 0.2
#: Tasks that still run are given back this time before the end; later where there is less time.
TAIL_S, TAIL_PART = 1.0, 0.1

#: A worker that is still here so long after its end did not end: who said so was wrong. One that
#: should have closed itself by then does not: it is closed.
OVERDUE_S = 60.0

#: Tasks named in a note.
NAMED = 10


class Phase(enum.Enum):
    """The steps of a drain; the value describes the step."""

    STAYING = "stays in service, because no other worker can take what it has"
    WAITING = "waits for tasks and pins"
    MOVING = "has no tasks, moves last copies"
    CLOSING = "its time is nearly up: starts no task, moves last copies"
    DRAINED = "is drained"


class Terms(NamedTuple):
    """
    On what terms a worker drains.

    Refusable: it is asked to, and an objection brings it back to service. By its own lifetime: it
    is waited for by whoever says so, and stays while it is indispensable. Otherwise it is certain
    that its process ends: it does not come back, and at its end data goes first, then tasks are
    given back.
    """

    reason: str
    left_s: float = math.inf
    is_assumed: bool = False  # nobody has said how long it is
    is_refusable: bool = False
    is_lifetime: bool = False
    by_force: bool = False  # at a refusable one's deadline tasks are given up; else it comes back
    over_pins: frozenset[str] = frozenset()  # sources of pins that do not count

    @property
    def is_certain(self) -> bool:
        return not (self.is_refusable or self.is_lifetime)


class DrainTools(NamedTuple):
    """The parts that all drains of a scheduler use."""

    context: Context
    cordons: Cordons
    vetoes: Vetoes
    #: Called once for each: with it, the veto that has ended it, if any, and whether the worker is
    #: to be back in service.
    ended: Callable[[Drain, Veto | None, bool], None]


class Drain(Component):
    """
    From the first request until the worker is gone, or back in service.

    Its terms may change, but only one way: a worker whose process ends is not asked any more. The
    gate may be shut already.
    """

    def __init__(self, tools: DrainTools, gate: Gate, terms: Terms) -> None:
        super().__init__(tools.context)
        self._tools = tools
        self.ws = gate.ws
        self.name: Any = gate.ws.name  # before it was renamed
        self.gate = gate
        self.terms = terms
        self.phase = Phase.WAITING
        self.message = "has just been asked to leave"
        self.is_over = self.is_forced = False
        #: Or over. Its process may end at any moment: nothing starts here any more, whatever pin or
        #: task comes. One that may come back is drained only for now.
        self.is_drained = asyncio.Event()
        self.is_lifetime = terms.is_lifetime
        #: When what waited for its lifetime has gone on to close it.
        self.closes_since = math.inf
        self.since = self._terms_since = self.clock()
        #: When a refusable one was last requested; such a request has a lease.
        self.renewed_at = self.since
        self.ends_at = self.since + terms.left_s
        self._mover = Mover(self.context, self.ws)
        self._copier = Copier(self.context, gate.service, tools.vetoes.copies, self.ws)
        self._tasks_seen = len(self.ws.processing)
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
        return max(0.0, self.ends_at - self.clock())

    def notice(self, terms: Terms) -> None:
        """
        Its process ends, perhaps for one more reason; of several deadlines the first counts. One
        that is assumed gives way to one that somebody knows.
        """
        now = self.clock()
        until = now + terms.left_s
        self.is_lifetime = self.is_lifetime or terms.is_lifetime
        if self.terms.is_certain and self.terms.is_assumed <= terms.is_assumed:
            if self.terms.is_assumed == terms.is_assumed:
                self.ends_at = min(self.ends_at, until)
            return
        if self.terms.is_refusable:
            self.since = now
            self.is_forced = False
        self.terms, self._terms_since, self.ends_at = terms, now, until

    def start(self) -> None:
        """Go on in the background. After the first look; once more is harmless."""
        if self._task is None and not self.is_over:
            self._task = asyncio.ensure_future(self._watch())

    def look(self) -> None:
        """Take the step that the worker's state needs now; `state` is current when this returns."""
        if self.is_over or self._giving_back is not None:
            return
        if self.scheduler.workers.get(self.ws.address) is not self.ws:
            self.end(is_gone=True)
        elif not self._is_wanted():
            logger.info("No operator asks worker %s to leave any longer", self.ws.address)
            self.end()
        elif self.terms.is_refusable and (veto := self._objection()) is not None:
            self.end(veto)
        elif self._is_indispensable():
            self._stay()
        else:
            self._step()

    def end(self, veto: Veto | None = None, *, is_gone: bool = False) -> None:
        """Return to service (unless the worker is gone). Harmless if it is over already."""
        if self.is_over:
            return
        self._stop()
        if is_gone:
            self._note_success()
        else:
            rename(self.scheduler, self.ws, self.name)
        self._tools.ended(self, veto, not is_gone)

    def hand_over(self) -> None:
        """End it without bringing the worker back: somebody else goes on from here."""
        self._stop()
        self._tools.ended(self, None, False)

    def _stop(self) -> None:
        self.is_over = True
        self.is_drained.set()
        for task in (self._task, self._giving_back):
            cancel_other(task)

    def _is_wanted(self) -> bool:
        now = self.clock()
        if self.is_lifetime:
            if now > self.closes_since + OVERDUE_S:
                # The worker does not know that it may close: its connection was cut meanwhile.
                self.closes_since = now
                self.scheduler.close_worker(self.ws.address)
            return True
        if self.terms.is_certain:
            return now <= self.ends_at + OVERDUE_S
        return self.terms.is_refusable and now - self.renewed_at <= self.context.settings.lease_s

    def _objection(self) -> Veto | None:
        """A reason to bring it back to service after all."""
        if veto := self._tools.vetoes.of(self.ws, self.terms.over_pins):
            return veto
        if self.phase is Phase.DRAINED or self.is_forced or self.left_s > 0:
            return None
        if self.terms.by_force:
            self.is_forced = True
            return None
        given = f"{self.terms.left_s:.0f} s"
        return Veto(wire.V_TIMEOUT, f"back to service: not drained within {given}; {self.message}")

    def _is_indispensable(self) -> bool:
        """True if no other worker is in service, this one is needed, and its process may go on."""
        if not self.terms.is_lifetime:
            return False
        if any(other is not self.ws for other in self.scheduler.running):
            return False
        if self._tools.cordons.is_spent(self.ws):
            return False
        if self.ws.processing or is_stuck(self.gate.service, self.ws):
            return True
        is_final = self.is_drained.is_set()
        return not is_final and bool(self.scheduler.queued or self.scheduler.unrunnable)

    def _stay(self) -> None:
        self.phase = Phase.STAYING
        self.is_drained.clear()
        self.message = "stays in service until another worker can take its tasks and results"
        self.gate.open()

    def _step(self) -> None:
        self.gate.shut()
        waits_for = "" if self.is_drained.is_set() or self.is_forced else self._waits_for()
        # One that may come back copies nothing in vain.
        copies = [] if waits_for and self.terms.is_refusable else self._copier.step()
        if self.terms.is_certain and self.left_s <= self._margin_s(copies):
            self._close(copies)
        elif waits_for:
            self._wait(waits_for, copies)
        elif copies or (self.ws.processing and not self.is_forced):
            self._move(copies)
        else:
            self._finish()

    def _waits_for(self) -> str:
        """Return what it waits for, in words; empty if only data is left."""
        ws, words, room = self.ws, [], self._tools.cordons.room
        if ws.processing or arriving(self.scheduler, ws) or self.gate.bound(room):
            words.append(f"{plural(len(ws.processing), 'task')} to finish")
        if not self.terms.is_refusable:  # else these are objections
            if ws.actors:
                words.append(f"{plural(len(ws.actors), 'actor')} to be released")
            # Whoever knows its address loses it at its end, however long that is put off.
            if pins := self._tools.vetoes.pinned_by(ws, self.terms.over_pins | {KNOWN}):
                words.append(f"the end of its pins ({pins})")
        return ", ".join(words)

    def _wait(self, waits_for: str, copies: list[TaskState]) -> None:
        self.phase = Phase.WAITING
        self.gate.thaw()
        self._tasks_seen += self.gate.admit(self._tools.cordons.room)
        self._mover.ask()
        moves = f"; copies {_sizes(copies)} meanwhile" if copies else ""
        self.message = f"waits for {waits_for}{moves}"

    def _move(self, copies: list[TaskState]) -> None:
        # Before the first last copy goes: what a task leaves here later would be left behind.
        self.gate.freeze()
        self.phase = Phase.MOVING
        self._mover.ask()  # a task that was being stolen by this worker has come after all
        held = self._tools.vetoes.copies.uncopyable(self.ws)
        self.message = held or f"moves {_sizes(copies)} that no other worker holds"

    def _close(self, copies: list[TaskState]) -> None:
        self.gate.freeze()
        if not copies and not self.ws.processing and not self.ws.actors:
            self._finish()
            return
        left_s = self.left_s
        self.phase = Phase.CLOSING
        self._mover.ask()
        self.message = (
            f"starts no more tasks, {left_s:.0f} s are left; "
            f"{plural(len(self.ws.processing), 'task')} and {_sizes(copies)} are still here"
        )
        if left_s <= self._tail_s:
            self._giving_back = asyncio.ensure_future(self._give_back())

    def _finish(self) -> None:
        self._copier.drop(self.ws.has_what)
        self.gate.freeze()
        self.phase = Phase.DRAINED
        self.message = (
            "has no last copies; running tasks were given up at the deadline"
            if self.is_forced and self.ws.processing
            else "has no task and no last copies"
        )
        if not self.terms.is_refusable:
            self.is_drained.set()

    async def _give_back(self) -> None:
        """
        Have the scheduler forget the worker: its tasks go elsewhere, uncharged.

        Were the connection to break first, each would count as one that kills workers.
        """
        names = [str(self.name)]
        # Fail open: the process ends anyway, and the scheduler will notice.
        with logged(logger, "Failed to give back the tasks of %s", self.ws.address):
            copies = self._copier.step()
            if self.ws.processing or copies:
                self.context.notes.add(wire.N_TASKS_GIVEN_BACK, self._loss(copies), names)
            await self.scheduler.remove_worker(  # `Patches.before_removals`: nothing is charged
                self.ws.address, stimulus_id=f"dask-adaptive-leave-{self.clock()}", close=True
            )

    def _loss(self, copies: list[TaskState]) -> str:
        words = [f"{self.name} had {duration(self._given_s)} to leave ({self.terms.reason})"]
        if tasks := self.ws.processing:
            keys = ", ".join(str(ts.key) for ts in islice(tasks, NAMED))
            more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
            words.append(f"{plural(len(tasks), 'task')} given back: {keys}{more}")
        if copies:
            words.append(f"{_sizes(copies)} could not be moved in time")
        return "; ".join(words)

    def _note_success(self) -> None:
        tasks, moved = self._tasks_seen, self._copier.moved
        if self.terms.is_refusable or self.phase is not Phase.DRAINED or not (tasks or moved):
            return
        took, size = duration(self.clock() - self.since), size_of(self._copier.moved_bytes)
        self.context.notes.add(
            wire.N_WORKER_LEFT,
            f"{self.name} has left after {took} ({self.terms.reason}); it had "
            f"{plural(tasks, 'task')} and handed over {plural(moved, 'result')} ({size})",
            [str(self.name)],
        )

    @property
    def _given_s(self) -> float:
        return self.ends_at - self._terms_since

    def _margin_s(self, copies: list[TaskState]) -> float:
        needed_s: float = 2 * sum(ts.nbytes for ts in copies) / self.scheduler.bandwidth
        return max(min(MARGIN_S, MARGIN_PART * self._given_s), min(needed_s, self._given_s / 2))

    @property
    def _tail_s(self) -> float:
        return min(TAIL_S, TAIL_PART * self._given_s)

    async def _watch(self) -> None:
        while not self.is_over:
            pause_s = next_look_s(self.scheduler, self.ws)
            if self.terms.is_certain:  # not to sleep through the end
                pause_s = min(pause_s, max(0.05, self.left_s - self._tail_s))
            await asyncio.sleep(pause_s)
            try:
                self.look()
            except Exception:
                logger.exception("Failed to check the drain of %s", self.ws.address)
                if self.terms.is_refusable:
                    # Fail closed: the worker stays in service; the next request starts again.
                    self.end()
                else:
                    # The process ends all the same: to try again may be the only chance.
                    await asyncio.sleep(1)


def _sizes(copies: list[TaskState]) -> str:
    return f"{plural(len(copies), 'result')} ({size_of(sum([ts.nbytes for ts in copies]))})"


def rename(scheduler: Scheduler, ws: WorkerState, wanted: Any) -> None:
    """
    Call a worker `wanted`, or `wanted` and a number where another worker has that name.

    `Scheduler.remove_worker` deletes `aliases[ws.name]`, so both are changed together. A worker
    without a name of its own, which is called by its address, stands in nobody's way.
    """
    if ws.name in (wanted, ws.address):
        return
    aliases: dict[Any, str] = scheduler.aliases
    free, number = wanted, 1
    while free in aliases:
        number += 1
        free = f"{wanted} {number}"
    if aliases.get(ws.name) == ws.address:
        del aliases[ws.name]
    ws.name = free
    aliases[free] = ws.address
