"""What fails in the agent reaches no scheduler: its log tells, and the work goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger
from typing import Any


@contextmanager
def logged(logger: Logger, message: str, *args: Any) -> Iterator[None]:
    """An error ends this block, and no more; `message` and `args` are as for `Logger.error`."""
    try:
        yield
    except Exception:
        logger.exception(message, *args)
