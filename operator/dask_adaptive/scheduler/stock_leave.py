"""Save what a worker has whose process is about to end, with what stock RPC offers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.scheduler.calls import SchedulerCalls

#: Between two looks at a worker that still runs a task.
LOOK_S = 1.0


class StockDepartures:
    """
    Workers whose processes are about to end, by address, and who moves their data.

    `retire_workers(close_workers=False, remove=False)` is asked of busy workers too: their process
    ends whatever we do. It takes them out of service, moves the last copies and lets running tasks
    go on; a task that finishes meanwhile leaves a new result, so it is asked again after that.
    What cannot be done without the agent: wait for pins, keep a task that is killed from being
    called suspicious, and put the worker back to service.
    """

    def __init__(
        self,
        calls: SchedulerCalls,
        long_calls: SchedulerCalls,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls, self._long_calls, self._clock = calls, long_calls, clock
        self._until: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[bool]] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._until

    def begin(self, addresses: Sequence[str], *, left_s: float) -> None:
        """Move what these workers have; of several deadlines the earliest counts."""
        until = self._clock() + left_s
        for address in addresses:
            self._until[address] = min(until, self._until.get(address, until))
        new = [a for a in addresses if a not in self._tasks]
        if new:
            # In one request: one after the other, each might rely on a copy that the other has.
            task = asyncio.create_task(self._empty(new))
            self._tasks.update(dict.fromkeys(new, task))

    def left_s(self, address: str) -> float:
        return max(0.0, self._until[address] - self._clock())

    def is_empty(self, address: str) -> bool:
        """Whether all that the worker had has been moved, and no task is left on it."""
        task = self._tasks.get(address)
        return task is not None and _ended(task) and task.result()

    def forget(self, present: Collection[str]) -> None:
        for address in self._until.keys() - set(present):
            del self._until[address]
            self._tasks.pop(address, None)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _empty(self, addresses: list[str]) -> bool:
        while there := [a for a in addresses if a in self._until and self.left_s(a) > 0]:
            try:
                if await self._move(there):
                    return True
            except LinkError:
                pass  # one of them is gone, or the scheduler did not answer: the rest go on
            await asyncio.sleep(LOOK_S)
        return False

    async def _move(self, addresses: list[str]) -> bool:
        # Read before the move: a task that ends in between leaves a result to be moved.
        tasks = await self._calls.call("processing", workers=addresses)
        moved = await self._long_calls.call(
            "retire_workers", workers=addresses, close_workers=False, remove=False
        )
        return len(moved) == len(addresses) and not any(tasks.values())


def _ended(task: asyncio.Task[bool]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
