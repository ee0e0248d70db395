"""
Makes one scheduler ask `Deadlines` before it gives a task to a worker. In place only while some
worker has an end; without it, nothing of this costs anything.

Upstream decides in `decide_worker_non_rootish`, `decide_worker_rootish_queuing_disabled` and
`decide_worker_rootish_queuing_enabled`; it moves tasks in `WorkStealing.move_task_request`; and it
feeds free workers from its queue in `stimulus_queue_slots_maybe_opened`, which takes the head again
and again, so that one that waits for a worker would keep back all others. They are the same from
2023.5.0 to 2026.8.0, all synchronous, and all called through the instance.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent.deadlines import Deadlines
from dask_adaptive_agent.moving import stealing
from dask_adaptive_agent.transitions import Replaced
from dask_adaptive_agent.wrap import Call, Wrap

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix, TaskState, WorkerState

logger = logging.getLogger(__name__)

#: Where the scheduler decides: methods, and whether the task goes to a free slot only.
DECIDERS = {
    "decide_worker_non_rootish": False,
    "decide_worker_rootish_queuing_disabled": False,
    "decide_worker_rootish_queuing_enabled": True,
}
SLOTS = "stimulus_queue_slots_maybe_opened"

#: Seconds until a worker is asked again for a task that it kept: it has begun it, and will say so.
ASK_AGAIN_S = 2.0


class Nobody:
    """
    A thief that has left: `WorkStealing.move_task_confirm` then lets the scheduler decide anew.

    As much of a WorkerState as is read before that.
    """

    address = "nobody"
    name = "nobody"
    status = Status.closed  # check_idle_saturated leaves it alone
    nthreads = 1
    occupancy = 0.0
    has_what: dict[Any, Any] = {}  # noqa: RUF012 - nothing is ever put into it
    processing: dict[Any, Any] = {}  # noqa: RUF012


class Assigning:
    """The wrapped methods of one scheduler and its work stealing."""

    def __init__(
        self, scheduler: Scheduler, deadlines: Deadlines, clock: Callable[[], float]
    ) -> None:
        self._scheduler: Any = scheduler
        self._deadlines = deadlines
        self._clock = clock
        self._key: Any = None  # of the task that is being assigned
        self._transitions: Replaced | None = None
        self._wraps: list[Wrap] = []
        self._asked: dict[tuple[TaskState, WorkerState], float] = {}
        self.is_in_place = False
        self.is_known = callable(getattr(scheduler, SLOTS, None)) and all(
            callable(getattr(scheduler, name, None)) for name in DECIDERS
        )

    def install(self) -> None:
        """Harmless when it is in place; where this release is not as we know it, nothing."""
        if self.is_in_place or not self.is_known:
            return
        scheduler = self._scheduler
        try:
            self._transitions = transitions = Replaced(scheduler)
        except LookupError as error:
            self.is_known = False
            logger.warning("Tasks are given to workers that end before they do: %s", error)
            return
        self.is_in_place = True
        # decide_worker_rootish_queuing_enabled is not told which task it decides about.
        for pair in (("waiting", "processing"), ("queued", "processing")):
            transitions.replace(pair, self._noting)
        if scheduler.validate:
            transitions.replace(("waiting", "queued"), self._queueing)
        for name, is_queued in DECIDERS.items():
            deciding = partial(self._deciding, is_queued=is_queued)
            self._wraps.append(Wrap(scheduler, name, deciding))
        self._wraps.append(Wrap(scheduler, SLOTS, self._feeding))
        extension = stealing(scheduler)
        if extension is not None:
            self._wraps.append(Wrap(extension, "move_task_request", self._moving))

    def uninstall(self) -> None:
        """Put back what is still ours, and give what waits because of us to whom upstream likes."""
        if not self.is_in_place:
            return
        self.is_in_place = False
        for wrap in reversed(self._wraps):
            wrap.undo()
        self._wraps = []
        if self._transitions is not None:
            self._transitions.undo()
            self._transitions = None
        self._asked.clear()
        waiting, self._deadlines.waiting = self._deadlines.waiting, {}
        if self._scheduler.status not in (Status.closing, Status.closed):
            self._process([ts for those in waiting.values() for ts in those])
            getattr(self._scheduler, SLOTS)(stimulus_id=self._stimulus())

    def take_back(self) -> None:
        """Ask for tasks that workers have not begun, and would not finish any more."""
        extension, now = stealing(self._scheduler), self._clock()
        if extension is None:
            return
        self._asked = {who: at for who, at in self._asked.items() if now - at < ASK_AGAIN_S}
        workers = self._scheduler.workers
        for address in self._deadlines.ends.by_address:
            ws = workers.get(address)
            for ts in self._deadlines.overdue(ws) if ws is not None else ():
                if (ts, ws) not in self._asked and ts not in extension.in_flight:
                    self._asked[ts, ws] = now
                    extension.move_task_request(ts, ws, Nobody())

    def feed(self) -> None:
        """Try what waits among the unrunnable: a kind at a time, until one of it has to wait on."""
        waiting = [those for those in self._deadlines.waiting.values() if those]
        waiting.sort(key=lambda those: next(iter(those)).priority or ())
        for those in waiting:
            for ts in list(those):
                if ts.state == "no-worker":
                    self._process([ts])
                    if ts.state == "no-worker":
                        if ts.resource_restrictions or ts.host_restrictions:
                            continue  # says nothing of the others
                        break
                those.pop(ts, None)

    def _noting(self, stock: Call) -> Call:
        @wraps(stock)
        def transition(state: Any, key: Any, stimulus_id: str, **kwargs: Any) -> Any:
            self._key = key
            return stock(state, key, stimulus_id, **kwargs)

        return transition

    def _queueing(self, stock: Call) -> Call:
        @wraps(stock)
        def transition(state: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            # It asserts that nobody has a free slot; here, nobody who lasts long enough has.
            idle, self._scheduler.idle_task_count = self._scheduler.idle_task_count, set()
            try:
                return stock(state, key, *args, **kwargs)
            finally:
                self._scheduler.idle_task_count = idle

        return transition

    def _deciding(self, stock: Call, is_queued: bool) -> Call:
        confirm, tasks = self._deadlines.confirm, self._scheduler.tasks

        @wraps(stock)
        def decide(ts: Any = None) -> WorkerState | None:
            if ts is None:
                ws, ts = stock(), tasks.get(self._key)
            else:
                ws = stock(ts)
            return ws if ws is None or ts is None else confirm(ts, ws, is_queued)

        return decide

    def _moving(self, stock: Call) -> Call:
        @wraps(stock)
        def move_task_request(ts: TaskState, victim: WorkerState, thief: Any) -> Any:
            try:
                if type(thief) is not Nobody:
                    thief = self._thief(ts, victim, thief)
            except Exception:
                # Fail open: the task goes where the scheduler wanted it.
                logger.exception("Cannot tell whether worker %s lasts long enough", thief)
            return "too-short" if thief is None else stock(ts, victim, thief)

        return move_task_request

    def _thief(self, ts: TaskState, victim: WorkerState, thief: WorkerState) -> Any:
        deadlines = self._deadlines
        if deadlines.lasts(thief, ts) or deadlines.is_exempt(ts):
            return thief
        other = deadlines.other(ts, victim)
        if other is not None:
            return other
        if victim not in self._scheduler.running:
            return Nobody()  # it leaves: its tasks wait where others do
        # WorkStealing.balance takes it off the list of what can be stolen when this returns.
        self._scheduler.loop.asyncio_loop.call_soon(self._put_back, ts, victim)
        return None

    def _put_back(self, ts: TaskState, victim: WorkerState) -> None:
        extension = stealing(self._scheduler)
        if extension is not None and ts.processing_on is victim and ts not in extension.in_flight:
            extension.remove_key_from_stealable(ts)
            extension.put_key_in_stealable(ts)

    def _feeding(self, stock: Call) -> Call:
        @wraps(stock)
        def slots_maybe_opened(*, stimulus_id: str) -> None:
            try:
                if self._deadlines.waiting and self._scheduler.idle:
                    self.feed()
                if self._scheduler.queued and self._scheduler.idle_task_count:
                    self._feed_queue(stimulus_id)
            except Exception:
                logger.exception("Cannot feed workers from the queue; upstream does")
                stock(stimulus_id=stimulus_id)

        return slots_maybe_opened

    def _feed_queue(self, stimulus_id: str) -> None:
        """As upstream's, but past tasks for which nobody who has a slot lasts long enough."""
        scheduler = self._scheduler
        without: set[TaskPrefix] = set()
        while scheduler.queued and scheduler.idle_task_count:
            ts = scheduler.queued.peek()
            if ts.prefix in without:
                ts = self._deadlines.queue.next_behind(without)
                if ts is None:
                    return
            scheduler.transitions({ts.key: "processing"}, stimulus_id)
            if ts.state == "queued":
                without.add(ts.prefix)

    def _process(self, tasks: list[TaskState]) -> None:
        recommendations = {
            ts.key: "processing" for ts in reversed(tasks) if ts.state == "no-worker"
        }
        if recommendations:
            self._scheduler.transitions(recommendations, self._stimulus())

    def _stimulus(self) -> str:
        return f"dask-adaptive-{self._clock()}"
