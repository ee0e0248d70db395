"""Read the agent's columns as values, remembering the names that are sent only once."""

from __future__ import annotations

import math
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
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Quota
from dask_adaptive.scheduler.demand import read_demand, read_quiet, read_wants
from dask_adaptive.scheduler.meters import Metered, read_meters
from dask_adaptive.scheduler.notes import NoteReader
from dask_adaptive.scheduler.reliefs import read_config, read_reliefs, read_serialized
from dask_adaptive_agent import wire

#: Every so many snapshots the agent is asked for meters, whoever wants them.
PROBE = 10

#: Why the agent stops a worker; a kind that is not listed is about its end.
_STOPS = {
    wire.S_TASKS: Quota.TASKS,
    wire.S_FAILURES: Quota.FAILURES,
    wire.S_PATTERN: Quota.FAILURES,
}

#: What the agent is given as the reason of a retirement is a word of ours, unless others gave it.
_REASONS = {reason.value: reason for reason in Reason}


@dataclass(frozen=True, slots=True)
class _Introduced:
    name: str
    address: str
    nthreads: int
    memory_limit: int


@dataclass(frozen=True, slots=True)
class _Departing:
    name: str  # as it was
    message: str  # what it waits for; never empty
    left_s: float


class SnapshotReader:
    """
    Turns `wire.Snapshot` into `ObservedScheduler`; holds one session's names by slot.

    What an older agent of the same protocol does not send is taken for nothing to report.

    Args:
        notes: Outlives this reader where a link is opened again, so that nothing is told twice.
    """

    def __init__(self, notes: NoteReader) -> None:
        self._notes = notes
        self._session, self._known = "", 0
        self._introduced: dict[int, _Introduced] = {}
        self._unmetered = PROBE  # snapshots since one with meters
        self._has_lifetimes = False

    @property
    def wants_meters(self) -> bool:
        """
        Whether some worker may end by Dask's own `--lifetime`, quotas or not. Workers report that
        some time after they have joined, so it is looked at from time to time.
        """
        return self._has_lifetimes or self._unmetered >= PROBE

    @property
    def request(self) -> dict[str, Any]:
        """What to send along with `observe` so that what is known is not sent again."""
        heard = self._notes.heard(self._session)
        return {"session": self._session, "known": self._known, "heard": heard}

    def read(self, snapshot: Mapping[str, Any], *, agent: str, version: str) -> ObservedScheduler:
        """
        Read one answer.

        Raises:
            LinkError: Not the shape of `wire.Snapshot`; the caller should say hello again.
        """
        try:
            return self._read(snapshot, agent=agent, version=version)
        except (KeyError, TypeError, ValueError, IndexError) as exc:
            self.__init__(self._notes)  # type: ignore[misc]  # names may be half read
            raise LinkError(f"the agent's snapshot cannot be read: {exc!r}") from exc

    def _read(self, snapshot: Mapping[str, Any], *, agent: str, version: str) -> ObservedScheduler:
        self._introduce(snapshot)
        totals = snapshot["totals"]
        metered = read_meters(snapshot, lambda slot: self._introduced[slot].memory_limit)
        self._unmetered += 1
        if snapshot.get("meters") is not None:
            self._unmetered, self._has_lifetimes = 0, bool(metered.lifetimes)
        return ObservedScheduler(
            session=snapshot["session"],
            distributed=version,
            agent=agent,
            target=snapshot["target"],
            workers=self._workers(snapshot, metered),
            shuffles=tuple(
                Shuffle(s["id"], s["run_id"], s["workers"]) for s in snapshot["shuffles"]
            ),
            notes=self._notes.read(snapshot["session"], snapshot.get("notes", ())),
            pins_expired=tuple(sorted(snapshot.get("pins_expired", {}).items())),
            redone=tuple(sorted(snapshot.get("redone", {}).items())),
            held=metered.held,
            expected_s=metered.expected_s,
            queued=totals["queued"] + totals["unrunnable"],
            processing=totals["processing"],
            tally=_tally(snapshot["tally"]),
            relief=read_reliefs(snapshot),
            config=read_config(snapshot),
            serialized=read_serialized(snapshot),
            demand=read_demand(snapshot),
            wants=read_wants(snapshot),
            quiet=read_quiet(snapshot),
            results=totals.get("memory", 0),
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

    def _workers(
        self, snapshot: Mapping[str, Any], metered: Metered
    ) -> tuple[SchedulerWorker, ...]:
        columns: Mapping[str, Any] = snapshot["workers"]
        closable, actors = set(snapshot["closable"]), set(snapshot["actors"])
        pins, leaving = _pins(snapshot), {r["slot"]: r for r in snapshot["retirements"]}
        departing = {r["slot"]: _departing(r) for r in snapshot.get("departures", ())}
        stops = {r["slot"]: r["message"] or r["kind"] for r in snapshot.get("stops", ())}
        kinds = {
            r["slot"]: _STOPS.get(r["kind"], Quota.LIFETIME) for r in snapshot.get("stops", ())
        }
        rows = zip(*(columns[c] for c in wire.Columns.__annotations__), strict=True)
        return tuple(
            SchedulerWorker(
                name=departing[slot].name if slot in departing else self._introduced[slot].name,
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
                leaving_reason=_REASONS.get(leaving[slot]["reason"]) if slot in leaving else None,
                departing=departing[slot].message if slot in departing else "",
                departing_left_s=departing[slot].left_s if slot in departing else math.inf,
                use=metered.use(slot),
                lifetime_left_s=metered.lifetimes.get(slot, math.inf),
                stopped=stops.get(slot, ""),
                stopped_for=kinds.get(slot),
                too_short=slot in metered.too_short,
            )
            for slot, status, processing, occupancy_ms, idle_ms, sole_bytes, memory in rows
        )


def _pins(snapshot: Mapping[str, Any]) -> dict[int, tuple[Pin, ...]]:
    by_slot: dict[int, list[Pin]] = defaultdict(list)
    for row in snapshot["pins"]:
        left_ms = row["left_ms"]
        latest_s, for_s = row.get("latest_ms", left_ms) / 1000, row.get("for_ms", 0) / 1000
        pin = Pin(row["source"], row["owner"], row["reason"], left_ms / 1000, latest_s, for_s)
        for slot in row["slots"]:
            by_slot[slot].append(pin)
    return {slot: tuple(pins) for slot, pins in by_slot.items()}


def _departing(row: Mapping[str, Any]) -> _Departing:
    # A worker that departs may have been renamed, so that its replacement finds its name free.
    message = row["message"] or row["reason"] or "its process is about to end"
    left_s = math.inf if row["left_ms"] < 0 else row["left_ms"] / 1000
    return _Departing(row["name"], message, left_s)


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
