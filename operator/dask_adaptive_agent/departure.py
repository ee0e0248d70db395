"""
One worker whose process is about to end, whoever decided that.

It takes no new tasks; what has not started goes elsewhere; what runs finishes if it fits; data is
copied away from the start. Unlike a retirement it cannot be refused, only waited for; when the time
runs out, data goes first, and then the tasks are given back. Which worker departs is decided in
`departures.py`.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.copying import Copier
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

#: A worker that is still here so long after its certain end did not end: who said so was wrong.
OVERDUE_S = 60.0

#: Tasks named in a note.
NAMED = 10


class Phase(enum.Enum):
    """What a departure does now."""

    STAYING = "stays in service, because no other worker could take what it has"
    WAITING = "waits for tasks and pins, copies data"
    MOVING = "has no tasks, moves last copies"
    CLOSING = "its time is nearly up: starts nothing, moves last copies"
    DRAINED = "is drained"


class Notice(NamedTuple):
    """What somebody has said of the end of a worker's process."""

    reason: str
    left_s: float
    is_certain: bool  # else it comes back to service when nobody says so again


class Departure:
    """
    From the first notice until the worker is gone.

    Args:
        scheduler: Its status of the worker is set at once.
        gate: Of the worker; it may be shut already.
        pinned_by: Says in words who claims it, or nothing. Raises when that can't be known.
        lease_s: How long a notice that is not certain holds.
        tell: Makes a note: kind, message, names of workers.
        back: Takes the worker back to service, if it comes back.
        ended: Called once, when it is over.
        clock: Seconds that never go backwards.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        gate: Gate,
        *,
        reason: str,
        pinned_by: Callable[[WorkerState], str],
        lease_s: Callable[[], float],
        tell: Callable[[str, str, Sequence[str]], None],
        back: Callable[[Gate], None],
        ended: Callable[[Departure], None],
        clock: Callable[[], float],
    ) -> None:
        self.ws = gate.ws
        self.name: Any = gate.ws.name  # before it was renamed
        self.reason = reason
        self.phase = Phase.WAITING
        self.message = "has just been told to leave"
        self.since = clock()
        self.is_certain = False
        self.is_over = False
        self.ends_at = math.inf
        self.is_drained = asyncio.Event()  # or over
        #: Whether the worker ends by its own lifetime: certain as well, but at nobody's deadline.
        self.is_lifetime = False
        self._noticed_at = -math.inf  # when a notice that is not certain was last given
        self._certain_since = self.since
        self._scheduler = scheduler
        self.gate = gate
        self._pinned_by = pinned_by
        self._lease_s = lease_s
        self._tell = tell
        self._back = back
        self._ended = ended
        self._clock = clock
        self._mover = Mover(scheduler, self.ws, clock)
        self._copier = Copier(scheduler, self.ws, clock)
        self._tasks_seen = 0
        #: It has been called drained, so the process may end at any moment: nothing starts here any
        #: more, whatever pin or task comes.
        self._is_final = False
        self._giving_back: asyncio.Future[None] | None = None
        self._task: asyncio.Future[None] | None = None

    @property
    def state(self) -> str:
        return wire.DRAINED if self.phase is Phase.DRAINED else wire.DRAINING

    @property
    def left_s(self) -> float:
        """Seconds until the process ends; infinite where it waits as long as it takes."""
        return max(0.0, self.ends_at - self._clock())

    def notice(self, notice: Notice) -> None:
        """Hear of the end once more; of several deadlines the earliest counts."""
        now = self._clock()
        until = now + notice.left_s
        if not notice.is_certain:
            self._noticed_at = now
            if not self.is_certain:
                self.ends_at = min(self.ends_at, until)
            return
        if not self.is_certain:
            self.is_certain = True
            self._certain_since = now
            self.reason = notice.reason
            self.ends_at = until
            # The replacement of a pod comes at once, under the same name, and the scheduler
            # refuses a name that is taken (Scheduler.add_worker).
            rename(self._scheduler, self.ws, f"{self.name} (leaving)")
        self.ends_at = min(self.ends_at, until)

    def start(self) -> None:
        """Go on in the background. After the first notice; once more is harmless."""
        if self._task is None and not self.is_over:
            self._tasks_seen = len(self.ws.processing)
            self._task = asyncio.ensure_future(self._watch())

    def look(self) -> None:
        """Take the step that the worker's state asks for now; `state` is true when this returns."""
        if self.is_over or self._giving_back is not None:
            return
        if self._scheduler.workers.get(self.ws.address) is not self.ws:
            self.end(is_gone=True)
        elif not self._is_wanted():
            self.end()
        elif self._is_indispensable():
            self._stay()
        else:
            self._leave()

    def end(self, *, is_gone: bool = False) -> None:
        """Back to service (unless the worker is gone). Harmless when it is over already."""
        if self.is_over:
            return
        self.is_over = True
        self.is_drained.set()
        for task in (self._task, self._giving_back):
            cancel_other(task)
        if is_gone:
            self._say_goodbye()
        else:
            rename(self._scheduler, self.ws, self.name)
            self._back(self.gate)
        self._ended(self)

    def _is_wanted(self) -> bool:
        if self.is_lifetime:
            return True
        if self.is_certain:
            return self._clock() <= self.ends_at + OVERDUE_S
        return self._clock() - self._noticed_at <= self._lease_s()

    def _is_indispensable(self) -> bool:
        """No other worker is in service, this one is of use, and its process need not end now."""
        if self.is_certain or any(other is not self.ws for other in self._scheduler.running):
            return False
        if self.ws.processing or self._copier.step():
            return True
        return not self._is_final and bool(self._scheduler.queued or self._scheduler.unrunnable)

    def _stay(self) -> None:
        self.phase = Phase.STAYING
        self._is_final = False
        self.message = "stays in service until another worker can take its tasks and results"
        self.gate.open()

    def _leave(self) -> None:
        self.gate.shut()
        copies = self._copier.step()
        left_s = self.left_s if self.is_certain else math.inf
        if left_s <= self._margin_s(copies):
            self._close(copies, left_s)
        elif not self._is_final and (waits_for := self._waits_for()):
            self._wait(waits_for, copies)
        elif copies or self.ws.processing:
            self._move(copies)
        else:
            self._rest()

    def _has_tasks(self) -> bool:
        if self.ws.processing or self.ws.actors or arriving(self._scheduler, self.ws):
            return True
        return bool(self._scheduler.unrunnable) and bool(self.gate.bound())

    def _waits_for(self) -> str:
        """In words; empty when nothing but data is left."""
        said = []
        if self._has_tasks():
            said.append(f"{plural(len(self.ws.processing), 'task')} to finish")
        if self.ws.actors:
            said.append(f"{plural(len(self.ws.actors), 'actor')} to be given up")
        return ", ".join(said + self._pins())

    def _pins(self) -> list[str]:
        # Fail closed: what can't be read counts as a pin, until the time is up.
        try:
            pinned_by = self._pinned_by(self.ws)
        except Exception as error:
            logger.exception("Cannot read pins; holding worker %s", self.ws.address)
            pinned_by = f"pins that can't be read ({error!r})"
        return [f"the end of its pins ({pinned_by})"] if pinned_by else []

    def _wait(self, waits_for: str, copies: list[TaskState]) -> None:
        self.phase = Phase.WAITING
        self.gate.thaw()
        self._tasks_seen += self.gate.admit()
        self._mover.ask()
        moves = f"; copies {_sizes(copies)} meanwhile" if copies else ""
        self.message = f"waits for {waits_for}{moves}"

    def _move(self, copies: list[TaskState]) -> None:
        self.gate.freeze()
        self.phase = Phase.MOVING
        self._mover.ask()  # a task that was being stolen by this worker has come after all
        self.message = f"moves {_sizes(copies)} that no other worker holds"

    def _close(self, copies: list[TaskState], left_s: float) -> None:
        self.gate.freeze()
        if not copies and not self.ws.processing and not self.ws.actors:
            self._rest()
            return
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
        self._is_final = True
        self.message = "has no task and no last copies"
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
                self._tell(wire.N_TASKS_GIVEN_BACK, self._loss(copies), names)
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
        given_s = self.ends_at - self._certain_since
        said = []
        if tasks := self.ws.processing:
            keys = ", ".join(str(ts.key) for ts in islice(tasks, NAMED))
            more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
            said.append(f"{plural(len(tasks), 'task')} given back: {keys}{more}")
        if copies:
            said.append(f"{_sizes(copies)} could not be moved in time")
        return f"{self.name} had {duration(given_s)} to leave ({self.reason}); {'; '.join(said)}"

    def _say_goodbye(self) -> None:
        if self.phase is not Phase.DRAINED or not (self._tasks_seen or self._copier.moved):
            return
        took = duration(self._clock() - self.since)
        size = size_of(self._copier.moved_bytes)
        self._tell(
            wire.N_WORKER_LEFT,
            f"{self.name} has left after {took} ({self.reason}); "
            f"it had {plural(self._tasks_seen, 'task')} and handed over "
            f"{plural(self._copier.moved, 'result')} ({size})",
            [str(self.name)],
        )

    def _margin_s(self, copies: list[TaskState]) -> float:
        given_s = self.ends_at - self._certain_since
        needed_s = 2 * sum(ts.nbytes for ts in copies) / self._scheduler.bandwidth
        return max(min(MARGIN_S, MARGIN_PART * given_s), min(needed_s, given_s / 2))

    @property
    def _tail_s(self) -> float:
        return min(TAIL_S, TAIL_PART * (self.ends_at - self._certain_since))

    async def _watch(self) -> None:
        while not self.is_over:
            pause_s = next_look_s(self._scheduler, self.ws)
            if self.is_certain:  # not to sleep through the end
                pause_s = min(pause_s, max(0.05, self.left_s - self._tail_s))
            await asyncio.sleep(pause_s)
            try:
                self.look()
            except Exception:
                # The process ends whatever goes wrong here: try again, it may be the only chance.
                logger.exception("Cannot see to the departure of %s", self.ws.address)
                await asyncio.sleep(1)


def _sizes(copies: Iterable[TaskState]) -> str:
    copies = list(copies)
    return f"{plural(len(copies), 'result')} ({size_of(sum([ts.nbytes for ts in copies]))})"


def _uncharged(scheduler: Scheduler) -> dict[str, bool]:
    """What `remove_worker` of this release calls it: `expected`, in older ones `safe`."""
    stock = type(scheduler).remove_worker
    name = "expected" if "expected" in inspect.signature(stock).parameters else "safe"
    return {name: True}
