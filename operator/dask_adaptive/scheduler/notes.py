"""What the agent wants told once: read its notes so that none is told twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask_adaptive.model.observed import Note
from dask_adaptive.model.reason import Reason
from dask_adaptive_agent import wire

#: Whoever asks for the first time does not know what was told before: older notes are history.
FRESH_S = 60.0


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
