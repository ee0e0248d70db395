"""Clusters that share six places: what each has as loads come and go, whoever divides them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from support.e2e_cluster import LiveCluster
from support.tasks import result

Held = Callable[[LiveCluster], Awaitable[int]]


async def share_six(
    every: Sequence[LiveCluster], held: Held, *, within_s: float,
    all_wait: Callable[[], Awaitable[None]],
) -> None:  # fmt: skip
    """
    Loads of `a`, `b` and `urgent` come one after the other; the last may have all but two places.

    Args:
        held: The places that a cluster has.
        within_s: So long after a load has changed each has its part, within one worker.
        all_wait: Looks at what is told while none has all that it wants.
    """
    a, b, urgent = every
    most, tasks = 0, 8 * int(within_s)

    async def near(*fair: int) -> bool:
        nonlocal most
        numbers = [await held(cluster) for cluster in every]
        most = max(most, sum(numbers))
        return all(abs(number - part) <= 1 for number, part in zip(numbers, fair, strict=True))

    async def fair(*parts: int) -> None:
        began = time.monotonic()
        await a.until(lambda: near(*parts), f"{parts} within one", patience_s=within_s)
        await asyncio.sleep(max(0.0, within_s - (time.monotonic() - began)))
        assert await near(*parts)

    long = a.client.map(result, range(400), seconds=1.0, pure=False)
    await a.until(lambda: near(6, 0, 0), "one alone has all")
    await a.until_connected(6)
    other = b.client.map(result, range(400), seconds=1.0, pure=False)
    await fair(3, 3, 0)
    quick = urgent.client.map(result, range(tasks), seconds=1.0, pure=False)
    await fair(1, 1, 4)
    await all_wait()

    assert [100_000] * tasks == [len(r) for r in await urgent.client.gather(quick)]
    del quick
    await fair(3, 3, 0)
    for cluster, futures in ((a, long), (b, other)):
        await cluster.client.cancel(futures[200:])
        done = await cluster.client.gather(futures[:200])
        assert [100_000] * 200 == [len(r) for r in done]
    assert most <= 6
    assert [0, 0, 0] == [(await c.counts())[2] for c in every]
