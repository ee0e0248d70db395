"""The agent as the scheduler's plugin. Translates, never thinks, never raises."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_adaptive_agent import __version__, claims
from dask_adaptive_agent.agent import Agent
from dask_adaptive_agent.gate import hearing
from dask_adaptive_agent.held_transfers import FINISHED
from dask_adaptive_agent.meters import REPORTS, Meters
from dask_adaptive_agent.shuffle_wait import HANDLER
from dask_adaptive_agent.tally import unwrap
from dask_adaptive_agent.worker import register, unregister

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
        measuring = self.agent.shuffle_wait.held.measuring
        for report in REPORTS:
            self._wrap(
                scheduler.stream_handlers,
                report,
                partial(_counting, self.agent.meters, report, measuring),
            )
        self._wrap(scheduler.handlers, HANDLER, self.agent.shuffle_wait.creating)
        self._wrap(
            scheduler.stream_handlers,
            "worker-status-change",
            lambda stock: hearing(stock, self.agent.gate_of),
        )
        # An instance attribute, too: retire_workers and adaptive_target call self.workers_to_close.
        closing = self.agent.closing
        closing.own_plugin = self
        self._wrap(scheduler.handlers, "workers_to_close", lambda stock: closing)
        scheduler.workers_to_close = closing
        self.agent.choice.install()
        self.agent.orders.install()
        self.agent.removals.install()
        self.agent.roster.sync()
        self.agent.barriers.start()
        scheduler.add_plugin(self, name=self.name)
        self.agent.endings.start()
        register(scheduler)
        self.agent.reliefs.configure(self.agent.settings.relief)
        self.agent.page.install()

    def uninstall(self) -> None:
        """Put everything back as it was; workers that drain go back to service."""
        scheduler: Any = self.agent.scheduler
        unregister(scheduler)
        self.agent.close(is_closing=False)
        if scheduler.plugins.get(self.name) is self:
            scheduler.remove_plugin(name=self.name)
        for name, handler in self._handlers.items():
            if scheduler.handlers.get(name) is handler:
                del scheduler.handlers[name]
        for name in list(self._wrapped):
            unwrap(scheduler.stream_handlers, name, self._wrapped)
            unwrap(scheduler.handlers, name, self._wrapped)
        if scheduler.__dict__.get("workers_to_close") is self.agent.closing:
            del scheduler.workers_to_close
        self.agent.choice.uninstall()
        self.agent.orders.uninstall()
        self.agent.removals.uninstall()

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        # Scheduler.workers_to_close does not guard its plugins; `free` answers an error with no
        # worker at all.
        return self.agent.free(workers)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        try:
            self.agent.roster.sync()
            self.agent.stops.worker_joined(worker)
            self.agent.endings.worker_joined(worker)
            self.agent.announced.worker_joined()
            claims.worker_joined(self.agent, scheduler.workers[worker])
        except Exception:
            # Fail open: the next snapshot finds the worker, and counts its idle time from then.
            logger.exception("Cannot note that worker %s has joined", worker)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        try:
            entry = self.agent.roster.entries.get(worker)
            if entry is not None:
                claims.worker_left(self.agent, entry.ws)
        except Exception:
            # Fail closed: pins that stay end by themselves.
            logger.exception("Cannot take the pins off worker %s, which has left", worker)
        try:
            self.agent.drains.worker_left(worker)
            self.agent.stops.worker_left(worker)
            self.agent.endings.worker_left(worker)
            self.agent.roster.forget(worker)
        except Exception:
            # Fail open: the next snapshot finds out.
            logger.exception("Cannot note that worker %s has left", worker)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        # Cannot fail on what any release passes; Scheduler._transition guards it all the same.
        self.agent.barriers.transition(key, start, finish)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        try:
            claims.client_left(self.agent, client)
        except Exception:
            # Fail closed: its pins end by themselves, at their own time.
            logger.exception("Cannot shorten the pins of client %s, which has left", client)

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


def _counting(meters: Meters, report: str, measuring: Any, stock: Any) -> Any:
    return meters.counting(report, measuring(stock) if report == FINISHED else stock)
