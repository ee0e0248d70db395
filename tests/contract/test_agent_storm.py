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


def merged(*parts: bytes) -> bytes:
    return slow("merge", 0.01) + bytes(sum(map(len, parts)) % 100)


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
            await asyncio.gather(*(worker_leaves(s, name, workers, dice) for name in leaving))
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
        await until(lambda: not agent.retirements.ongoing)

    run()
