"""Bytes of results that one worker alone holds: exact, within a budget of results a snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from dask_adaptive_agent.roster import Entry

#: Results looked at for one snapshot, on workers whose data has changed (0.1 to 0.2 us each).
BUDGET = 20_000
#: Results looked at again although nothing has changed on their worker: copies elsewhere may have.
AGAIN = 5_000


class SoleBytes:
    """
    Keeps `Entry.sole_bytes` fresh.

    With no more results than `again`, all are looked at each time and every figure is exact. With
    more, workers whose data has changed come first, idle ones before busy ones; one that must wait
    counts all of its data (too much, so it is never taken for cheap to lose). The others are
    looked at in turn.
    """

    def __init__(self, budget: int = BUDGET, again: int = AGAIN) -> None:
        self._budget = budget
        self._again = again
        self._next = 0  # slot at which the next round goes on

    def refresh(self, entries: Iterable[Entry]) -> None:
        holders = []
        results = 0
        for entry in entries:
            n = len(entry.ws.has_what)
            if n:
                holders.append(entry)
                results += n
            elif entry.sole_key is not None:
                entry.sole_key, entry.sole_bytes = None, 0
        for entry in holders if results <= self._again else self._chosen(holders):
            _look(entry)

    def _chosen(self, holders: list[Entry]) -> list[Entry]:
        idle: list[Entry] = []
        busy: list[Entry] = []
        same: list[Entry] = []
        for entry in holders:
            ws = entry.ws
            if entry.sole_key == (ws.nbytes, len(ws.has_what)):
                same.append(entry)
            else:
                entry.sole_key, entry.sole_bytes = None, ws.nbytes
                (busy if ws.processing else idle).append(entry)
        changed = _first(idle + busy, self._budget)
        start = self._next
        again = _first(
            [e for e in same if e.slot >= start] + [e for e in same if e.slot < start], self._again
        )
        if again:
            self._next = again[-1].slot + 1
        return changed + again


def _first(entries: list[Entry], results: int) -> list[Entry]:
    """As many as hold so many results, but at least one: or a full worker never had its turn."""
    for i, entry in enumerate(entries):
        results -= len(entry.ws.has_what)
        if results < 0:
            return entries[: max(1, i)]
    return entries


def _look(entry: Entry) -> None:
    ws = entry.ws
    entry.sole_bytes = sum([ts.nbytes for ts in ws.has_what if len(ts.who_has or ()) == 1])
    entry.sole_key = (ws.nbytes, len(ws.has_what))
