"""Read the agent's columns as values, remembering the names that are sent only once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.model.observed import (
    Leaving,
    ObservedScheduler,
    Pin,
    SchedulerWorker,
    Shuffle,
    Tally,
)
from dask_adaptive_agent import wire


@dataclass(frozen=True, slots=True)
class _Introduced:
    name: str
    address: str
    nthreads: int
    memory_limit: int


class SnapshotReader:
    """Turns `wire.Snapshot` into `ObservedScheduler`; holds one session's names by slot."""

    def __init__(self) -> None:
        self._session, self._known = "", 0
        self._introduced: dict[int, _Introduced] = {}

    @property
    def request(self) -> dict[str, Any]:
        """What to send along with `observe` so that known names are not sent again."""
        return {"session": self._session, "known": self._known}

    def read(self, snapshot: Mapping[str, Any], *, agent: str, version: str) -> ObservedScheduler:
        """
        Read one answer.

        Raises:
            LinkError: Not the shape of `wire.Snapshot`; the caller should say hello again.
        """
        try:
            return self._read(snapshot, agent=agent, version=version)
        except (KeyError, TypeError, ValueError, IndexError) as exc:
            self.__init__()  # type: ignore[misc]  # names may be half read
            raise LinkError(f"the agent's snapshot cannot be read: {exc!r}") from exc

    def _read(self, snapshot: Mapping[str, Any], *, agent: str, version: str) -> ObservedScheduler:
        self._introduce(snapshot)
        totals = snapshot["totals"]
        return ObservedScheduler(
            session=snapshot["session"],
            distributed=version,
            agent=agent,
            target=snapshot["target"],
            workers=self._workers(snapshot),
            shuffles=tuple(
                Shuffle(s["id"], s["run_id"], s["workers"]) for s in snapshot["shuffles"]
            ),
            queued=totals["queued"] + totals["unrunnable"],
            processing=totals["processing"],
            tally=_tally(snapshot["tally"]),
        )

    def _introduce(self, snapshot: Mapping[str, Any]) -> None:
        if snapshot["session"] != self._session:
            self._session, self._introduced = snapshot["session"], {}
        new = snapshot["introduced"]
        columns = (new["slot"], new["name"], new["address"], new["nthreads"], new["memory_limit"])
        for slot, name, address, nthreads, limit in zip(*columns, strict=True):
            self._introduced[slot] = _Introduced(name, address or name, nthreads, limit)
        self._known = snapshot["known"]
        gone = self._introduced.keys() - set(snapshot["workers"]["slot"])
        for slot in gone:
            del self._introduced[slot]

    def _workers(self, snapshot: Mapping[str, Any]) -> tuple[SchedulerWorker, ...]:
        columns: Mapping[str, Any] = snapshot["workers"]
        closable, actors = set(snapshot["closable"]), set(snapshot["actors"])
        pins, leaving = _pins(snapshot), {r["slot"]: r for r in snapshot["retirements"]}
        rows = zip(*(columns[c] for c in wire.Columns.__annotations__), strict=True)
        return tuple(
            SchedulerWorker(
                name=self._introduced[slot].name,
                address=self._introduced[slot].address,
                status=wire.STATUSES[status],
                nthreads=self._introduced[slot].nthreads,
                processing=processing,
                idle_s=idle_ms / 1000,
                sole_bytes=sole_bytes,
                memory=memory,
                memory_limit=self._introduced[slot].memory_limit,
                occupancy_s=occupancy_ms / 1000,
                closable=slot in closable,
                actors=slot in actors,
                pins=pins.get(slot, ()),
                leaving=Leaving(leaving[slot]["state"]) if slot in leaving else Leaving.NO,
                leaving_message=leaving[slot]["message"] if slot in leaving else "",
            )
            for slot, status, processing, occupancy_ms, idle_ms, sole_bytes, memory in rows
        )


def _pins(snapshot: Mapping[str, Any]) -> dict[int, tuple[Pin, ...]]:
    by_slot: dict[int, list[Pin]] = defaultdict(list)
    for row in snapshot["pins"]:
        pin = Pin(row["source"], row["owner"], row["reason"], row["left_ms"] / 1000)
        for slot in row["slots"]:
            by_slot[slot].append(pin)
    return {slot: tuple(pins) for slot, pins in by_slot.items()}


def _tally(row: Mapping[str, Any] | None) -> Tally | None:
    if row is None:
        return None
    return Tally(
        tasks=row["tasks"],
        runs=row["runs"],
        erred=row["erred"],
        repeated=row["repeated"],
        interrupted=row["interrupted"],
        shuffles=row["shuffles"],
        max_shuffle_run=row["max_shuffle_run"],
    )
