"""
Quotas of tasks at full speed, measured: on a node that does nothing else meanwhile.

Replacements are asked for as long ahead as they take. A quota of 20 tasks of 0.5 s on four workers
wants a new pod every two and a half seconds: where a machine can't start them as fast, the quota
holds and the cluster waits. So the tasks are longer there, by what four pods take to start. The
fewest workers at work are printed, not asserted: an exact quota has its price.
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


#: In which four workers are connected where tasks of 0.5 s can be kept up with.
USUAL_S = 4.0


@pytest.mark.timeout(900)
async def test_six_hundred_tasks_with_a_quota_of_twenty(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    c = await start(policy={"minReplicas": 0, "maxReplicas": 4})
    began = time.monotonic()
    await c.edit(minReplicas=4)
    await c.until_connected(4)
    ready_s = time.monotonic() - began
    seconds = 0.5 * max(1.0, ready_s / USUAL_S)
    stock_s = (await _timed(c, 160, seconds)) * 600 / 160
    quota = {
        "tasks": {"max": 20, "jitter": "50%", "exact": True},
        "strategy": {"maxSurge": 4, "readyTimeout": "2m"},
    }
    await c.edit(recycle=quota, disruption={"budgets": [{"workers": 1}]})
    await asyncio.sleep(3.0)  # so that it is known before the first task
    watch = asyncio.ensure_future(_least_capacity(c))
    began = time.monotonic()
    futures = c.client.map(where, range(600), seconds=seconds, pure=False)
    results = await c.client.gather(futures)
    took_s = time.monotonic() - began
    watch.cancel()
    least = await watch

    runs = Counter(address for _, address in results)
    recycled = await c.recycled()
    with capsys.disabled():
        print(
            f"\n600 tasks of {seconds:.2f} s (four workers take {ready_s:.1f} s to come):"
            f" {took_s:.0f} s, without quotas {stock_s:.0f} s;"
            f" recycled {recycled}; runs a worker {sorted(runs.values())}; least capacity {least}"
        )
    assert list(range(600)) == [i for i, _ in results]
    del futures
    assert 25 <= recycled.get("TaskQuota", 0)
    assert 20 >= max(runs.values())
    tasks, _, redone = await c.counts()
    assert (760, 0) == (tasks, redone)
    assert 0 == await c.client.run_on_scheduler(suspicions)


async def _timed(c: LiveCluster, count: int, seconds: float) -> float:
    began = time.monotonic()
    await c.client.gather(c.client.map(where, range(count), seconds=seconds, pure=False))
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
