"""
Counts in a scheduler what is run more than once. Stands alone: `tally.py` sends this text there.

Runs on whatever Python the scheduler has, from 3.9 on; standard library and distributed only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

#: The message by which its figures are asked for.
COUNTED = "lab_counted"


class RunCounter(SchedulerPlugin):
    """
    Counts the runs in one scheduler from now on.

    Runs are counted where workers report them (stream handlers), because `transition` does not see
    failures with retries left; `transition` tells which keys are new again. A key counts as
    repeated when it finishes again, above all because its result was lost with a worker; not when a
    client submits it again after it was forgotten, or asks for a result that was released
    meanwhile.
    """

    name = "dask-adaptive-lab"

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._finished: set[Any] = set()
        self._shuffle_runs: dict[Any, set[int]] = {}  # by shuffle
        self.tasks = self.runs = self.erred = self.repeated = self.interrupted = 0

    def install(self) -> None:
        """Harmless where one counts already. It stays as long as the scheduler."""
        scheduler = self._scheduler
        if COUNTED in scheduler.handlers:
            return
        streams, handlers = scheduler.stream_handlers, scheduler.handlers
        streams["task-finished"] = _after(self._count_finished, streams["task-finished"])
        streams["task-erred"] = _after(self._count_erred, streams["task-erred"])
        # `handle_worker` and `retire_workers` call the method, a worker that closes the handler.
        scheduler.remove_worker = _after(self._removing, scheduler.remove_worker)
        handlers["unregister"] = _after(self._removing, handlers["unregister"])
        handlers[COUNTED] = self.counted
        scheduler.add_plugin(self, name=self.name)

    def counted(self) -> dict[str, int]:
        self._see_shuffles()
        return {
            "tasks": self.tasks,
            "runs": self.runs,
            "erred": self.erred,
            "repeated": self.repeated,
            "interrupted": self.interrupted,
            # Upstream's run ids count all shuffles of the process; how often one began is the same
            # as its highest id when each counts for itself.
            "max_shuffle_run": max(map(len, self._shuffle_runs.values()), default=0),
            "shuffles": len(self._shuffle_runs),
        }

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "forgotten":
            self._finished.discard(key)
        elif start == "released" and key in self._finished:
            # Wanted again by a new graph: not redone because of a loss.
            if str(kwargs.get("stimulus_id", "")).startswith("update-graph"):
                self._finished.discard(key)
        elif start == "processing" and ("-transfer-" in str(key) or "barrier" in str(key)):
            self._see_shuffles()  # by upstream's names, this run may have begun one

    def _see_shuffles(self) -> None:
        plugin = self._scheduler.extensions.get("shuffle")
        # `states` before 2023.9 or so.
        shuffles = getattr(plugin, "active_shuffles", None) or getattr(plugin, "states", {})
        for id, state in shuffles.items():
            self._shuffle_runs.setdefault(id, set()).add(state.run_id)

    def _count_finished(self, key: Any, worker: str, **_: Any) -> None:
        if worker not in self._scheduler.workers:
            return  # interrupted, and counted as that
        self.runs += 1
        if key in self._finished:
            self.repeated += 1
        else:
            self.tasks += 1
            if key in self._scheduler.tasks:  # else released while it ran: never forgotten again
                self._finished.add(key)

    def _count_erred(self, **_: Any) -> None:
        self.erred += 1

    def _removing(self, address: str, *_: Any, **__: Any) -> None:
        ws = self._scheduler.workers.get(address)
        self.interrupted += 0 if ws is None else len(ws.processing)


def _after(count: Callable[..., None], stock: Any) -> Any:
    """Upstream's call, which comes after we have counted."""

    @functools.wraps(stock)
    def call(*args: Any, **kwargs: Any) -> Any:
        count(*args, **kwargs)
        return stock(*args, **kwargs)

    return call


def install() -> None:
    """In each scheduler of this process (but in tests it is one), on its event loop."""
    from distributed import Scheduler

    for scheduler in list(Scheduler._instances):
        RunCounter(scheduler).install()
