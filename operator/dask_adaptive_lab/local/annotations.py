"""Annotations of single workers in a rehearsal: `pin` for this machine, without kubectl."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dask_adaptive.model.amounts import lifts, pin_end, read_instant
from dask_adaptive.model.observed import ManualPin

#: Names the rehearsal's directory to the script that runs in it.
ENVIRONMENT = "DASK_ADAPTIVE_REHEARSAL"


class Annotations:
    """A JSON file that a script writes and the rehearsal reads: worker → its annotations."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "annotations.json"

    def manual_pin(self, worker: str, max_s: float) -> ManualPin | None:
        """Read a worker's pin, as an annotation of its pod would be read."""
        said = self._read().get(worker, {}).get("pin")
        if said is None or lifts(said["value"]):
            return None
        until, problem = pin_end(said["value"], since=said["at"])
        until = min(until, said["at"] + max_s)
        return ManualPin(until, said["reason"], problem) if until > time.time() else None

    def recycle_asked(self, worker: str, pod_created_at: float) -> str:
        """Says who wants the worker's pod replaced; empty: nobody, or it has been replaced."""
        said = self._read().get(worker, {}).get("recycle")
        if said is None:
            return ""
        at = said["at"] if said["value"] == "now" else read_instant(said["value"])
        is_asked = at is not None and pod_created_at < at <= time.time()
        return "asked for by annotation" if is_asked else ""

    def ends_at(self, worker: str) -> float:
        """The end that the file says a worker has; infinite: none that can be read."""
        said = self._read().get(worker, {}).get("expires-at")
        at = read_instant(said["value"]) if said else None
        return math.inf if at is None else at

    def set_pin(self, worker: str, pin: str | None, reason: str = "") -> None:
        """Pin a worker (`true`, a duration or an instant), or with None take the pin away."""
        self.annotate(worker, "pin", pin, reason)

    def annotate(self, worker: str, name: str, value: str | None, reason: str = "") -> None:
        """Set `pin`, `recycle` or `expires-at` of a worker, or with None take it away."""
        said = {key: dict(notes) for key, notes in self._read().items()}
        notes = said.setdefault(worker, {})
        notes.pop(name, None)
        if value is not None:
            notes[name] = {"value": value, "reason": reason, "at": time.time()}
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(said))
        new.replace(self._file)  # a reader sees the old file or the new one, never half of one

    def _read(self) -> Mapping[str, Any]:
        try:
            return json.loads(self._file.read_text())  # type: ignore[no-any-return]
        except FileNotFoundError:
            return {}


def annotations_of_this_rehearsal() -> Annotations:
    """
    For a script that runs under `dask-adaptive rehearse`.

    Raises:
        RuntimeError: Not started by a rehearsal.
    """
    directory = os.environ.get(ENVIRONMENT)
    if not directory:
        raise RuntimeError("not in a rehearsal: start this script with `dask-adaptive rehearse`")
    return Annotations(Path(directory))
