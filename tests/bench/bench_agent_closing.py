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
import random
import time
from collections.abc import Callable
from typing import Any

from measuring import Row, books, options, show_sides, sides

from dask_adaptive_agent.loading.attach import install
from dask_adaptive_agent.relief.workers_to_close import Delegate
from support.agent_fakes import crowd, shuffle_state


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def row(s: Any, state: str, request: dict[str, Any], repeat: int) -> Row:
    plugins = {name: plugin for name, plugin in s.plugins.items() if name != "dask-adaptive"}
    stand_in = Delegate(s, plugins=plugins)
    stock: list[float] = []
    ours: list[float] = []
    s.workers_to_close(**request)  # the first question after a change reads what is new
    for _ in range(repeat):
        stock.append(timed(lambda: type(s).workers_to_close(stand_in, **request)))
        ours.append(timed(lambda: s.workers_to_close(**request)))
    asked = ", ".join(f"{k}={v}" for k, v in request.items()) or "default"
    return sides(f"workers_to_close, {state}, {asked}", "ms", stock, ours)


def begin_shuffles(s: Any, agent: Any, count: int, addresses: list[str]) -> float:
    """Milliseconds of the first look at all of them."""
    dice = random.Random(0)
    for i in range(count):
        shuffle_state(s, f"shuffle-{i}", i, dice.sample(addresses, len(addresses) // 2))
    return timed(agent.shuffles.look)


async def run(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    n, shuffles = arguments.workers, arguments.shuffles
    async with books() as s:
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
    if not arguments.json:
        print(f"first look at all shuffles: {first_ms:.1f} ms")
    return rows


if __name__ == "__main__":
    given = options(__doc__, workers=5000, shuffles=1000, repeat=25)
    show_sides(asyncio.run(run(given)), given)
