"""
What a look costs a scheduler: CPU milliseconds and bytes, next to the stock ways to learn less.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_observe.py

Tasks and workers exist in the scheduler's books only. Of workers, half are busy. Of the unfinished
tasks a tenth is assigned, a tenth is queued, the rest wait for others of another kind. What keeps
looks at demand rare (`demand.LOOK_PART`) is switched off. Times are those of a call and of the
encoding of its answer.

The last table is about waiting for changes: what the look for them costs (`signs`, four times a
second), and what the answer does where ten workers have changed.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from distributed.protocol import dumps
from measuring import Row, milliseconds, options, show

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install
from dask_adaptive_agent.demand import demand
from support.agent_fakes import clear_workers, crowd, fake_worker, give_task
from support.relief_driven import alone

#: (workers, unfinished tasks)
CHANGES = ((50, 1_000), (5_000, 100_000), (10_000, 100_000))

#: (workers, unfinished tasks, prefixes)
DEMANDS = ((100, 1_000, 10), (5_000, 10_000, 10), (5_000, 100_000, 10), (1_000, 100_000, 1_000))


def fill(s: Any, workers: int, tasks: int, prefixes: int) -> None:
    for there in (s.task_prefixes, s.task_groups, s.queued):
        there.clear()
    clear_workers(s)
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


def states(s: Any) -> list[Any]:
    """As the dashboard reads the counts of all prefixes."""
    return [s.adaptive_target(), {n: dict(p.states) for n, p in s.task_prefixes.items()}]


def timed(case: str, calls: dict[str, Callable[[], Any]], repeat: int) -> Iterator[Row]:
    for call, answer in calls.items():
        took = milliseconds(lambda answer=answer: dumps(answer()), repeat)
        kilobytes = round(sum(map(len, dumps(answer()))) / 1000, 1)
        yield {"case": case, "call": call, **took, "kB": kilobytes}


async def run(arguments: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    async with alone() as driven:
        s = driven.s
        agent = install(s)
        observe, again = s.handlers[wire.OBSERVE], {"session": agent.session, "known": 2**40}
        calls = {
            "first": observe,
            "again": lambda: observe(**again),
            "again, with meters": lambda: observe(**again, meters=True),
            "stock identity": s.identity,
            "stock target + workers_to_close": lambda: [s.adaptive_target(), s.workers_to_close()],
        }
        for n in arguments.workers:
            crowd(s, n, share_busy=0.5)
            rows += timed(f"{n} workers", calls, arguments.repeat)
    return rows


async def run_demand(arguments: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    demand.LOOK_PART = 1e9
    async with alone() as driven:
        s = driven.s
        agent = install(s)
        observe, again = s.handlers[wire.OBSERVE], {"session": agent.session, "known": 2**40}
        calls: dict[str, Callable[[], Any]] = {
            "again": lambda: observe(**again),
            "with demand": lambda: observe(demand=True, **again),
            "stock target + states": lambda: states(s),
        }
        for case in DEMANDS:
            fill(s, *case)
            title = "{} workers, {} tasks, {} prefixes".format(*case)
            rows += timed(title, calls, arguments.repeat)
    return rows


async def run_changes(arguments: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for workers, tasks in CHANGES:
        async with alone() as driven:
            s = driven.s
            agent = install(s)
            fill(s, workers, tasks, 10)
            ten = list(s.workers.values())[:: workers // 10][:10]
            request = {"session": agent.session, "known": 2**40, "version": 0}

            def ask(s: Any = s, ten: Any = ten, request: Any = request) -> Any:
                """Of ten workers those get a task that had none, and the others lose theirs."""
                for ws in ten:
                    for ts in list(ws.processing) or [None]:
                        give_task(s, ws) if ts is None else ws.remove_from_processing(ts)
                answer = s.handlers[wire.OBSERVE](meters=True, **request)
                request["version"] = answer["version"]
                return answer

            ask()
            title = f"{workers} workers, {tasks} tasks"
            signs = {"signs": lambda agent=agent: [bool(agent.answers.signs())]}
            rows += timed(title, signs, 20 * arguments.repeat)
            rows += timed(title, {"ten changed": ask}, arguments.repeat)
    return rows


if __name__ == "__main__":
    given = options(__doc__, workers=[100, 1000, 5000], repeat=15)
    looks = asyncio.run(run(given)) + asyncio.run(run_demand(given))
    show(looks, "milliseconds a look")
    show(asyncio.run(run_changes(given)), "milliseconds a look for changes, and an answer")
