"""
What counting runs costs a scheduler for each task: microseconds over stock, in pairs.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_meters.py [--json]

Handlers are driven directly, with no sockets. Stock and ours take turns many times in one run, and
the figures are those of the differences between neighbours, so that a slow minute of the machine
hits both. `report`: the handler "task-finished" alone, of a task that the scheduler knows no more.
`task`: all of a task, from waiting to forgotten. `failure`: the handler "task-erred" alone, with
five patterns to look for. With an exact quota, assignments are counted too.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import distributed
from bench_agent_hooks import clear, drive, prepare, spec
from distributed import Scheduler

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install
from dask_adaptive_agent.meters import REPORTS

COLUMNS = ("what", "variant", "stock_us", "over_min_us", "over_median_us", "over_max_us")
LIMIT = {
    "runs": 2**40,
    "left_ms": -1,
    "profile": 0,
}
PATTERNS = ["CUDA error", "Bus error", "No space left", r"out of memory$", r"(?i)ecc \w+"]


def limit(s: Any, *, exact: bool) -> None:
    """Every worker has a quota that it never comes to."""
    names = [str(ws.name) for ws in s.workers.values()]
    session = s.handlers[wire.HELLO]()["session"]
    profile = {"exact": exact, "patterns": PATTERNS}
    columns = {key: [value] * len(names) for key, value in LIMIT.items()}
    answer = s.handlers[wire.LIMIT](
        session=session, names=names, profiles=[profile], stops=len(names), **columns
    )
    assert answer["stopped"] == [], answer


class Handlers:
    """Of the reports, and of assignments: as they are in stock, and ours."""

    def __init__(self, s: Any, assigned: Any) -> None:
        self._s = s
        self._assigned = assigned
        self.is_exact = False
        self.ours = {t.name: s.stream_handlers[t.name] for t in REPORTS}
        self.stock = {name: handler.__wrapped__ for name, handler in self.ours.items()}

    def use(self, handlers: dict[str, Any]) -> None:
        self._s.stream_handlers.update(handlers)
        if self.is_exact and handlers is self.ours:
            self._assigned.install()
        else:
            self._assigned.uninstall()


def reports(s: Any, name: str, n: int) -> float:
    """Microseconds of CPU a report of a task that is not known."""
    handler, addresses = s.stream_handlers[name], list(s.workers)
    more: dict[str, Any] = {"run_id": 1, "stimulus_id": "done", "status": "OK", "op": name}
    if name == "task-finished":
        more.update(nbytes=28, type=b"", typename="int", metadata={}, thread=1, startstops=())
    else:
        more.update(exception=None, traceback=None, exception_text="ValueError('no')" + " " * 80)
        more.update(traceback_text="", thread=1, startstops=())
    gc.collect()
    gc.disable()
    start = time.process_time()
    for i in range(n):
        handler(key=f"inc-{i}", worker=addresses[i % len(addresses)], **more)
    seconds = time.process_time() - start
    gc.enable()
    return seconds / n * 1e6


def paired(
    s: Any, handlers: Handlers, measure: Callable[[], float], repeat: int
) -> tuple[list[float], list[float]]:
    """Stock, and how much more ours takes than the stock before and after it."""
    stock, over = [], []
    handlers.use(handlers.stock)
    measure()
    before = measure()
    for _ in range(repeat):
        handlers.use(handlers.ours)
        ours = measure()
        handlers.use(handlers.stock)
        after = measure()
        stock.append(after)
        over.append(ours - (before + after) / 2)
        before = after
    handlers.use(handlers.ours)
    return stock, over


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        prepare(s)
        agent = install(s)
        agent.roster.sync()
        handlers = Handlers(s, agent.cordons.assigned)
        body, generation, n = spec(), iter(range(10**9)), arguments.tasks

        def whole_task() -> float:
            return drive(s, n, next(generation), body)

        for exact in (False, True):
            limit(s, exact=exact)
            handlers.is_exact = exact
            for what, measure in {
                "report": lambda: reports(s, "task-finished", 10 * n),
                "failure": lambda: reports(s, "task-erred", n),
                "task": whole_task,
            }.items():
                stock, over = paired(s, handlers, measure, arguments.repeat)
                figures = [statistics.median(stock), min(over), statistics.median(over), max(over)]
                variant = "exact" if exact else "counting"
                values = (what, variant, *[round(one, 3) for one in figures])
                rows.append(dict(zip(COLUMNS, values)))  # noqa: B905
        assert all(entry.runs for entry in agent.roster.entries.values())
        clear(s)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=21)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(run(arguments))
    if arguments.json:
        print(json.dumps({"distributed": distributed.__version__, "rows": rows}))
        return
    print(f"distributed {distributed.__version__}, us a task")
    print("{:<9}{:<10}{:>10}{:>13}{:>16}{:>13}".format(*COLUMNS))
    for row in rows:
        print("{:<9}{:<10}{:>10.2f}{:>13.2f}{:>16.2f}{:>13.2f}".format(*row.values()))


if __name__ == "__main__":
    main()
