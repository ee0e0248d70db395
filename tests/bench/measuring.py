"""What the small benchmarks share: their options, times and tables."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import distributed

Row = dict[str, Any]


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """One option for each default: of its type, or any number of its elements'."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        words = f"--{name.replace('_', '-')}"
        if isinstance(default, list):
            parser.add_argument(words, type=type(default[0]), nargs="*", default=default)
        else:
            parser.add_argument(words, type=type(default), default=default)
    return parser.parse_args()


def show(rows: Sequence[Row], title: str) -> None:
    """As a table."""
    print(f"distributed {distributed.__version__}: {title}")
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) + 2 for column in zip(*cells, strict=True)]
    for line in cells:
        print("".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


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
