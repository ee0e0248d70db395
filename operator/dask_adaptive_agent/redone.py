"""Counts the work that is done again: why, and, if somebody wants to know, which runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.patching import Patch, Patches
from dask_adaptive_agent.shuffle.runs import Shuffles

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

#: While a scheduler ends, nothing is done again.
ENDING = (Status.closing, Status.closed, Status.failed)


@dataclass
class Redone:
    """Tasks and results lost with workers, as in `wire.Snapshot.redone`."""

    scheduler: Scheduler
    cause: Callable[[WorkerState], str]  # one of `wire.LOST`, `FORCED`, `ENDED`
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((wire.LOST, wire.FORCED, wire.ENDED), 0)
    )

    def removing(self, ws: WorkerState) -> None:
        """A worker is about to be removed from the scheduler, with all that it has."""
        if self.scheduler.status in ENDING:
            return
        only = [ts for ts in ws.has_what if len(ts.who_has or ()) == 1]
        lost = len(ws.processing) + sum([bool(ts.who_wants or ts.waiters) for ts in only])
        if lost:
            self.counts[self.cause(ws)] += lost


class TallyPlugin(SchedulerPlugin):
    """
    Counts what was run more than once (`wire.TallyPart`). Optional: for rehearsals and tests.

    Runs are counted where workers report them (stream handlers), because `transition` does not see
    failures with retries left; `transition` tells which keys are new again. A key counts as
    repeated when it finishes again, above all because its result was lost with a worker; not when a
    client submits it again after it was forgotten, or asks for a result that was released
    meanwhile.
    """

    name = "dask-adaptive-tally"

    def __init__(self, scheduler: Scheduler, shuffles: Shuffles) -> None:
        self._scheduler: Any = scheduler
        self._shuffles = shuffles
        self._finished: set[Any] = set()
        self._runs_of: dict[str, set[int]] = {}
        self.tasks = self.runs = self.erred = self.repeated = self.interrupted = 0
        self._patches: list[Patch] = []

    def install(self, patches: Patches) -> None:
        self._patches = [
            patches.listen(patching.TASK_FINISHED, self._count_finished),
            patches.listen(patching.TASK_ERRED, self._count_erred),
            *patches.before_removals(self._removing),
        ]
        self._scheduler.add_plugin(self, name=self.name)

    def uninstall(self) -> None:
        for patch in self._patches:
            patch.remove()
        if self._scheduler.plugins.get(self.name) is self:
            self._scheduler.remove_plugin(name=self.name)

    def answer(self) -> wire.TallyPart:
        self._see_shuffles()
        return {
            "tasks": self.tasks,
            "runs": self.runs,
            "erred": self.erred,
            "repeated": self.repeated,
            "interrupted": self.interrupted,
            # Upstream's run ids count all shuffles of the process; how often one began is the same
            # as its highest id when each counts for itself.
            "max_shuffle_run": max(map(len, self._runs_of.values()), default=0),
            "shuffles": len(self._runs_of),
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
        for run in self._shuffles.running():
            self._runs_of.setdefault(run.id, set()).add(run.run_id)

    def _count_finished(self, msg: dict[str, Any]) -> None:
        key = msg["key"]
        if msg["worker"] not in self._scheduler.workers:
            return  # interrupted, and counted as that
        self.runs += 1
        if key in self._finished:
            self.repeated += 1
        else:
            self.tasks += 1
            if key in self._scheduler.tasks:  # else released while it ran: never forgotten again
                self._finished.add(key)

    def _count_erred(self, msg: dict[str, Any]) -> None:
        self.erred += 1

    def _removing(self, ws: WorkerState) -> None:
        self.interrupted += len(ws.processing)
