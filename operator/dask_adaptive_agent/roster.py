"""Slots: the small numbers by which workers are named on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dask_adaptive_agent.activity import Activity

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState


class Entry:
    """What the agent keeps about one worker."""

    __slots__ = ("active_at", "slot", "sole_bytes", "sole_key", "ws")

    def __init__(self, slot: int, ws: WorkerState, now: float) -> None:
        self.slot = slot
        self.ws = ws
        self.active_at = now  # when it last had a task, or joined
        self.sole_bytes = 0
        self.sole_key: tuple[int, int] | None = None  # (nbytes, results) that sole_bytes is of


class Roster:
    """
    Every worker by address, ascending by slot.

    A worker that leaves takes its slot with it: pods get each other's addresses, and a new worker
    at an old address is another worker.
    """

    def __init__(
        self, scheduler: Scheduler, activity: Activity, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._activity = activity
        self._clock = clock
        self.entries: dict[str, Entry] = {}
        self.known = 0  # slots given so far

    def sync(self) -> dict[str, Entry]:
        """Bring the entries in step with the scheduler, and return them."""
        now = self._clock()
        workers = self._scheduler.workers
        entries = self.entries
        for address, ws in workers.items():
            entry = entries.get(address)
            if entry is None or entry.ws is not ws:
                entries.pop(address, None)  # a new worker goes to the end: the order is by slot
                entries[address] = Entry(self.known, ws, now)
                self.known += 1
        if len(entries) > len(workers):
            for address in entries.keys() - workers.keys():
                self.forget(address)
        if len(self._activity.last) > len(entries):  # a late report of a worker that had left
            for address in self._activity.last.keys() - entries.keys():
                self._activity.forget(address)
        return entries

    def forget(self, address: str) -> None:
        self.entries.pop(address, None)
        self._activity.forget(address)

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
