"""
What the agent costs a scheduler for each task: microseconds of CPU, with and without it.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_hooks.py

Handlers are driven directly, with no sockets: released, waiting, processing, task-finished, memory,
forgotten. Variants take turns, so that a slow minute of the machine hits them all; `over_us` is the
median of the differences to stock of the same turn. `counting` has a quota of
tasks, and patterns of failures, that no worker comes to; with `exact`, assignments count, too.
Workers may have ends: `measured` has none, but durations are wanted; `far`: each has one, hours
away; `near`: every second one ends too soon for anything.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from measuring import Row, no_collections, options, show, spread

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install, uninstall
from support.relief_driven import Driven, alone

PATTERNS = ["CUDA error", "Bus error", "No space left", r"out of memory$", r"(?i)ecc \w+"]
MANY, FAR_MS, NEAR_MS = 2**40, 10**8, 10**5

#: By variant, what the agent is told of each worker: runs, milliseconds left, and the profile.
LIMITS: dict[str, tuple[int, tuple[int, int], dict[str, Any]]] = {
    "counting": (MANY, (-1, -1), {"patterns": PATTERNS}),
    "exact": (MANY, (-1, -1), {"exact": True, "patterns": PATTERNS}),
    "far": (0, (FAR_MS, FAR_MS), {}),
    "near": (0, (NEAR_MS, FAR_MS), {}),
}
VARIANTS = ("stock", "an empty plugin", "agent", *LIMITS)


class Empty(SchedulerPlugin):
    name = "empty"


def become(s: Any, variant: str) -> None:
    uninstall(s)
    s.plugins.pop("empty", None)
    if variant == "an empty plugin":
        s.add_plugin(Empty())
    if variant in ("stock", "an empty plugin"):
        return
    agent = install(s)
    agent.roster.sync()
    if variant not in LIMITS:
        return
    runs, left_ms, profile = LIMITS[variant]
    names = [str(ws.name) for ws in s.workers.values()]
    answer = s.handlers[wire.LIMIT](
        session=agent.session, names=names, stops=0, runs=[runs] * len(names),
        left_ms=[*left_ms] * (len(names) // 2), profile=[0] * len(names), profiles=[profile],
    )  # fmt: skip
    assert not agent.cordons.ongoing, answer
    assert agent.cordons.deadlines.have_ends is (variant in ("far", "near"))


def drive(driven: Driven, n: int, generation: int) -> float:
    """Microseconds of CPU a task, from its submission until it is forgotten."""
    with no_collections():
        start = time.process_time()
        for i in range(n):
            ts = driven.begin(f"inc-{generation}-{i}")
            driven.finish(ts, "int", 28)
            driven.release(ts)
        seconds = time.process_time() - start
    assert not driven.s.tasks
    return seconds / n * 1e6


async def run(arguments: argparse.Namespace) -> list[Row]:
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    generations = itertools.count()
    async with alone(arguments.workers) as driven:
        drive(driven, arguments.tasks, next(generations))
        for _ in range(arguments.repeat):
            for variant in VARIANTS:
                become(driven.s, variant)
                times[variant].append(drive(driven, arguments.tasks, next(generations)))
        become(driven.s, "stock")
    rows = []
    for variant, seen in times.items():
        over = statistics.median(b - a for a, b in zip(times["stock"], seen, strict=True))
        rows.append({"variant": variant, **spread(seen, "us"), "over_us": round(over, 2)})
    return rows


if __name__ == "__main__":
    given = options(__doc__, workers=100, tasks=3000, repeat=7)
    show(asyncio.run(run(given)), "microseconds a task")
