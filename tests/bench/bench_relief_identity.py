"""
What it costs a scheduler to say who it is and which workers it has: stock and ours.

    PYTHONPATH=operator:tests python tests/bench/bench_relief_identity.py [--json]

Two schedulers run in processes of their own, one as upstream made it, one with the agent; they are
asked in turns, so that a slow minute of the machine hits both. Workers exist in their books only,
with metrics of a real one. CPU is that of the scheduler's process, all that it does included. What
idle clients cost is measured with whole clusters: relief/run.py.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import os
import random
import subprocess
import sys
import time
import timeit
import warnings
from contextlib import asynccontextmanager
from typing import Any

import dask
from distributed import Client, Scheduler, Worker
from distributed.core import rpc
from measuring import Row, options, show_sides, sides

from dask_adaptive_agent.loading.attach import install
from dask_adaptive_agent.relief.registry import VARIABLE
from support.agent_fakes import clear_workers, fake_worker

OTHERS = "prefixes=Disabled,idle=Disabled,pickling=Disabled"


async def serve(side: str, n_workers: int) -> None:
    """A scheduler, until its standard input ends."""
    dask.config.set({"distributed.scheduler.worker-ttl": None})
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        async with Worker(s.address) as worker:
            await worker.heartbeat()
            metrics = copy.deepcopy(s.workers[worker.address].metrics)
        if side == "ours":
            install(s)
        s.handlers["cpu_s"] = lambda: time.process_time()  # a builtin has no signature
        s.handlers["host_us"] = lambda: host_us(s)
        for i in range(n_workers):
            fake_worker(s, i).metrics = perturbed(metrics)
        print(s.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        clear_workers(s)


def host_us(s: Any) -> float:
    """`WorkerState.host` of one worker, in us: the fastest of 20 looks at all of them."""
    workers = list(s.workers.values())
    took = timeit.repeat(lambda: [ws.host for ws in workers], number=1, repeat=20)
    return min(took) / len(workers) * 1e6


def perturbed(value: Any) -> Any:
    """Metrics with numbers of another worker."""
    if isinstance(value, dict):
        return {key: perturbed(one) for key, one in value.items()}
    return type(value)(value * random.uniform(0.5, 2)) if type(value) in (int, float) else value


@asynccontextmanager
async def server(side: str, n_workers: int) -> Any:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--serve", side, "--workers", str(n_workers)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, VARIABLE: OTHERS},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        assert address, f"the scheduler {side} did not start"
        async with rpc(address) as link:
            yield link
    finally:
        process.stdin.close()
        await process.wait()


async def asking(link: Any, n: int) -> float:
    """The scheduler's CPU for one full answer, in ms, of `n` that are asked one by one."""
    full = {"n_workers": -1} if hasattr(Client, "_adjust_heartbeat_intervals") else {}
    began = await link.cpu_s()
    for _ in range(n):
        await link.identity(**full)
    return (await link.cpu_s() - began) / n * 1000


async def run(arguments: argparse.Namespace) -> list[Row]:
    times: tuple[list[float], list[float]] = ([], [])
    hosts: tuple[list[float], list[float]] = ([], [])
    async with server("stock", arguments.workers) as a, server("ours", arguments.workers) as b:
        for _ in range(arguments.repeat):
            for link, seen, host in zip((a, b), times, hosts, strict=True):
                host.append(await link.host_us())
                seen.append(await asking(link, arguments.asks))
    return [
        sides(f"WorkerState.host, {arguments.workers} workers", "us", *hosts),
        sides(f"identity, {arguments.workers} workers", "ms CPU", *times),
    ]


if __name__ == "__main__":
    given = options(__doc__, workers=800, asks=300, repeat=3, serve="")
    if given.serve:
        asyncio.run(serve(given.serve, given.workers))
    else:
        warnings.simplefilter("ignore")  # workers in the books are of no version
        show_sides(asyncio.run(run(given)), given)
