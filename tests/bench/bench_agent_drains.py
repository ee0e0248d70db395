"""
What workers that drain cost a scheduler's loop: CPU milliseconds a look, and the share of the loop.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_drains.py [--json]

Workers exist in the scheduler's books only; five of many drain. Each case says what they wait for:
"bound" for a task that nobody else may take; "resource" for one that wants a resource which half of
the workers have; "long" for a hundred tasks that were asked for and have not come; "data" has a
thousand results to move. A share counts the looks of all five, at the pauses that they make.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import distributed
from bench_agent_hooks import Silent
from distributed import Scheduler

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install
from dask_adaptive_agent.gate import next_look_s
from support.agent_fakes import clear_workers, fake_worker, give_result, give_task

CASES = ("bound", "resource", "long", "data")
#: What a look, and all looks together, may cost at 5,000 workers.
MOST_MS, MOST_SHARE = 5.0, 0.01


def crowd(s: Any, n: int) -> list[Any]:
    clear_workers(s)
    s.resources.clear()
    workers = [fake_worker(s, i) for i in range(n)]
    for ws in workers:
        s.stream_comms[ws.address] = Silent()
        ws.metrics["spilled_bytes"] = {"memory": 0, "disk": 0}
        give_task(s, ws)
    s.resources["GPU"] = {ws.address: 1.0 for ws in workers[::2]}
    return workers


def burden(s: Any, ws: Any, case: str) -> None:
    if case == "bound":
        give_task(s, ws).worker_restrictions = {ws.address}
    elif case == "resource":
        give_task(s, ws).resource_restrictions = {"GPU": 1.0}
    elif case == "long":
        for _ in range(100):
            give_task(s, ws)
    else:
        for ts in list(ws.processing):
            ws.remove_from_processing(ts)
        for _ in range(1000):
            give_result(s, ws, 1000)


def look_at(s: Any, agent: Any, workers: list[Any], case: str, seconds: float) -> dict[str, Any]:
    """All looks of so many seconds, with a clock of our own."""
    now = [time.monotonic()]
    agent.drains._clock = lambda: now[0]
    leaving = workers[:: len(workers) // 5][:5]
    for ws in leaving:
        burden(s, ws, case)
    ms: list[float] = []
    first: list[float] = []
    answer = s.handlers[wire.LEAVE]
    for ws in leaving:
        start = time.thread_time()
        answer(names=[ws.address], left_ms=600_000, ending=True, protocol=wire.PROTOCOL)
        first.append((time.thread_time() - start) * 1000)
    drains = [agent.drains.ongoing[ws.address] for ws in leaving]
    pause_s = next_look_s(s, leaving[0])
    for _ in range(int(seconds / pause_s)):
        now[0] += pause_s
        for drain in drains:
            start = time.thread_time()
            drain.look()
            ms.append((time.thread_time() - start) * 1000)
    agent.drains.close(is_closing=True)
    return {
        "case": case,
        "first_ms": round(max(first), 2),
        "median_ms": round(statistics.median(ms), 3),
        "max_ms": round(max(ms), 2),
        "share": round(sum(ms) / 1000 / seconds, 5),
    }


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        for callback in s.periodic_callbacks.values():
            callback.stop()
        agent = install(s)
        for case in CASES:
            workers = crowd(s, arguments.workers)
            rows.append(look_at(s, agent, workers, case, arguments.seconds))
            await asyncio.sleep(0)
        clear_workers(s)
        s.stream_comms.clear()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the simulated clock")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(run(arguments))
    if arguments.json:
        print("\n".join(json.dumps({"distributed": distributed.__version__, **r}) for r in rows))
    else:
        print(f"distributed {distributed.__version__}, {arguments.workers} workers, five drain")
        print(f"{'waits for':<12}{'first ms':>10}{'median ms':>11}{'max ms':>9}{'of loop':>9}")
        for row in rows:
            print(
                f"{row['case']:<12}{row['first_ms']:>10.2f}{row['median_ms']:>11.3f}"
                f"{row['max_ms']:>9.2f}{row['share']:>9.2%}"
            )
    late = [row["case"] for row in rows if row["share"] > MOST_SHARE]
    if late:
        raise SystemExit(f"over {MOST_SHARE:.0%} of the loop: {late}")


if __name__ == "__main__":
    main()
