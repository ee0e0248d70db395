"""
What many task groups cost a scheduler, with upstream's code and with the relief of it.

    PYTHONPATH=operator:tests python tests/bench/bench_relief_prefixes.py [--json]

Stock and ours take turns in one run, so that a slow minute of the machine hits both. What is read
is read directly; what a dashboard costs is measured with whole clusters: relief/run.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from measuring import Row, options, show_sides, sides

from dask_adaptive_agent.relief.before_2024_6 import PrefixesRelief
from dask_adaptive_agent.relief.registry import Place, is_needed
from support.relief_driven import alone


@contextlib.contextmanager
def relieved(s: Any) -> Iterator[None]:
    relief = PrefixesRelief(Place(s, time.monotonic, lambda *_: None, lambda _: None))
    if is_needed(relief.name):
        relief.install()
    try:
        yield
    finally:
        relief.uninstall()


def per_call_us(call: Callable[[], Any], at_least_s: float = 0.02) -> float:
    """The quickest of three loops."""
    call()
    start = time.perf_counter()
    call()
    n = max(1, min(50_000, int(at_least_s / max(time.perf_counter() - start, 1e-7))))
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(n):
            call()
        best = min(best, (time.perf_counter() - start) / n * 1e6)
    return best


def alternated(s: Any, cases: dict[str, Callable[[], float]], unit: str, repeat: int) -> list[Row]:
    times: dict[str, tuple[list[float], list[float]]] = {case: ([], []) for case in cases}
    for _ in range(repeat):
        for case, measure in cases.items():
            times[case][0].append(measure())
        with relieved(s):
            for case, measure in cases.items():
                times[case][1].append(measure())
    return [sides(case, unit, stock, ours) for case, (stock, ours) in times.items()]


def read(name: str, of: Callable[[], Any]) -> Callable[[], float]:
    return lambda: per_call_us(lambda: getattr(of(), name))


async def reads(n_groups: int, repeat: int) -> list[Row]:
    async with alone() as driven:
        s = driven.s
        driven.hold(n_groups)
        prefix: Any = s.task_prefixes["load"]
        cases = {
            f"TaskPrefix.{name}": read(name, lambda: prefix)
            for name in ("states", "active_states", "nbytes_total", "duration", "types")
            if hasattr(prefix, name)
        }
        if hasattr(type(prefix), "__len__"):
            cases["len(TaskPrefix)"] = lambda: per_call_us(lambda: len(prefix))
        cases["get_task_prefix_states"] = lambda: per_call_us(s.get_task_prefix_states)
        return alternated(s, cases, "us", repeat)


async def many_prefixes(n_prefixes: int, repeat: int) -> list[Row]:
    """Keys such as `file_0001` have a prefix each, and prefixes are never dropped."""
    async with alone() as driven:
        s = driven.s
        driven.hold(n_prefixes, is_own_prefix=True)
        cases = {"get_task_prefix_states": lambda: per_call_us(s.get_task_prefix_states)}
        rows = alternated(s, cases, "us", repeat)
    return [{**r, "case": f"{r['case']}, a prefix each"} for r in rows]


async def run(arguments: argparse.Namespace) -> list[Row]:
    n, repeat = arguments.groups, arguments.repeat
    rows = []
    for part in (reads, many_prefixes):
        rows += await part(n, repeat)
    return [{**row, "groups": n} for row in rows]


if __name__ == "__main__":
    given = options(__doc__, groups=50_000, repeat=5)
    warnings.simplefilter("ignore", FutureWarning)  # of reads that upstream has deprecated
    show_sides(asyncio.run(run(given)), given)
