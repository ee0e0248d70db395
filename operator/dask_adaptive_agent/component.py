"""What the parts of the agent have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_adaptive_agent.agent import Agent


class Component:
    """A part of the agent in one scheduler; `agent` leads to all others."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.scheduler, self.clock = agent, agent.scheduler, agent.clock


@contextmanager
def logged(logger: Logger, message: str, *args: Any) -> Iterator[None]:
    """
    An error ends this block, and reaches no scheduler; `message` and `args` are as for
    `Logger.error`.
    """
    try:
        yield
    except Exception:
        logger.exception(message, *args)
