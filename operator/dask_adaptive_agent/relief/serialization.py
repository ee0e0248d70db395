"""
What serializing tasks costs a scheduler, by function, and since when it is too much.

Fed once a task, from whatever thread serializes; asked whenever somebody observes. No timer: what
must be known of a time that nobody observed is noted while tasks are serialized.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.words import size_of

#: Functions that are told apart; beyond it the cheapest ones are forgotten.
MOST_FUNCTIONS = 1000
#: Of them, so many outlive a clearance: it is rare then.
KEPT = 750
NAME_LENGTH = 80
TOP = 10

WINDOW_S = 60.0
SAMPLE_S = 1.0
#: It is heavy when each slice of the window is.
SLICE_S = 10.0
HEAVY = 0.20
#: Seconds in a slice below which a share says little: of an idle scheduler's CPU anything is much.
LEAST_S = 0.1
#: How long nothing more is said of it.
SILENCE_S = 3600.0


class _Sample(NamedTuple):
    at: float
    cpu_s: float  # of the process
    spent_s: float  # on serializing


class _Heavy(NamedTuple):
    share: float
    function: str
    of_it: float  # the function's part in what is spent on serializing
    size: int


class _Row:
    """One function: what it has cost since the start, and up to two recent marks."""

    __slots__ = ("before", "bytes", "calls", "mark", "seconds", "size")

    def __init__(self) -> None:
        self.calls = self.bytes = self.size = 0
        self.seconds = self.mark = self.before = 0.0

    @property
    def recent_s(self) -> float:
        """Seconds in the last one or two half windows."""
        return self.seconds - self.before


class SerializationMeter:
    """The seconds and bytes that one scheduler spends on serializing tasks."""

    def __init__(
        self,
        clock: Callable[[], float],
        tell: Callable[[str, str], None],
        *,
        cpu: Callable[[], float] = time.process_time,
        is_shared: bool = False,
    ) -> None:
        """
        Args:
            clock: Seconds, never backwards.
            tell: Called from `answer` only: a kind of `wire.NOTES`, and a sentence.
            cpu: Seconds of CPU that this process has used.
            is_shared: Whether callables cross to each worker once already.
        """
        self._clock, self._tell, self._cpu = clock, tell, cpu
        self._is_shared = is_shared
        self._lock = threading.Lock()
        self._pending: deque[tuple[object, float, int]] = deque()
        self._rows: dict[tuple[str, str], _Row] = {}
        self._calls = self._bytes = 0
        self._spent_s = 0.0
        now = clock()
        self._latest = _Sample(now, cpu(), 0.0)  # after what was added last
        self._samples = deque([self._latest])
        self._sample_at = now + SAMPLE_S
        self._mark_at = now + WINDOW_S / 2
        self._heavy: _Heavy | None = None
        self._silent_until = now

    def add(self, function: object, seconds: float, nbytes: int) -> None:
        """
        Something was serialized for a worker. Any thread may say so; never raises.

        Args:
            function: What the task calls, or the whole run_spec.
            seconds: That it took.
            nbytes: That came out.
        """
        pending = self._pending
        pending.append((function, seconds, nbytes))
        # Not for long: what waits here is kept alive by it.
        if seconds > 1e-3 or nbytes > 100_000 or len(pending) >= 64:
            self.fold()

    def answer(self) -> wire.Serialized:
        """As of now. Call it on the scheduler's event loop: it may tell people of a heavy load."""
        now = self._clock()
        self.fold()
        with self._lock:
            self._sample(now)
            share = _share(self._at(now - WINDOW_S), self._samples[-1])
            top = sorted(self._rows.items(), key=lambda item: -item[1].seconds)[:TOP]
            answer: wire.Serialized = {
                "calls": self._calls,
                "us": int(self._spent_s * 1e6),
                "bytes": self._bytes,
                "share": round(share * 100),
                "top": [_wire_row(key, row) for key, row in top],
            }
            heavy, self._heavy = self._heavy, None
        if heavy is not None:
            self._tell(wire.N_SERIALIZATION_HEAVY, self._sentence(heavy))
        return answer

    def fold(self) -> None:
        """Add up what waits, by object first: most tasks in a row call the same one."""
        now = self._clock()
        with self._lock:
            if now >= self._sample_at:
                self._sample(now)
            pending = self._pending
            rows: dict[int, tuple[object, _Row]] = {}
            for _ in range(len(pending)):
                function, seconds, nbytes = pending.popleft()
                known = rows.get(id(function))
                if known is None:
                    known = rows[id(function)] = function, self._row(function)
                row = known[1]
                row.calls += 1
                row.seconds += seconds
                row.bytes += nbytes
                if nbytes > row.size:
                    row.size = nbytes
                self._calls += 1
                self._spent_s += seconds
                self._bytes += nbytes
            self._latest = _Sample(now, self._cpu(), self._spent_s)

    def _row(self, function: object) -> _Row:
        try:
            key = key_of(function)
        except Exception:  # attributes of people's own objects run people's own code
            key = ("", type(function).__qualname__)
        row = self._rows.get(key)
        if row is None:
            self._make_room()
            row = self._rows[key] = _Row()
        return row

    def _make_room(self) -> None:
        if len(self._rows) >= MOST_FUNCTIONS:
            dearest = sorted(self._rows.items(), key=lambda item: -item[1].seconds)
            self._rows = dict(dearest[:KEPT])

    def _sample(self, now: float) -> None:
        """Note how far both clocks are; before anything is added, so that pauses cost nothing."""
        self._sample_at = now + SAMPLE_S
        if now - SAMPLE_S > self._latest.at >= self._samples[-1].at:
            self._samples.append(self._latest)
        self._samples.append(_Sample(now, self._cpu(), self._spent_s))
        while self._samples[1].at <= now - WINDOW_S:
            self._samples.popleft()
        if now >= self._silent_until:
            self._weigh(now)
        if now >= self._mark_at:
            self._mark_at = now + WINDOW_S / 2
            for row in self._rows.values():
                row.before, row.mark = row.mark, row.seconds

    def _weigh(self, now: float) -> None:
        if self._samples[0].at > now - WINDOW_S or not self._rows:
            return
        n_slices = round(WINDOW_S / SLICE_S)
        ends = [self._at(now - SLICE_S * n) for n in range(n_slices, -1, -1)]
        for begin, end in zip(ends, ends[1:]):
            if end.spent_s - begin.spent_s < LEAST_S or _share(begin, end) <= HEAVY:
                return
        self._silent_until = now + SILENCE_S
        key, row = max(self._rows.items(), key=lambda item: item[1].recent_s)
        recent_s = sum(row.recent_s for row in self._rows.values())
        of_it = row.recent_s / recent_s if recent_s > 0 else 0.0
        self._heavy = _Heavy(_share(ends[0], ends[-1]), _name(key), of_it, row.size)

    def _at(self, when: float) -> _Sample:
        """What a sample at that time would have said; before the first one, what that says."""
        samples = list(self._samples)
        n = bisect_right([sample.at for sample in samples], when)
        if n == 0:
            return samples[0]
        if n == len(samples):
            return samples[-1]
        a, b = samples[n - 1], samples[n]
        part = (when - a.at) / (b.at - a.at)
        cpu_s, spent_s = b.cpu_s - a.cpu_s, b.spent_s - a.spent_s
        return _Sample(when, a.cpu_s + part * cpu_s, a.spent_s + part * spent_s)

    def _sentence(self, heavy: _Heavy) -> str:
        # Upstream's Client warns of large graphs, not of what they cost later, task by task.
        helps = [
            "functions of a module that workers have (an image, Client.upload_file)",
            "large arguments by Client.scatter instead of in a partial or closure",
        ]
        if not self._is_shared:
            helps.insert(0, "spec.scheduler.relief.pickling: Shared")
        return (
            f"serializing tasks took {heavy.share:.0%} of the scheduler's CPU for a minute, "
            f"{heavy.of_it:.0%} of it {heavy.function} ({size_of(heavy.size)} each, "
            f"serialized for every task); what helps: {'; '.join(helps)}"
        )


def key_of(function: object) -> tuple[str, str]:
    """Module and qualified name of what a task calls: cheap, and the same for its partials."""
    for _ in range(20):  # a partial of a partial; no endless walk over strange objects
        inner = _inner(function)
        if inner is None:
            break
        function = inner
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str):
        kind = type(function)
        module, name = kind.__module__, kind.__qualname__
    return (module if isinstance(module, str) else "", name)


def _inner(function: object) -> object | None:
    """What a wrapper calls in the end, or a task; None: that is it."""
    if isinstance(function, partial):
        return function.func
    if isinstance(function, tuple):  # run_spec before 2024.11.0: (function, args, kwargs)
        return function[0] if function else None
    if type(function).__module__ == "dask._task_spec":
        return getattr(function, "func", None)
    return None


def _name(key: tuple[str, str]) -> str:
    name = ".".join(filter(None, key))
    # The end tells more than the module's beginning.
    return name if len(name) <= NAME_LENGTH else "…" + name[1 - NAME_LENGTH :]


def _share(begin: _Sample, end: _Sample) -> float:
    cpu_s = end.cpu_s - begin.cpu_s
    # Offloaded work is measured by the wall's clock: preemption may make it more than all CPU.
    return min(1.0, max(0.0, (end.spent_s - begin.spent_s) / cpu_s)) if cpu_s > 0 else 0.0


def _wire_row(key: tuple[str, str], row: _Row) -> wire.SerializedRow:
    return {
        "function": _name(key),
        "calls": row.calls,
        "us": int(row.seconds * 1e6),
        "bytes": row.bytes,
        "size": row.size,
    }
