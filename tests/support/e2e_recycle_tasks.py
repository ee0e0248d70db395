"""Tasks that use workers up. Nested functions, so that they travel by value: see `tasks`."""

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

    def leak(i: int, size: int, seconds: float) -> int:
        import builtins

        kept: list[bytearray] = builtins.__dict__.setdefault("leaked", [])
        kept.append(bytearray(b"x") * size)
        time.sleep(seconds)
        return i

    def fails_where_broken(i: int, seconds: float) -> int:
        """On a machine with a file /tmp/broken every run fails as with a broken GPU."""
        import os

        if os.path.exists("/tmp/broken"):
            raise RuntimeError("CUDA error: device-side assert triggered")
        time.sleep(seconds)
        return i

    def break_machine() -> None:
        open("/tmp/broken", "w").close()

    def flavour() -> str:
        import os

        return os.environ["FLAVOUR"]

    return where, leak, fails_where_broken, break_machine, flavour


where, leak, fails_where_broken, break_machine, flavour = _by_value()
