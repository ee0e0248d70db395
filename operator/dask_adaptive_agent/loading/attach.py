"""
Puts the agent into a scheduler as a plugin, whichever way it came, and takes it out.

The plugin translates, never thinks, never raises.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_adaptive_agent import __version__, wire
from dask_adaptive_agent.agent import Agent
from dask_adaptive_agent.component import logged
from dask_adaptive_agent.shuffle.runs import BARRIER
from dask_adaptive_agent.worker_side.worker_plugin import Lender

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)


def install(scheduler: Scheduler, clock: Callable[[], float] = monotonic) -> Agent:
    """
    Start the agent in `scheduler`; call it on the scheduler's event loop.

    Harmless when it runs already (preload and RPC may race). An agent of another version is taken
    out first. When anything fails, the scheduler is left as it was.
    """
    running = _running(scheduler)
    if running is not None:
        is_whole = scheduler.plugins.get(AdaptivePlugin.name) is running
        if is_whole and getattr(running, "version", None) == __version__:
            return running.agent  # type: ignore[no-any-return]
        running.uninstall()
    plugin = AdaptivePlugin(Agent(scheduler, clock))
    try:
        plugin.install()
    except BaseException:
        plugin.uninstall()
        raise
    return plugin.agent


def uninstall(scheduler: Scheduler) -> None:
    """Stop the agent in `scheduler`, if there is one, and put everything back."""
    running = _running(scheduler)
    if running is not None:
        running.uninstall()


def _running(scheduler: Scheduler) -> Any:
    """The plugin of the agent that is there, if any: also of one whose plugin was unregistered."""
    handler = scheduler.handlers.get(wire.HELLO)
    return scheduler.plugins.get(AdaptivePlugin.name) or getattr(handler, "plugin", None)


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
        self._lender = Lender(agent.scheduler)
        self._asked = agent.drains.asked

    def install(self) -> None:
        scheduler: Any = self.agent.scheduler
        self._handlers = {
            name: self._while_in_place(handler) for name, handler in self.agent.handlers().items()
        }
        scheduler.handlers.update(self._handlers)
        self.agent.install()
        self.agent.roster.sync()
        self.agent.barriers.start()
        scheduler.add_plugin(self, name=self.name)
        self.agent.cordons.start()
        self._lender.give()
        self.agent.reliefs.configure(self.agent.settings.relief)
        self.agent.page.install()

    def uninstall(self) -> None:
        """Put everything back as it was; workers that drain go back to service."""
        scheduler: Any = self.agent.scheduler
        self._lender.take()
        self.agent.close(is_closing=False)
        if scheduler.plugins.get(self.name) is self:
            scheduler.remove_plugin(name=self.name)
        for name, handler in self._handlers.items():
            if scheduler.handlers.get(name) is handler:
                del scheduler.handlers[name]
        self.agent.patches.close()

    def _while_in_place(self, handler: Any) -> Any:
        """
        The handler, but for a plugin that somebody has unregistered: that is not told to plugins.

        It hears of nothing any more, so the first message takes the rest out; the answer is that of
        a scheduler that has no such handler.
        """

        @functools.wraps(handler)
        def answer(**request: Any) -> Any:
            if self.agent.scheduler.plugins.get(self.name) is self:
                return handler(**request)
            logger.warning("The plugin %s was unregistered: the agent goes, too", self.name)
            self.uninstall()
            return None

        answer.plugin = self  # type: ignore[attr-defined]
        return answer

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        # Scheduler.workers_to_close does not guard its plugins; `free` answers an error with no
        # worker at all.
        return self.agent.free(workers)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        # Fail open: the next snapshot finds the worker, and counts its idle time from then.
        with logged(logger, "Failed to note that worker %s has joined", worker):
            self._lender.joined(worker)
            self.agent.worker_joined(worker)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        # Fail closed: pins that stay end by themselves.
        with logged(logger, "Failed to end the pins of worker %s, which has left", worker):
            entry = self.agent.roster.entries.get(worker)
            if entry is not None:
                self.agent.pins.worker_left(entry.ws)
        # Fail open: the next snapshot finds out.
        with logged(logger, "Failed to note that worker %s has left", worker):
            self.agent.drains.worker_left(worker)
            self.agent.cordons.worker_left(worker)
            self.agent.roster.entries.pop(worker, None)

    def update_graph(self, scheduler: Scheduler, *args: Any, **kwargs: Any) -> None:
        # Called before the graph's tasks are assigned. Neither raises.
        self.agent.known.graph_added(kwargs.get("annotations") or {})
        self.agent.cordons.graph_added()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        # Cannot fail on what any release passes; Scheduler._transition guards it all the same.
        # Five times a task: as few calls as there can be.
        if finish != "waiting" != start:
            if start == "memory" and key in self._asked:
                self._asked.forget(key)
        elif type(key) is str and key.startswith(BARRIER):
            self.agent.barriers.transition(key, start, finish)

    def restart(self, scheduler: Scheduler) -> None:
        # Scheduler.restart guards it; `restarts` cannot fail.
        self.agent.upstream_calls.restarts()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        # Fail closed: its pins end by themselves, at their own time.
        with logged(logger, "Failed to shorten the pins of client %s, which has left", client):
            self.agent.client_left(client)

    async def close(self) -> None:
        with logged(logger, "Failed to stop the agent"):
            self.agent.close(is_closing=True)
