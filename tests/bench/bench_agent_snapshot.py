"""
What a snapshot costs a scheduler: milliseconds and bytes, next to the stock ways to learn less.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_snapshot.py [--json]

Workers exist in the scheduler's books only; half of them are busy, unless --busy says otherwise.
Times are the minimum and the median of --repeat calls in the scheduler's process, the message's
encoding included; bytes are those of the encoded message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import distributed
from distributed import Scheduler
from distributed.protocol import dumps

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install
from support.agent_fakes import clear_workers, crowd

COLUMNS = ("workers", "call", "min_ms", "median_ms", "kB")


def measure(call: Callable[[], Any], repeat: int) -> tuple[float, float, int]:
    """Minimum and median milliseconds of a call with its encoding, and its bytes."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        frames = dumps(call())
        times.append((time.perf_counter() - start) * 1000)
    return min(times), statistics.median(times), sum(map(len, frames))


def calls(s: Any) -> dict[str, Callable[[], Any]]:
    observe = s.handlers[wire.OBSERVE]
    session = s.handlers[wire.HELLO]()["session"]

    def again() -> Any:
        return observe(session=session, known=2**40)

    return {
        "observe, first": observe,
        "observe, again": again,
        "observe, again, with meters": lambda: observe(session=session, known=2**40, meters=True),
        "stock identity": s.identity,
        "stock target + workers_to_close": lambda: [s.adaptive_target(), s.workers_to_close()],
    }


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        for callback in s.periodic_callbacks.values():
            callback.stop()
        install(s)
        for n in arguments.workers:
            crowd(s, n, share_busy=arguments.busy, results=arguments.results)
            for name, call in calls(s).items():
                call()
                least, median, size = measure(call, arguments.repeat)
                figures = (n, name, round(least, 2), round(median, 2), round(size / 1000, 1))
                rows.append(dict(zip(COLUMNS, figures)))  # noqa: B905
        clear_workers(s)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 500, 1000, 5000])
    parser.add_argument("--busy", type=float, default=0.5, help="share of workers with tasks")
    parser.add_argument("--results", type=int, default=4, help="results a worker holds")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    rows = asyncio.run(run(parser.parse_args()))
    if parser.parse_args().json:
        print(json.dumps({"distributed": distributed.__version__, "rows": rows}))
        return
    print(f"distributed {distributed.__version__}")
    print("{:>8}  {:<34}{:>9}{:>11}{:>9}".format(*COLUMNS))
    for row in rows:
        print("{:>8}  {:<34}{:>9.2f}{:>11.2f}{:>9.1f}".format(*row.values()))


if __name__ == "__main__":
    main()
