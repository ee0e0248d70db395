"""What the small benchmarks share: their options, a scheduler of books only, turns, tables."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager
from statistics import median
from typing import Any

import distributed
from distributed import Scheduler
from distributed.scheduler import ClientState

from support.agent_fakes import clear_workers, fake_worker
from support.relief_driven import Silent

Row = dict[str, Any]


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """--json, and one option for each default: of its type, or any number of its elements'."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    for name, default in defaults.items():
        words = f"--{name.replace('_', '-')}"
        if isinstance(default, list):
            parser.add_argument(words, type=type(default[0]), nargs="*", default=default)
        else:
            parser.add_argument(words, type=type(default), default=default)
    return parser.parse_args()


def show(rows: Sequence[Row], arguments: argparse.Namespace, title: str = "") -> None:
    """As a table; with --json, a line of it for each row."""
    if arguments.json:
        for row in rows:
            print(json.dumps({"distributed": distributed.__version__, **row}))
        return
    print(f"distributed {distributed.__version__}: {title}")
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) + 2 for column in zip(*cells, strict=True)]
    for line in cells:
        print("".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def sides(case: str, unit: str, stock: Sequence[float], ours: Sequence[float]) -> Row:
    """Stock beside ours, as `make bench-relief` reads it."""
    both = [[round(one, 3) for one in seen] for seen in (stock, ours)]
    medians = {"stock": median(both[0]), "ours": median(both[1])}
    return {"case": case, "unit": unit, **medians, "spread": both}


def show_sides(rows: Sequence[Row], arguments: argparse.Namespace) -> None:
    if not arguments.json:
        rows = [
            {
                **{key: row[key] for key in ("case", "unit", "stock", "ours")},
                "times": row["stock"] / row["ours"] if row["ours"] else "",
            }
            for row in rows
        ]
    show(rows, arguments, "medians")


def spread(times: Sequence[float], unit: str = "ms") -> Row:
    """The least, the median and the most."""
    figures = {"min": min(times), "median": median(times), "max": max(times)}
    return {f"{what}_{unit}": round(figure, 3) for what, figure in figures.items()}


def milliseconds(call: Callable[[], Any], repeat: int) -> Row:
    """Of CPU, for a call whose first run does not count."""
    call()
    times = []
    for _ in range(repeat):
        began = time.thread_time()
        call()
        times.append((time.thread_time() - began) * 1000)
    return spread(times)


@contextmanager
def no_collections() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def books(workers: int = 0, **options: Any) -> AsyncIterator[Any]:
    """A scheduler at rest, with workers and a client "c" in its books only."""
    options = {"dashboard": False, **options}
    async with Scheduler(port=0, host="127.0.0.1", **options) as s:
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
        yield s
        clear_workers(s)  # there is nobody to say goodbye to
        for there in (s.clients, s.client_comms, s.stream_comms, s.queued):
            there.clear()
