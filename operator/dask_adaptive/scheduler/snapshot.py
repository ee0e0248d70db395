"""
Decodes the agent's columns into values; remembers names that are sent only once, and everything
that has not changed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeAlias, TypedDict

import msgspec

from dask_adaptive.loop.ports import AgentInvalid
from dask_adaptive.model.observed import (
    Cordon,
    Demand,
    Need,
    Note,
    ObservedScheduler,
    Pin,
    PrefixWork,
    Quiet,
    ReliefState,
    Retiring,
    SchedulerWorker,
    Serialized,
    SerializedFunction,
    Shuffle,
    UpcomingShuffle,
    Want,
)
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Quota, Use
from dask_adaptive.model.scheduler_settings import json_by_key
from dask_adaptive.scheduler.calls import BAD_DATA, lenient
from dask_adaptive_agent import wire

#: Age of notes that a first reader still takes: an earlier process has reported older ones.
FRESH_S = 60.0

#: As the wire promises; a newer agent may send more.
MAX_TOP = 10

_Rows: TypeAlias = "Sequence[Mapping[str, Any]]"
_Fields: TypeAlias = "dict[int, dict[str, Any]]"  # of `SchedulerWorker`, by slot

#: Tolerated drift of the offset between the agent's clock and ours, in seconds: answers take time.
DRIFT_S = 0.5

#: The `wire.Columns` read here.
COLUMNS = ("slot", "status", "processing", "idle_ms", "sole_bytes", "memory")

#: Parts about no single worker, kept as sent.
AS_SENT = {"target", "totals", "shuffles", "relief", "pins_expired", "redone"}

#: Parts about single workers, besides their rows.
MARKS = ("pins", "retirements", "departures", "stops", "stuck")

#: Quotas by the agent's kind of cordon; an unlisted kind concerns the worker's end.
_STOPS = {
    wire.S_TASKS: Quota.TASKS,
    wire.S_FAILURES: Quota.FAILURES,
    wire.S_PATTERN: Quota.FAILURES,
}

#: Reasons of retirements: ours, unless another caller gave one.
_REASONS = {reason.value: reason for reason in Reason}

#: A state that is not listed is an answer that cannot be read.
_IS_DRAINED = {wire.DRAINING: False, wire.DRAINED: True}


class ModelParts(TypedDict):
    """The parts of `wire.Snapshot` that decode to model values, and those read later."""

    shuffles: tuple[Shuffle, ...]
    relief: tuple[ReliefState, ...]
    config_in_force: dict[str, msgspec.Raw] | None  # unvalidated


#: Type of the agent's answer to `observe`.
ANSWER = lenient(wire.Update, wire.Unchanged, ModelParts)


class _Identity(NamedTuple):
    """What never changes of a worker."""

    name: str
    address: str
    nthreads: int
    memory_limit: int
    joined_at: float | None


class SnapshotReader:
    """
    Reads `wire.Snapshot` and `wire.Update` of one agent into an `ObservedScheduler`. Unchanged
    workers are the same objects each time.

    Fields that an older agent of the same protocol does not send are empty.

    Args:
        notes: Survives a reopened link, so that no note is reported twice.
    """

    def __init__(self, notes: NoteReader) -> None:
        self._notes = notes
        self._session, self._known = "", 0
        self.version = 0  # of the last answer; 0: none, or the agent sends none
        self.has_lifetimes = False  # Dask's own lifetime: meters are needed even without quotas
        self._introduced: dict[int, _Identity] = {}
        self._rows: dict[int, SchedulerWorker] = {}  # by slot, ascending
        self._marks: _Fields = {}
        self._workers: dict[int, SchedulerWorker] = {}  # rows with their marks
        self._parts: dict[str, Any] = {}
        self._ahead_s = 0.0  # our clock, of the agent's
        self._now_ms = 0  # on the agent's clock, as of the last answer

    @property
    def request(self) -> dict[str, Any]:
        """Arguments of `observe` that let the agent omit known parts."""
        heard = self._notes.heard(self._session)
        return {"session": self._session, "known": self._known, "heard": heard}

    def read(self, answer: Mapping[str, Any], *, at: float) -> bool:
        """
        Read one answer, received at this instant on our clock.

        Returns False, and ignores it, if it is older than an answer of another connection.

        Raises:
            AgentInvalid: Not a `wire.Snapshot`; the caller should say hello again.
        """
        try:
            is_same, since = answer["session"] == self._session, answer.get("since", 0)
            if is_same and answer.get("version", 0) < self.version:
                return False
            if since and not (is_same and since <= self.version):
                raise ValueError(f"it follows version {since}, which was not read")
            self._read(answer, at, is_whole=not since)
        except BAD_DATA as exc:
            self.__init__(self._notes)  # type: ignore[misc]  # names may be half read
            raise AgentInvalid(f"the agent's snapshot cannot be read: {exc!r}") from exc
        return True

    def observed(self, *, agent: str, version: str, at: float) -> ObservedScheduler:
        """Return the observation at this instant on our clock. Each note is returned once."""
        parts = self._parts
        demand, totals, age_s = parts.get("demand"), parts["totals"], max(0.0, at - self._in(0))
        return ObservedScheduler(
            at=at,
            session=self._session,
            distributed=version,
            agent=agent,
            target=parts["target"],
            workers=tuple(self._workers.values()),
            shuffles=parts["shuffles"],
            notes=self._notes.unread(),
            pins_expired=parts.get("pins_expired", {}),
            redone=parts.get("redone", {}),
            held=parts.get("held", 0),
            expected_s=parts.get("expected_s", 0.0),
            queued=totals["queued"] + totals["unrunnable"],
            processing=totals["processing"],
            relief=parts.get("relief", ()),
            config=parts.get("config_in_force"),
            serialized=parts.get("serialized"),
            demand=None if demand is None else replace(demand, age_s=age_s),
            wants=tuple(replace(w, left_s=t - at) for w, t in parts.get("wants", ()) if t > at),
            quiet=Quiet(*(0.0 if since is None else at - since for since in parts["quiet"])),
            results=totals["memory"],
        )

    def _read(self, answer: Mapping[str, Any], at: float, *, is_whole: bool) -> None:
        before = self._rows
        if is_whole:
            self._rows, self._workers, self._parts = {}, {}, {}
        self._set_clocks(answer, at)
        self._introduce(answer)
        changed = set[int]()
        for slot, row in self._read_rows(answer):
            known = before.get(slot)
            self._rows[slot] = known if known == row else row
            changed.add(slot)
        gone = before.keys() - self._rows.keys() if is_whole else answer["gone"]
        for slot in gone:
            for of_worker in (self._introduced, self._rows, self._workers):
                of_worker.pop(slot, None)
        self._read_parts(answer)
        self._notes.read(self._session, answer.get("notes", ()))
        changed |= self._read_marks(answer)
        for slot in sorted(changed & self._rows.keys()):
            row, marks = self._rows[slot], self._marks.get(slot)
            self._workers[slot] = replace(row, **marks) if marks else row
        self.has_lifetimes = answer.get("has_lifetimes", True)
        self.version = answer.get("version", 0)

    def _introduce(self, answer: Mapping[str, Any]) -> None:
        if answer["session"] != self._session:
            self._session, self._introduced = answer["session"], {}
        new = answer["introduced"]
        columns = (new["slot"], new["name"], new["address"], new["nthreads"], new["memory_limit"])
        joined = new.get("joined_ms") or [-1] * len(new["slot"])
        for slot, name, address, nthreads, limit, ms in zip(*columns, joined, strict=True):
            name, joined_at = sys.intern(name), self._in(-ms) if ms >= 0 else None
            self._introduced[slot] = _Identity(name, address or name, nthreads, limit, joined_at)
        self._known = answer["known"]

    def _set_clocks(self, answer: Mapping[str, Any], at: float) -> None:
        """Keep the clock offset, so that an instant has the same number in each answer."""
        self._now_ms = answer.get("now_ms", 0)
        ahead_s = at - self._now_ms / 1000
        if "now_ms" not in answer or abs(ahead_s - self._ahead_s) > DRIFT_S:
            self._ahead_s = ahead_s

    def _in(self, ms: int) -> float:
        """Return the instant so many milliseconds after the answer, on our clock."""
        return self._ahead_s + (self._now_ms + ms) / 1000

    def _read_rows(self, answer: Mapping[str, Any]) -> Iterator[tuple[int, SchedulerWorker]]:
        columns, meters = answer["workers"], answer.get("meters")
        closable, actors = set(answer["closable"]), set(answer["actors"])
        metered = {} if meters is None else self._metered(columns, meters)
        rows = zip(*(columns[name] for name in COLUMNS), strict=True)
        for slot, status, processing, idle_ms, sole_bytes, memory in rows:
            known = self._introduced[slot]
            worker = SchedulerWorker(
                name=known.name,
                address=known.address,
                status=wire.STATUSES[status],
                nthreads=known.nthreads,
                memory_limit=known.memory_limit,
                joined_at=known.joined_at,
                processing=processing,
                idle_since=0.0 if processing else self._in(-idle_ms),
                sole_bytes=sole_bytes,
                memory=memory,
                closable=slot in closable,
                actors=slot in actors,
                **metered.get(slot, {}),
            )
            yield slot, worker

    def _metered(self, columns: wire.Columns, meters: Mapping[str, Any]) -> _Fields:
        matched = dict(meters["matched"])
        counts = {f.name: meters[f.name] for f in fields(Use) if f.name in meters}
        metered: _Fields = {}
        every = (columns["slot"], columns["memory"], meters["managed"], *counts.values())
        for slot, memory, managed, *counted in zip(*every, strict=True):
            # Without a limit there is no fraction.
            limit = self._introduced[slot].memory_limit or math.inf
            use = dict(zip(counts, counted, strict=True), match=matched.get(slot, ""))
            unmanaged = max(0, memory - managed) / limit
            metered[slot] = {"use": Use(**use, process=memory / limit, unmanaged=unmanaged)}
        for slot, left_ms in meters["lifetimes"]:
            metered[slot]["lifetime_ends_at"] = self._in(left_ms)
        for slot in meters["too_short"]:
            metered[slot]["too_short"] = True
        return metered

    def _read_parts(self, answer: Mapping[str, Any]) -> None:
        parts = self._parts
        for name in AS_SENT & answer.keys():
            parts[name] = answer[name]
        for name in _PARTS.keys() & answer.keys():
            parts[name] = None if answer[name] is None else _PARTS[name](answer[name])
        if meters := answer.get("meters"):
            parts.update(held=meters["held"], expected_s=meters["expected_ms"] / 1000)
        if "wants" in answer:
            parts["wants"] = [
                (Want(w["workers"], 0.0, w["owner"], w["group"]), self._in(w["left_ms"]))
                for w in answer["wants"]
            ]
        # Without the agent's word the cluster counts as in use, so that nothing is removed.
        quiet = answer.get("quiet", {})
        quiet_ms = [quiet.get(name, 0) for name in ("no_task_ms", "no_client_ms")]
        parts["quiet"] = [self._in(-ms) if ms else None for ms in quiet_ms]

    def _read_marks(self, answer: Mapping[str, Any]) -> set[int]:
        """Read marks; return the slots of workers whose marks have changed."""
        if answer.keys().isdisjoint(MARKS):
            return set()
        before, self._marks = self._marks, {}
        readers = (self._pinned, _leaving, self._terminating, _cordon, _stuck)
        for part, read in zip(MARKS, readers, strict=True):
            if part in answer:
                self._parts[part] = read(answer[part])
            for slot, values in self._parts.get(part, {}).items():
                self._marks.setdefault(slot, {}).update(values)
        slots = before.keys() | self._marks.keys()
        return {slot for slot in slots if before.get(slot) != self._marks.get(slot)}

    def _pinned(self, rows: _Rows) -> _Fields:
        pins: dict[int, tuple[Pin, ...]] = {}
        for row in rows:
            until, latest = self._in(row["left_ms"]), self._in(row["latest_ms"])
            since = self._in(-row["for_ms"])
            pin = Pin(row["source"], row["owner"], row["reason"], until, latest, since)
            for slot in row["slots"]:
                pins[slot] = (*pins.get(slot, ()), pin)
        return {slot: {"pins": held} for slot, held in pins.items()}

    def _terminating(self, rows: _Rows) -> _Fields:
        return {
            row["slot"]: {
                # It may have been renamed, to leave its name to its replacement.
                "name": row["name"],
                "terminating": row["message"] or row["reason"] or "its process is about to end",
                "terminates_at": math.inf if row["left_ms"] < 0 else self._in(row["left_ms"]),
            }
            for row in rows
        }


def _leaving(rows: _Rows) -> _Fields:
    return {
        row["slot"]: {
            "retiring": Retiring(
                _REASONS.get(row["reason"]), row["message"], is_drained=_IS_DRAINED[row["state"]]
            )
        }
        for row in rows
    }


def _cordon(rows: _Rows) -> _Fields:
    return {
        row["slot"]: {
            "cordon": Cordon(_STOPS.get(row["kind"], Quota.LIFETIME), row["message"] or row["kind"])
        }
        for row in rows
    }


def _stuck(rows: _Rows) -> _Fields:
    return {row["slot"]: {"stuck": row["threads"]} for row in rows}


class NoteReader:
    """Remembers the last note that was read, for one link to one scheduler."""

    def __init__(self) -> None:
        self._session, self._heard = "", 0
        self._unread: list[Note] = []

    def heard(self, session: str) -> int:
        """Return the number up to which a session's notes need not be sent again."""
        return self._heard if session == self._session else 0

    def read(self, session: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """
        Keep new notes until they are taken.

        A new operator takes only those of the last minute: its predecessor has reported the others.
        Unknown kinds of a newer agent are skipped.
        """
        is_first = not self._session
        if session != self._session:
            self._session, self._heard = session, 0
        new = [row for row in rows if row["number"] > self._heard]
        self._heard = max([self._heard, *(row["number"] for row in new)])
        self._unread += [
            Note(row["number"], Reason(row["kind"]), row["message"], tuple(row["names"]))
            for row in new
            if row["kind"] in wire.NOTES and not (is_first and row["age_ms"] > FRESH_S * 1000)
        ]

    def unread(self) -> tuple[Note, ...]:
        """Take the notes that were not returned before."""
        unread, self._unread = tuple(self._unread), []
        return unread


def _serialized(row: wire.SerializedPart) -> Serialized:
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


def read_demand(row: wire.DemandPart) -> Demand:
    columns = (row["prefixes"][name] for name in wire.PrefixColumns.__annotations__)  # type: ignore[literal-required]
    return Demand(
        prefixes=tuple(_prefix(*work) for work in zip(*columns, strict=True)),
        needs=tuple(
            msgspec.convert({**need, "seconds": need["ms"] / 1000}, Need) for need in row["needs"]
        ),
        shuffles=msgspec.convert(row["shuffles"], tuple[UpcomingShuffle, ...]),
        unknown_s=row["unknown_ms"] / 1000,
        incoming=row["incoming_ms"] / 1000,
        every_s=row["every_ms"] / 1000,
        trickle_s=row.get("trickle_ms", 0) / 1000,
    )


def _prefix(
    name: str, mean_ms: float, running: int, ready: int, waiting: int, longest_ms: int, *rest: Any
) -> PrefixWork:
    mean_s = mean_ms / 1000 if mean_ms >= 0 else None
    return PrefixWork(name, mean_s, running, ready, waiting, longest_ms / 1000, *rest)


def _config(by_key: Mapping[str, msgspec.Raw]) -> tuple[tuple[str, str], ...]:
    """Read settings; drop those longer than a policy can set."""
    short = {key: raw for key, raw in by_key.items() if len(bytes(raw)) <= wire.MOST_BYTES}
    return json_by_key({key: msgspec.msgpack.decode(raw) for key, raw in short.items()})


#: Readers of the parts about no single worker.
_PARTS: Mapping[str, Callable[[Any], Any]] = {
    "config_in_force": _config,
    "serialized": _serialized,
    "demand": read_demand,
}
