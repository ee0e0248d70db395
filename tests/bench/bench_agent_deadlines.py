"""
What it costs a scheduler to give no task to a worker that ends too soon: microseconds a task, and
milliseconds a look at all workers and a join.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_deadlines.py [--json]

Handlers are driven directly, as in bench_agent_hooks. Workers exist in the scheduler's books only.
"agent" has no worker with an end; "far": each has one, hours away; "near": every second one ends
too soon for anything; "measured": none has an end, but durations are wanted. Variants take turns,
so that a slow minute of the machine hits them all; what is told is the median of the differences
to stock of the same turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import distributed
from bench_agent_hooks import Silent, alternated, clear, spec
from distributed import Scheduler
from distributed.scheduler import ClientState

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install, uninstall
from support.agent_fakes import fake_worker

VARIANTS = ("stock", "agent", "measured", "far", "near")
FAR_MS, NEAR_MS = 10**8, 10**5


def prepare(s: Any, workers: int) -> None:
    for callback in s.periodic_callbacks.values():
        callback.stop()
    for i in range(workers):
        ws = fake_worker(s, i)
        s.stream_comms[ws.address] = Silent()
        s.check_idle_saturated(ws)
        for plugin in list(s.plugins.values()):
            plugin.add_worker(s, ws.address)
    s.clients["c"] = ClientState("c")
    s.client_comms["c"] = Silent()


def become(s: Any, variant: str) -> None:
    uninstall(s)
    if variant == "stock":
        return
    agent = install(s)
    names = [str(ws.name) for ws in s.workers.values()]
    left_ms = {"far": [FAR_MS] * len(names), "near": [NEAR_MS, FAR_MS] * (len(names) // 2)}
    if variant == "agent":
        return
    s.handlers[wire.LIMIT](
        session=agent.session,
        names=names,
        runs=[0] * len(names),
        left_ms=left_ms.get(variant, [-1] * len(names)),
        profile=[0] * len(names),
        profiles=[{"measure": variant == "measured"}],
        stops=0,
    )
    assert agent.cordons.deadlines.have_ends is (variant in left_ms)
    assert agent.cordons.durations.is_on


async def looks(workers: int) -> list[dict[str, Any]]:
    """A look that the agent takes twice a second, and what a join costs, in milliseconds."""
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        install(s)
        prepare(s, workers)
        s.new_task("long-1", spec(), "waiting")
        s.task_prefixes["long"].duration_average = 2 * NEAR_MS / 1000
        rows = []
        for variant in ("agent", "far", "near"):
            become(s, variant)
            agent = s.plugins["dask-adaptive"].agent
            took = [_looked(agent) for _ in range(100)]
            assert bool(agent.cordons.ongoing) is (variant == "near")
            address = next(iter(s.workers))
            del agent.roster.entries[address]
            joined = _timed(s.plugins["dask-adaptive"].add_worker, s, address)
            rows.append(
                {
                    "variant": variant,
                    "median_ms": round(statistics.median(took), 3),
                    "max_ms": round(max(took), 3),
                    "join_ms": round(joined, 3),
                }
            )
        uninstall(s)
        clear(s)
        return rows


def _looked(agent: Any) -> float:
    agent.cordons.deadlines._look_at = 0.0  # as if half a second had passed
    return _timed(agent.cordons._look_alone)


def _timed(call: Any, *arguments: Any) -> float:
    began = time.process_time()
    call(*arguments)
    return (time.process_time() - began) * 1000


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        prepare(s, arguments.workers)
        times = alternated(s, VARIANTS, become, arguments)
        clear(s)
    return [
        {
            "variant": variant,
            "median_us": round(statistics.median(seen), 2),
            "over_stock_us": over(times["stock"], seen),
            "over_agent_us": over(times["agent"], seen),
        }
        for variant, seen in times.items()
    ]


def over(before: list[float], after: list[float]) -> float:
    return round(statistics.median([b - a for a, b in zip(before, after)]), 2)  # noqa: B905


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--looked-at", type=int, default=5000, help="workers that looks are at")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(run(arguments))
    looked = asyncio.run(looks(arguments.looked_at))
    if arguments.json:
        print(json.dumps({"distributed": distributed.__version__, "rows": rows, "looks": looked}))
        return
    print(f"distributed {distributed.__version__}, {arguments.workers} workers, us a task")
    print("{:<12}{:>12}{:>16}{:>16}".format(*rows[0]))
    for row in rows:
        print("{:<12}{:>12.2f}{:>16.2f}{:>16.2f}".format(*row.values()))
    print(f"\na look at {arguments.looked_at} workers, and a join")
    print("{:<12}{:>12}{:>12}{:>12}".format(*looked[0]))
    for row in looked:
        print("{:<12}{:>12.3f}{:>12.3f}{:>12.3f}".format(*row.values()))


if __name__ == "__main__":
    main()
