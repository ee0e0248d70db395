"""The agent as the scheduler's plugin. Translates, never thinks, never raises."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_adaptive_agent import __version__
from dask_adaptive_agent.activity import REPORTS
from dask_adaptive_agent.agent import Agent
from dask_adaptive_agent.closing import HAS_HOOK, FilteredWorkersToClose
from dask_adaptive_agent.tally import unwrap

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)


class AdaptivePlugin(SchedulerPlugin):
    """
    Puts an agent into a scheduler and takes it out again.

    `version` and `uninstall()` are what another version of this package relies on: never rename.
    """

    name = "dask-adaptive"
    idempotent = True
    version = __version__

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._handlers: dict[str, Any] = {}
        self._wrapped: dict[str, tuple[Any, Any]] = {}  # name -> (stock, ours)

    def install(self) -> None:
        scheduler: Any = self.agent.scheduler
        self._handlers = self.agent.handlers()
        scheduler.handlers.update(self._handlers)
        for report in REPORTS:
            self._wrap(scheduler.stream_handlers, report, self.agent.activity.stamping)
        self._wrap(
            scheduler.stream_handlers, "worker-status-change", self.agent.retirements.hearing
        )
        if not HAS_HOOK:
            closing = FilteredWorkersToClose(scheduler, self.agent.free)
            self._wrap(scheduler.handlers, "workers_to_close", lambda stock: closing)
            scheduler.workers_to_close = closing
        self.agent.roster.sync()
        scheduler.add_plugin(self, name=self.name)

    def uninstall(self) -> None:
        """Put everything back as it was; workers that drain go back to service."""
        scheduler: Any = self.agent.scheduler
        self.agent.close(is_closing=False)
        if scheduler.plugins.get(self.name) is self:
            scheduler.remove_plugin(name=self.name)
        for name, handler in self._handlers.items():
            if scheduler.handlers.get(name) is handler:
                del scheduler.handlers[name]
        for name in list(self._wrapped):
            unwrap(scheduler.stream_handlers, name, self._wrapped)
            unwrap(scheduler.handlers, name, self._wrapped)
        if isinstance(scheduler.__dict__.get("workers_to_close"), FilteredWorkersToClose):
            del scheduler.workers_to_close

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        # Scheduler.workers_to_close does not guard its plugins; `free` answers an error with no
        # worker at all.
        return self.agent.free(workers)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        try:
            self.agent.roster.sync()
        except Exception:
            # Fail open: the next snapshot finds the worker, and counts its idle time from then.
            logger.exception("Cannot note that worker %s has joined", worker)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        try:
            self.agent.retirements.worker_left(worker)
            self.agent.roster.forget(worker)
        except Exception:
            # Fail open: the next snapshot finds out.
            logger.exception("Cannot note that worker %s has left", worker)

    async def close(self) -> None:
        try:
            self.agent.close(is_closing=True)
        except Exception:
            logger.exception("Cannot stop the agent")

    def _wrap(self, handlers: dict[str, Any], name: str, wrap: Any) -> None:
        stock = handlers.get(name)
        if stock is None:
            logger.warning("This scheduler has no handler %s", name)
            return
        handlers[name] = wrap(stock)
        self._wrapped[name] = (stock, handlers[name])
