"""When each worker last had a task. Runs once a task: every line is paid 1,000 times a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

StreamHandler = Callable[..., Any]

#: Reports of a worker that a run ended, whether or not the scheduler accepts its result.
REPORTS = ("task-finished", "task-erred")


class Activity:
    """The instant of the last report of a run, by worker address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.last: dict[str, float] = {}

    def stamping(self, stock: StreamHandler) -> StreamHandler:
        """
        The stream handler `stock`, which also stamps.

        All arguments are passed through by keyword (`Server.handle_stream` calls handlers as
        `handler(**merge(extra, msg))`), so that fields added upstream arrive.
        """
        last, clock = self.last, self._clock

        def stamped(**msg: Any) -> Any:
            last[msg.get("worker", "")] = clock()
            return stock(**msg)

        stamped.__wrapped__ = stock  # type: ignore[attr-defined]
        return stamped

    def forget(self, address: str) -> None:
        self.last.pop(address, None)
