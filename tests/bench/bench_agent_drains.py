"""
What workers that drain cost a scheduler's loop: CPU milliseconds a look, and the share of the loop.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_drains.py [--json]

Workers exist in the scheduler's books only; five of many drain. Each case says what they wait for:
"bound" for a task that nobody else may take; "resource" for one that wants a resource which half of
the workers have; "long" for a hundred tasks that were asked for and have not come; "data" has a
thousand results to move. A share counts the looks of all five, at the pauses that they make;
`--seconds` are those of a clock of our own.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from measuring import Row, books, options, show

from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install
from dask_adaptive_agent.service.gate import next_look_s
from support.agent_fakes import clear_workers, fake_worker, give_result, give_task
from support.relief_driven import Silent

CASES = ("bound", "resource", "long", "data")
#: Of the loop, that all looks together may take at 5,000 workers.
MOST_SHARE = 0.01


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
    agent.drains.clock = lambda: now[0]
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


async def run(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    async with books() as s:
        agent = install(s)
        for case in CASES:
            workers = crowd(s, arguments.workers)
            rows.append(look_at(s, agent, workers, case, arguments.seconds))
            await asyncio.sleep(0)
    return rows


if __name__ == "__main__":
    given = options(__doc__, workers=5000, seconds=20.0)
    rows = asyncio.run(run(given))
    show(rows, given, f"five of {given.workers} workers drain")
    late = [row["case"] for row in rows if row["share"] > MOST_SHARE]
    if late:
        raise SystemExit(f"over {MOST_SHARE:.0%} of the loop: {late}")
