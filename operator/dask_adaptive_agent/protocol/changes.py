"""
Answers `observe` with what has changed since an answer that the caller has, and waits until there
is something. Knows snapshots and cheap signs of change; no `distributed`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, NamedTuple

from dask_adaptive_agent import wire

#: Signs are read this often while somebody waits.
PAUSE_S = 0.25

#: A waiting caller is answered at most this often; less often where snapshots take more than this
#: part of the time.
GAP_S, LOOK_PART = 0.5, 0.02

#: Snapshots that may be taken for waiting callers in a row, and seconds until there is one more.
#: Small changes, which a busy scheduler has all the time, leave some of them for others.
BURST, REFILL_S, RESERVED = 8, 4.0, 4

#: While tasks run, more becomes known of how long they take: after this time, and again each time
#: that the last transition is longer ago by this part.
GROWN_S, GROWN_PART = 5.0, 0.1

#: Slots of workers that have left, and callers, that are remembered.
MOST_GONE, MOST_CALLERS = 10_000, 100

#: Parts of a snapshot that are sent again only when they have changed.
SECTIONS = (
    "pins", "pins_expired", "retirements", "departures", "shuffles", "stops", "stuck", "redone",
    "totals", "relief", "config_in_force", "demand", "wants", "serialized",
)  # fmt: skip

#: Meters of which each change is sent, however small.
EXACT = frozenset({"failures", "matched", "lifetimes", "too_short"})

#: Durations that change with the clock alone: counted from an instant, and until one.
SINCE, UNTIL = frozenset({"for_ms"}), frozenset({"left_ms", "latest_ms"})

Take = Callable[[], Mapping[str, Any]]  # takes a `wire.Snapshot`
Row = tuple[int, Any, tuple[int, ...]]  # slot, values that must be the same, and nearly the same


class Signs(NamedTuple):
    """Reads of a scheduler, at nearly no cost, that a snapshot depends on."""

    events: tuple[Any, ...]  # rare: any difference is news
    load: tuple[int, ...]  # numbers of tasks: news where one has grown or shrunk by a fifth
    activity: tuple[Any, ...]  # a difference is news while there is little of it
    is_busy: bool = False  # tasks run


class Changes:
    """
    The versions of one scheduler's snapshots: which rows and parts have changed in which of them.

    Durations that only the clock changes are no change, and neither are small ones of numbers that
    never rest: a row is sent again when one of those has moved by over 3 %.
    """

    def __init__(self) -> None:
        self.version = 0
        self._oldest = 1  # what has changed since an earlier version is not known
        self._workers, self._metered = _Table(), _Table()
        self._sections: dict[str, tuple[int, Any]] = {}  # version, and what it was
        self._gone: dict[int, int] = {}  # version by slot

    def knows(self, version: int) -> bool:
        return self._oldest <= version <= self.version

    def note(self, snapshot: Mapping[str, Any], *, is_news: bool) -> None:
        """Compare with what was noted before; `is_news`: it is another version in any case."""
        version = self.version + 1
        found = [
            self._note_sections(snapshot, version),
            self._workers.note(_worker_rows(snapshot), version),
            self._metered.note(_meter_rows(snapshot), version),
            self._note_gone(snapshot["workers"]["slot"], version),
        ]
        if is_news or any(found):
            self.version = version

    def since(self, snapshot: Mapping[str, Any], version: int) -> dict[str, Any]:
        """Return what a caller with `version` lacks of a noted snapshot: a `wire.Update`."""
        if not self.knows(version):
            return {**snapshot, "version": self.version, "since": 0, "gone": []}
        sent = self._workers.since(version) | self._metered.since(version)
        places = [i for i, slot in enumerate(snapshot["workers"]["slot"]) if slot in sent]
        same = {name for name in SECTIONS if self._sections.get(name, (0,))[0] <= version}
        return {
            **{name: part for name, part in snapshot.items() if name not in same},
            "workers": _cut(snapshot["workers"], places, sent),
            "closable": [slot for slot in snapshot["closable"] if slot in sent],
            "actors": [slot for slot in snapshot["actors"] if slot in sent],
            "meters": snapshot["meters"] and _cut(snapshot["meters"], places, sent),
            "version": self.version,
            "since": version,
            "gone": [slot for slot, left_in in self._gone.items() if left_in > version],
        }

    def _note_sections(self, snapshot: Mapping[str, Any], version: int) -> bool:
        is_new = False
        for name in SECTIONS:
            part = _timeless(snapshot[name], snapshot["now_ms"])
            is_requested = part is not None or name != "demand"
            if is_requested and self._sections.get(name, (0, self))[1] != part:
                self._sections[name] = version, part
                is_new = True
        return is_new

    def _note_gone(self, slots: Iterable[int], version: int) -> bool:
        gone = self._workers.forget(slots)
        self._metered.forget(slots)
        self._gone.update(dict.fromkeys(gone, version))
        while len(self._gone) > MOST_GONE:
            self._oldest = self._gone.pop(next(iter(self._gone)))
        return bool(gone)


class _Table:
    """The rows of workers, by slot, as they were when they last changed."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Any, tuple[int, ...]]] = {}  # the first is a version

    def note(self, rows: Iterable[Row], version: int) -> bool:
        known, is_new = self._rows, False
        for slot, exact, rough in rows:
            row = known.get(slot)
            if row is None or row[1] != exact or not _is_near(row[2], rough):
                known[slot] = version, exact, rough
                is_new = True
        return is_new

    def since(self, version: int) -> set[int]:
        """Slots whose row has changed in a later version."""
        return {slot for slot, row in self._rows.items() if row[0] > version}

    def forget(self, but: Iterable[int]) -> set[int]:
        gone = self._rows.keys() - set(but)
        for slot in gone:
            del self._rows[slot]
        return gone


class Watch:
    """
    Takes snapshots for callers that know an earlier one: at once, or when signs say that it pays.

    Args:
        signs: Reads them; None: they cannot be read.
    """

    def __init__(
        self, signs: Callable[[], Signs | None], clock: Callable[[], float] = monotonic
    ) -> None:
        self._signs, self._clock = signs, clock
        self._changes = Changes()
        self._is_closed = False
        self._looked_at = -math.inf
        self._answered: dict[str, int] = {}  # by caller: the version that it got at once
        self._gap_s = GAP_S
        self._seen: Signs | None = None  # as of the last snapshot
        self._read: Signs | None = None  # as they were last
        self._read_at = -math.inf
        self._active_at = self._spare_at = clock()
        self._spare = float(BURST)

    def close(self) -> None:
        """Answer None to callers that wait, as a scheduler without an agent does."""
        self._is_closed = True

    def answer(self, caller: str, known: int, take: Take) -> dict[str, Any]:
        """Answer at once what has changed since the version `known`; all, where that is unknown."""
        answer = self._look(known, take)
        if caller:
            self._answered.pop(caller, None)  # the last one goes to the end
            self._answered[caller] = self._changes.version
            if len(self._answered) > MOST_CALLERS:
                del self._answered[next(iter(self._answered))]
        return answer

    def _look(self, known: int, take: Take) -> dict[str, Any]:
        began, seen, signs = self._clock(), self._seen, self._signs()
        snapshot = take()
        is_news = seen is not None and signs is not None and seen.events != signs.events
        self._changes.note(snapshot, is_news=is_news)
        answer = self._changes.since(snapshot, known)
        self._seen = self._read = signs
        self._looked_at = self._clock()
        self._gap_s = min(GROWN_S, max(GAP_S, (self._looked_at - began) / LOOK_PART))
        return answer

    async def wait(
        self, caller: str, known: int, wait_s: float, take: Take
    ) -> dict[str, Any] | None:
        """
        Answer as soon as there is something new since `known`; else, after `wait_s`, that there is
        nothing. What the caller has been answered at once meanwhile is not new.

        A caller that has died is not noticed before the answer is sent. So nothing is kept for one
        but this coroutine, and that ends in time.
        """
        until = self._clock() + wait_s
        while not self._is_closed:
            has = max(known, self._answered.get(caller, 0))
            if not self._changes.knows(known):
                return self._look(known, take)
            if self._is_worth_it(has):
                answer = self._look(known, take)
                if answer["version"] != has:
                    return answer
            left_s = until - self._clock()
            if left_s <= 0:
                return {"protocol": wire.PROTOCOL, "version": known, "unchanged": True}
            await asyncio.sleep(min(PAUSE_S, left_s))
        return None

    def _is_worth_it(self, known: int) -> bool:
        now = self._clock()
        if now < self._looked_at + self._gap_s:
            return False
        needed = 1 if known != self._changes.version else self._needed(now)
        self._spare = min(BURST, self._spare + (now - self._spare_at) / REFILL_S)
        self._spare_at = now
        if self._spare < needed:
            return False
        self._spare -= 1
        return True

    def _needed(self, now: float) -> float:
        """Return the snapshots to spare that the signs are worth; infinite: no snapshot."""
        if now >= self._read_at + 0.9 * PAUSE_S:
            self._read_signs(now)
        seen, read = self._seen, self._read
        looked_s = now - self._looked_at
        if seen is None or read is None:
            return RESERVED + 1 if looked_s >= GROWN_S else math.inf
        if seen.events != read.events or any(map(_is_jump, seen.load, read.load)):
            return 1
        grown_s = max(GROWN_S, GROWN_PART * (now - self._active_at))
        if seen.activity != read.activity or (read.is_busy and looked_s >= grown_s):
            return RESERVED + 1
        return math.inf

    def _read_signs(self, now: float) -> None:
        before, self._read = self._read, self._signs()
        self._read_at = now
        if before is None or self._read is None or before.activity != self._read.activity:
            self._active_at = now


def _is_jump(before: int, now: int) -> bool:
    return 5 * abs(now - before) > max(now, before)


def _is_near(before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    return before == now or all([abs(a - b) <= max(a, b) >> 5 for a, b in zip(before, now)])


def _timeless(part: Any, now_ms: int) -> Any:
    """The rows of a part with instants for durations, in seconds; anything else as it is."""
    if not isinstance(part, list):
        return part
    return [
        {
            key: (now_ms - value) // 1000 if key in SINCE
            else (now_ms + value) // 1000 if key in UNTIL and value >= 0
            else value
            for key, value in row.items()
        }
        for row in part
    ]  # fmt: skip


def _worker_rows(snapshot: Mapping[str, Any]) -> Iterable[Row]:
    workers, now_ms = snapshot["workers"], snapshot["now_ms"]
    closable, actors = set(snapshot["closable"]), set(snapshot["actors"])
    columns = ("slot", "status", "processing", "idle_ms", "sole_bytes", "memory")
    for slot, status, tasks, idle_ms, sole, memory in zip(*[workers[name] for name in columns]):
        of_idle = () if tasks else (now_ms - idle_ms, sole)
        yield slot, (status, slot in closable, slot in actors, of_idle), (tasks, sole, memory)


def _meter_rows(snapshot: Mapping[str, Any]) -> Iterable[Row]:
    meters = snapshot["meters"]
    if meters is None:
        return
    marks: dict[int, list[Any]] = {slot: [text] for slot, text in meters["matched"]}
    for slot, left_ms in meters["lifetimes"]:  # as exact as workers' reports are prompt
        marks.setdefault(slot, []).append((snapshot["now_ms"] + left_ms) // 10_000)
    for slot in meters["too_short"]:
        marks.setdefault(slot, []).append(True)
    columns = [v for name, v in meters.items() if isinstance(v, list) and name not in EXACT]
    for slot, failures, *rough in zip(snapshot["workers"]["slot"], meters["failures"], *columns):
        yield slot, (failures, marks.get(slot)), tuple(rough)


def _cut(columns: Mapping[str, Any], places: list[int], sent: set[int]) -> dict[str, Any]:
    """The same for those workers only: of parallel lists, and of lists of some workers' rows."""
    out: dict[str, Any] = {}
    for name, values in columns.items():
        if name in ("matched", "lifetimes"):
            out[name] = [row for row in values if row[0] in sent]
        elif name == "too_short":
            out[name] = [slot for slot in values if slot in sent]
        elif isinstance(values, list):
            out[name] = [values[place] for place in places]
        else:
            out[name] = values
    return out
