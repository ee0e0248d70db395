"""
The same P2P shuffle on 1 worker, with 5 more on their way: stock beside ours, in turns.

    PYTHONPATH=operator python tests/bench/bench_shuffle_wait.py [--rounds 3] [--delay 6]
        [--blocks 60] [--task 0.7]

Workers are processes that have loaded everything; five of them join `delay` seconds after the
submit. Tasks sleep, as those that read and write do, so that the processors of this machine don't
bound it. Ours is told what an operator that has just asked for five workers announces. For each
run: the makespan, and the workers that were given outputs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, Scheduler

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install

WORKERS = 6
#: They have so long to load everything before the clock starts.
LOADING_S = 10.0


def read(blocks: int, task_s: float, block_info: Any = None) -> Any:
    if block_info:  # else dask asks what would come
        time.sleep(task_s)
    return np.ones((1, blocks))


def worked(block: Any, task_s: float) -> Any:
    time.sleep(task_s if block.size > 1 else 0)
    return block


def graph(blocks: int, task_s: float) -> Any:
    chunks = ((1,) * blocks, (blocks,))
    x = da.map_blocks(read, blocks, task_s, chunks=chunks, dtype=float, meta=np.ones((0, 0)))
    return x.rechunk((blocks, 1), method="p2p").map_blocks(worked, task_s, dtype=float).sum()


#: A worker that has loaded everything, and joins when it is told to: whatever this machine does
#: besides, all of them are there, and able to work, when they were announced for.
WORKER = """
import asyncio, sys
import dask.array, numpy, pandas, pyarrow
from distributed import Worker
from distributed.shuffle import _rechunk, _worker_plugin
sys.stdin.readline()
async def main():
    async with Worker(sys.argv[1], nthreads=1, dashboard=False, memory_limit=0) as worker:
        await worker.finished()
asyncio.run(main())
"""


def loaded(address: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def join(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    worker.stdin.write(b"\n")
    worker.stdin.flush()


async def later(workers: list[subprocess.Popen[bytes]], delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    for worker in workers:
        join(worker)


async def watch(scheduler: Scheduler, given: list[int]) -> None:
    """How many workers were given outputs."""
    plugin = scheduler.extensions["shuffle"]
    states = plugin.active_shuffles if hasattr(plugin, "active_shuffles") else plugin.states
    while not states:
        await asyncio.sleep(0.02)
    (state,) = states.values()
    worker_for = getattr(state, "worker_for", None) or state.run_spec.worker_for
    given.append(len(set(worker_for.values())))


async def joined(scheduler: Scheduler, at: list[float]) -> None:
    """When the last worker has joined."""
    while len(scheduler.workers) < WORKERS:
        await asyncio.sleep(0.02)
    at.append(time.monotonic())


async def run(options: argparse.Namespace, is_ours: bool) -> tuple[float, float, int]:
    """(makespan, seconds until the last worker had joined, workers with outputs)."""
    given: list[int] = []
    all_at: list[float] = []
    async with Scheduler(port=0, dashboard_address=":0", host="127.0.0.1") as scheduler:
        agent = install(scheduler) if is_ours else None
        started = [loaded(scheduler.address) for _ in range(WORKERS)]
        await asyncio.sleep(LOADING_S)
        join(started[0])
        async with Client(scheduler.address, asynchronous=True) as client:
            await client.wait_for_workers(1)
            if agent is not None:
                arriving = [(WORKERS - 1, int(options.delay * 1000))]
                agent.announce({"protocol": wire.PROTOCOL, "arriving": arriving})
            side = [
                asyncio.create_task(later(started[1:], options.delay)),
                asyncio.create_task(watch(scheduler, given)),
                asyncio.create_task(joined(scheduler, all_at)),
            ]
            settings = {"optimization.fuse.active": False, "array.chunk-size": "1 B"}
            with dask.config.set(settings):
                begin = time.monotonic()
                result = await client.compute(graph(options.blocks, options.task))
                makespan_s = time.monotonic() - begin
            assert result == options.blocks**2
            await asyncio.gather(*side)
    for process in started:
        process.terminate()
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    return makespan_s, all_at[0] - begin, given[0]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=6.0)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--task", type=float, default=0.7)
    options = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(options.rounds):
        for is_ours in (False, True):
            makespan_s, joined_s, workers = await run(options, is_ours)
            seconds[is_ours].append(makespan_s)
            name = "ours " if is_ours else "stock"
            line = f"{makespan_s:6.1f} s, all there at {joined_s:.1f} s, outputs on {workers}"
            print(f"{number + 1} {name} {line}", flush=True)
    stock, ours = (statistics.median(seconds[key]) for key in (False, True))
    print(f"median: stock {stock:.1f} s, ours {ours:.1f} s, ratio {ours / stock:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
