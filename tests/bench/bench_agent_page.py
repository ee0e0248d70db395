"""
What one person who looks at the page costs a scheduler each second, next to upstream's own pages.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_page.py [--json]

Workers exist in the scheduler's books only; half of them are busy. CPU milliseconds of
--repeat updates of a document that nobody is connected to: all but the message to the
browser. Upstream's pages are updated twice a second.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import Any

from distributed import Worker
from measuring import Row, books, milliseconds, options, show

from dask_adaptive_agent.loading.attach import install
from dask_adaptive_agent.page import page
from support.agent_fakes import crowd


def pages(s: Any, agent: Any) -> dict[str, Callable[[], Any]]:
    from bokeh.document import Document
    from distributed.dashboard.components.scheduler import WorkersMemory, WorkerTable

    from dask_adaptive_agent.page.document import View

    page.FRESH_S = 0.0  # each update is one of its own second
    views = {
        "Adaptive": View(agent.page.looks),
        "stock Workers (one update of two)": WorkerTable(s),
        "stock memory by worker (the same)": WorkersMemory(s),
    }
    for view in views.values():
        Document().add_root(view.root)
    return {name: view.update for name, view in views.items()}


async def run(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    async with books(dashboard=True, dashboard_address="127.0.0.1:0") as s:
        agent = install(s)
        async with Worker(s.address, dashboard=False) as real:
            metrics = dict(s.workers[real.address].metrics)
        for n in arguments.workers:
            crowd(s, n, share_busy=0.5, results=arguments.results)
            for ws in s.workers.values():
                ws.metrics.update({**metrics, **ws.metrics})
            for name, update in pages(s, agent).items():
                rows.append({"workers": n, "page": name, **milliseconds(update, arguments.repeat)})
    return rows


if __name__ == "__main__":
    given = options(__doc__, workers=[100, 1000, 5000], results=100, repeat=20)
    show(asyncio.run(run(given)), given, "milliseconds an update")
