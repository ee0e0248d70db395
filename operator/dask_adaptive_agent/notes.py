"""What has happened in the scheduler that people should be told, once. No `distributed`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dask_adaptive_agent import wire

#: As many are kept for an operator that is away.
KEPT = 100

#: As many workers are named in one note.
NAMED = 10


class Note(NamedTuple):
    """One of them; `at` is on the clock of its list."""

    number: int
    kind: str
    message: str
    names: list[str]
    at: float


class Notes:
    """The last `KEPT` notes, numbered from 1 on: whoever reads says what was heard before."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._notes: deque[Note] = deque(maxlen=KEPT)
        self._number = 0

    def add(self, kind: str, message: str, names: Iterable[str] = ()) -> None:
        self._number += 1
        some = list(names)[:NAMED]
        self._notes.append(Note(self._number, kind, message, some, self._clock()))

    def since(self, heard: int) -> list[wire.NoteRow]:
        """Those with a number above `heard`, oldest first."""
        now = self._clock()
        return [
            {
                "number": note.number,
                "kind": note.kind,
                "message": note.message,
                "names": note.names,
                "age_ms": int((now - note.at) * 1000),
            }
            for note in self._notes
            if note.number > heard
        ]
