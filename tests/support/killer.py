"""Ends the loop at a chosen step, as if the operator had been killed there."""

from __future__ import annotations

import asyncio
from typing import Any


class Killer:
    """
    Wraps a port; ends the loop's task right before or after the n-th call of one method.

    Calls count only while `is_armed`.
    """

    def __init__(
        self, port: Any, method: str, when: str, nth: int, *, is_armed: bool = True
    ) -> None:
        self._port, self._method, self._when, self._left = port, method, when, nth
        self.is_armed, self.has_struck = is_armed, False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)
        if name != self._method or not self.is_armed:
            return real

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._when == "before":
                await self._strike()
            result = await real(*args, **kwargs)
            if self._left == 0 and self._when == "after":
                await self._strike()
            return result

        return call

    async def _strike(self) -> None:
        self.has_struck = True
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(3600)  # never returns: the process is gone
