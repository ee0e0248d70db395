"""The promise, under random retirements and cancellations of a busy cluster."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from distributed import Worker
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install
from support.agent_work import ask, slow, until

pytestmark = pytest.mark.thorough


def merged(*parts: bytes) -> bytes:
    return slow("merge", 0.01) + bytes(sum(map(len, parts)) % 100)


async def pod_ends(s: Any, name: str, workers: dict[str, Any], dice: random.Random) -> None:
    """Its hook asks until it is drained; the next pod has its name before that."""
    going = workers.pop(name)
    is_sure = dice.random() < 0.7
    request: dict[str, Any] = {"ending": is_sure, "left_ms": 60_000}
    (one,) = (await ask(s, wire.LEAVE, names=[name], **request))["outcomes"]
    if is_sure:
        workers[name] = await Worker(s.address, name=name, nthreads=2)
    while one["state"] == wire.DRAINING:
        await asyncio.sleep(0.02)
        (one,) = (await ask(s, wire.LEAVE, names=[going.address], **request))["outcomes"]
    await going.close()


async def worker_leaves(s: Any, name: str, workers: dict[str, Any], dice: random.Random) -> None:
    """Retire one worker; wait until it is drained and close it, or change one's mind."""
    on_timeout = dice.choice(["Abort", "Abort", "Force"])
    for _ in range(dice.choice([3, 200, 200])):
        request = {"busy_ok": True, "deadline_ms": 10_000, "on_timeout": on_timeout}
        (one,) = (await ask(s, wire.RETIRE, names=[name], **request))["outcomes"]
        if one["state"] in (wire.ACTIVE, "gone"):
            return
        if one["state"] == wire.DRAINED:
            await workers.pop(name).close()
            return
        await asyncio.sleep(0.02)
    await ask(s, wire.CANCEL, names=[name])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_run_twice_whoever_leaves(seed: int) -> None:
    @gen_cluster(client=True, nthreads=[], timeout=60)
    async def run(c: Any, s: Any) -> None:
        dice = random.Random(seed)
        agent = install(s)
        await ask(s, wire.CONFIGURE, tally=True)
        workers: dict[str, Any] = {}

        async def joins(number: int) -> None:
            workers[f"w{number}"] = await Worker(s.address, name=f"w{number}", nthreads=2)

        for number in range(5):
            await joins(number)
        leaves = c.map(slow, range(200), delay_s=0.03)
        pairs = [c.submit(merged, *leaves[i : i + 4]) for i in range(0, 200, 2)]
        future = c.submit(merged, *pairs)
        number = 5
        while not future.done():
            leaving = dice.sample(sorted(workers), 2)
            ways = dice.choices([worker_leaves, pod_ends], k=2)
            await asyncio.gather(
                *(way(s, name, workers, dice) for way, name in zip(ways, leaving, strict=True))
            )
            while len(workers) < 4:
                await joins(number)
                number += 1
        await future

        tally = (await ask(s, wire.OBSERVE))["tally"]
        assert (301, 301, 0, 0) == tuple(
            tally[key] for key in ("tasks", "runs", "repeated", "interrupted")
        )
        assert 6 < number
        for worker in workers.values():
            await worker.close()
        await until(lambda: not agent.drains.ongoing and not agent.drains.ongoing)
        assert not s.aliases

    run()
