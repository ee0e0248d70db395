"""
One worker on its way out, in the only order in which nothing is redone.

No new tasks; tasks not started go elsewhere; running tasks finish; last copies of results move; and
only then is the worker called drained. What decides whether to retire a worker lives in
`retirements.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.active_memory_manager import RetireWorker
from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.moving import Mover, arriving

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

logger = logging.getLogger(__name__)

#: Seconds between two looks at a worker that drains; a drained one is looked at as often, because
#: a new shuffle may pick it. The more there is to look at, the longer: at most 2 % of the loop.
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 2.0

#: Attempts to move the last copies that may fail with an exception before the retirement ends.
ATTEMPTS = 3

#: A copy on a worker with one of these statuses is safe; others are leaving, or not there yet.
IN_SERVICE = (Status.running, Status.paused)


class Veto(NamedTuple):
    """Why a worker must stay: one of `wire.V_*`, and a sentence."""

    code: str
    message: str


class Order(NamedTuple):
    """How a worker is to be retired."""

    reason: str
    deadline_s: float
    by_force: bool  # at the deadline: data moved, running tasks given up; else back to service


def last_copies(ws: WorkerState) -> list[TaskState]:
    """
    Results that would be lost with this worker.

    A copy on another worker that is leaving too is no copy: `RetireWorker.done` counts it as one,
    so two workers retired at once may each rely on the other.
    """
    return [
        ts
        for ts in ws.has_what
        if not any(other is not ws and other.status in IN_SERVICE for other in ts.who_has or ())
    ]


class Retirement:
    """
    The retirement of one worker, from its request to drained and beyond, until it is gone.

    Args:
        scheduler: Its status of the worker is set at once.
        ws: The worker.
        order: Why, until when, and what then.
        objection: Asked at each look; a veto sends the worker back to service.
        ended: Called once, with the veto that ended it, or None when it was cancelled.
        clock: Seconds that never go backwards.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        ws: WorkerState,
        order: Order,
        *,
        objection: Callable[[Retirement], Veto | None],
        ended: Callable[[Retirement, Veto | None], None],
        clock: Callable[[], float],
    ) -> None:
        self.ws = ws
        self.order = order
        self.state = wire.DRAINING
        self.forced = False
        self.message = "has just been asked to drain"
        self.since = self.renewed_at = clock()
        #: What the worker says of itself: to be restored, and not to be heard meanwhile.
        self.reported = ws.status
        self._scheduler = scheduler
        self._objection = objection
        self._ended = ended
        self._clock = clock
        self._mover = Mover(scheduler, ws, clock)
        self._moving: asyncio.Future[Any] | None = None
        self._failures = 0
        self._is_frozen = False  # the worker was told that it closes: it starts nothing
        self._is_over = False
        self._task: asyncio.Future[None] | None = None

    @property
    def left_s(self) -> float:
        return max(0.0, self.since + self.order.deadline_s - self._clock())

    def start(self) -> None:
        """Take the worker out of service, take the first steps now, and go on in the background."""
        self._set_status(Status.closing_gracefully)
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
        elif self._moving is not None and not self._moving.done():
            pass  # RetireWorker copies, then drops what was copied; it ends by itself
        elif copies := last_copies(self.ws):
            self._move(len(copies))
        else:
            self._drop_copies()
            self._rest()

    def end(self, veto: Veto | None, *, is_gone: bool = False) -> None:
        """Back to service (unless the worker is gone). Harmless when it is over already."""
        if self._is_over:
            return
        self._is_over = True
        self.state = wire.ACTIVE
        self._stop_moving()
        # Cancelling the task that runs this very line would end it before it is done.
        if self._task is not None and self._task is not _current_task():
            self._task.cancel()
        if not is_gone:
            self._restore()
        self._ended(self, veto)

    def _has_tasks(self) -> bool:
        return bool(self.ws.processing) or arriving(self._scheduler, self.ws)

    def _too_late(self) -> Veto | None:
        if self.state == wire.DRAINED or self.forced or self.left_s > 0:
            return None
        if self.order.by_force:
            self.forced = True
            return None
        return Veto(
            wire.V_TIMEOUT,
            f"back to service: not drained within {self.order.deadline_s:.0f} s; {self.message}",
        )

    def _await_tasks(self) -> None:
        # A worker with the status closing_gracefully starts no task and fetches nothing
        # (PauseEvent in Worker.status), so a task that nobody else may take would wait for ever.
        # So the worker is told only when it has no task; the scheduler's status is enough to keep
        # new ones away.
        self.state = wire.DRAINING
        self._stop_moving()
        self._thaw()
        self._mover.ask()
        count = len(self.ws.processing)
        self.message = f"waits for {count} task{'s' * (count != 1)} to finish"

    def _move(self, count: int) -> None:
        self.state = wire.DRAINING
        self.message = f"moves {count} result{'s' * (count != 1)} that no other worker holds"
        if self._moving is not None:
            moving, self._moving = self._moving, None
            self._judge(moving)
            return
        self._is_frozen = True  # retire_workers tells the worker
        self._moving = asyncio.ensure_future(
            self._scheduler.retire_workers(
                workers=[self.ws.address], close_workers=False, remove=False
            )
        )

    def _judge(self, moving: asyncio.Future[Any]) -> None:
        """Last copies are left although retire_workers has ended: try again, or give up."""
        error = None if moving.cancelled() else moving.exception()
        if error is not None:
            self._failures += 1
            logger.warning("Moving the results of %s failed: %r", self.ws.address, error)
            if self._failures >= ATTEMPTS:
                self.end(Veto(wire.V_NO_RECIPIENT, f"results could not be moved: {error!r}"))
        # An abort is silent: the result lacks the worker (Scheduler._track_retire_worker).
        elif not moving.cancelled() and self.ws.address not in moving.result():
            self.end(Veto(wire.V_NO_RECIPIENT, "no other worker could take its results"))

    def _drop_copies(self) -> None:
        """
        Have the scheduler forget the copies that this worker holds; each has another in service.

        As long as they count, `RetireWorker` and `ReduceReplicas` may drop the other copy in favour
        of this one, and then the process ends: results were lost that way when one worker was
        deleted in the moment in which the next began to drain.
        """
        keys = [ts.key for ts in self.ws.has_what]
        if keys:
            self._scheduler.request_remove_replicas(
                self.ws.address, keys, stimulus_id=f"dask-adaptive-drop-{self._clock()}"
            )

    def _rest(self) -> None:
        self._stop_moving()
        self._freeze()
        self.state = wire.DRAINED
        self.message = (
            "has no last copies; running tasks were given up at the deadline"
            if self.forced and self.ws.processing
            else "has no task and no last copies"
        )

    async def _watch(self) -> None:
        while not self._is_over:
            work = len(self.ws.has_what) + len(self.ws.processing)
            await asyncio.sleep(min(LONGEST_LOOK_S, max(SHORTEST_LOOK_S, work / 10_000)))
            try:
                self.look()
            except Exception:
                # Fail closed: the worker stays, in service, and the next request starts anew.
                logger.exception("Retirement of %s failed; back to service", self.ws.address)
                self.end(None)

    def _stop_moving(self) -> None:
        if self._moving is None:
            return
        if not self._moving.done():
            self._moving.cancel()
        elif not self._moving.cancelled():
            self._moving.exception()  # else asyncio logs that nobody asked
        self._moving = None
        # A policy whose retire_workers was cancelled would go on to copy results for ever.
        amm: Any = self._scheduler.extensions.get("amm")
        for policy in list(getattr(amm, "policies", ())):
            if isinstance(policy, RetireWorker) and policy.address == self.ws.address:
                amm.policies.discard(policy)

    def _set_status(self, status: Status) -> None:
        stimulus_id = f"dask-adaptive-{status.name}-{self._clock()}"
        self._scheduler.handle_worker_status_change(status, self.ws, stimulus_id)

    def _restore(self) -> None:
        self._set_status(self.reported)
        self._thaw()

    def _freeze(self) -> None:
        if not self._is_frozen:
            self._is_frozen = True
            self._tell(Status.closing_gracefully)

    def _thaw(self) -> None:
        if self._is_frozen:
            self._is_frozen = False
            self._tell(self.reported)

    def _tell(self, status: Status) -> None:
        """As `Scheduler.retire_workers` tells a worker; it confirms with a status change."""
        comm = self._scheduler.stream_comms.get(self.ws.address)
        if comm is not None:
            with contextlib.suppress(Exception):  # it has just gone: remove_worker comes next
                comm.send(
                    {
                        "op": "worker-status-change",
                        "status": status.name,
                        "stimulus_id": f"dask-adaptive-{self._clock()}",
                    }
                )


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
