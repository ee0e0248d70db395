"""Counts what each worker is given, for quotas that are exact."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import patching
from dask_adaptive_agent.failing import logged
from dask_adaptive_agent.patching import Call, Patch, Patches
from dask_adaptive_agent.service.task_mover import stealing

if TYPE_CHECKING:
    from distributed.scheduler import TaskState, WorkerState

    from dask_adaptive_agent.quotas.roster import Entry

logger = logging.getLogger(__name__)

#: What `move_task_request` answers for a steal that we refuse; nobody upstream reads its answers.
REFUSED = "dask-adaptive-refused"


@dataclass(eq=False)
class AssignedRuns:
    """
    Counts what is on its way to workers whose quota is exact. Patched in only while there is such a
    quota: nobody else pays for it.

    `Scheduler._add_to_processing` is where every release assigns a task, whether it was waiting,
    queued or without a worker. Steals are assigned by `WorkStealing.move_task_confirm` when their
    victim has agreed, so they count from their request on.
    """

    scheduler: Any
    entries: Mapping[str, Entry]  # the roster's, by address
    reached: Callable[[Entry], None]  # called with a worker that has all it may; must not raise

    def __post_init__(self) -> None:
        self._patches = Patches(self.scheduler)
        self._put: list[Patch] = []

    def install(self) -> None:
        """Harmless when it is in place; what others have taken away with theirs is put back."""
        if self._put and all([patch.is_called for patch in self._put]):
            return
        self.uninstall()
        try:
            with self._patches.together() as self._put:
                self._patches.put(patching.ADD_TO_PROCESSING, self._adding)
                if stealing(self.scheduler) is not None:
                    self._patches.put(patching.MOVE_TASK_REQUEST, self._moving)
        except patching.Mismatch as error:
            logger.warning("Quotas cannot be exact in this scheduler: %s", error)

    def uninstall(self) -> None:
        self._patches.close()
        self._put = []

    def near(self) -> list[Entry]:
        """Workers that may have as much as they may have: of these `given` must be asked."""
        arriving = len(self._in_flight)
        return [
            entry
            for entry in self.entries.values()
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
        extension = stealing(self.scheduler)
        return extension.in_flight if extension is not None else {}

    def _check(self, ws: WorkerState) -> None:
        entry = self.entries.get(ws.address)
        if entry is not None and self.given(entry) >= entry.exact_at:
            self.reached(entry)

    def _adding(self, stock: Call) -> Call:
        def add_to_processing(ts: TaskState, ws: WorkerState, *args: Any, **kwargs: Any) -> Any:
            answer = stock(ts, ws, *args, **kwargs)
            self._check(ws)
            return answer

        return add_to_processing

    def _moving(self, stock: Call) -> Call:
        def move_task_request(ts: TaskState, victim: WorkerState, thief: WorkerState) -> Any:
            # `WorkStealing.balance` looks up its thieves once a round, so it may ask for one that
            # has left service in the middle of it. Who is no worker takes nothing.
            if thief.address in self.scheduler.workers and thief not in self.scheduler.running:
                self._keep_stealable(ts)
                return REFUSED
            answer = stock(ts, victim, thief)
            info = self._in_flight.get(ts)  # what we have wrapped may have found another thief
            if info is not None:
                self._check(info["thief"])
            return answer

        return move_task_request

    def _keep_stealable(self, ts: TaskState) -> None:
        """`balance` takes a task that it has asked for off its list; put it back afterwards."""

        def put_back() -> None:
            extension = stealing(self.scheduler)
            # Fail open: the task runs where it is.
            with logged(logger, "Failed to put %s back on the list of tasks to steal", ts.key):
                if extension is not None and ts.state == "processing":
                    extension.recalculate_cost(ts)

        self.scheduler.loop.asyncio_loop.call_soon(put_back)
