"""
A Dask cluster in simulated time: tasks with dependencies, workers that take a while to come.

What decides is not simulated: upstream's `Scheduler.adaptive_target` and our agent's `DemandView`
run on these objects, which have the attributes that both read. Of the scheduler it keeps what
matters for the number of workers: root tasks wait in a queue until a worker has room for them
(`worker-saturation` 1.1), others are assigned as soon as they can run, and idle workers steal.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from distributed.scheduler import Scheduler, TaskPrefix

SATURATION = 1.1

#: From heartbeat to heartbeat (`heartbeat_interval` of few workers).
HEARTBEAT_S = 0.5


@dataclass(frozen=True)
class Job:
    """A task as it is submitted."""

    key: str
    prefix: str
    seconds: float
    deps: tuple[str, ...] = ()


class Task:
    """What the scheduler keeps of a task."""

    def __init__(self, job: Job, prefix: Any, priority: tuple[int, int]) -> None:
        self.key, self.seconds, self.prefix = job.key, job.seconds, prefix
        self.priority = priority
        self.state = "released"
        self.waiting_on: set[Task] = set()
        self.dependents: list[Task] = []
        self.is_root = False
        self.processing_on: SimWorker | None = None
        self.began_at = -1.0
        self.run = 0
        self.resource_restrictions = self.worker_restrictions = self.host_restrictions = None
        self.loose_restrictions = False


@dataclass(eq=False)
class SimWorker:
    name: str
    nthreads: int
    asked_at: float
    comes_at: float
    is_here: bool = False
    is_leaving: bool = False
    idle_since: float = 0.0
    processing: dict[Task, None] = field(default_factory=dict)
    running: set[Task] = field(default_factory=set)
    executing: dict[Task, float] = field(default_factory=dict)
    long_running: tuple[Task, ...] = ()
    memory_limit: int = 0
    nbytes: int = 0

    @property
    def address(self) -> str:
        return f"tcp://{self.name}"

    @property
    def room(self) -> int:
        return math.ceil(self.nthreads * SATURATION) - len(self.processing)


class SimDask:
    """
    Args:
        startup_s: How long a worker takes to come, by its number.
        threads: Of each worker.
    """

    UNKNOWN_TASK_DURATION = 0.5

    def __init__(self, startup_s: Callable[[int], float], threads: int = 1) -> None:
        self.now = 0.0
        self.tasks: dict[str, Task] = {}
        self.task_prefixes: dict[str, Any] = {}
        self.all_workers: dict[str, SimWorker] = {}
        self.unrunnable: dict[Task, None] = {}
        self.redone = self.finished = self.changes = self.peak = 0
        self.worker_seconds = 0.0
        self.last_done_at = self.worker_seconds_at_last = 0.0
        self._startup_s, self._threads = startup_s, threads
        self._queue: list[tuple[tuple[int, int], int, Task]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._submits = itertools.count()
        self._direction = 0
        self._when_done: list[tuple[set[Task], Callable[[], None]]] = []

    # What upstream and the agent read.

    @property
    def workers(self) -> dict[str, SimWorker]:
        return {w.address: w for w in self.all_workers.values() if w.is_here}

    @property
    def queued(self) -> list[Task]:
        return [ts for _, _, ts in sorted(self._queue)]

    @property
    def total_occupancy(self) -> float:
        processing = (ts for w in self.workers.values() for ts in w.processing)
        return float(sum(self.prefix_duration(ts.prefix) for ts in processing))

    def prefix_duration(self, prefix: Any) -> float:
        return float(Scheduler._get_prefix_duration(self, prefix))  # type: ignore[arg-type]

    def workers_to_close(self) -> list[SimWorker]:
        return [w for w in self.workers.values() if not w.processing]

    def adaptive_target(self, duration_s: float) -> int:
        standin = SimpleNamespace(
            queued=self.queued, unrunnable=self.unrunnable, workers=self.workers,
            total_occupancy=self.total_occupancy, workers_to_close=self.workers_to_close,
            _get_prefix_duration=self.prefix_duration,
        )  # fmt: skip
        return int(Scheduler.adaptive_target(standin, duration_s))  # type: ignore[arg-type]

    # What happens.

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def run_until(self, when: float) -> None:
        while self._events and self._events[0][0] <= when:
            at, _, what = heapq.heappop(self._events)
            self._pass_time(at)
            what()
        self._pass_time(when)

    @property
    def is_busy(self) -> bool:
        return self.finished < len(self.tasks) or bool(self._events)

    def submit(self, jobs: Iterable[Job], when_done: Callable[[], None] | None = None) -> None:
        """Tasks that come together, in the order in which Dask would like to run them."""
        number = next(self._submits)
        new = []
        for i, job in enumerate(jobs):
            prefix = self.task_prefixes.setdefault(job.prefix, TaskPrefix(job.prefix))
            ts = self.tasks[job.key] = Task(job, prefix, (number, i))
            for dep in (self.tasks[key] for key in job.deps):
                dep.dependents.append(ts)
                if dep.state != "memory":
                    ts.waiting_on.add(dep)
            ts.is_root = not job.deps
            new.append(ts)
        if when_done is not None:
            self._when_done.append((set(new), when_done))
        sizes = Counter(ts.prefix.name for ts in new)
        threads = sum(w.nthreads for w in self.workers.values())
        for ts in new:
            ts.is_root = ts.is_root and sizes[ts.prefix.name] > 2 * threads
            self._become(ts, "waiting")
        for ts in new:
            if not ts.waiting_on:
                self._ready(ts)
        self._dispatch()

    def grow(self, n: int) -> None:
        for _ in range(n):
            number = next(self._numbers)
            comes_at = self.now + self._startup_s(number)
            worker = SimWorker(f"w{number:05}", self._threads, self.now, comes_at)
            self.all_workers[worker.name] = worker
            self.at(comes_at, lambda w=worker: self._join(w))  # type: ignore[misc]
        self._turned(1 if n else 0)

    def remove(self, worker: SimWorker) -> None:
        """Whatever it runs begins anew elsewhere."""
        del self.all_workers[worker.name]
        worker.is_here = False
        for ts in list(worker.processing):
            self.redone += ts in worker.running
            self._take_back(ts)
            self._ready(ts)
        self._turned(-1)
        self._dispatch()

    def _turned(self, direction: int) -> None:
        if direction and self._direction and direction != self._direction:
            self.changes += 1
        self._direction = direction or self._direction
        self.peak = max(self.peak, len(self.all_workers))

    def _pass_time(self, when: float) -> None:
        self.worker_seconds += len(self.all_workers) * (when - self.now)
        self.now = when

    def _join(self, worker: SimWorker) -> None:
        if worker.name in self.all_workers:
            worker.is_here, worker.idle_since = True, self.now
            for ts in list(self.unrunnable):
                del self.unrunnable[ts]
                self._ready(ts)
            self._beat(worker)
            self._dispatch()

    def _beat(self, worker: SimWorker) -> None:
        if not worker.is_here:
            return
        worker.executing = {ts: self.now - ts.began_at for ts in worker.running}
        for ts, lasts_s in worker.executing.items():
            if lasts_s > 0:
                ts.prefix.add_exec_time(lasts_s)
        if worker.running:
            self.at(self.now + HEARTBEAT_S, lambda: self._beat(worker))
        else:
            worker.long_running = ()

    def _become(self, ts: Task, state: str) -> None:
        states = ts.prefix.states
        states[ts.state] = states.get(ts.state, 0) - 1
        states[state] = states.get(state, 0) + 1
        ts.state = state
        ts.prefix.state_counts[state] += 1

    def _ready(self, ts: Task) -> None:
        if ts.is_root:
            self._become(ts, "queued")
            heapq.heappush(self._queue, (ts.priority, id(ts), ts))
            return
        able = [w for w in self.workers.values() if not w.is_leaving]
        if not able:
            self._become(ts, "no-worker")
            self.unrunnable[ts] = None
            return
        self._assign(ts, min(able, key=lambda w: (len(w.processing) / w.nthreads, w.name)))

    def _assign(self, ts: Task, worker: SimWorker) -> None:
        self._become(ts, "processing")
        ts.processing_on = worker
        worker.processing[ts] = None

    def _take_back(self, ts: Task) -> None:
        worker = ts.processing_on
        assert worker is not None
        worker.processing.pop(ts, None)
        worker.running.discard(ts)
        worker.executing.pop(ts, None)
        ts.processing_on, ts.run = None, ts.run + 1

    def _dispatch(self) -> None:
        """Queued tasks to workers with room, tasks to threads, and unstarted ones to the idle."""
        able = [w for w in self.workers.values() if not w.is_leaving]
        while self._queue and able:
            worker = max(able, key=lambda w: (w.room, w.name))
            if worker.room <= 0:
                break
            self._assign(heapq.heappop(self._queue)[2], worker)
        for worker in self.workers.values():
            self._fill(worker)
        for worker in able:
            while len(worker.running) < worker.nthreads and self._steal(worker):
                pass

    def _fill(self, worker: SimWorker) -> None:
        free = worker.nthreads - len(worker.running)
        if free > 0:
            todo = sorted((ts for ts in worker.processing if ts not in worker.running),
                          key=lambda ts: ts.priority)  # fmt: skip
            for ts in todo[:free]:
                self._begin(ts, worker)

    def _steal(self, thief: SimWorker) -> bool:
        full = max(
            self.workers.values(), key=lambda w: (len(w.processing) - len(w.running), w.name)
        )
        todo = [ts for ts in full.processing if ts not in full.running]
        if not todo or full is thief:
            return False
        ts = max(todo, key=lambda t: t.priority)
        del full.processing[ts]
        thief.processing[ts] = None
        ts.processing_on = thief
        self._begin(ts, thief)
        return True

    def _begin(self, ts: Task, worker: SimWorker) -> None:
        was_idle = not worker.running
        worker.running.add(ts)
        ts.began_at, run = self.now, ts.run
        self.at(self.now + ts.seconds, lambda: self._finish(ts, run))
        if was_idle:
            self.at(self.now + HEARTBEAT_S, lambda: self._beat(worker))

    def _finish(self, ts: Task, run: int) -> None:
        worker = ts.processing_on
        if ts.run != run or worker is None:
            return
        ts.prefix.add_duration("compute", ts.began_at, self.now)
        self._take_back(ts)
        self._become(ts, "memory")
        self.finished += 1
        self.last_done_at = self.now
        self.worker_seconds_at_last = self.worker_seconds
        if not worker.processing:
            worker.idle_since = self.now
        for dependent in ts.dependents:
            dependent.waiting_on.discard(ts)
            if not dependent.waiting_on and dependent.state == "waiting":
                self._ready(dependent)
        self._dispatch()
        for entry in list(self._when_done):
            entry[0].discard(ts)
            if not entry[0]:
                self._when_done.remove(entry)
                entry[1]()
