"""The same work for both sides. Functions are nested, so that they travel by value."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from distributed import Client


def _by_value() -> tuple[Callable[..., Any], ...]:
    def work(_: Any, seconds: float) -> bytes:
        time.sleep(seconds)
        return b"x" * 1000

    def part(i: int, seconds: float) -> Any:
        import pandas as pd

        time.sleep(seconds)
        x = range(i * 1000, (i + 1) * 1000)
        return pd.DataFrame({"x": x, "k": [v % 97 for v in x]})

    def slow_sum(frame: Any, seconds: float) -> Any:
        import pandas as pd

        time.sleep(seconds)
        return pd.DataFrame({"rows": [len(frame)]})

    return work, part, slow_sum


work, part, slow_sum = _by_value()


async def burst_and_tail(client: Client) -> None:
    """240 tasks of 0.5 s, then 4 of 40 s."""
    await client.gather(client.map(work, range(240), seconds=0.5, pure=False))
    await client.gather(client.map(work, range(4), seconds=40, pure=False))


async def too_many(client: Client) -> None:
    """480 tasks of 0.5 s."""
    await client.gather(client.map(work, range(480), seconds=0.5, pure=False))


async def notebook(client: Client) -> list[float]:
    """8 bursts of 60 tasks of 0.8 s, with pauses of 9 s."""
    took_s = []
    for i in range(8):
        if i:
            await asyncio.sleep(9)
        began = time.monotonic()
        await client.gather(client.map(work, range(60), seconds=0.8, pure=False))
        took_s.append(time.monotonic() - began)
    return took_s


async def oscillating(client: Client) -> None:
    """6 bursts of 40 tasks of 0.5 s, 17 s from one beginning to the next: near the cooldown."""
    for _ in range(6):
        began = time.monotonic()
        await client.gather(client.map(work, range(40), seconds=0.5, pure=False))
        await asyncio.sleep(max(0.0, 17 - (time.monotonic() - began)))


async def slow_step(client: Client) -> None:
    """60 quick source tasks, each followed by one of 3 s."""
    first = client.map(work, range(60), seconds=0.01, pure=False)
    await client.gather(client.map(work, first, seconds=3, pure=False))


async def p2p(client: Client) -> None:
    """A P2P shuffle of 40 parts into 100; each output takes 1 s."""
    import dask
    import dask.dataframe as dd
    import pandas as pd

    columns = pd.DataFrame({"x": pd.Series(dtype="int64"), "k": pd.Series(dtype="int64")})
    found = pd.DataFrame({"rows": pd.Series(dtype="int64")})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        frame = dd.from_map(part, range(40), seconds=0.1, meta=columns)
        outputs = frame.shuffle("k", npartitions=100).map_partitions(slow_sum, 1.0, meta=found)
        rows: Any = await client.compute(outputs)
    assert rows["rows"].sum() == 40_000


async def two_groups(client: Client) -> None:
    """60 tasks of 0.5 s, then a long rest, beside a group that nobody scales; then 40 more."""
    await client.gather(client.map(work, range(60), seconds=0.5, pure=False))
    await asyncio.sleep(40)
    await client.gather(client.map(work, range(40), seconds=0.5, pure=False))


@dataclass(frozen=True)
class Workload:
    run: Callable[[Client], Awaitable[list[float] | None]]  # seconds of its waves, if it has some
    maximum: int = 6
    patience_s: float = 240.0
    ideal_s: float = 0.0  # on six workers that are there from the beginning
    node_room: int = 0  # so many workers fit; 0: all
    second_group: int = 0
    policy: dict[str, Any] = field(default_factory=dict)
    fall_s: float = 0.0  # so long it is watched once it is done, until it is back at its minimum


WORKLOADS = {
    "burst-tail": Workload(burst_and_tail, ideal_s=60, fall_s=150),
    "too-many": Workload(too_many, maximum=30, node_room=6, ideal_s=40, patience_s=180),
    "notebook": Workload(notebook, ideal_s=127),
    "oscillating": Workload(oscillating, ideal_s=102),
    "slow-step": Workload(slow_step, ideal_s=30),
    "p2p": Workload(p2p, ideal_s=18),
    "two-groups": Workload(two_groups, second_group=3, ideal_s=48),
}
