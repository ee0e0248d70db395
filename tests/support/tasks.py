"""Tasks that tests submit. Workers cannot import tests, so these travel by value."""

from __future__ import annotations

import time
from collections.abc import Callable


def _by_value() -> Callable[..., int]:
    # A nested function cannot be pickled by reference, which makes Dask take cloudpickle.
    def slow(_: int, seconds: float) -> int:
        time.sleep(seconds)
        return 1

    return slow


slow = _by_value()
