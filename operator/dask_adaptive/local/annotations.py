"""What people say about single workers of a rehearsal: `pin` for this machine, without kubectl."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dask_adaptive.model.observed import ManualPin
from dask_adaptive.model.pins import lifts, pin_end

#: Names the rehearsal's directory to the script that runs in it.
ENVIRONMENT = "DASK_ADAPTIVE_REHEARSAL"


class Annotations:
    """A JSON file that a script writes and the rehearsal reads: worker → its annotations."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "annotations.json"

    def manual_pin(self, worker: str, max_s: float) -> ManualPin | None:
        """What the file says of a worker now, read as an annotation of its pod would be."""
        said = self._read().get(worker)
        if said is None or lifts(said["pin"]):
            return None
        until, problem = pin_end(said["pin"], since=said["at"])
        left_s = min(until, said["at"] + max_s) - time.time()
        return ManualPin(left_s, said["reason"], problem) if left_s > 0 else None

    def set_pin(self, worker: str, pin: str | None, reason: str = "") -> None:
        """Pin a worker (`true`, a duration or an instant), or with None take the pin away."""
        said = dict(self._read())
        said.pop(worker, None)
        if pin is not None:
            said[worker] = {"pin": pin, "reason": reason, "at": time.time()}
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
