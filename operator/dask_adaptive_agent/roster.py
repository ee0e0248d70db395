"""What the agent keeps of each worker; slots: the small numbers that name workers on the wire."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from dask_adaptive_agent.limits import NEVER

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

    from dask_adaptive_agent.failures import Record


class Entry:
    """What the agent keeps about one worker."""

    __slots__ = (
        "active_at", "ends_at", "exact_at", "own_end_at", "record", "runs", "slot", "sole_bytes",
        "sole_key", "stop_at", "ws",
    )  # fmt: skip

    def __init__(self, slot: int, ws: WorkerState, now: float) -> None:
        self.slot = slot
        self.ws = ws
        self.active_at = now  # when it last had a task, reported a run, or joined
        self.runs = 0  # that it has reported
        self.stop_at = NEVER  # runs at which somebody wants to know of it
        self.exact_at = NEVER  # the same, counting what is assigned to it
        self.ends_at = math.inf  # by what the operator has said, or the worker itself
        self.own_end_at = math.inf  # by its own lifetime
        self.record: Record | None = None  # of its failures, if there were any
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

    def sync(self) -> dict[str, Entry]:
        """Bring the entries in step with the scheduler, and return them."""
        workers = self._scheduler.workers
        entries = self.entries
        for address, ws in workers.items():
            entry = entries.get(address)
            if entry is None or entry.ws is not ws:
                self._add(ws)
        if len(entries) > len(workers):
            for address in entries.keys() - workers.keys():
                self.forget(address)
        return entries

    def joined(self, address: str) -> Entry | None:
        """The entry of a worker that has just joined: a new one, whoever had the address before."""
        ws = self._scheduler.workers.get(address)
        if ws is None:
            return None
        entry = self.entries.get(address)
        return entry if entry is not None and entry.ws is ws else self._add(ws)

    def _add(self, ws: WorkerState) -> Entry:
        self.entries.pop(ws.address, None)  # a new worker goes to the end: the order is by slot
        entry = self.entries[ws.address] = Entry(self.known, ws, self._clock())
        self.known += 1
        return entry

    def forget(self, address: str) -> None:
        self.entries.pop(address, None)

    def by_name(self) -> dict[str, list[WorkerState]]:
        """
        Workers by the name they have on the wire.

        Dask's names are any hashable (LocalCluster's are whole numbers), so two workers may share
        the text of a name; each of them is meant then.
        """
        out: dict[str, list[WorkerState]] = {}
        for ws in self._scheduler.workers.values():
            out.setdefault(str(ws.name), []).append(ws)
            if str(ws.name) != ws.address:
                out.setdefault(ws.address, []).append(ws)
        return out
