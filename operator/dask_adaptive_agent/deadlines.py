"""
No task starts that is not expected to finish: which worker lasts long enough for which task.

A task for which every worker in service ends too soon waits for one that lives longer; where there
would be none, it runs on the one that lives longest. How the scheduler is made to ask is in
`assigning`.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import wire
from dask_adaptive_agent.durations import Durations
from dask_adaptive_agent.ends import End, Ends
from dask_adaptive_agent.queueview import QueueView
from dask_adaptive_agent.words import duration

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix, TaskState, WorkerState

logger = logging.getLogger(__name__)

#: A task waits no longer than this for a new worker, and among the unrunnable no longer than this
#: part of `distributed.scheduler.no-workers-timeout`, after which the scheduler fails it.
PATIENCE_S, TIMEOUT_PART = 600.0, 0.5

#: The same kind of task is told of once in so many seconds.
TELL_AGAIN_S = 600.0

#: Workers that are compared for a task which any of them may take, and those that are looked at.
COMPARED, INSPECTED = 4, 64

#: Tasks ahead that are looked at one by one; of more, the scheduler's own estimate counts.
LOOKED_AT = 100


class Deadlines:
    """
    Says who may take a task, and remembers which tasks wait.

    Args:
        scheduler: Read, not changed.
        ends: Of its workers.
        durations: Of its tasks.
        is_attended: Whether somebody would bring a worker that lives longer.
        tell: Makes a note: kind, message, names of workers.
        clock: That of `ends`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        ends: Ends,
        durations: Durations,
        *,
        is_attended: Callable[[], bool],
        tell: Callable[[str, str, Sequence[str]], None],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler: Any = scheduler
        self.ends = ends
        self._durations = durations
        self._is_attended = is_attended
        self._tell = tell
        self._clock = clock
        self.queue = QueueView(scheduler, clock)
        self._longest_s = math.inf  # any task in sight is expected to take no longer
        #: Tasks in the state "no-worker" because of us, by prefix, in the order of their coming.
        self.waiting: dict[TaskPrefix, dict[TaskState, float]] = {}
        #: Since when no worker in service has lasted long enough for a kind of task that waits.
        self._held_since: dict[TaskPrefix, float] = {}
        self._told_at: dict[str, float] = {}
        self._turn = 0
        #: Tasks that run where they may not finish, because they would nowhere.
        self._forced: set[TaskState] = set()

    def confirm(self, ts: TaskState, ws: WorkerState, is_queued: bool) -> WorkerState | None:
        """
        Who takes a task that the scheduler would give to `ws`; None: it waits.

        Args:
            is_queued: The task goes to a worker with a free slot only, and waits in the
                scheduler's queue; else it waits among the unrunnable.
        """
        try:
            if self.lasts(ws, ts):
                return ws
            chosen = self._instead(ts, ws, is_queued=is_queued)
        except Exception:
            # Fail open: the task runs where the scheduler wanted it.
            logger.exception("Cannot tell whether worker %s lasts long enough", ws.address)
            return ws
        if chosen is None and not is_queued:
            self.waiting.setdefault(ts.prefix, {}).setdefault(ts, self._clock())
        return chosen

    def lasts(self, ws: WorkerState, ts: TaskState) -> bool:
        """Whether a worker is expected to finish a task that it is given now."""
        end = self.ends.by_address.get(ws.address)
        if end is None:
            return True
        left_s, n = end.at - self._clock(), ws.nthreads
        expected_s = self._durations.expected_s(ts.prefix, end.deviations, end.floor_s)
        # Every task that a worker has was asked for here, or was there at the last `refresh`.
        if expected_s > self._longest_s:
            self._longest_s = expected_s
        if left_s * n > self._longest_s * (n + len(ws.processing)):
            return True
        return left_s >= expected_s + self._wait_s(ws)

    def other(self, ts: TaskState, victim: WorkerState) -> WorkerState | None:
        """A worker in service that is expected to finish a task; not the one that has it."""
        able = [ws for ws in self._able(ts) if ws is not victim]
        return self._best(ts, able) if able else None

    def outlasts(self, ws: WorkerState, prefix: TaskPrefix) -> bool:
        """Whether a worker would finish such a task if it began at once."""
        end = self.ends.by_address.get(ws.address)
        return end is None or end.at - self._clock() >= self._expected_s(prefix, end)

    def somebody_outlasts(self, prefix: TaskPrefix) -> bool:
        latest_at = self.ends.latest_at
        if math.isinf(latest_at):
            return True
        end = End(latest_at, self.ends.floor_s, self.ends.deviations)
        if latest_at - self._clock() < self._durations.mean_s(prefix):
            return False
        return latest_at - self._clock() >= self._expected_s(prefix, end) or any(
            self.outlasts(ws, prefix) for ws in self._scheduler.running
        )

    def is_exempt(self, ts: TaskState) -> bool:
        """Whether a task is left where the scheduler puts it."""
        return bool(ts.actor) or ts in self._forced or is_of_shuffle(ts.prefix.name)

    def overdue(self, ws: WorkerState) -> list[TaskState]:
        """Tasks that a worker has not begun, as far as is known, and would not finish any more."""
        end = self.ends.by_address.get(ws.address)
        if end is None or len(ws.processing) - len(ws.long_running) <= ws.nthreads:
            return []
        left_s = end.at - self._clock()
        if left_s > 2 * self._longest_s:
            return []
        running = [self._left_s(ts, took) for ts, took in ws.executing.items()]
        wait_s = min(running) if len(running) >= ws.nthreads else 0.0
        return [
            ts
            for ts in ws.processing
            if ts not in ws.executing
            and ts not in ws.long_running
            and left_s < self._expected_s(ts.prefix, end) + wait_s
            and not self.is_exempt(ts)
            and not _is_bound(ts)
        ]

    def refresh(self) -> None:
        """Once in a while: read all ends, and forget what waits no more."""
        self.ends.refresh()
        ends = self.ends
        self._longest_s = self._durations.longest_s(ends.deviations, ends.floor_s)
        self._forced = {ts for ts in self._forced if ts.state in ("processing", "no-worker")}
        self.waiting = {
            prefix: still
            for prefix, those in self.waiting.items()
            if (still := {ts: at for ts, at in those.items() if ts.state == "no-worker"})
        }
        if self._held_since:
            waits = {*self.waiting, *self.queue.kinds()}
            self._held_since = {
                prefix: since
                for prefix, since in self._held_since.items()
                if prefix in waits and not self.somebody_outlasts(prefix)
            }

    def held(self) -> int:
        """Tasks that wait because nobody in service lasts long enough."""
        return sum(
            [len(self.waiting.get(prefix, ())) + _n_queued(prefix) for prefix in self._held_since]
        )

    def too_short(self) -> list[str]:
        """Addresses of workers with a free thread that end too soon for a task that waits."""
        kinds = self._waiting_kinds()
        if not kinds or not self.ends.by_address:
            return []
        return [
            ws.address
            for ws in self._scheduler.running
            if ws.address in self.ends.by_address
            and len(ws.processing) - len(ws.long_running) < ws.nthreads
            and any(not self.outlasts(ws, ts.prefix) and self._may(ws, ts) for ts in kinds)
        ]

    def expected_ms(self) -> int:
        """How long the longest of the tasks that wait or run is expected to take."""
        ends = self.ends
        return int(self._durations.longest_s(ends.deviations, ends.floor_s) * 1000)

    def _instead(self, ts: TaskState, ws: WorkerState, *, is_queued: bool) -> WorkerState | None:
        if self.is_exempt(ts):
            return ws
        able = self._able(ts, self._scheduler.idle_task_count if is_queued else None)
        if able:
            return self._best(ts, able)
        if _is_bound(ts):
            return max(self._allowed(ts), key=self._after_wait, default=ws)
        if self._may_wait(ts, is_queued=is_queued):
            return None
        return self._longest_lived(ts, is_queued=is_queued)

    def _able(self, ts: TaskState, pool: Iterable[WorkerState] | None = None) -> list[WorkerState]:
        """Some of those that may take a task, and are expected to finish it."""
        if not self.somebody_outlasts(ts.prefix):
            return []
        if pool is not None:
            return [ws for ws in pool if self.lasts(ws, ts)]
        if _is_restricted(ts):
            able = [ws for ws in self._allowed(ts) if self.lasts(ws, ts)]
            if able or not ts.loose_restrictions:
                return able
        running = self._scheduler.running
        holders = {ws for dts in ts.dependencies for ws in dts.who_has or () if ws in running}
        able = [ws for ws in holders if self.lasts(ws, ts)]
        if able:
            return able
        able = self._next_able(ts)
        if not able:  # there are few, or they have just joined
            able = list(islice((ws for ws in running if self.lasts(ws, ts)), COMPARED))
        return able

    def _next_able(self, ts: TaskState) -> list[WorkerState]:
        """Some of those that last long enough: each time others, as upstream takes turns."""
        ends, idle = self.ends, self._scheduler.idle
        until = self._clock() + self._durations.mean_s(ts.prefix)
        n = bisect_right(ends.lasting_until, -until)
        able: list[WorkerState] = []
        for i in range(min(n, INSPECTED)):
            ws = ends.lasting[(self._turn + i) % n]
            if ws.address in idle and self.lasts(ws, ts):
                able.append(ws)
                if len(able) == COMPARED:
                    break
        self._turn += 1 + len(able)
        return able

    def _allowed(self, ts: TaskState) -> list[WorkerState]:
        """As `decide_worker`: restrictions hold unless the task calls them loose."""
        running = self._scheduler.running
        valid = self._scheduler.valid_workers(ts)
        if valid is None:
            return list(running)
        allowed = [ws for ws in valid if ws in running]
        return allowed if allowed or not ts.loose_restrictions else list(running)

    def _best(self, ts: TaskState, able: list[WorkerState]) -> WorkerState:
        objective = self._scheduler.worker_objective
        best: WorkerState = min(able, key=lambda ws: (objective(ts, ws), ws.address))
        return best

    def _may_wait(self, ts: TaskState, *, is_queued: bool) -> bool:
        """Whether a task waits for a worker that lasts; else it runs on the longest-lived."""
        prefix, now = ts.prefix, self._clock()
        own_since = self.waiting.get(prefix, {}).get(ts, now)
        if not is_queued and now - own_since > self._timeout_s:
            return False
        if self._outlasting(ts):
            return True  # for one that has other tasks now
        since = min(own_since, self._held_since.setdefault(prefix, now))
        if now - since > PATIENCE_S or not self._is_attended():
            return False
        ends = self.ends
        fresh = End(now + ends.fresh_s, ends.floor_s, ends.deviations)
        return ends.fresh_s >= self._expected_s(prefix, fresh)

    def _outlasting(self, ts: TaskState) -> bool:
        """Whether a worker in service that may take a task would finish it if it were free."""
        if _is_restricted(ts) and not ts.loose_restrictions:
            return any(self.outlasts(ws, ts.prefix) for ws in self._allowed(ts))
        return self.somebody_outlasts(ts.prefix)

    @property
    def _timeout_s(self) -> float:
        """How long a task may be among the unrunnable: `Scheduler._check_no_workers` fails it."""
        timeout_s = getattr(self._scheduler, "no_workers_timeout", None)
        return TIMEOUT_PART * timeout_s if timeout_s else math.inf

    def _longest_lived(self, ts: TaskState, *, is_queued: bool) -> WorkerState | None:
        allowed = self._allowed(ts)
        if not allowed:
            return None
        best = max(allowed, key=self._after_wait)
        if is_queued and best not in self._scheduler.idle_task_count:
            return None  # soon: it is first in the queue
        self._forced.add(ts)
        if not self._outlasting(ts):
            self._say(ts, best)
        return best

    def _say(self, ts: TaskState, ws: WorkerState) -> None:
        now, name = self._clock(), ts.prefix.name
        if now - self._told_at.get(name, -math.inf) < TELL_AGAIN_S:
            return
        self._told_at[name] = now
        ends = self.ends
        expected_s = self._durations.expected_s(ts.prefix, ends.deviations, ends.floor_s)
        left_s = max(0.0, ends.at(ws) - now)
        fresh = ""
        if math.isfinite(ends.fresh_s):
            fresh = f" (a new one: {duration(ends.fresh_s)})"
        self._tell(
            wire.N_TASK_TOO_LONG,
            f"tasks {name} are expected to take {duration(expected_s)}, and no worker lives so "
            f"long{fresh}: one runs on {ws.name}, which has {duration(left_s)} left",
            [str(ws.name)],
        )

    def _expected_s(self, prefix: TaskPrefix, end: End) -> float:
        return self._durations.expected_s(prefix, end.deviations, end.floor_s)

    def _wait_s(self, ws: WorkerState) -> float:
        """Until a thread of a worker is free: what it has, less what that has taken already."""
        busy = len(ws.processing) - len(ws.long_running)
        if busy < ws.nthreads:
            return 0.0
        if busy > LOOKED_AT:
            return ws.occupancy / ws.nthreads
        executing = ws.executing
        total = sum([self._left_s(ts, executing.get(ts, 0.0)) for ts in ws.processing])
        return total / ws.nthreads

    def _left_s(self, ts: TaskState, took: float) -> float:
        return max(0.0, self._durations.mean_s(ts.prefix) - took)

    def _after_wait(self, ws: WorkerState) -> tuple[float, str]:
        """What is left of a worker when it could begin; by the address among equals."""
        at = self.ends.at(ws)
        return (at if math.isinf(at) else at - self._wait_s(ws)), ws.address

    def _may(self, ws: WorkerState, ts: TaskState) -> bool:
        valid = self._scheduler.valid_workers(ts) if _is_restricted(ts) else None
        return valid is None or ws in valid

    def _waiting_kinds(self) -> list[TaskState]:
        """A task of each kind that waits."""
        first = [next(iter(those)) for those in self.waiting.values() if those]
        return first + list(self.queue.kinds().values())


def is_of_shuffle(prefix: str) -> bool:
    """Whether P2P tasks are called so: they run where the shuffle's participants are."""
    return prefix.endswith("-transfer") or "barrier" in prefix or "p2p" in prefix


def _is_bound(ts: TaskState) -> bool:
    """Whether no new worker would be one of those that may take a task."""
    return bool(ts.worker_restrictions or ts.host_restrictions) and not ts.loose_restrictions


def _is_restricted(ts: TaskState) -> bool:
    return bool(ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions)


def _n_queued(prefix: TaskPrefix) -> int:
    states: dict[Any, int] = prefix.states
    return states.get("queued", 0)
