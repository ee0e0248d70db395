"""Tasks of tests of recycling. Nested functions, so that they travel by value: see `tasks`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def _by_value() -> tuple[Callable[..., Any], ...]:
    def where(i: int, seconds: float) -> tuple[int, str]:
        """The number, and the process that ran it."""
        from distributed import get_worker

        time.sleep(seconds)
        return i, get_worker().address

    def flavour() -> str:
        import os

        return os.environ["FLAVOUR"]

    return where, flavour


where, flavour = _by_value()
