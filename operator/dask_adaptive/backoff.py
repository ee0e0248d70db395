"""Backs off after errors, restarts parts that must not end, and ends tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from dask_adaptive.loop.ports import PlatformError

logger = logging.getLogger(__name__)


class Backoff:
    """Waits of seconds, from `first_s` to `longest_s`: each twice the one before, with jitter."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._errors = 0

    def good(self) -> None:
        """Reset: the next error counts as the first."""
        self._errors = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Return half to all of the wait, but at least what the caller requires."""
        wait_s = min(self._first_s * 2.0 ** min(self._errors, 30), self._longest_s)
        self._errors += 1
        return max(wait_s * random.uniform(0.5, 1.0), at_least_s)


def error_text(exc: BaseException) -> str:
    """Return the message of our own errors; for others, with the type."""
    return str(exc) if isinstance(exc, PlatformError) else repr(exc)


async def begun_anew(
    what: str, run: Callable[[], Awaitable[None]], *, first_s: float = 1.0, longest_s: float = 60.0
) -> None:
    """
    Run a part until it returns or is cancelled, restarting it after errors.

    An error in it is logged and ends nothing else: the part restarts after a wait. So it does
    after a cancellation that was meant for something it awaits.
    """
    backoff, clock = Backoff(first_s, longest_s), asyncio.get_running_loop().time
    task = asyncio.current_task()
    while True:
        began = clock()
        try:
            return await run()
        except (Exception, asyncio.CancelledError) as exc:  # other parts must go on
            if task is not None and task.cancelling():
                raise
            if clock() - began > longest_s:
                backoff.good()
            wait_s = backoff.next_s(getattr(exc, "retry_after_s", 0.0))
            text = "%s ended and restarts in %.1f s: %s"
            is_known = isinstance(exc, PlatformError)
            logger.warning(text, what, wait_s, error_text(exc), exc_info=not is_known)
        await asyncio.sleep(wait_s)


async def until_one_ends(*parts: Awaitable[Any], within_s: float | None = None) -> None:
    """Run all until one ends, then end the others (see `end`); raise its error."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await end(tasks, within_s=within_s)


async def end(tasks: Collection[asyncio.Future[Any]], *, within_s: float | None = None) -> None:
    """Cancel tasks and wait for them within a limit: a library's may never end."""
    for task in tasks:
        task.cancel()
    done, stuck = await asyncio.wait(tasks, timeout=within_s)
    for task in done:
        task.cancelled() or task.exception()  # else asyncio warns that it was never retrieved
    if stuck:
        logger.warning("%d tasks did not end in time; going on without them", len(stuck))


async def heard(event: asyncio.Event, *, within_s: float) -> None:
    """Wait for an event, with a limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(within_s, 0.0)):
            await event.wait()
