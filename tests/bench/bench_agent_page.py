"""
What one person who looks at the page costs a scheduler each second, next to upstream's own pages.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_page.py [--json]

Workers exist in the scheduler's books only; half of them are busy. Milliseconds, the minimum and
the median of --repeat updates of a document that nobody is connected to: all but the message to the
browser. Upstream's pages are updated twice a second.
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
from distributed import Scheduler, Worker

from dask_adaptive_agent.attach import install
from dask_adaptive_agent.page import look
from dask_adaptive_agent.page.look import Looks
from support.agent_fakes import clear_workers, crowd

COLUMNS = ("workers", "page", "min_ms", "median_ms")


def measure(update: Callable[[], Any], repeat: int) -> tuple[float, float]:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        update()
        times.append((time.perf_counter() - start) * 1000)
    return min(times), statistics.median(times)


def pages(s: Any, agent: Any) -> dict[str, Callable[[], Any]]:
    from bokeh.document import Document
    from distributed.dashboard.components.scheduler import WorkersMemory, WorkerTable

    from dask_adaptive_agent.page.view import View

    look.FRESH_S = 0.0  # each update is one of its own second
    views = {
        "Adaptive": View(Looks(agent)),
        "stock Workers (one update of two)": WorkerTable(s),
        "stock memory by worker (the same)": WorkersMemory(s),
    }
    for view in views.values():
        Document().add_root(view.root)
    return {name: view.update for name, view in views.items()}


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    async with Scheduler(port=0, dashboard_address="127.0.0.1:0", host="127.0.0.1") as s:
        for callback in s.periodic_callbacks.values():
            callback.stop()
        agent = install(s)
        async with Worker(s.address, dashboard=False) as real:
            metrics = dict(s.workers[real.address].metrics)
        for n in arguments.workers:
            crowd(s, n, share_busy=0.5, results=arguments.results)
            for ws in s.workers.values():
                ws.metrics.update({**metrics, **ws.metrics})
            for name, update in pages(s, agent).items():
                update()
                least, median = measure(update, arguments.repeat)
                figures = (n, name, round(least, 2), round(median, 2))
                rows.append(dict(zip(COLUMNS, figures)))  # noqa: B905
        clear_workers(s)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--results", type=int, default=100, help="results of each worker")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(run(arguments))
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"distributed {distributed.__version__}")  # type: ignore[attr-defined]
    for row in rows:
        print("{workers:>6} {min_ms:>8} {median_ms:>8}  {page}".format(**row))


if __name__ == "__main__":
    main()
