"""Tasks that tests submit. Workers cannot import tests, so these travel by value: see the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


def slow(_: int, seconds: float) -> int:
    time.sleep(seconds)
    return 1


def result(_: int, seconds: float) -> bytes:
    time.sleep(seconds)
    return b"x" * 100_000


def block(i: int, size: int) -> bytes:
    return bytes([i]) * size


def held(i: int, event: str, size: int = 1) -> bytes:
    """Runs for as long as a test wants."""
    from distributed import Event

    assert Event(event).wait(300)
    return bytes([i]) * size


def ranked(paths: Sequence[Any], rank: int) -> str:
    """One of many paths, all of which every task gets."""
    return str(paths[rank])


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


def suspicions(dask_scheduler: Any = None) -> int:
    """How often tasks are charged with the death of a worker: for `Client.run_on_scheduler`."""
    return sum(ts.suspicious for ts in dask_scheduler.tasks.values())


def p2p(part: Callable[[int], Any], parts: int, outputs: int) -> Any:
    """Frames with columns x and k, made by `part` of a number each, in a P2P shuffle by k."""
    import dask.dataframe as dd
    import pandas as pd

    columns = pd.DataFrame({"x": pd.Series(dtype="int64"), "k": pd.Series(dtype="int64")})
    frame = dd.from_map(part, range(parts), meta=columns)
    return frame.shuffle("k", npartitions=outputs, shuffle_method="p2p")


def take_time(i: int, event: str) -> None:
    from distributed import Event

    time.sleep(0.2 if i < 6 else 2.0)
    assert i < 11 or Event(event).wait(300)


def shuffled(event: str) -> Any:
    """
    A P2P shuffle of 12 parts; computes to its rows and their sum.

    A worker is handed two parts at once and runs both before anything else, so the first six are
    quick: the shuffle begins with them, and goes on while the other six take 2 s each and the last
    one waits for the `distributed.Event` of that name.
    """
    import pandas as pd

    def part(i: int) -> pd.DataFrame:
        take_time(i, event)
        x = range(i * 1000, (i + 1) * 1000)
        return pd.DataFrame({"x": x, "k": [v % 97 for v in x]})

    def summary(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"rows": [len(frame)], "total": [int(frame["x"].sum())]})

    found = pd.DataFrame({"rows": pd.Series(dtype="int64"), "total": pd.Series(dtype="int64")})
    return p2p(part, 12, 3).map_partitions(summary, meta=found)


# distributed tries pickle first, which names the module; what is of __main__ goes by value.
_TASKS: tuple[Any, ...] = (
    slow, result, block, held, ranked, where, leak, fragile, break_process, suspicions, take_time,
)  # fmt: skip
for _task in _TASKS:
    _task.__module__ = "__main__"
