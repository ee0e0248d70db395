"""Tasks of the e2e tests. Nested functions, so that they travel by value: see `tasks`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


def _by_value() -> tuple[Callable[..., Any], ...]:
    def result(_: int, seconds: float) -> bytes:
        time.sleep(seconds)
        return b"x" * 100_000

    def take_time(i: int, event: str) -> None:
        time.sleep(0.2 if i < 6 else 2.0)
        if i == 11:
            from distributed import Event

            assert Event(event).wait(300)

    def block(i: int, size: int) -> bytes:
        return bytes([i]) * size

    def suspicions(dask_scheduler: Any = None) -> int:
        """How often tasks are charged with the death of a worker: for `Client.run_on_scheduler`."""
        return sum(ts.suspicious for ts in dask_scheduler.tasks.values())

    return result, take_time, block, suspicions


def _with_arguments() -> tuple[Callable[..., Any], ...]:
    def held(i: int, event: str, size: int = 1) -> bytes:
        """Runs for as long as a test wants."""
        from distributed import Event

        assert Event(event).wait(300)
        return bytes([i]) * size

    def ranked(paths: Sequence[Any], rank: int) -> str:
        """One of many paths, all of which every task gets."""
        return str(paths[rank])

    return held, ranked


result, _take_time, block, suspicions = _by_value()
held, ranked = _with_arguments()


def shuffled(event: str) -> Any:
    """
    A P2P shuffle of 12 parts; computes to its rows and their sum.

    A worker is handed two parts at once and runs both before anything else, so the first six are
    quick: the shuffle begins with them, and goes on while the other six take 2 s each and the last
    one waits for the `distributed.Event` of that name.
    """
    import dask
    import dask.dataframe as dd
    import pandas as pd

    take_time = _take_time

    def part(i: int) -> pd.DataFrame:
        take_time(i, event)
        x = range(i * 1000, (i + 1) * 1000)
        return pd.DataFrame({"x": x, "k": [v % 97 for v in x]})

    def summary(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"rows": [len(frame)], "total": [int(frame["x"].sum())]})

    columns = pd.DataFrame({"x": pd.Series(dtype="int64"), "k": pd.Series(dtype="int64")})
    found = pd.DataFrame({"rows": pd.Series(dtype="int64"), "total": pd.Series(dtype="int64")})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        frame = dd.from_map(part, range(12), meta=columns).shuffle("k", npartitions=3)
        return frame.map_partitions(summary, meta=found)
