"""
Hears of each task that is assigned to a worker, for quotas that count them. In place only while
there is such a quota: nobody else pays for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import patching
from dask_adaptive_agent.moving import stealing
from dask_adaptive_agent.patching import Call, Patch, Patches

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

    from dask_adaptive_agent.roster import Entry

logger = logging.getLogger(__name__)

#: What `move_task_request` answers for a steal that we refuse; nobody upstream reads its answers.
REFUSED = "dask-adaptive-refused"


class Assigned:
    """
    Counts what is on its way to workers whose quota counts it.

    `Scheduler._add_to_processing` is where every release assigns a task, whether it was waiting,
    queued or without a worker. Steals are assigned by `WorkStealing.move_task_confirm` when their
    victim has agreed, so they count from their request on.

    Args:
        scheduler: Whose methods are wrapped.
        entries: The roster's, by address.
        reached: Called with a worker that has as much as it may have. Must not raise.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        entries: Mapping[str, Entry],
        reached: Callable[[Entry], None],
    ) -> None:
        self._scheduler: Any = scheduler
        self._entries = entries
        self._reached = reached
        self._patches = Patches(scheduler)
        self._put: list[Patch] = []

    @property
    def is_possible(self) -> bool:
        return hasattr(self._scheduler, "_add_to_processing")

    def install(self) -> None:
        """Harmless when it is in place; what others have taken away with theirs is put back."""
        if self._put and all([patch.is_called for patch in self._put]):
            return
        self.uninstall()
        scheduler = self._scheduler
        try:
            with self._patches.together() as put:
                self._patches.put(patching.ADD_TO_PROCESSING, self._adding)
                if scheduler.validate and hasattr(scheduler, patching.SLOTS_OPENED.name):
                    self._patches.put(patching.SLOTS_OPENED, self._opening)
                if stealing(scheduler) is not None:
                    self._patches.put(patching.MOVE_TASK_REQUEST, self._moving)
        except patching.Mismatch as error:
            logger.warning("Quotas cannot be exact in this scheduler: %s", error)
        self._put = put

    def uninstall(self) -> None:
        self._patches.close()
        self._put = []

    def near(self) -> list[Entry]:
        """Workers that may have as much as they may have: of these `given` must be asked."""
        arriving = len(self._in_flight)
        return [
            entry
            for entry in self._entries.values()
            if entry.runs + len(entry.ws.processing) + arriving >= entry.exact_at
        ]

    def given(self, entry: Entry) -> int:
        """Runs that a worker has made, has, and is about to be given; exact near its limit."""
        ws, in_flight = entry.ws, self._in_flight
        given = entry.runs + len(ws.processing)
        if given + len(in_flight) < entry.exact_at:
            return given
        return given + sum([info["thief"] is ws for info in in_flight.values()])

    @property
    def _in_flight(self) -> Any:
        extension = stealing(self._scheduler)
        return extension.in_flight if extension is not None else {}

    def _check(self, ws: WorkerState) -> None:
        entry = self._entries.get(ws.address)
        if entry is not None and self.given(entry) >= entry.exact_at:
            self._reached(entry)

    def _check_arriving(self, ts: TaskState) -> None:
        # What we have wrapped may have found another thief.
        info = self._in_flight.get(ts)
        if info is not None:
            self._check(info["thief"])

    def _adding(self, stock: Call) -> Call:
        def add_to_processing(ts: TaskState, ws: WorkerState, *args: Any, **kwargs: Any) -> Any:
            answer = stock(ts, ws, *args, **kwargs)
            self._check(ws)
            return answer

        return add_to_processing

    def _opening(self, stock: Call) -> Call:
        """
        The stock method counts all free slots first. A worker that leaves service between two tasks
        takes its slots with it; the next task then stays queued, and is tried again as often as
        slots were counted. Only schedulers that validate object: each task must have begun.
        """

        def queue_slots_maybe_opened(*, stimulus_id: str) -> None:
            scheduler = self._scheduler
            while True:
                before = len(scheduler.running)
                try:
                    stock(stimulus_id=stimulus_id)
                except AssertionError:
                    if len(scheduler.running) < before:
                        continue
                    raise
                return

        return queue_slots_maybe_opened

    def _moving(self, stock: Call) -> Call:
        def move_task_request(ts: TaskState, victim: WorkerState, thief: WorkerState) -> Any:
            # `WorkStealing.balance` looks up its thieves once a round, so it may ask for one that
            # has left service in the middle of it. Who is no worker takes nothing.
            if thief.address in self._scheduler.workers and thief not in self._scheduler.running:
                self._keep_stealable(ts)
                return REFUSED
            answer = stock(ts, victim, thief)
            self._check_arriving(ts)
            return answer

        return move_task_request

    def _keep_stealable(self, ts: TaskState) -> None:
        """`balance` takes a task that it has asked for off its list; put it back afterwards."""

        def put_back() -> None:
            extension = stealing(self._scheduler)
            try:
                if extension is not None and ts.state == "processing":
                    extension.recalculate_cost(ts)
            except Exception:
                # Fail open: the task runs where it is.
                logger.exception("Cannot put %s back on the list of tasks to steal", ts.key)

        self._scheduler.loop.asyncio_loop.call_soon(put_back)
