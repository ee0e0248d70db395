"""One entry for each worker; its slot is the small number that names it on the wire."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from operator import attrgetter, is_not
from types import MappingProxyType
from typing import Any

from distributed.core import Status
from distributed.scheduler import Scheduler, WorkerState

from dask_adaptive_agent.guard import Guard, whole
from dask_adaptive_agent.quotas.failures import Record
from dask_adaptive_agent.quotas.worker_limits import NEVER
from dask_adaptive_agent.text import common_name
from dask_adaptive_agent.worker_side import lifetime

#: No names by address.
NOBODY: Mapping[str, str] = MappingProxyType({})

#: A worker that has registered sets up its plugins, and then runs, within so many seconds.
SETTLING_S = 5.0

#: Copies of results that one snapshot looks at (0.1 to 0.2 us each).
BUDGET = 20_000


@dataclass(eq=False)
class Entry:
    slot: int
    ws: WorkerState
    active_at: float  # when it last had a task, reported a run, or joined
    joined_at: float | None  # None: before the agent came
    runs: int = 0  # that it has reported
    cordon_at: int = NEVER  # reported runs at which its quota is reached
    exact_at: int = NEVER  # the same, counting what is assigned to it
    ends_at: float = math.inf  # by what the operator has said, or the worker itself
    record: Record | None = None  # of its failures, if there were any
    noted: set[str] = field(default_factory=set)  # kinds of limits that were reported
    report: Any = None  # the metrics that these are of
    memory: int = 0
    on_disk: int = 0  # bytes of results that are spilled
    cancelled: int = 0  # runs
    has_lifetime: bool = False


class Roster:
    """
    Every worker by address, ascending by slot.

    A worker that leaves takes its slot with it: pods get each other's addresses, and a new worker
    at an old address is another worker.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self.entries: dict[str, Entry] = {}
        self.known = 0  # slots given so far
        #: As of the last `sync`. The scheduler's own dict is sorted, and slow to walk.
        self.workers: dict[str, WorkerState] = {}
        for entry in self.sync().values():
            entry.joined_at = None

    def sync(self) -> dict[str, Entry]:
        """Bring the entries in step with the scheduler, and return them."""
        workers, entries = self._scheduler.workers, self.entries
        if self.workers == workers and len(entries) == len(workers):
            return entries
        self.workers = dict(workers)
        for address, ws in workers.items():
            entry = entries.get(address)
            if entry is None or entry.ws is not ws:
                self.add(ws)
        if len(entries) > len(workers):
            for address in entries.keys() - workers.keys():
                del entries[address]
        return entries

    def of(self, ws: WorkerState) -> Entry | None:
        """The entry of this very worker; another one may have come to its address."""
        entry = self.entries.get(ws.address)
        return entry if entry is not None and entry.ws is ws else None

    def idle_s(self, entry: Entry) -> float:
        """Seconds since a worker last had a task, or joined; 0 while it has one."""
        now = self._clock()
        if entry.ws.processing:
            entry.active_at = now
        return now - entry.active_at

    def is_settling(self, wanted: Set[str] = frozenset()) -> bool:
        """Tells whether a worker with these resources has just registered, and does not run yet."""
        if len(self._scheduler.running) == len(self._scheduler.workers):
            return False
        since = self._clock() - SETTLING_S
        joined = [e.ws for e in self.entries.values() if e.joined_at and e.joined_at > since]
        return any([ws.status is Status.init and wanted <= ws.resources.keys() for ws in joined])

    def named(
        self, names: Iterable[str], terminating: Mapping[str, str] = NOBODY
    ) -> list[list[WorkerState]]:
        """
        The workers that each of these means: an address, the name they have on the wire, or else
        that under which several processes were started.

        Dask's names are any hashable (LocalCluster's are whole numbers), so two workers may share
        the text of a name; each of them is meant then. But where `ending` names some by address,
        they alone are meant: another worker may have taken their name.
        """
        requested, workers = list(names), self._scheduler.workers
        exact: dict[str, list[WorkerState]] = defaultdict(list)
        common: dict[str, list[WorkerState]] = defaultdict(list)
        for ws in () if workers.keys() >= set(requested) else workers.values():
            exact[terminating.get(ws.address, str(ws.name))].append(ws)
        for own, found in exact.items() if terminating else ():
            exact[own] = [ws for ws in found if ws.address in terminating] or found
        for own, found in exact.items() if not exact.keys() >= {*requested} else ():
            common[common_name(own)] += found
        return [[workers[n]] if n in workers else exact.get(n) or common[n] for n in requested]

    def add(self, ws: WorkerState) -> Entry:
        """A new entry, whoever had the address before."""
        self.entries.pop(ws.address, None)  # a new worker goes to the end: the order is by slot
        now = self._clock()
        entry = self.entries[ws.address] = Entry(self.known, ws, now, now)
        self.known += 1
        return entry

    def sole_bytes(self) -> list[int]:
        """
        Bytes of results that each worker alone holds: all of its bytes, but for those of results
        that have copies. Of more copies than `BUDGET` the rest counts as well: too much, so none is
        taken for cheap to lose.
        """
        shared: dict[str, int] = defaultdict(int)
        left = BUDGET
        for ts in self._scheduler.replicated_tasks:
            left -= len(ts.who_has or ())
            if left < 0:
                break
            nbytes = ts.get_nbytes()
            for ws in ts.who_has or ():
                shared[ws.address] += nbytes
        if not shared:
            return list(map(attrgetter("ws.nbytes"), self.entries.values()))
        return [e.ws.nbytes - shared.get(address, 0) for address, e in self.entries.items()]

    def read_reports(self, guard: Guard) -> None:
        """Read what workers have reported since the last call: a heartbeat brings a new mapping."""
        entries = self.entries.values()
        are_new = map(
            is_not, map(attrgetter("ws.metrics"), entries), map(attrgetter("report"), entries)
        )
        for entry in list(compress(entries, are_new)):
            entry.report = metrics = entry.ws.metrics
            for name, read in REPORTED.items():
                setattr(entry, name, guard.section(name, partial(_number, read, metrics), 0))


def _number(read: Callable[[Any], Any], metrics: Any) -> int:
    return whole(read(metrics))


#: What is read of a worker's metrics. It may have reported nothing yet.
REPORTED: dict[str, Callable[[Any], Any]] = {
    "has_lifetime": lambda metrics: lifetime.METRIC in metrics,
    "memory": lambda metrics: metrics.get("memory", 0),
    "on_disk": lambda metrics: (metrics.get("spilled_bytes") or {}).get("memory") or 0,
    "cancelled": lambda metrics: (metrics.get("task_counts") or {}).get("cancelled", 0),
}
