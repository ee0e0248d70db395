"""
The cost of serializing tasks for a scheduler, by function, and a warning when it is too much.

Fed once a task, from whatever thread serializes; asked whenever somebody observes. There is no
timer: time is cut into slices while tasks are serialized.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.text import size_of

#: Functions that are told apart; beyond it the cheapest ones are forgotten, down to `KEPT`.
MOST_FUNCTIONS, KEPT = 1000, 750
NAME_LENGTH = 80

#: It is heavy when each slice of the window is, and took this share of CPU and of one core.
SLICE_S, N_SLICES = 10.0, 6
HEAVY_SHARE, HEAVY_CORE = 0.20, 0.01
#: Seconds from one note about it to the next.
SILENCE_S = 3600.0
#: The weight of a slice in a function's recent seconds, against the next slice's.
FADING = 0.5


class _Slice(NamedTuple):
    lasted_s: float
    cpu_s: float  # of the process
    spent_s: float  # on serializing

    @property
    def is_heavy(self) -> bool:
        return self.spent_s > max(HEAVY_SHARE * self.cpu_s, HEAVY_CORE * self.lasted_s)


@dataclass
class _Row:
    """One function: what it has cost since the start, and of late."""

    calls: int = 0
    bytes: int = 0
    size: int = 0
    seconds: float = 0.0
    recent_s: float = 0.0


@dataclass(eq=False)
class SerializationMeter:
    """The seconds and bytes that one scheduler spends on serializing tasks."""

    clock: Callable[[], float]
    notify: Callable[[str, str], None]  # called from `answer` only, with kind and message
    cpu: Callable[[], float] = time.process_time  # seconds that this process has used
    is_shared: bool = False  # callables cross to each worker once already

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._rows: dict[tuple[str, str], _Row] = {}
        self._calls = self._bytes = 0
        self._spent_s = 0.0
        self._slices: deque[_Slice] = deque(maxlen=N_SLICES)
        #: When the current slice began, the CPU used by then, and the seconds spent by then.
        self._began = (self.clock(), self.cpu(), 0.0)
        self._heavy = ""
        self._silent_until = self._began[0]

    def add(self, function: object, seconds: float, nbytes: int) -> None:
        """Count a task that was serialized for a worker, by what it calls. Never raises."""
        try:
            key = key_of(function)
        except Exception:  # attributes of people's own objects run people's own code
            key = ("", type(function).__qualname__)
        with self._lock:
            # Before it is added: it was spent just now, not in a pause before.
            self._end_slice()
            row = self._rows.get(key)
            if row is None:
                if len(self._rows) >= MOST_FUNCTIONS:
                    self._rows = dict(self._dearest()[:KEPT])
                row = self._rows[key] = _Row()
            row.calls += 1
            row.seconds += seconds
            row.recent_s += seconds
            row.bytes += nbytes
            row.size = max(row.size, nbytes)
            self._calls += 1
            self._spent_s += seconds
            self._bytes += nbytes

    def answer(self) -> wire.SerializedPart:
        """Return the cost so far. On the scheduler's event loop: it may notify of a heavy load."""
        with self._lock:
            self._end_slice()
            answer: wire.SerializedPart = {
                "calls": self._calls,
                "us": int(self._spent_s * 1e6),
                "bytes": self._bytes,
                "share": round(self._share() * 100),
                "top": [
                    {
                        "function": _name(key),
                        "calls": row.calls,
                        "us": int(row.seconds * 1e6),
                        "bytes": row.bytes,
                        "size": row.size,
                    }
                    for key, row in self._dearest()[:10]
                ],
            }
            heavy, self._heavy = self._heavy, ""
        if heavy:
            self.notify(wire.N_SERIALIZATION_HEAVY, heavy)
        return answer

    def _dearest(self) -> list[tuple[tuple[str, str], _Row]]:
        return sorted(self._rows.items(), key=lambda item: -item[1].seconds)

    def _current(self) -> _Slice:
        began, cpu_s, spent_s = self._began
        return _Slice(self.clock() - began, self.cpu() - cpu_s, self._spent_s - spent_s)

    def _end_slice(self) -> None:
        now = self.clock()
        if now - self._began[0] < SLICE_S:
            return
        self._slices.append(self._current())
        self._began = (now, self.cpu(), self._spent_s)
        is_heavy = len(self._slices) == N_SLICES and all(one.is_heavy for one in self._slices)
        if is_heavy and now >= self._silent_until:
            self._silent_until = now + SILENCE_S
            self._heavy = self._sentence()
        for row in self._rows.values():
            row.recent_s *= FADING

    def _share(self) -> float:
        """Of the CPU of the last minute, as if it were even within each slice."""
        cpu_s = spent_s = 0.0
        left_s = SLICE_S * N_SLICES
        for one in (self._current(), *reversed(self._slices)):
            part = min(1.0, left_s / one.lasted_s) if one.lasted_s else 1.0
            cpu_s += one.cpu_s * part
            spent_s += one.spent_s * part
            left_s = max(0.0, left_s - one.lasted_s)
        # Offloaded work is measured by the wall's clock: preemption may make it more than all CPU.
        return min(1.0, max(0.0, spent_s / cpu_s)) if cpu_s > 0 else 0.0

    def _sentence(self) -> str:
        key, row = max(self._rows.items(), key=lambda item: item[1].recent_s)
        of_it = row.recent_s / max(1e-9, sum(row.recent_s for row in self._rows.values()))
        # Upstream's Client warns of large graphs, not of what they cost later, task by task.
        helps = [
            "functions of a module that workers have (an image, Client.upload_file)",
            "large arguments by Client.scatter instead of in a partial or closure",
        ]
        if not self.is_shared:
            helps.insert(0, "spec.scheduler.relief.pickling: Shared")
        return (
            f"serializing tasks took {self._share():.0%} of the scheduler's CPU for a minute, "
            f"{of_it:.0%} of it {_name(key)} ({size_of(row.size)} each, "
            f"serialized for every task); what helps: {'; '.join(helps)}"
        )


def key_of(function: object) -> tuple[str, str]:
    """Module and qualified name of what a task calls: cheap, and the same for its partials."""
    for _ in range(20):  # a partial of a partial; no endless walk over strange objects
        if not isinstance(function, partial):
            break
        function = function.func
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str):
        kind = type(function)
        module, name = kind.__module__, kind.__qualname__
    return (module if isinstance(module, str) else "", name)


def _name(key: tuple[str, str]) -> str:
    name = ".".join(filter(None, key))
    # The end tells more than the module's beginning.
    return name if len(name) <= NAME_LENGTH else "…" + name[1 - NAME_LENGTH :]
