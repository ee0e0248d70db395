"""Puts the agent into a scheduler, whichever way it came, and takes it out."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import __version__, wire
from dask_adaptive_agent.agent import Agent
from dask_adaptive_agent.inmemory import find
from dask_adaptive_agent.plugin import AdaptivePlugin

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Seconds a scheduler in another thread may take to install.
PATIENCE_S = 30.0


def install(scheduler: Scheduler) -> Agent:
    """
    Start the agent in `scheduler`; call it on the scheduler's event loop.

    Harmless when it runs already (preload and RPC may race). An agent of another version is taken
    out first. When anything fails, the scheduler is left as it was.
    """
    running = _running(scheduler)
    if running is not None:
        is_whole = scheduler.plugins.get(AdaptivePlugin.name) is running
        if is_whole and getattr(running, "version", None) == __version__:
            agent: Agent = running.agent
            return agent
        running.uninstall()
    plugin = AdaptivePlugin(Agent(scheduler))
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


def install_from_exec(scheduler_id: str) -> None:
    """
    Install in the scheduler of this process that has the id, on its own event loop.

    The operator attaches to a live scheduler through the stock RPC `run_function` with a pickled
    `builtins.exec` and the text of `bootstrap.render`. `Scheduler.run_function` runs in the
    scheduler's event loop; any other caller waits until that loop has done it.

    Raises:
        LookupError: No scheduler of this process has that id.
    """
    scheduler = find(scheduler_id)
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is scheduler.loop.asyncio_loop:
        install(scheduler)
        return
    done: concurrent.futures.Future[None] = concurrent.futures.Future()

    def install_there() -> None:
        try:
            install(scheduler)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    scheduler.loop.add_callback(install_there)
    done.result(PATIENCE_S)
