"""
Answers `observe` with what has changed since an answer that the caller has, and waits until there
is something. Knows snapshots and cheap signs of change; no `distributed`.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, takewhile
from operator import ne
from time import monotonic
from typing import Any, NamedTuple

from dask_adaptive_agent import wire

#: Signs are read this often while somebody waits.
PAUSE_S = 0.25

#: A waiting caller is answered at most this often; less often where snapshots take more than this
#: part of the time.
GAP_S, LOOK_PART = 0.5, 0.01

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
            self._workers.note(*_worker_columns(snapshot), version),
            snapshot["meters"] is not None
            and self._metered.note(*_meter_columns(snapshot), version),
            self._note_gone(snapshot["workers"]["slot"], version),
        ]
        if is_news or any(found):
            self.version = version

    def since(self, snapshot: Mapping[str, Any], version: int) -> dict[str, Any]:
        """Return what a caller with `version` lacks of a noted snapshot: a `wire.Update`."""
        if not self.knows(version):
            return {**snapshot, "version": self.version, "since": 0, "gone": []}
        sent = self._workers.since(version) | self._metered.since(version)
        slots = snapshot["workers"]["slot"]  # ascending
        places = [bisect_left(slots, slot) for slot in sorted(sent)]
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

    def _note_gone(self, slots: Sequence[int], version: int) -> bool:
        gone = self._workers.gone(slots)
        self._workers.forget(gone)
        self._metered.forget(gone)
        self._gone.update(dict.fromkeys(gone, version))
        while len(self._gone) > MOST_GONE:
            self._oldest = self._gone.pop(next(iter(self._gone)))
        return bool(gone)


class _Table:
    """
    The rows of workers, by slot, as they were when they last changed; those come last.

    Columns are compared with those of the look before as wholes, which takes a few nanoseconds a
    number. A row of which none differs is as near to what was noted as it was then.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Any, tuple[int, ...]]] = {}  # the first is a version
        self._columns: list[list[Any]] = []  # of the last look, slots first

    def note(self, exact: list[list[Any]], rough: list[list[int]], version: int) -> bool:
        """Columns of what must be the same, slots first, and of what must nearly be."""
        columns, before = [*exact, *rough], self._columns
        self._columns = columns
        slots = exact[0]
        if before and before[0] == slots:
            pairs = [pair for pair in zip(columns, before) if pair[0] != pair[1]]
            places = {p for one in pairs for p in compress(range(len(slots)), map(ne, *one))}
        else:
            rows = set(zip(*before))
            places = {p for p, row in enumerate(zip(*columns)) if row not in rows}
        known, is_new = self._rows, False
        for place in places:
            slot = slots[place]
            its = tuple([column[place] for column in exact])
            near = tuple([column[place] for column in rough])
            row = known.get(slot)
            if row is None or row[1] != its or not _is_near(row[2], near):
                known.pop(slot, None)
                known[slot] = version, its, near
                is_new = True
        return is_new

    def since(self, version: int) -> set[int]:
        """Slots whose row has changed in a later version."""
        rows = reversed(self._rows.items())
        return {slot for slot, _ in takewhile(lambda item: item[1][0] > version, rows)}

    def gone(self, slots: Sequence[int]) -> set[int]:
        """Those with a row that are not among `slots`, each of which has one."""
        return set() if len(self._rows) == len(slots) else self._rows.keys() - set(slots)

    def forget(self, gone: Iterable[int]) -> None:
        for slot in gone:
            self._rows.pop(slot, None)


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


def _worker_columns(snapshot: Mapping[str, Any]) -> tuple[list[list[Any]], list[list[int]]]:
    """What must be the same, slots first, and what must nearly be."""
    workers, now_ms = snapshot["workers"], snapshot["now_ms"]
    slots, tasks, sole = workers["slot"], workers["processing"], workers["sole_bytes"]
    # While it has tasks, neither counts.
    since = [-1 if n else now_ms - ms for n, ms in zip(tasks, workers["idle_ms"])]
    exact_sole = [-1 if n else size for n, size in zip(tasks, sole)]
    marks = [_marks(slots, snapshot[name]) for name in ("closable", "actors")]
    return [slots, workers["status"], *marks, since, exact_sole], [tasks, sole, workers["memory"]]


def _meter_columns(snapshot: Mapping[str, Any]) -> tuple[list[list[Any]], list[list[int]]]:
    meters, slots = snapshot["meters"], snapshot["workers"]["slot"]
    texts = dict(meters["matched"])
    # As exact as workers' reports are prompt.
    ends = {slot: (snapshot["now_ms"] + ms) // 10_000 for slot, ms in meters["lifetimes"]}
    marks = [list(map(of.get, slots)) for of in (texts, ends)]
    rough = [v for name, v in meters.items() if isinstance(v, list) and name not in EXACT]
    return [slots, meters["failures"], *marks, _marks(slots, meters["too_short"])], rough


def _marks(slots: list[int], marked: Iterable[int]) -> list[bool]:
    return list(map(set(marked).__contains__, slots))


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
