"""Read the agent's columns as values, remembering the names that are sent only once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.model.observed import (
    ConfigProblem,
    Cordon,
    Demand,
    Leaving,
    Need,
    Note,
    ObservedScheduler,
    Pin,
    PrefixWork,
    Quiet,
    ReliefState,
    SchedulerWorker,
    Serialized,
    SerializedFunction,
    Shuffle,
    Tally,
    UpcomingShuffle,
    Want,
)
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import UNUSED, Quota, Use
from dask_adaptive_agent import wire

#: Whoever asks for the first time does not know what was told before: older notes are history.
FRESH_S = 60.0

#: As the wire promises; a newer agent may send more.
MAX_TOP = 10

T = TypeVar("T")

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
        """Arguments of `observe` by which the agent leaves out what is known."""
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
            shuffles=_rows(Shuffle, snapshot["shuffles"]),
            notes=self._notes.read(snapshot["session"], snapshot.get("notes", ())),
            pins_expired=tuple(sorted(snapshot.get("pins_expired", {}).items())),
            redone=tuple(sorted(snapshot.get("redone", {}).items())),
            held=metered.held,
            expected_s=metered.expected_s,
            queued=totals["queued"] + totals["unrunnable"],
            processing=totals["processing"],
            tally=_record(Tally, snapshot["tally"]) if snapshot["tally"] else None,
            relief=tuple(
                _record(ReliefState, {**row, "counts": sorted(row["counts"].items())})
                for row in snapshot.get("relief", ())
            ),
            config=_rows(ConfigProblem, snapshot["config"]) if "config" in snapshot else None,
            serialized=_serialized(snapshot.get("serialized")),
            demand=read_demand(snapshot),
            wants=_rows(Want, snapshot.get("wants", ())),
            # An agent that does not say counts as in use, so nothing is taken from anybody.
            quiet=_record(Quiet, snapshot.get("quiet", {})),
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
        cordons = {r["slot"]: _cordon(r) for r in snapshot.get("stops", ())}
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
                closable=slot in closable,
                actors=slot in actors,
                pins=pins.get(slot, ()),
                leaving=Leaving(leaving[slot]["state"]) if slot in leaving else Leaving.NO,
                leaving_message=leaving[slot]["message"] if slot in leaving else "",
                leaving_reason=_REASONS.get(leaving[slot]["reason"]) if slot in leaving else None,
                terminating=departing[slot].message if slot in departing else "",
                terminates_in_s=departing[slot].left_s if slot in departing else math.inf,
                use=metered.use(slot),
                lifetime_left_s=metered.lifetimes.get(slot, math.inf),
                cordon=cordons.get(slot),
                too_short=slot in metered.too_short,
            )
            for slot, status, processing, _, idle_ms, sole_bytes, memory in rows
        )


def _pins(snapshot: Mapping[str, Any]) -> dict[int, tuple[Pin, ...]]:
    by_slot: dict[int, list[Pin]] = defaultdict(list)
    for row in snapshot["pins"]:
        pin = _record(Pin, {"latest_ms": row["left_ms"], **row})
        for slot in row["slots"]:
            by_slot[slot].append(pin)
    return {slot: tuple(pins) for slot, pins in by_slot.items()}


def _cordon(row: Mapping[str, Any]) -> Cordon:
    return Cordon(_STOPS.get(row["kind"], Quota.LIFETIME), row["message"] or row["kind"])


def _departing(row: Mapping[str, Any]) -> _Departing:
    # A worker that departs may have been renamed, so that its replacement finds its name free.
    message = row["message"] or row["reason"] or "its process is about to end"
    left_s = math.inf if row["left_ms"] < 0 else row["left_ms"] / 1000
    return _Departing(row["name"], message, left_s)


@dataclass(frozen=True, slots=True)
class Metered:
    """`wire.Meters` by slot; empty where the agent was not asked, or is too old to answer."""

    uses: Mapping[int, Use] = field(default_factory=dict)
    lifetimes: Mapping[int, float] = field(default_factory=dict)  # seconds left
    too_short: frozenset[int] = frozenset()
    held: int = 0
    expected_s: float = 0.0

    def use(self, slot: int) -> Use:
        return self.uses.get(slot, UNUSED)


def read_meters(snapshot: Mapping[str, Any], memory_limit: Callable[[int], int]) -> Metered:
    """
    Read the meters of a snapshot.

    Args:
        memory_limit: In bytes, by slot; 0: none, and then nothing is a part of it.
    """
    meters = snapshot.get("meters")
    if meters is None:
        return Metered()
    columns = snapshot["workers"]
    matched = dict(meters["matched"])
    gpu = {slot: used / total for slot, used, total in meters["gpu"] if total > 0}
    rows = zip(
        columns["slot"], columns["memory"], meters["runs"], meters["failures"], meters["managed"],
        meters["mean_ms"], strict=True,
    )  # fmt: skip
    uses = {}
    for slot, memory, runs, failures, managed, mean_ms in rows:
        limit, unmanaged = memory_limit(slot), max(0, memory - managed)
        uses[slot] = Use(
            runs,
            failures,
            matched.get(slot, ""),
            memory / limit if limit else 0.0,
            unmanaged / limit if limit else 0.0,
            unmanaged,
            gpu.get(slot, 0.0),
            mean_ms / 1000,
        )
    return Metered(
        uses=uses,
        lifetimes={slot: left_ms / 1000 for slot, left_ms in meters["lifetimes"]},
        too_short=frozenset(meters["too_short"]),
        held=meters["held"],
        expected_s=meters["expected_ms"] / 1000,
    )


class NoteReader:
    """Remembers, for one link to one scheduler, up to which note everything has been read."""

    def __init__(self) -> None:
        self._session, self._heard = "", 0

    def heard(self, session: str) -> int:
        """Up to which number the notes of a session need not be sent again."""
        return self._heard if session == self._session else 0

    def read(self, session: str, rows: Sequence[Mapping[str, Any]]) -> tuple[Note, ...]:
        """
        The notes that are new.

        An operator that has just started takes only those of the last minute: the one before it
        has told the others. Kinds that a newer agent knows and we do not are left out.
        """
        is_first = not self._session
        if session != self._session:
            self._session, self._heard = session, 0
        new = [row for row in rows if row["number"] > self._heard]
        self._heard = max([self._heard, *(row["number"] for row in new)])
        return tuple(
            Note(row["number"], Reason(row["kind"]), row["message"], tuple(row["names"]))
            for row in new
            if row["kind"] in wire.NOTES and not (is_first and row["age_ms"] > FRESH_S * 1000)
        )


def _serialized(row: Mapping[str, Any] | None) -> Serialized | None:
    if row is None:
        return None
    return Serialized(
        calls=row["calls"],
        seconds=row["us"] / 1e6,
        sent_bytes=row["bytes"],
        share=row["share"] / 100,
        top=tuple(
            SerializedFunction(f["function"], f["calls"], f["us"] / 1e6, f["bytes"], f["size"])
            for f in row["top"][:MAX_TOP]
        ),
    )


def read_demand(snapshot: Mapping[str, Any]) -> Demand | None:
    """None: the agent was not asked, or is too old to say."""
    row = snapshot.get("demand")
    if row is None:
        return None
    names = tuple(wire.PrefixColumns.__annotations__)
    columns = zip(*(row["prefixes"][name] for name in names), strict=True)
    rows = (dict(zip(names, values, strict=True)) for values in columns)
    return Demand(
        prefixes=tuple(map(_prefix, rows)),
        needs=tuple(_record(Need, need, seconds=need["ms"] / 1000) for need in row["needs"]),
        shuffles=tuple(
            UpcomingShuffle(s["id"], s["inputs"], s["outputs"]) for s in row["shuffles"]
        ),
        unknown_s=row["unknown_ms"] / 1000,
        incoming=row.get("incoming_ms", 0) / 1000,
        every_s=row.get("every_ms", 0) / 1000,
    )


def _prefix(row: Mapping[str, Any]) -> PrefixWork:
    mean_s = row["mean_ms"] / 1000 if row["mean_ms"] >= 0 else None
    return _record(PrefixWork, {**row, "mean_s": mean_s})


def _rows(record: type[T], rows: Sequence[Mapping[str, Any]]) -> tuple[T, ...]:
    return tuple(_record(record, row) for row in rows)


def _record(record: type[T], row: Mapping[str, Any], **more: Any) -> T:
    """
    A dataclass of a row's values of the same names; `x_s` is the row's `x_ms` in seconds.

    What an older agent does not send has its default; TypeError where there is none.
    """
    values = {}
    for one in fields(record):  # type: ignore[arg-type]
        if one.name in row:
            value = row[one.name]
            values[one.name] = tuple(value) if isinstance(value, list) else value
        elif (in_ms := f"{one.name.removesuffix('_s')}_ms") in row:
            values[one.name] = row[in_ms] / 1000
    return record(**values, **more)
