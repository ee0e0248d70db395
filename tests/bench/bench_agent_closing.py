"""
What `workers_to_close` costs: milliseconds, stock and ours, side by side in one run.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_closing.py [--json]

Workers and shuffles exist in the scheduler's books only. Ours and stock take turns, so that a slow
minute of the machine hits both. "idle" is without tasks and pins, "half busy" has tasks on every
second worker; with shuffles, each has a random half of all workers (or of half of them) as
participants. "stock" is the method of the class with the plugins that a scheduler has without us.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import distributed
from distributed import Scheduler

from dask_adaptive_agent.attach import install
from dask_adaptive_agent.closing import Delegate
from support.agent_fakes import clear_workers, crowd, shuffle_state

COLUMNS = ("state", "asked", "stock_min", "stock_median", "ours_min", "ours_median", "times")


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def row(s: Any, state: str, request: dict[str, Any], repeat: int) -> dict[str, Any]:
    plugins = {name: plugin for name, plugin in s.plugins.items() if name != "dask-adaptive"}
    stand_in = Delegate(s, plugins=plugins)
    stock: list[float] = []
    ours: list[float] = []
    s.workers_to_close(**request)  # the first question after a change reads what is new
    for _ in range(repeat):
        stock.append(timed(lambda: type(s).workers_to_close(stand_in, **request)))
        ours.append(timed(lambda: s.workers_to_close(**request)))
    asked = ", ".join(f"{k}={v}" for k, v in request.items()) or "default"
    return {"state": state, "asked": asked, "stock": stock, "ours": ours}


def agreed(one: dict[str, Any]) -> dict[str, Any]:
    """As `make bench-relief` reads it."""
    both = [[round(ms, 3) for ms in one[side]] for side in ("stock", "ours")]
    return {
        "distributed": distributed.__version__,
        "case": f"workers_to_close, {one['state']}, {one['asked']}",
        "unit": "ms", "stock": statistics.median(both[0]), "ours": statistics.median(both[1]),
        "spread": both,
    }  # fmt: skip


def begin_shuffles(s: Any, agent: Any, count: int, addresses: list[str]) -> float:
    """Milliseconds of the first look at all of them."""
    dice = random.Random(0)
    for i in range(count):
        shuffle_state(s, f"shuffle-{i}", i, dice.sample(addresses, len(addresses) // 2))
    return timed(agent.shuffles.look)


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    n, shuffles = arguments.workers, arguments.shuffles
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        for callback in s.periodic_callbacks.values():
            callback.stop()
        agent = install(s)
        for state, share_busy in (("idle", 0.0), ("half busy", 0.5)):
            crowd(s, n, share_busy=share_busy)
            for request in ({}, {"n": 1}, {"n": n // 2}, {"target": n // 2, "minimum": n // 4}):
                rows.append(row(s, state, request, arguments.repeat))
        for state, part in ((f"{shuffles} shuffles", 1), (f"{shuffles} on half", 2)):
            crowd(s, n, share_busy=0.0)
            agent.shuffles.look()  # those of before have ended
            first_ms = begin_shuffles(s, agent, shuffles, list(s.workers)[::part])
            rows.append(row(s, state, {}, max(5, arguments.repeat // 3)))
            rows[-1]["first_look_ms"] = round(first_ms, 1)
        clear_workers(s)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=5000)
    parser.add_argument("--shuffles", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(run(arguments))
    if arguments.json:
        print("\n".join(json.dumps(agreed(one)) for one in rows))
        return
    print(f"distributed {distributed.__version__}, {arguments.workers} workers, ms")
    print("{:<16}{:<28}{:>11}{:>14}{:>10}{:>13}{:>8}".format(*COLUMNS))
    for one in rows:
        stock, ours = one["stock"], one["ours"]
        medians = statistics.median(stock), statistics.median(ours)
        figures = [one["state"], one["asked"], min(stock), medians[0], min(ours), medians[1]]
        figures.append(medians[0] / medians[1])
        print("{:<16}{:<28}{:>11.2f}{:>14.2f}{:>10.2f}{:>13.2f}{:>8.1f}".format(*figures))
    print(f"first look at all shuffles: {rows[-1]['first_look_ms']} ms")


if __name__ == "__main__":
    main()
