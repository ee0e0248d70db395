"""
The state of a `Task` read by C code, where dask's `Task.__getstate__` runs a generator.

`copyreg.dispatch_table` is where each pickler looks first, by exact type. What comes out is equal,
so it concerns nobody that it serves the whole process.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from dask_adaptive_agent.relief.callables import TASK

_new: Any = copyreg.__newobj__  # type: ignore[attr-defined]
_ARGS = (TASK,)


def begin() -> None:
    """Serve, if this release's tasks are as expected, and nobody else has put something there."""
    if TASK is None or TASK in copyreg.dispatch_table or not hasattr(TASK, "get_all_slots"):
        return
    reduced = _reducer(attrgetter(*TASK.get_all_slots()))
    sample = TASK("sample", len, (1,), _data_producer=True)
    if sample.__reduce_ex__(5)[:3] == reduced(sample):
        copyreg.pickle(TASK, reduced)


def end() -> None:
    if getattr(copyreg.dispatch_table.get(TASK), "__module__", None) == __name__:
        del copyreg.dispatch_table[TASK]


def _reducer(state: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def reduced(task: Any) -> Any:
        return _new, _ARGS, state(task)

    return reduced
