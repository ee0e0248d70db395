"""Counts the runs in a scheduler, so that people see whether any work was redone."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.link import run_source
from dask_adaptive_lab.run_counter import COUNTED


@dataclass(frozen=True, slots=True)
class Tally:
    """Runs counted in a scheduler since it was first asked. `redone` is the promise we keep."""

    tasks: int  # different keys that finished at least once
    runs: int  # that finished, repeated ones included
    erred: int  # runs that raised; user errors, not counted as redone
    repeated: int  # runs that finished for a key that had finished before
    interrupted: int  # tasks taken from a worker that left while it ran them
    shuffles: int  # different shuffles seen
    max_shuffle_run: int  # the most runs of one shuffle; 1: none was restarted

    @property
    def redone(self) -> int:
        return self.repeated + self.interrupted


async def tally_of(calls: SchedulerCalls) -> Tally:
    """
    The figures of a scheduler, which counts from the first such question on.

    Raises:
        LinkError: The scheduler does not answer, or runs no code (`distributed.scheduler.pickle`).
    """
    counted = await calls.call(COUNTED, Tally)
    if counted is None:
        source = files("dask_adaptive_lab").joinpath("run_counter.py").read_text()
        text = f"{source}\n\ninstall()\n"
        await run_source(calls, text, "runs cannot be counted")
        counted = await calls.call(COUNTED, Tally)
        if counted is None:
            raise LinkError("runs cannot be counted in this scheduler")
    return counted
