"""Tasks of the e2e tests. Nested functions, so that they travel by value: see `tasks`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def _by_value() -> tuple[Callable[..., bytes], Callable[..., str]]:
    def result(_: int, seconds: float) -> bytes:
        time.sleep(seconds)
        return b"x" * 100_000

    def logged(name: str, seconds: float) -> str:
        """Where no agent counts runs, the scheduler's event log does: see `Client.get_events`."""
        from distributed import get_worker

        get_worker().log_event("ran", name)
        time.sleep(seconds)
        return name

    return result, logged


result, logged = _by_value()


def shuffled(slow_s: float) -> Any:
    """
    A P2P shuffle of 12 parts; computes to its rows and their sum.

    A worker is handed two parts at once and runs both before anything else, so the first six are
    quick: the shuffle begins with them, and goes on while the other six take `slow_s` each.
    """
    import dask
    import dask.dataframe as dd
    import pandas as pd

    def part(i: int) -> pd.DataFrame:
        time.sleep(0.2 if i < 6 else slow_s)
        x = range(i * 1000, (i + 1) * 1000)
        return pd.DataFrame({"x": x, "k": [v % 97 for v in x]})

    def summary(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"rows": [len(frame)], "total": [int(frame["x"].sum())]})

    columns = pd.DataFrame({"x": pd.Series(dtype="int64"), "k": pd.Series(dtype="int64")})
    found = pd.DataFrame({"rows": pd.Series(dtype="int64"), "total": pd.Series(dtype="int64")})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        frame = dd.from_map(part, range(12), meta=columns).shuffle("k", npartitions=3)
        return frame.map_partitions(summary, meta=found)
