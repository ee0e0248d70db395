"""For users: ask for workers from code, before there is work for them. A floor, as a lease."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Generator
from datetime import timedelta
from time import monotonic
from typing import Any

from dask_adaptive_agent import wire
from dask_adaptive_agent.lease import RENEW_S, Lease, Pin
from dask_adaptive_agent.line import Line, PinRefused, PinUnavailable, is_on
from dask_adaptive_agent.span import seconds

logger = logging.getLogger("dask_adaptive_agent.client")


class Wish(Lease):
    """One floor, with an owner of its own."""

    called = "want"

    def __init__(self, line: Line, workers: int, *, group: str, ttl_s: float) -> None:
        super().__init__(line, None, ttl_s=ttl_s, reason="")
        self._n, self._group = workers, group
        self._is_kept = False

    async def keep(self) -> None:
        """Renew it from now on, until it is given up. Runs on the loop of its line."""
        self._is_kept = True
        self._schedule(min(self._ttl_s / 3, RENEW_S))

    def give_up(self) -> None:
        """Begin to give it up, and do not wait for that."""
        self._give_up()

    async def _first(self) -> None:
        await self._tell(self._n)

    async def _again(self) -> None:
        await self._tell(self._n)

    async def _farewell(self) -> None:
        await self._tell(0)

    async def _tell(self, workers: int) -> None:
        asked_at = monotonic()
        await self._answer(
            wire.WANT,
            workers=workers,
            ttl_ms=math.ceil(self._ttl_s * 1000),
            owner=self._owner,
            client=self.line.client,
            group=self._group,
        )
        self._until = asked_at + self._ttl_s if workers else -math.inf

    def _schedule(self, delay_s: float) -> None:
        if self._is_kept:
            super()._schedule(delay_s)

    def _warn(self, problem: object) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s workers are wanted no more: %s", self._n, problem)


class want:
    """
    Ask for at least so many workers, before there is work for them.

    As a call it holds for `ttl` and no longer: `want(20, ttl="10m")`. With `with` or, in async
    code, `async with`, it is renewed until the block ends, and given up then; `await want(...)`
    waits until the scheduler has heard it. Whoever asks, it ends a minute after its Dask client
    has left. Never more workers come of it than the policy's `maxReplicas`, and of several wishes
    the highest counts.

    Args:
        workers: At least so many, 1 or more.
        ttl: At least one second: "30m", "1h30m", seconds, or a timedelta. The policy's
            `pins.client.maxDuration` must not be less.
        group: The worker group. Empty: the default one.
        client: The Dask client to use. None: the task's worker, or the current client.
        required: Whether to raise where nobody can be asked. If not, a warning is logged.

    Raises:
        ValueError: On a number or a `ttl` that makes no sense.
        PinRefused: By the policy; the message says what it allows.
        PinUnavailable: No client, no answer, or no agent in the scheduler; says how to mend it.
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
            raise ValueError(f"workers={workers!r} is no number of workers; ask for 1 or more")
        self.workers = workers
        self._ttl_s = seconds(ttl)
        self._required = required
        self._wish: Wish | None = None
        self._asking: asyncio.Task[Lease] | None = None
        try:
            self._wish = Wish(Line.of(client), workers, group=group, ttl_s=self._ttl_s)
            if is_on(self._wish.line.loop):  # a thread must not wait for itself
                self._asking = asyncio.ensure_future(self._wish.claim())
                self._asking.add_done_callback(self._asked)
            else:
                self._wish.claim_from_thread()
        except (PinRefused, PinUnavailable) as problem:
            self._without(problem)

    @property
    def left_s(self) -> float:
        """Seconds until it would end if it were renewed no more."""
        return 0.0 if self._wish is None else self._wish.left_s

    def cancel(self) -> None:
        """Want it no more; whatever goes wrong, it ends by itself."""
        if self._wish is not None:
            self._wish.give_up()

    def __await__(self) -> Generator[Any, None, want]:
        return self._heard().__await__()

    def __enter__(self) -> want:
        if self._wish is not None:
            self._wish.line.refuse_own_thread("want")
            self._wish.line.start(self._wish.keep()).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._pin().release_from_thread()

    async def __aenter__(self) -> want:
        await self._heard()
        if self._wish is not None:
            await self._wish.line.wait_for(self._wish.keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pin().release()

    async def _heard(self) -> want:
        if self._asking is not None:
            asking, self._asking = self._asking, None
            try:
                await asking
            except (PinRefused, PinUnavailable) as problem:
                self._without(problem)
        return self

    def _pin(self) -> Pin:
        return Pin() if self._wish is None else self._wish

    def _without(self, problem: Exception) -> None:
        self._wish = None
        if self._required:
            raise problem
        logger.warning("Goes on without asking for workers: %s", problem)

    def _asked(self, asking: asyncio.Task[Lease]) -> None:
        # Nobody else would say so where the call was not awaited.
        if self._asking is asking and not asking.cancelled() and asking.exception() is not None:
            logger.warning("Goes on without asking for workers: %s", asking.exception())
