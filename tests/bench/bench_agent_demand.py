"""
What it costs a scheduler to say what asks for workers: CPU milliseconds and bytes of one look.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_demand.py [--json]

Tasks and workers exist in the scheduler's books only. Of the unfinished tasks a tenth is assigned,
a tenth is queued, the rest wait for others of another kind. What keeps looks rare
(`demand.LOOK_PART`) is switched off; `first` also takes a new sample of the tasks that wait, as
whenever more of them wait than before. `stock` is what there is without an agent:
`adaptive_target`, and the counts of all prefixes as the dashboard reads them.
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

from dask_adaptive_agent import demand, wire
from dask_adaptive_agent.attach import install
from support.agent_fakes import clear_workers, fake_worker

COLUMNS = ("workers", "tasks", "prefixes", "call", "min_ms", "median_ms", "kB")

#: (workers, unfinished tasks, prefixes)
CASES = ((100, 1_000, 10), (5_000, 10_000, 10), (5_000, 100_000, 10), (1_000, 100_000, 1_000))


def fill(s: Any, workers: int, tasks: int, prefixes: int) -> None:
    clear_workers(s)
    s.task_prefixes.clear()
    s.task_groups.clear()
    s.queued.clear()
    those = [fake_worker(s, i) for i in range(workers)]
    before: list[Any] = []
    for i in range(tasks):
        ts = s.new_task(f"kind{i % prefixes:04}-{i}", None, "released")
        ts.run_spec, ts.priority = object(), (i,)
        share = i / tasks
        if share < 0.1:
            ts.state = "processing"
            those[i % workers].add_to_processing(ts)
            those[i % workers].executing[ts] = 1.0
        elif share < 0.2:
            ts.state = "queued"
            s.queued.add(ts)
        else:
            ts.state = "waiting"
            ts.waiting_on = {before[i // 2]}
        before.append(ts)


def calls(s: Any) -> dict[str, Callable[[], Any]]:
    observe = s.handlers[wire.OBSERVE]
    session = s.handlers[wire.HELLO]()["session"]
    again = {"session": session, "known": 2**40}
    agent = s.plugins["dask-adaptive"].agent

    def first() -> Any:
        agent.demand._structure._kept = None
        return observe(demand=True, **again)

    return {
        "observe": lambda: observe(**again),
        "observe, with demand": lambda: observe(demand=True, **again),
        "observe, with demand, first": first,
        "stock target + prefix states": lambda: [
            s.adaptive_target(),
            {name: dict(prefix.states) for name, prefix in s.task_prefixes.items()},
        ],
    }


def measure(call: Callable[[], Any], repeat: int) -> tuple[float, float, int]:
    times = []
    for _ in range(repeat):
        start = time.thread_time()
        frames = dumps(call())
        times.append((time.thread_time() - start) * 1000)
    return min(times), statistics.median(times), sum(map(len, frames))


async def run(repeat: int) -> list[dict[str, Any]]:
    rows = []
    demand.LOOK_PART = 1e9
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        for callback in s.periodic_callbacks.values():
            callback.stop()
        install(s)
        for case in CASES:
            fill(s, *case)
            for name, call in calls(s).items():
                call()
                least, median, size = measure(call, repeat)
                figures = (*case, name, round(least, 2), round(median, 2), round(size / 1000, 1))
                rows.append(dict(zip(COLUMNS, figures)))  # noqa: B905
        s.queued.clear()
        clear_workers(s)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(run(arguments.repeat))
    if arguments.json:
        print(json.dumps({"distributed": distributed.__version__, "rows": rows}))
        return
    print(f"distributed {distributed.__version__}")
    print("{:>8}{:>9}{:>9}  {:<30}{:>9}{:>11}{:>9}".format(*COLUMNS))
    for row in rows:
        print("{:>8}{:>9}{:>9}  {:<30}{:>9.2f}{:>11.2f}{:>9.1f}".format(*row.values()))


if __name__ == "__main__":
    main()
