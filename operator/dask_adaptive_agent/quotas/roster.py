"""One entry for each worker; its slot is the small number that names it on the wire."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dask_adaptive_agent.quotas.worker_limits import NEVER
from dask_adaptive_agent.text import common_name

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

    from dask_adaptive_agent.quotas.failures import Record

#: Results that one snapshot looks at, on workers whose data has changed (0.1 to 0.2 us each).
BUDGET = 20_000
#: Results that it looks at although their worker has the same data: copies elsewhere may be gone.
AGAIN = 1_000


class Entry:
    __slots__ = (
        "active_at", "ends_at", "exact_at", "joined_at", "noted", "record", "runs", "slot",
        "sole_bytes", "sole_key", "stop_at", "ws",
    )  # fmt: skip

    def __init__(self, slot: int, ws: WorkerState, now: float) -> None:
        self.slot = slot
        self.ws = ws
        self.joined_at: float | None = now  # None: before the agent came
        self.active_at = now  # when it last had a task, reported a run, or joined
        self.runs = 0  # that it has reported
        self.stop_at = NEVER  # reported runs at which its quota is reached
        self.exact_at = NEVER  # the same, counting what is assigned to it
        self.ends_at = math.inf  # by what the operator has said, or the worker itself
        self.record: Record | None = None  # of its failures, if there were any
        self.noted: set[str] = set()  # kinds of limits that people were told it has come to
        self.sole_bytes = 0
        self.sole_key: tuple[int, int] | None = None  # (nbytes, results) that sole_bytes is of


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
        for entry in self.sync().values():
            entry.joined_at = None

    def sync(self) -> dict[str, Entry]:
        """Bring the entries in step with the scheduler, and return them."""
        workers, entries = self._scheduler.workers, self.entries
        for address, ws in workers.items():
            entry = entries.get(address)
            if entry is None or entry.ws is not ws:
                self._add(ws)
        if len(entries) > len(workers):
            for address in entries.keys() - workers.keys():
                del entries[address]
        return entries

    def joined(self, address: str) -> Entry | None:
        """The entry of a worker that has just joined: a new one, whoever had the address before."""
        ws = self._scheduler.workers.get(address)
        if ws is None:
            return None
        entry = self.entries.get(address)
        return entry if entry is not None and entry.ws is ws else self._add(ws)

    def idle_s(self, entry: Entry) -> float:
        """Seconds since a worker last had a task, or joined; 0 while it has one."""
        now = self._clock()
        if entry.ws.processing:
            entry.active_at = now
        return now - entry.active_at

    def named(self, names: Iterable[str]) -> list[list[WorkerState]]:
        """
        The workers that each of these names means: by the name they have on the wire, or else all
        processes that were started under it.

        Dask's names are any hashable (LocalCluster's are whole numbers), so two workers may share
        the text of a name; each of them is meant then.
        """
        exact: dict[str, list[WorkerState]] = defaultdict(list)
        common: dict[str, list[WorkerState]] = defaultdict(list)
        for ws in self._scheduler.workers.values():
            for name in {str(ws.name), ws.address}:
                exact[name].append(ws)
        asked = list(names)
        if any(name not in exact for name in asked):
            for own, workers in exact.items():
                common[common_name(own)] += workers
        return [exact.get(name) or common[name] for name in asked]

    def _add(self, ws: WorkerState) -> Entry:
        self.entries.pop(ws.address, None)  # a new worker goes to the end: the order is by slot
        entry = self.entries[ws.address] = Entry(self.known, ws, self._clock())
        self.known += 1
        return entry


class SoleBytes:
    """
    Keeps `Entry.sole_bytes` fresh: bytes of results that one worker alone holds.

    With no more results than `AGAIN`, all are looked at each time and every figure is exact. With
    more, workers whose data has changed come first, idle ones before busy ones; one that must wait
    counts all of its data (too much, so it is never taken for cheap to lose). The others are
    looked at in turn.
    """

    def __init__(self) -> None:
        self._next = 0  # slot at which the next round goes on

    def refresh(self, entries: Iterable[Entry]) -> None:
        holders: list[tuple[Entry, int]] = []  # those with results, and how many
        results = 0
        for entry in entries:
            n = len(entry.ws.has_what)  # a property: asked once a worker
            if n:
                holders.append((entry, n))
                results += n
            elif entry.sole_key is not None:
                entry.sole_key, entry.sole_bytes = None, 0
        for entry, n in holders if results <= AGAIN else self._chosen(holders):
            ws = entry.ws
            sole = [ts.nbytes for ts in ws.has_what if len(ts.who_has or ()) == 1]
            entry.sole_bytes, entry.sole_key = sum(sole), (ws.nbytes, n)

    def _chosen(self, holders: list[tuple[Entry, int]]) -> list[tuple[Entry, int]]:
        idle: list[tuple[Entry, int]] = []
        busy: list[tuple[Entry, int]] = []
        same: list[tuple[Entry, int]] = []
        for holder in holders:
            entry, n = holder
            key = entry.sole_key
            if key is not None and key[1] == n and key[0] == entry.ws.nbytes:
                same.append(holder)
            else:
                entry.sole_key, entry.sole_bytes = None, entry.ws.nbytes
                (busy if entry.ws.processing else idle).append(holder)
        start = bisect.bisect_left([entry.slot for entry, _ in same], self._next)
        again = _first(same[start:] + same[:start], AGAIN)
        if again:
            self._next = again[-1][0].slot + 1
        return _first(idle + busy, BUDGET) + again


def _first(holders: list[tuple[Entry, int]], results: int) -> list[tuple[Entry, int]]:
    """Those that hold this many results together; at least one, or a full worker has no turn."""
    for i, (_, n) in enumerate(holders):
        results -= n
        if results < 0:
            return holders[: max(1, i)]
    return holders


def managed_bytes(ws: WorkerState) -> int:
    """
    Results in a worker's memory, not on its disk.

    `WorkerState.memory` says the same, slowly. A worker may have reported nothing yet.
    """
    spilled = ws.metrics.get("spilled_bytes")
    on_disk = spilled.get("memory") if spilled else 0
    return max(0, ws.nbytes - on_disk) if on_disk else ws.nbytes
