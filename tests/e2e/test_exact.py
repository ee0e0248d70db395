"""
Quotas of tasks at full speed, measured: on a node that does nothing else meanwhile.

Replacements are asked for as long ahead as they take; where they take long because others start
pods as well, the budget holds and the quota gives way.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from support.e2e_cluster import LiveCluster
from support.e2e_recycle_tasks import where
from support.e2e_tasks import suspicions

Start = Callable[..., Awaitable[LiveCluster]]


@pytest.mark.timeout(600)
async def test_six_hundred_tasks_with_a_quota_of_twenty(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    c = await start(policy={"minReplicas": 4, "maxReplicas": 4})
    await c.until_connected(4)
    stock_s = (await _timed(c, 160)) * 600 / 160
    quota = {
        "tasks": {"max": 20, "jitter": "50%", "exact": True},
        "strategy": {"maxSurge": 4, "readyTimeout": "2m"},
    }
    await c.edit(recycle=quota, disruption={"budgets": [{"workers": 1}]})
    await asyncio.sleep(3.0)  # so that it is known before the first task
    watch = asyncio.ensure_future(_least_capacity(c))
    began = time.monotonic()
    futures = c.client.map(where, range(600), seconds=0.5, pure=False)
    results = await c.client.gather(futures)
    took_s = time.monotonic() - began
    watch.cancel()
    least = await watch

    runs = Counter(address for _, address in results)
    recycled = await c.recycled()
    with capsys.disabled():
        print(
            f"\n600 tasks: {took_s:.0f} s, without quotas {stock_s:.0f} s;"
            f" recycled {recycled}; runs a worker {sorted(runs.values())}; least capacity {least}"
        )
    assert list(range(600)) == [i for i, _ in results]
    del futures
    assert 25 <= recycled.get("TaskQuota", 0)
    assert 20 >= max(runs.values())
    assert 3 <= least
    tasks, _, redone = await c.counts()
    assert (760, 0) == (tasks, redone)
    assert 0 == await c.client.run_on_scheduler(suspicions)


async def _timed(c: LiveCluster, count: int) -> float:
    began = time.monotonic()
    await c.client.gather(c.client.map(where, range(count), seconds=0.5, pure=False))
    return time.monotonic() - began


async def _least_capacity(c: LiveCluster) -> int:
    """The fewest workers that served at any look, until it is cancelled."""
    least = 1_000
    try:
        while True:
            workers = (await c.observe()).workers
            # Those that finish what they have are at work as well.
            least = min(least, sum(w.status == "running" or w.processing > 0 for w in workers))
            await asyncio.sleep(0.2)
    except asyncio.CancelledError:
        return least
