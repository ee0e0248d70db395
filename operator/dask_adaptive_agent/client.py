"""
For users: hold workers while a block of code runs, in a notebook, a script or a task.

What is sent, and when, is in `lease`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable

from dask_adaptive_agent.lease import Lease, Pin
from dask_adaptive_agent.line import Line, PinRefused, PinUnavailable
from dask_adaptive_agent.span import seconds
from dask_adaptive_agent.wish import want

__all__ = ["Pin", "PinRefused", "PinUnavailable", "pinned", "want"]

logger = logging.getLogger(__name__)


class pinned:
    """
    Hold workers: no scale-down takes them until the block ends. Reads like `contextlib.suppress`.

    With `with` or, in async code, `async with`; or as a decorator of a function, which then holds
    them in each of its calls. In a task it goes through the worker's own connection, elsewhere
    through the Dask client. The claim is a lease: renewed in the background, given up at the end of
    the block, and gone within `ttl` when this process is killed.

    Args:
        workers: Names or addresses. None: in a task, the worker that it runs on; elsewhere, all
            that are connected now. A process that comes back under a name is held again; one
            address is one process.
        ttl: At least one second: "30m", "1h30m", seconds, or a timedelta. How long the workers stay
            held if this process is killed. The policy's `pins.client.maxDuration` must not be less.
        reason: Shown to others by `dask-adaptive pins`.
        client: The Dask client to use. None: the task's worker, or the current client.
        required: Whether to raise where the workers can't be held. If not, a warning is logged and
            the block runs all the same.

    Raises:
        ValueError: On a worker that is not there, or a `ttl` that makes no sense.
        PinRefused: By the policy; the message says what it allows.
        PinUnavailable: No client, no answer, or no agent in the scheduler; says how to mend it.
    """

    def __init__(
        self,
        workers: Sequence[str] | str | None = None,
        *,
        ttl: str | float | timedelta = "30m",
        reason: str = "",
        client: Any = None,
        required: bool = True,
    ) -> None:
        self._workers = [workers] if isinstance(workers, str) else workers
        self._ttl_s = seconds(ttl)
        self._reason = reason
        self._client = client
        self._required = required
        # One object may be entered again by another thread or task, or inside itself.
        self._entered: dict[Any, list[Pin]] = {}

    def __enter__(self) -> Pin:
        try:
            lease = self._lease()
            lease.line.refuse_own_thread()
            return self._enter(lease.claim_from_thread())
        except (PinRefused, PinUnavailable) as problem:
            return self._enter(self._without(problem))

    def __exit__(self, *_: object) -> None:
        self._leave().release_from_thread()

    async def __aenter__(self) -> Pin:
        try:
            return self._enter(await self._lease().claim())
        except (PinRefused, PinUnavailable) as problem:
            return self._enter(self._without(problem))

    async def __aexit__(self, *_: object) -> None:
        await self._leave().release()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def held_async(*args: Any, **kwargs: Any) -> Any:
                async with self:
                    return await function(*args, **kwargs)

            return held_async

        @functools.wraps(function)
        def held(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return held

    def __getstate__(self) -> dict[str, Any]:
        # A decorated function is sent to workers; what holds here does not hold there.
        return {**self.__dict__, "_entered": {}}

    def _lease(self) -> Lease:
        line = Line.of(self._client)
        return Lease(line, self._workers, ttl_s=self._ttl_s, reason=self._reason)

    def _without(self, problem: Exception) -> Pin:
        if self._required:
            raise problem
        logger.warning("Goes on without a pin: %s", problem)
        return Pin()

    def _enter(self, pin: Pin) -> Pin:
        self._entered.setdefault(_caller(), []).append(pin)
        return pin

    def _leave(self) -> Pin:
        # Test fixtures and exit stacks may leave in another task than they entered in.
        caller = _caller()
        if caller not in self._entered:
            caller = next(iter(self._entered))
        pins = self._entered[caller]
        pin = pins.pop()
        if not pins:
            del self._entered[caller]
        return pin


def _caller() -> Any:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop in this thread
        task = None
    return task or threading.get_ident()
