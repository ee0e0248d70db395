"""Writes what a rehearsal had to do as a trace, for `simulate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.ports import Event
from dask_adaptive.loop.tracing import Tracer
from dask_adaptive.model.trace import origin_line, sample_line
from dask_adaptive.rehearse.rehearsal import PASS_S


class Tape:
    """
    A `Watcher` that writes a sample of each pass, at once.

    Args:
        path: The trace; what is there is written over.
        clock: Seconds since 1970.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._file, self._clock = path.open("w", encoding="utf-8"), clock
        self._tracer, self._began = Tracer(), clock()
        self._has_origin = False

    def happened(self, event: Event) -> None:
        """A trace is of the load, not of what was made of it."""

    def saw(self, result: PassResult) -> None:
        sample = self._tracer.sample(result.observed, t=self._clock() - self._began)
        if sample is None:
            return
        if not self._has_origin:
            self._has_origin = True
            origin = self._tracer.origin(result.observed, started=self._began, every_s=PASS_S)
            self._file.write(origin_line(origin) + "\n")
        self._file.write(sample_line(sample) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
