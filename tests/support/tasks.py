"""Tasks that tests submit. Workers cannot import tests, so these travel by value."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def _by_value() -> tuple[Callable[..., Any], ...]:
    # A nested function cannot be pickled by reference, which makes Dask take cloudpickle.
    def slow(_: int, seconds: float) -> int:
        time.sleep(seconds)
        return 1

    # These use workers up.
    def where(i: int, seconds: float) -> tuple[int, str]:
        """The number, and the process that ran it."""
        from distributed import get_worker

        time.sleep(seconds)
        return i, get_worker().id

    def leak(i: int, size: int, seconds: float) -> int:
        """Keep memory that nobody will ever give back."""
        import builtins

        kept: list[bytes] = builtins.__dict__.setdefault("leaked", [])
        kept.append(b"x" * size)
        time.sleep(seconds)
        return i

    def fragile(i: int, seconds: float) -> tuple[int, str]:
        """In a broken process every run fails as with a broken GPU."""
        import builtins

        from distributed import get_worker

        if "broken" in builtins.__dict__:
            raise RuntimeError("CUDA error: device-side assert triggered")
        time.sleep(seconds)
        return i, get_worker().id

    def break_process() -> None:
        import builtins

        builtins.__dict__["broken"] = True

    return slow, where, leak, fragile, break_process


slow, where, leak, fragile, break_process = _by_value()
