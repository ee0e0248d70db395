"""
Time that passes faster. The operator waits for minutes where it is patient, and tests do not: in
processes that call `hasten` before they import anything else, a real second is a few seconds of all
clocks and of all that asyncio waits for. Computing is not any faster; so on a machine with too much
to do time passes as slowly as it does outside (`Pace`).
"""

from __future__ import annotations

import asyncio
import mmap
import os
import selectors
import struct
import time
from pathlib import Path
from typing import Any

#: Names the file by which processes share their clock.
VARIABLE = "DASK_ADAPTIVE_CHAOS_CLOCK"

#: In the file: which of two entries holds; each is a real time, a time here, and the speed.
_ENTRY = struct.Struct("ddd")
_SIZE = 1 + 2 * _ENTRY.size

#: Nobody sleeps longer in one go: the speed may change. Real seconds.
_NAP_S = 0.5

#: Seconds by which this process' wall clock is wrong.
wrong_s = 0.0

_real, _real_wall = time.monotonic, time.time


class SharedClock:
    """The clock of all processes that have its file."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SIZE)

    @classmethod
    def make(cls, path: Path, speed: float) -> SharedClock:
        entry = _ENTRY.pack(_real(), _real_wall(), speed)
        path.write_bytes(b"\0" + entry + entry)
        return cls(path)

    def _entry(self) -> tuple[float, float, float]:
        at = 1 + self._memory[0] * _ENTRY.size
        real, now, speed = _ENTRY.unpack_from(self._memory, at)
        return real, now, speed

    @property
    def speed(self) -> float:
        return self._entry()[2]

    @speed.setter
    def speed(self, speed: float) -> None:
        real, other = _real(), 1 - self._memory[0]
        _ENTRY.pack_into(self._memory, 1 + other * _ENTRY.size, real, self.now(), speed)
        self._memory[0] = other

    def now(self) -> float:
        """Seconds since 1970, by a clock that never goes back."""
        real, now, speed = self._entry()
        return now + (_real() - real) * speed


def hasten(path: Path) -> SharedClock:
    """Live by the clock of a file."""
    shared = SharedClock(path)

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            if timeout is None or timeout <= 0:
                return super().select(timeout)
            return super().select(min(timeout / shared.speed, _NAP_S))

    # asyncio looks all three up when it needs them; default arguments take them at import.
    time.monotonic = shared.now
    time.time = lambda: shared.now() + wrong_s
    selectors.DefaultSelector = Selector  # type: ignore[misc]
    os.environ[VARIABLE] = str(path)
    return shared


class Pace:
    """Lets time pass as fast as the machine can follow, and tells by how much it could not."""

    def __init__(self, shared: SharedClock) -> None:
        self._shared, self._fastest = shared, shared.speed
        self._all: list[tuple[float, float]] = []  # when, and how many seconds late

    async def run(self) -> None:
        """Until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await asyncio.sleep(0.5)
            late_s = clock() - began - 0.5
            if late_s > 0.1:
                self._all.append((began, late_s))
            is_late = late_s / self._shared.speed > 0.1
            speed = self._shared.speed * (0.5 if is_late else 1.05)
            self._shared.speed = min(max(speed, 1.0), self._fastest)

    def late_s(self, since: float) -> float:
        """Seconds to add to a limit that began then. Processes beside this one are as late."""
        return sum(2 * late_s for when, late_s in self._all if when > since - 5.0)
