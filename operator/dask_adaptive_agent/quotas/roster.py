"""One entry for each worker; its slot is the small number that names it on the wire."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType

from distributed.core import Status
from distributed.scheduler import Scheduler, WorkerState

from dask_adaptive_agent.quotas.failures import Record
from dask_adaptive_agent.quotas.worker_limits import NEVER
from dask_adaptive_agent.text import common_name

#: No names by address.
NOBODY: Mapping[str, str] = MappingProxyType({})

#: A worker that has registered sets up its plugins, and then runs, within so many seconds.
SETTLING_S = 5.0

#: Results that one snapshot looks at (0.1 to 0.2 us each), and those of one worker more.
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
    sole_bytes: int = 0
    sole_key: tuple[int, int] = (0, 0)  # (nbytes, results) that sole_bytes is of
    sole_look: int = 0  # which look that was


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
        self._looks = 0  # at results
        for entry in self.sync().values():
            entry.joined_at = None

    def sync(self) -> dict[str, Entry]:
        """Bring the entries in step with the scheduler, and return them."""
        workers, entries = self._scheduler.workers, self.entries
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

    def weigh(self) -> None:
        """
        Keep `Entry.sole_bytes` fresh: bytes of results that one worker alone holds.

        With no more results than `BUDGET`, all are looked at each time and every figure is exact.
        With more, workers whose data has changed come first, idle ones before busy ones; one that
        must wait counts all of its data (too much, so it is never taken for cheap to lose). The
        others are looked at in turn: copies elsewhere may be gone.
        """
        holders = []  # in which order, how many results, and the entry
        results = 0
        for entry in self.entries.values():
            ws = entry.ws
            n = len(ws.has_what)  # a property: asked once a worker
            has_changed = entry.sole_key != (ws.nbytes, n)
            if has_changed:
                entry.sole_bytes = ws.nbytes
            if n:
                waits = has_changed and bool(ws.processing)
                holders.append((not has_changed, waits, entry.sole_look, entry.slot, n, entry))
                results += n
        if results > BUDGET:
            holders.sort(key=itemgetter(0, 1, 2, 3))
        self._looks += 1
        left = BUDGET
        for *_, n, entry in holders:
            ws = entry.ws
            entry.sole_bytes = sum([ts.nbytes for ts in ws.has_what if len(ts.who_has or ()) == 1])
            entry.sole_key, entry.sole_look = (ws.nbytes, n), self._looks
            left -= n
            if left <= 0:
                break


def managed_bytes(ws: WorkerState) -> int:
    """
    Results in a worker's memory, not on its disk.

    `WorkerState.memory` says the same, slowly. A worker may have reported nothing yet.
    """
    spilled = ws.metrics.get("spilled_bytes")
    on_disk = spilled.get("memory") if spilled else 0
    return max(0, ws.nbytes - on_disk) if on_disk else ws.nbytes
