"""
For users: `pinned` holds workers while a block of code runs, in a notebook, a script or a task, and
`want` asks for workers before there is work for them. What is sent, and when: `client_lease`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import threading
from collections.abc import Generator, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Callable

from dask_adaptive_agent import wire
from dask_adaptive_agent.client.client_lease import (
    ClientLease,
    Pin,
    PinRefused,
    PinUnavailable,
    SchedulerConnection,
    current_task,
    seconds,
)

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
        reason: Shown to others by `dask-adaptive explain`.
        client: The Dask client to use. None: the task's worker, or the current client.
        required: Whether to raise where the workers can't be held. If not, a warning is logged and
            the block runs all the same.

    Raises:
        ValueError: On a worker that is not there, or an invalid `ttl`.
        PinRefused: By the policy; the message says what it allows.
        PinUnavailable: No client, no answer, or no agent in the scheduler; says how to fix it.
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
            lease.connection.refuse_own_thread()
            return self._enter(lease.acquire_from_thread())
        except (PinRefused, PinUnavailable) as problem:
            return self._enter(self._without(problem))

    def __exit__(self, *_: object) -> None:
        self._leave().release_from_thread()

    async def __aenter__(self) -> Pin:
        try:
            return self._enter(await self._lease().acquire())
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

    def _lease(self) -> ClientLease:
        connection = SchedulerConnection.of(self._client)
        return ClientLease(connection, self._workers, ttl_s=self._ttl_s, reason=self._reason)

    def _without(self, problem: Exception) -> Pin:
        if self._required:
            raise problem
        logger.warning("Continuing without a pin: %s", problem)
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


class WantLease(ClientLease):
    """A floor under the number of workers, with an owner of its own."""

    called = "want"

    def __init__(
        self, connection: SchedulerConnection, workers: int, *, group: str, ttl_s: float
    ) -> None:
        super().__init__(connection, None, ttl_s=ttl_s, reason="")
        self._n, self._group = workers, group
        self._is_kept = False

    async def keep(self) -> None:
        """Renew it from now on, until it is released. Runs on its connection's loop."""
        self._is_kept = True
        self._schedule(self._every_s)

    async def _hold(self, *, is_first: bool = False) -> None:
        await self._request(self._n)

    async def _farewell(self) -> None:
        await self._request(0)

    async def _request(self, workers: int) -> None:
        requested_at = monotonic()
        await self._answer(
            wire.WANT,
            workers=workers,
            ttl_ms=math.ceil(self._ttl_s * 1000),
            owner=self._owner,
            client=self.connection.client,
            group=self._group,
        )
        self._until = requested_at + self._ttl_s if workers else -math.inf

    def _schedule(self, delay_s: float) -> None:
        if self._is_kept:
            super()._schedule(delay_s)

    def _warn(self, problem: object) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s workers are no longer requested: %s", self._n, problem)


class want:
    """
    Request at least so many workers, before there is work for them.

    As a call it holds for `ttl` and no longer: `want(20, ttl="10m")`. With `with` or, in async
    code, `async with`, it is renewed until the block ends, and given up then; `await want(...)`
    waits until the scheduler has heard it. Whoever asks, it ends a minute after its Dask client
    has left. Never more workers come of it than the policy's `maxReplicas`, and of several wants
    the highest counts.

    Args:
        workers: At least so many, 1 or more.
        ttl: At least one second: "30m", "1h30m", seconds, or a timedelta. The policy's
            `pins.client.maxDuration` must not be less.
        group: The worker group. Empty: the default one.
        client: The Dask client to use. None: the task's worker, or the current client.
        required: Whether to raise where workers can't be requested. If not, a warning is logged.

    Raises:
        ValueError: On an invalid number or `ttl`.
        PinRefused: By the policy; the message says what it allows.
        PinUnavailable: No client, no answer, or no agent in the scheduler; says how to fix it.
    """

    def __init__(
        self,
        workers: int,
        *,
        ttl: str | float | timedelta = "30m",
        group: str = "",
        client: Any = None,
        required: bool = True,
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers={workers!r} is not a number of workers; ask for 1 or more")
        self.workers = workers
        self._ttl_s = seconds(ttl)
        self._required = required
        self._lease: WantLease | None = None
        self._pending: asyncio.Task[WantLease] | None = None
        try:
            connection = SchedulerConnection.of(client)
            self._lease = WantLease(connection, workers, group=group, ttl_s=self._ttl_s)
            if connection.is_own_loop:  # a thread must not wait for itself
                self._pending = asyncio.ensure_future(self._lease.acquire())
                self._pending.add_done_callback(self._acquired)
            else:
                self._lease.acquire_from_thread()
        except (PinRefused, PinUnavailable) as problem:
            self._without(problem)

    @property
    def left_s(self) -> float:
        """Seconds until it would end if it were renewed no more."""
        return 0.0 if self._lease is None else self._lease.left_s

    def cancel(self) -> None:
        """Stop requesting workers; if that fails, the request ends by its time limit."""
        if self._lease is not None:
            self._lease.give_up()

    def __await__(self) -> Generator[Any, None, want]:
        return self._heard().__await__()

    def __enter__(self) -> want:
        if self._lease is not None:
            self._lease.connection.refuse_own_thread("want")
            self._lease.connection.start(self._lease.keep()).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._pin().release_from_thread()

    async def __aenter__(self) -> want:
        await self._heard()
        if self._lease is not None:
            await self._lease.connection.wait_for(self._lease.keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pin().release()

    async def _heard(self) -> want:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                await pending
            except (PinRefused, PinUnavailable) as problem:
                self._without(problem)
        return self

    def _pin(self) -> Pin:
        return Pin() if self._lease is None else self._lease

    def _without(self, problem: Exception) -> None:
        self._lease = None
        if self._required:
            raise problem
        logger.warning("Continuing without a request for workers: %s", problem)

    def _acquired(self, pending: asyncio.Task[WantLease]) -> None:
        # Nobody else would say so where the call was not awaited.
        if self._pending is pending and not pending.cancelled() and pending.exception() is not None:
            logger.warning("Continuing without a request for workers: %s", pending.exception())


def _caller() -> Any:
    return current_task() or threading.get_ident()
