"""After errors: how long to wait, and to begin anew what should not have ended."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from dask_adaptive.loop.ports import PlatformError

logger = logging.getLogger(__name__)


class Backoff:
    """Waits of seconds, from `first_s` to `longest_s`: each twice the one before, with jitter."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._errors = 0

    def good(self) -> None:
        """The next error is the first again."""
        self._errors = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """From half of the wait to all of it, and never less than somebody asks for."""
        wait_s = min(self._first_s * 2.0 ** min(self._errors, 30), self._longest_s)
        self._errors += 1
        return max(wait_s * random.uniform(0.5, 1.0), at_least_s)


async def begun_anew(
    what: str, run: Callable[[], Awaitable[None]], *, first_s: float = 1.0, longest_s: float = 60.0
) -> None:
    """
    Run a part until it returns, or is cancelled.

    An error in it is logged and ends nothing else: the part begins anew after a wait. So it does
    after a cancellation that was meant for something it awaits.
    """
    backoff, clock = Backoff(first_s, longest_s), asyncio.get_running_loop().time
    task = asyncio.current_task()
    while True:
        began = clock()
        try:
            return await run()
        except (Exception, asyncio.CancelledError) as exc:  # a border: other parts must go on
            if task is not None and task.cancelling():
                raise
            if clock() - began > longest_s:
                backoff.good()
            wait_s = backoff.next_s(getattr(exc, "retry_after_s", 0.0))
            is_known = isinstance(exc, PlatformError)
            text = "%s: ended, and begins anew in %.1f s: %s"
            said = str(exc) if is_known else repr(exc)
            logger.warning(text, what, wait_s, said, exc_info=not is_known)
        await asyncio.sleep(wait_s)
