"""Ends the loop at a chosen step, as if the operator had been killed there."""

from __future__ import annotations

import asyncio
from typing import Any


class Killer:
    """Wraps a port; ends the loop's task right before or after the first call of one method."""

    def __init__(self, port: Any, method: str, when: str) -> None:
        self._port, self._method, self._when = port, method, when
        self.has_struck = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._when == "after":
                await real(*args, **kwargs)
            self.has_struck = True
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(3600)  # never returns: the process is gone

        return call if name == self._method else real
