"""A Dask cluster in simulated time: tasks on threads, and workers that come, work and go."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from dask_adaptive.model.observed import Retiring
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive_agent.demand.arrivals import Batches
from dask_adaptive_lab.simulate.workload import UNKNOWN_S, Arrival, Withdrawal, Workload

#: From the call that deletes a worker until the API server shows it no more.
DELETE_S = 0.5

#: A worker says only so often for how long its tasks have run.
HEARTBEAT_S = 0.5

#: Time that the agent needs to empty a worker that runs nothing. Results are not modelled.
DRAIN_S = 0.5


@dataclass(slots=True)
class Worker:
    """One worker, from its Deployment's creation to its end."""

    name: str
    uid: str
    group: str
    made_at: float
    threads: int
    pod: int = 0  # counts up when its pod is replaced
    pod_at: float = 0.0
    process: int = 0  # counts up when its process ends
    connected_at: float = math.inf
    idle_since: float = math.inf
    running: dict[int, str] = field(default_factory=dict)  # prefix by number of the run
    runs: int = 0  # of this process
    retiring: Retiring | None = None
    is_cordoned: bool = False  # it has had all runs that its quota allows
    deleting: bool = False
    is_stuck: bool = False  # there is no room for it

    @property
    def is_here(self) -> bool:
        """Tells whether its scheduler knows it."""
        return self.connected_at < math.inf and not self.deleting

    @property
    def state(self) -> str:
        """Its state as the agent reports it."""
        return self.retiring.word if self.retiring else "active"

    @property
    def serves(self) -> bool:
        return self.is_here and self.retiring is None

    @property
    def takes_tasks(self) -> bool:
        return self.serves and not self.is_cordoned and len(self.running) < self.threads


#: Seconds until the n-th worker of a group connects; infinite: it never does.
Startup = Callable[[str, int], float]


class SimulatedCluster:
    """
    Kubernetes, dask-kubernetes, a scheduler and its agent. Time passes in `advance` alone.

    Args:
        startup: How long workers take to come.
        threads: Of one worker, by group.
        capacity: Workers that there is room for; the others wait for it. None: any number.
        handle_s: How long dask-kubernetes takes to act on a change of `replicas`.
        drain_s: How long the agent takes to empty a worker once its tasks are done.
    """

    def __init__(
        self, workload: Workload, startup: Startup, threads: Mapping[str, int], *,
        capacity: int | None = None, handle_s: float = 0.0, drain_s: float = DRAIN_S,
    ) -> None:  # fmt: skip
        self.workload, self.startup, self._threads = workload, startup, threads
        self.capacity = math.inf if capacity is None else capacity
        self._handle_s, self._drain_s = handle_s, drain_s
        self.now = 0.0
        self.workers: dict[str, Worker] = {}
        self.replicas: dict[str, int] = dict.fromkeys(threads, 0)
        self.handled = dict(self.replicas)  # what dask-kubernetes has acted on
        self.ready: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.done: Counter[str] = Counter(workload.done)
        self.finished = 0
        self.redone = 0  # runs that ended with their worker's process
        self.killed = 0  # workers that dask-kubernetes chose to remove
        self.lost = 0  # tasks that came when the cluster had been deleted
        self.batches = Batches()
        self.came_s = 0.0  # of work, since the scheduler was last looked at
        self.is_deleted = False
        self.last_work_at = 0.0  # when the last task so far finished
        self.waited_s = 0.0  # task-seconds in the queue
        self._limits = Limits()
        self._owed: Counter[str] = Counter()  # released before they had come
        self._queue: list[tuple[int, int, str]] = []  # prefixes with ready tasks, next first
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._number = itertools.count(1)
        self._made: Counter[str] = Counter()
        self._releases = iter(workload.releases)
        self._release = next(self._releases, None)
        self._starts: dict[int, tuple[float, str]] = {}  # of runs: when, which worker
        self.shift_s = 0.0  # by how much the last burst came later than recorded
        self._due: dict[int, list[Arrival | Withdrawal]] = defaultdict(list)  # by burst
        begins = [burst.at for burst in workload.bursts]
        changes: list[Arrival | Withdrawal] = [*workload.arrivals, *workload.withdrawals]
        for change in changes:
            self._due[bisect.bisect_right(begins, change.at) - 1].append(change)
        self._held = {n for n, burst in enumerate(workload.bursts) if burst.pause_s is not None}
        for n in sorted(self._due.keys() - self._held):
            self._begin(n, 0.0)

    # Observing it.

    @property
    def unfinished(self) -> int:
        return self.ready.total() + self.waiting.total() + len(self._starts)

    @property
    def to_come(self) -> int:
        """Tasks that have not been submitted yet."""
        left = (change for changes in self._due.values() for change in changes)
        return sum(c.ready + c.waiting for c in left if isinstance(c, Arrival))

    @property
    def next_event_at(self) -> float:
        return self._events[0][0] if self._events else math.inf

    @property
    def awaits_work(self) -> bool:
        """Tells whether more is on its way, though nothing may be left to do."""
        return any(changes for n, changes in self._due.items() if n not in self._held)

    def of(self, group: str) -> Iterator[Worker]:
        return (w for w in self.workers.values() if w.group == group)

    def mean_s(self, prefix: str) -> float | None:
        """The mean duration that the scheduler has measured so far."""
        if self.done[prefix] > self.workload.done.get(prefix, 0):
            return self.workload.duration_s[prefix]
        return self.workload.known.get(prefix)

    def running(self) -> dict[str, tuple[int, float]]:
        """Tasks that run, by prefix, and for how long the longest had at the last heartbeat."""
        found: dict[str, tuple[int, float]] = {}
        for number, (began, name) in self._starts.items():
            prefix = self.workers[name].running[number]
            count, longest = found.get(prefix, (0, 0.0))
            found[prefix] = (count + 1, max(longest, self.now - began - HEARTBEAT_S))
        return found

    # Requests to Kubernetes.

    def add(self, group: str, *, connects_at: float | None = None) -> Worker:
        """
        Create a worker.

        Args:
            connects_at: When; if that is over it has been there already. None: as others do.
        """
        self._made[group] += 1
        name = f"{group}-worker-{self._made[group]:04d}"
        threads = max(1, self._threads[group])
        worker = Worker(name, f"{name}-uid", group, self.now, threads, pod_at=self.now)
        self.workers[name] = worker
        self.replicas.setdefault(group, 0)
        if connects_at is None:
            self.start(worker)
        elif connects_at > self.now:
            self._at(connects_at, partial(self._connect, worker, 0))
        else:
            self._connect(worker, 0)
        return worker

    def set_replicas(self, group: str, replicas: int) -> None:
        self.replicas[group] = replicas
        if self._handle_s:
            self._at(self.now + self._handle_s, partial(self.handle, group))
        else:
            self.handle(group)

    def handle(self, group: str) -> None:
        """Create missing workers and delete surplus ones, as `daskworkergroup_replica_update`."""
        if self.handled.get(group) == self.replicas[group]:
            return
        replicas = self.handled[group] = self.replicas[group]
        present = [w for w in self.of(group) if not w.deleting]
        for _ in range(replicas - len(present)):
            self.add(group)
        for worker in present[replicas:]:
            self.killed += 1
            self.delete(worker.name)  # whatever it does

    def delete(self, name: str) -> None:
        """Its process ends now, whatever it runs; it is gone when the API server has seen to it."""
        worker = self.workers.get(name)
        if worker is None or worker.deleting:
            return
        self._end_process(worker)
        worker.deleting = True
        self._at(self.now + DELETE_S, partial(self._remove, name))

    def delete_all(self) -> None:
        """The cluster is deleted, and all that was to be done with it."""
        self.is_deleted = True
        for name in list(self.workers):
            self.delete(name)
        self.ready.clear()
        self.waiting.clear()

    def restart(self, name: str) -> None:
        """Its pod is deleted, and its Deployment brings the next."""
        worker = self.workers[name]
        worker.pod, worker.pod_at = worker.pod + 1, self.now
        self.crash(name)

    def crash(self, name: str) -> None:
        """Its process ends, and another one starts."""
        worker = self.workers[name]
        self._end_process(worker)
        worker.runs, worker.is_cordoned = 0, False
        worker.retiring = None
        self.start(worker)

    # Requests to the agent.

    def retire(self, name: str, reason: Reason) -> None:
        """Begin to drain a worker: it gets no more tasks, and is empty after the last of them."""
        worker = self.workers[name]
        worker.retiring = Retiring(reason)
        self._drain_when_idle(worker)

    def cancel(self, name: str) -> None:
        worker = self.workers[name]
        worker.retiring = None
        self._assign()

    def enforce(self, limits: Limits) -> None:
        """Quotas of runs, as the agent keeps them between two passes."""
        self._limits = limits
        for worker in self.workers.values():
            worker.is_cordoned = worker.is_cordoned and self._is_spent(worker)
        left = limits.cordons - sum(w.is_cordoned for w in self.workers.values())
        for worker in self.workers.values():
            is_exact = self._quota_of(worker)[1]
            if worker.serves and not worker.is_cordoned and self._is_spent(worker):
                worker.is_cordoned = is_exact or left > 0
                left -= worker.is_cordoned
        self._assign()

    def _quota_of(self, worker: Worker) -> tuple[int, bool]:
        """Runs that a process may have (0: any number), and whether none beyond may begin."""
        limit = self._limits.workers.get(worker.name)
        number = self._limits.others if limit is None else limit.profile
        if number is None:
            return 0, False
        profile = self._limits.profiles[number]
        return (profile.runs if limit is None else limit.runs), profile.exact

    def _is_spent(self, worker: Worker) -> bool:
        runs, is_exact = self._quota_of(worker)
        had = worker.runs + (len(worker.running) if is_exact else 0)
        return bool(runs) and had >= runs

    # Events in time.

    def advance(self, until: float) -> None:
        """Let everything happen up to an instant."""
        while self._events and self._events[0][0] <= until:
            at, _, happen = heapq.heappop(self._events)
            self._pass_time(at)
            happen()
            if self._held and not self._starts and not self.unfinished:
                self._follow_on()
        self._pass_time(until)

    def _follow_on(self) -> None:
        """All is done: let those bursts come that a client submits next."""
        for n in sorted(self._held):
            if not self._due[n - 1] and n - 1 not in self._held:
                self._held.remove(n)
                burst = self.workload.bursts[n]
                self.shift_s = self.now + (burst.pause_s or 0.0) - burst.at
                self._begin(n, self.shift_s)

    def _begin(self, n: int, shift_s: float) -> None:
        for change in self._due[n]:
            self._at(change.at + shift_s, partial(self._change, n, change))

    def _change(self, n: int, change: Arrival | Withdrawal) -> None:
        self._due[n].remove(change)
        if isinstance(change, Arrival):
            self.arrive(change)
        else:
            self._withdraw(change)

    def _pass_time(self, until: float) -> None:
        self.waited_s += self.ready.total() * max(0.0, until - self.now)
        self.now = max(self.now, until)

    def _at(self, when: float, happen: Callable[[], object]) -> None:
        if when < math.inf:
            heapq.heappush(self._events, (when, next(self._number), happen))

    def start(self, worker: Worker) -> None:
        """Its process connects after a while, if there is room for it."""
        others = sum(not w.is_stuck for w in self.workers.values() if w is not worker)
        worker.is_stuck = others >= self.capacity
        if not worker.is_stuck:
            takes_s = self.startup(worker.group, int(worker.name.rpartition("-")[2]))
            self._at(self.now + takes_s, partial(self._connect, worker, worker.process))

    def _remove(self, name: str) -> None:
        """Forget a worker, and give its room to the next one."""
        self.workers.pop(name, None)
        self.fill()

    def fill(self) -> None:
        """Start workers that there is room for by now."""
        for worker in self.workers.values():
            if worker.is_stuck and not worker.deleting:
                self.start(worker)

    def _connect(self, worker: Worker, process: int) -> None:
        if not worker.deleting and worker.process == process:
            worker.connected_at = worker.idle_since = self.now
            self._assign()

    def _end_process(self, worker: Worker) -> None:
        """Run its tasks again elsewhere: the operator promises that this never happens."""
        self.redone += len(worker.running)
        for number, prefix in worker.running.items():
            del self._starts[number]
            self._push(prefix, 1, first=True)
        worker.running.clear()
        worker.process += 1
        worker.connected_at = worker.idle_since = math.inf
        self._assign()

    def _drain_when_idle(self, worker: Worker) -> None:
        if worker.state == "draining" and not worker.running:
            self._at(self.now + self._drain_s, partial(self._drained, worker))

    def _drained(self, worker: Worker) -> None:
        if worker.retiring and not worker.running:
            worker.retiring = replace(worker.retiring, is_drained=True)

    def arrive(self, arrival: Arrival) -> None:
        """Tasks are submitted now."""
        if self.is_deleted:
            self.lost += arrival.ready + arrival.waiting
            return
        mean_s = self.mean_s(arrival.prefix) or UNKNOWN_S
        self.came_s += (arrival.ready + arrival.waiting) * mean_s
        owed = min(self._owed[arrival.prefix], arrival.waiting)
        self._owed[arrival.prefix] -= owed
        self.waiting[arrival.prefix] += arrival.waiting - owed
        self._push(arrival.prefix, arrival.ready + owed)
        self._assign()

    def _withdraw(self, withdrawal: Withdrawal) -> None:
        """Take away tasks, waiting ones first; those that run go on."""
        left = withdrawal.tasks
        for tasks in (self.waiting, self.ready):
            taken = min(left, tasks[withdrawal.prefix])
            tasks[withdrawal.prefix] -= taken
            left -= taken
        self._assign()

    def _push(self, prefix: str, tasks: int, *, first: bool = False) -> None:
        if tasks and not self.is_deleted:
            self.ready[prefix] += tasks
            # Tasks that others wait for, and those that had begun already, go before new ones:
            # Dask finishes what it has begun.
            heapq.heappush(self._queue, (0 if first else 1, next(self._number), prefix))

    def _next_prefix(self) -> str | None:
        while self._queue:
            prefix = self._queue[0][2]
            if self.ready[prefix] > 0:
                return prefix
            heapq.heappop(self._queue)
        return None

    def _assign(self) -> None:
        """Give ready tasks to free threads, the least occupied worker first."""
        self._get_ready()
        free = [
            (len(w.running) / w.threads, w.name) for w in self.workers.values() if w.takes_tasks
        ]
        heapq.heapify(free)
        while free and (prefix := self._next_prefix()) is not None:
            worker = self.workers[heapq.heappop(free)[1]]
            self.run(worker, prefix)
            if worker.takes_tasks:
                heapq.heappush(free, (len(worker.running) / worker.threads, worker.name))

    def run(self, worker: Worker, prefix: str) -> None:
        """Begin a ready task."""
        self.ready[prefix] -= 1
        number = next(self._number)
        worker.running[number] = prefix
        worker.idle_since = math.inf
        worker.is_cordoned = self._quota_of(worker)[1] and self._is_spent(worker)
        self._starts[number] = (self.now, worker.name)
        self._at(self.now + self.workload.duration_s[prefix], partial(self.finish, worker, number))

    def finish(self, worker: Worker, number: int) -> None:
        """End a run that has not been interrupted."""
        prefix = worker.running.pop(number, None)
        if prefix is None:  # its worker was taken away
            return
        del self._starts[number]
        self.finished += 1
        self.done[prefix] += 1
        worker.runs += 1
        self.last_work_at = self.now
        if not worker.running:
            worker.idle_since = self.now
            self._drain_when_idle(worker)
        if self._next_prefix() is None or not worker.takes_tasks:
            self._assign()
        else:  # with tasks in the queue every other thread is taken
            self._get_ready()
            prefix = self._next_prefix()
            assert prefix is not None
            self.run(worker, prefix)

    def _get_ready(self) -> None:
        """Let tasks wait no more whose turn has come, or the next ones if nothing else can run."""
        while self._release is not None:
            is_stuck = not self.ready.total() and not self._starts and self.waiting.total()
            if self._release.after > self.finished and not is_stuck:
                return
            prefix, tasks = self._release.prefix, self._release.tasks
            here = min(tasks, self.waiting[prefix])
            self.waiting[prefix] -= here
            self._owed[prefix] += tasks - here
            self._push(prefix, here, first=True)
            self._release = next(self._releases, None)
        if not self.ready.total() and not self._starts:
            # No release is left for them: the trace told of fewer than have come to wait.
            for prefix in sorted(self.waiting):
                tasks, self.waiting[prefix] = self.waiting[prefix], 0
                self._push(prefix, tasks)


def startup_of(arrived: Mapping[str, Sequence[float]], default_s: float) -> Startup:
    """
    Start-up times of workers: one measured time after the other, again and again.

    Args:
        arrived: Seconds, by group. A group of which none is known goes by those of all.
        default_s: Where nothing was measured.
    """
    every = [s for seconds in arrived.values() for s in seconds]

    def startup(group: str, number: int) -> float:
        times = arrived.get(group) or every
        return times[number % len(times)] if times else default_s

    return startup
