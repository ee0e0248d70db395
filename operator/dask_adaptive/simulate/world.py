"""A cluster in simulated time: tasks on threads, and workers that come, idle and go."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from dask_adaptive.model.observed import Leaving
from dask_adaptive.model.reason import Reason
from dask_adaptive.simulate.load import UNKNOWN_S, Arrival, Load, Withdrawal
from dask_adaptive_agent.lots import Lots

#: From the call that deletes a worker until it is seen gone, and from the call that asks for one
#: until it exists: upstream's operator makes tens of Deployments a second.
API_S = 0.5

#: How long the agent needs to empty a worker that runs nothing. Results are not modelled.
DRAIN_S = 0.5


@dataclass(slots=True)
class Worker:
    """One worker, from being asked for until it is gone."""

    name: str
    uid: str
    group: str
    made_at: float
    threads: int
    life: int = 0  # counts up when its process is another
    connected_at: float = math.inf
    idle_since: float = math.inf
    running: dict[int, str] = field(default_factory=dict)  # prefix by number of the run
    runs: int = 0
    leaving: Leaving = Leaving.NO
    leaving_reason: Reason | None = None
    going: bool = False
    is_stuck: bool = False  # there is no room for it

    @property
    def is_here(self) -> bool:
        """Whether its scheduler knows it."""
        return self.connected_at < math.inf and not self.going

    @property
    def takes_tasks(self) -> bool:
        is_free = self.leaving is Leaving.NO and len(self.running) < self.threads
        return self.is_here and is_free


#: How long the n-th worker of a group takes to connect, in seconds.
Startup = Callable[[str, int], float]


class World:
    """
    What a platform and a scheduler would show. Everything in it happens by `advance`.

    Args:
        load: What is to be done.
        startup: How long workers take to come.
        threads: Of one worker, by group.
        capacity: Workers that there is room for; the others wait for it. None: any number.
    """

    def __init__(
        self, load: Load, startup: Startup, threads: Mapping[str, int],
        *, capacity: int | None = None,
    ) -> None:  # fmt: skip
        self.load, self._startup, self._threads = load, startup, threads
        self._capacity = math.inf if capacity is None else capacity
        self.now = 0.0
        self.workers: dict[str, Worker] = {}
        self.replicas: dict[str, int] = dict.fromkeys(threads, 0)
        self.ready: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.done: Counter[str] = Counter(load.done)
        self.finished = self.redone = 0
        self.lots = Lots()
        self.is_deleted = False
        self.lost = 0  # tasks that came when the cluster had been deleted
        self.last_work_at = 0.0  # when the last task so far finished
        self.busy_s = 0.0  # thread-seconds of runs that finished
        self.waited_s = 0.0  # task-seconds in the queue
        self._owed: Counter[str] = Counter()  # released before they had come
        self._queue: list[tuple[int, int, str]] = []  # prefixes with ready tasks, next first
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._number = itertools.count(1)
        self._made: Counter[str] = Counter()
        self._releases = iter(load.releases)
        self._release = next(self._releases, None)
        self._starts: dict[int, tuple[float, str]] = {}  # of runs: when, which worker
        for arrival in load.arrivals:
            self._at(arrival.at, partial(self._arrive, arrival))
        for withdrawal in load.withdrawals:
            self._at(withdrawal.at, partial(self._withdraw, withdrawal))

    @property
    def unfinished(self) -> int:
        return self.ready.total() + self.waiting.total() + len(self._starts)

    @property
    def is_over(self) -> bool:
        """Whether all that comes has come, and is done."""
        return not self.unfinished and not any(a.at > self.now for a in self.load.arrivals[-1:])

    def of(self, group: str) -> Iterator[Worker]:
        return (w for w in self.workers.values() if w.group == group)

    def mean_s(self, prefix: str) -> float | None:
        """As the scheduler has measured it so far."""
        if self.done[prefix] > self.load.done.get(prefix, 0):
            return self.load.duration_s[prefix]
        return self.load.known.get(prefix)

    def running(self) -> dict[str, tuple[int, float]]:
        """Tasks that run, by prefix, and for how long the longest of them has."""
        found: dict[str, tuple[int, float]] = {}
        for number, (began, name) in self._starts.items():
            prefix = self.workers[name].running[number]
            count, longest = found.get(prefix, (0, 0.0))
            found[prefix] = (count + 1, max(longest, self.now - began))
        return found

    def add(self, group: str, *, connected: bool = False, idle_s: float = 0.0) -> Worker:
        """A worker that is asked for now, or that is there already."""
        self._made[group] += 1
        number = self._made[group]
        name = f"{group}-worker-{number:04d}"
        worker = Worker(name, f"{name}-uid", group, self.now, max(1, self._threads[group]))
        self.workers[name] = worker
        self.replicas.setdefault(group, 0)
        if connected:
            self._connect(worker, 0, idle_s)
        else:
            self._start(worker)
        return worker

    def set_replicas(self, group: str, replicas: int) -> None:
        """As upstream's operator acts on it: it makes what is missing, and takes what is over."""
        self.replicas[group] = replicas
        present = list(self.of(group))
        for _ in range(replicas - len(present)):
            self.add(group)
        for worker in present[replicas:] if replicas < len(present) else ():
            self.delete(worker.name)  # whatever it does

    def retire(self, name: str, reason: Reason, *, busy_ok: bool) -> bool:
        """As the agent does: refused if the worker has tasks, but for one that is replaced."""
        worker = self.workers[name]
        if worker.running and not busy_ok:
            return False
        worker.leaving, worker.leaving_reason = Leaving.DRAINING, reason
        self._drain_when_idle(worker)
        return True

    def cancel(self, name: str) -> None:
        worker = self.workers[name]
        worker.leaving, worker.leaving_reason = Leaving.NO, None
        self._assign()

    def delete(self, name: str) -> None:
        """Its process ends now, whatever it runs; it is gone when the API server has seen to it."""
        worker = self.workers.get(name)
        if worker is None or worker.going:
            return
        self._end_process(worker)
        worker.going = True
        self._at(self.now + API_S, partial(self._remove, name))

    def delete_all(self) -> None:
        """The cluster is deleted, and all that was to be done with it."""
        self.is_deleted = True
        for name in list(self.workers):
            self.delete(name)
        self.ready.clear()
        self.waiting.clear()

    def restart(self, name: str) -> None:
        """Its process ends, and its platform brings the next for the same worker."""
        worker = self.workers[name]
        self._end_process(worker)
        worker.leaving, worker.leaving_reason, worker.runs = Leaving.NO, None, 0
        worker.made_at = self.now
        self._start(worker)

    def advance(self, until: float) -> None:
        """Let everything happen up to an instant."""
        while self._events and self._events[0][0] <= until:
            at, _, happen = heapq.heappop(self._events)
            self._pass_time(at)
            happen()
        self._pass_time(until)

    def _pass_time(self, until: float) -> None:
        self.waited_s += self.ready.total() * max(0.0, until - self.now)
        self.now = max(self.now, until)

    def _at(self, when: float, happen: Callable[[], object]) -> None:
        if when < math.inf:
            heapq.heappush(self._events, (when, next(self._number), happen))

    def _start(self, worker: Worker) -> None:
        others = sum(not w.is_stuck for w in self.workers.values() if w is not worker)
        worker.is_stuck = others >= self._capacity
        if not worker.is_stuck:
            takes_s = self._startup(worker.group, int(worker.name.rpartition("-")[2]))
            self._at(self.now + takes_s, partial(self._connect, worker, worker.life))

    def _remove(self, name: str) -> None:
        """It is gone, and its room is the next one's."""
        self.workers.pop(name, None)
        waiting = next((w for w in self.workers.values() if w.is_stuck and not w.going), None)
        if waiting is not None:
            self._start(waiting)

    def _connect(self, worker: Worker, life: int, idle_s: float = 0.0) -> None:
        if worker.going or worker.life != life:
            return
        worker.connected_at, worker.idle_since = self.now, self.now - idle_s
        self._assign()

    def _end_process(self, worker: Worker) -> None:
        """What runs on it has to be run again: the promise that must not be broken."""
        self.redone += len(worker.running)
        for number, prefix in worker.running.items():
            del self._starts[number]
            self._push(prefix, 1, first=True)
        worker.running.clear()
        worker.life += 1
        worker.connected_at = worker.idle_since = math.inf
        self._assign()

    def _drain_when_idle(self, worker: Worker) -> None:
        if worker.leaving is Leaving.DRAINING and not worker.running:
            self._at(self.now + DRAIN_S, partial(self._drained, worker))

    def _drained(self, worker: Worker) -> None:
        if worker.leaving is Leaving.DRAINING and not worker.running:
            worker.leaving = Leaving.DRAINED

    def _arrive(self, arrival: Arrival) -> None:
        if self.is_deleted:
            self.lost += arrival.ready + arrival.waiting
            return
        mean_s = self.mean_s(arrival.prefix) or UNKNOWN_S
        self.lots.add(self.now, (arrival.ready + arrival.waiting) * mean_s)
        owed = min(self._owed[arrival.prefix], arrival.waiting)
        self._owed[arrival.prefix] -= owed
        self.waiting[arrival.prefix] += arrival.waiting - owed
        self._push(arrival.prefix, arrival.ready + owed)
        self._assign()

    def _withdraw(self, withdrawal: Withdrawal) -> None:
        """Those that wait first; what runs, runs to its end."""
        left = withdrawal.tasks
        for tasks in (self.waiting, self.ready):
            taken = min(left, tasks[withdrawal.prefix])
            tasks[withdrawal.prefix] -= taken
            left -= taken
        self._assign()

    def _push(self, prefix: str, tasks: int, *, first: bool = False) -> None:
        if tasks and not self.is_deleted:
            self.ready[prefix] += tasks
            # What others wait for, and what had begun already, goes before what is new: Dask
            # finishes what it has begun.
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
            self._run(worker, prefix)
            if worker.takes_tasks:
                heapq.heappush(free, (len(worker.running) / worker.threads, worker.name))

    def _run(self, worker: Worker, prefix: str) -> None:
        self.ready[prefix] -= 1
        number = next(self._number)
        worker.running[number] = prefix
        worker.idle_since = math.inf
        self._starts[number] = (self.now, worker.name)
        takes_s = self.load.duration_s[prefix]
        self._at(self.now + takes_s, partial(self._finish, worker, number))

    def _finish(self, worker: Worker, number: int) -> None:
        prefix = worker.running.pop(number, None)
        if prefix is None:  # its worker was taken away
            return
        began, _ = self._starts.pop(number)
        self.busy_s += self.now - began
        self.finished += 1
        self.done[prefix] += 1
        worker.runs += 1
        self.last_work_at = self.now
        if not worker.running:
            worker.idle_since = self.now
            self._drain_when_idle(worker)
        if (before := self._next_prefix()) is None or not worker.takes_tasks:
            self._assign()
        else:  # with tasks in the queue every other thread is taken
            self._get_ready()
            self._run(worker, self._next_prefix() or before)

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
            self._free_stranded()

    def _free_stranded(self) -> None:
        """No release is left for them: the trace told of fewer than have come to wait."""
        for prefix in sorted(self.waiting):
            tasks, self.waiting[prefix] = self.waiting[prefix], 0
            self._push(prefix, tasks)


def startup_of(arrived: Mapping[str, list[float]], default_s: float) -> Startup:
    """
    How long workers take to come, as measured: over a few workers each share of the measured times
    comes up as often as it did, in an order that is always the same.

    Args:
        arrived: Seconds, by group. A group of which none is known goes by those of all.
        default_s: Where nothing was measured.
    """
    sorted_s: dict[str, list[float]] = defaultdict(list)
    for group, seconds in arrived.items():
        sorted_s[group] = sorted(seconds)
    every = sorted(s for seconds in arrived.values() for s in seconds)

    def startup(group: str, number: int) -> float:
        times = sorted_s.get(group) or every
        return times[int(_spread(number) * len(times))] if times else default_s

    return startup


def _spread(number: int) -> float:
    """The `number`-th of a sequence that fills 0..1 evenly, however many are taken of it.

    Source: van der Corput's sequence, base 2.
    """
    value, share = 0.0, 0.5
    while number:
        value += share * (number % 2)
        number //= 2
        share /= 2
    return value
