"""
What news of workers cost a scheduler: stock and ours, side by side in one run.

    PYTHONPATH=operator:tests python tests/bench/bench_relief_identity.py [--json]

Two schedulers run in processes of their own, one as upstream made it, one with the agent; they are
asked in turns, so that a slow minute of the machine hits both. Workers exist in their books only,
with metrics of a real one. CPU is that of the scheduler's process, all that it does included.
Clients are real and idle, all in one process, which does not read long answers: on machines of
their own they would. "0 idle clients" is what the scheduler costs by itself.

With --json one line a figure: {"case", "stock", "ours", "unit", "spread": [[stock], [ours]]};
"stock" and "ours" are medians, spread holds all repetitions.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import asynccontextmanager
from typing import Any

import dask
import distributed
from distributed import Client, Scheduler, Worker
from distributed.comm import tcp
from distributed.core import rpc
from distributed.scheduler import WorkerState

from dask_adaptive_agent.attach import install
from dask_adaptive_agent.relief.choices import VARIABLE
from support.agent_fakes import clear_workers, fake_worker

SIDES = ("stock", "ours")
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
        asked = count(s)
        s.handlers["report"] = lambda: {"cpu": time.process_time(), "asked": asked[0]}
        s.handlers["host_us"] = lambda: host_us(s)
        for i in range(n_workers):
            fake_worker(s, i).metrics = perturbed(metrics)
        print(s.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        clear_workers(s)


def count(s: Any) -> list[int]:
    """How often `identity` has been asked for; over whatever answers it."""
    asked, below = [0], s.handlers["identity"]

    if hasattr(below, "__self__") and below.__self__ is s:

        def identity(**request: Any) -> Any:
            asked[0] += 1
            return below(**request)

    else:

        def identity(comm: Any, serializers: Any = None, **request: Any) -> Any:  # type: ignore
            asked[0] += 1
            return below(comm, serializers=serializers, **request)

    s.handlers["identity"] = identity
    return asked


def perturbed(metrics: dict[str, Any]) -> dict[str, Any]:
    """Numbers of another worker."""
    return {
        key: perturbed(value)
        if isinstance(value, dict)
        else value * random.uniform(0.5, 2)
        if isinstance(value, float)
        else int(value * random.uniform(0.5, 2))
        if type(value) is int
        else value
        for key, value in metrics.items()
    }


def host_us(s: Any) -> float:
    workers: list[WorkerState] = list(s.workers.values())
    best = float("inf")
    for _ in range(20):
        begun = time.perf_counter()
        for ws in workers:
            ws.host  # noqa: B018
        best = min(best, time.perf_counter() - begun)
    return best / len(workers) * 1e6


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


async def asking(link: Any, n: int) -> dict[str, float]:
    """The scheduler's CPU for one full answer, in ms, of `n` that are asked one by one."""
    full = {} if is_whole() else {"n_workers": -1}
    begun = (await link.report())["cpu"]
    for _ in range(n):
        await link.identity(**full)
    return {"identity": ((await link.report())["cpu"] - begun) / n * 1000}


def is_whole() -> bool:
    return not hasattr(Client, "_adjust_heartbeat_intervals")


async def idling(link: Any, n: int, *, settle_s: float, watch_s: float) -> dict[str, float]:
    """What `n` clients that do nothing cost, once they have been told how often to ask."""
    clients = [Client(link.address, asynchronous=True, set_as_default=False) for _ in range(n)]
    try:
        for client in clients:
            await client
        await asyncio.sleep(settle_s)
        before, begun = await link.report(), time.monotonic()
        await asyncio.sleep(watch_s)
        after, took = await link.report(), time.monotonic() - begun
    finally:
        await asyncio.gather(*[client.close() for client in clients])
    return {
        f"{n} idle clients": (after["cpu"] - before["cpu"]) / took * 100,
        f"{n} idle clients, asked": (after["asked"] - before["asked"]) / took,
    }


def read_no_long_answers() -> None:
    """Clients of this process take them as empty: 200 would need two cores to read theirs."""
    stock = tcp.from_frames

    async def from_frames(frames: Any, *args: Any, **kwargs: Any) -> Any:
        if sum(map(len, frames)) > 20_000:
            return {"type": "Scheduler", "id": "", "address": "", "services": {}, "workers": {}}
        return await stock(frames, *args, **kwargs)

    tcp.from_frames = from_frames


UNITS = {"identity": "ms CPU", "host": "us", "idle": "% CPU", "asked": "identities/s"}


def unit(case: str) -> str:
    return next(value for key, value in reversed(UNITS.items()) if key in case)


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    seen: dict[str, tuple[list[float], list[float]]] = {}

    async def turns(measure: Any) -> None:
        for _ in range(arguments.repeat):
            for i, link in enumerate(links):
                for case, value in (await measure(link)).items():
                    seen.setdefault(case, ([], []))[i].append(round(value, 3))

    async def host(link: Any) -> dict[str, float]:
        return {"WorkerState.host": await link.host_us()}

    async with server("stock", arguments.workers) as a, server("ours", arguments.workers) as b:
        links = (a, b)
        read_no_long_answers()
        await turns(host)
        await turns(lambda link: asking(link, arguments.asks))
        for n in arguments.clients:
            await turns(
                lambda link, n=n: idling(
                    link, n, settle_s=arguments.settle, watch_s=arguments.watch
                )
            )
    return [
        {
            "case": f"{case}, {arguments.workers} workers",
            "stock": statistics.median(stock),
            "ours": statistics.median(ours),
            "unit": unit(case),
            "spread": [stock, ours],
        }
        for case, (stock, ours) in seen.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=800)
    parser.add_argument("--clients", type=int, nargs="*", default=[0, 50, 200])
    parser.add_argument("--asks", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--settle", type=float, default=8.0, help="seconds")
    # Later clients are told to ask every 20 s or so, all at once.
    watch_s = 8.0 if is_whole() else 20.0
    parser.add_argument("--watch", type=float, default=watch_s, help="seconds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve, arguments.workers))
        return
    warnings.simplefilter("ignore")  # workers in the books are of no version
    rows = asyncio.run(run(arguments))
    if arguments.json:
        for row in rows:
            print(json.dumps(row))
        return
    print(f"distributed {distributed.__version__}")
    for row in rows:
        stock, ours = row["stock"], row["ours"]
        times = f"{stock / ours:8.1f}x" if ours else ""
        print(f"{row['case']:<40}{stock:>10.3f}{ours:>10.3f}{times}  {row['unit']}")


if __name__ == "__main__":
    main()
