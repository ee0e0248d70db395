"""Runs as people see them on a terminal: a table of figures, and charts made of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dask_adaptive.model.duration import format_duration
from dask_adaptive.simulate.figures import Figures
from dask_adaptive.simulate.replay import Point

_BLOCKS = " ▁▂▃▄▅▆▇█"

#: Rows and columns of a chart.
HEIGHT, WIDTH = 5, 72

#: What is drawn: its name, its colour, and its number at a point.
CURVES: tuple[tuple[str, str, Callable[[Point], int]], ...] = (
    ("workers", "green", lambda p: p.present),
    ("tasks to do", "yellow", lambda p: p.unfinished),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """One column of the table, and its charts."""

    title: str
    figures: Figures
    points: tuple[Point, ...]


def draw(console: Console, shown: Sequence[Shown]) -> None:
    """Draw runs side by side: figures in one table, charts with one scale below each other."""
    console.print(table_of(shown))
    lasted_s = max(s.points[-1].t for s in shown)
    for name, colour, value in CURVES:
        top = max((value(p) for s in shown for p in s.points), default=0)
        for s in shown:
            console.print()
            console.print(Text(f"{name}: {s.title}", style="bold"))
            console.print(Text("\n".join(chart(s.points, value, top, lasted_s)), style=colour))


def table_of(shown: Sequence[Shown]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for s in shown:
        table.add_column(s.title, justify="right")
    for name, *cells in rows_of([s.figures for s in shown]):
        is_broken = name.startswith("redone") and any(c not in ("0", "") for c in cells)
        table.add_row(name, *cells, style="bold red" if is_broken else "")
    return table


def rows_of(figures: Sequence[Figures]) -> list[tuple[str, ...]]:
    """Name and values of each figure, in words; a row that is empty for all is left out."""
    rows: list[tuple[str, ...]] = [
        ("workers at most", *(str(f.peak) for f in figures)),
        ("worker-seconds", *(f"{f.worker_s:.0f}" for f in figures)),
        ("cost", *("" if f.cost is None else f"{f.cost:.2f}" for f in figures)),
        ("makespan", *(format_duration(f.makespan_s) for f in figures)),
        (
            "mean wait of a task",
            *("" if f.mean_wait_s is None else format_duration(f.mean_wait_s) for f in figures),
        ),
        ("changes of direction", *(str(f.turns) for f in figures)),
        ("redone tasks", *("" if f.redone is None else str(f.redone) for f in figures)),
        ("not done at the end", *(str(f.unfinished) if f.unfinished else "" for f in figures)),
    ]
    return [row for row in rows if any(row[1:])]


def chart(
    points: Sequence[Point], value: Callable[[Point], int], top: int, lasted_s: float
) -> list[str]:
    """One curve as lines of blocks, with its scale; `top` and `lasted_s` are the scales' ends."""
    values = columns(points, value, lasted_s)
    label = max(len(str(top)), 1)
    lines = []
    for row in range(HEIGHT - 1, -1, -1):
        blocks = "".join(_block(v, top, row) for v in values)
        mark = str(top) if row == HEIGHT - 1 else "0" if row == 0 else ""
        lines.append(f"{mark:>{label}} │{blocks}".rstrip())
    end = format_duration(lasted_s)
    lines.append(" " * label + " └" + "─" * WIDTH)
    lines.append(" " * label + "  0s" + end.rjust(WIDTH - 2))
    return lines


def columns(points: Sequence[Point], value: Callable[[Point], int], lasted_s: float) -> list[int]:
    """The highest value in each of `WIDTH` equal spans of time: no peak is lost."""
    found = [0] * WIDTH
    scale = WIDTH / max(lasted_s, 1e-9)
    for here, after in pairwise((*points, points[-1])):
        first, last = int(here.t * scale), int(after.t * scale)
        for n in range(first, min(max(last, first + 1), WIDTH)):
            found[n] = max(found[n], value(here))
    return found


def _block(value: int, top: int, row: int) -> str:
    if not top:
        return _BLOCKS[0]
    eighths = math.ceil(value / top * HEIGHT * 8) - row * 8
    return _BLOCKS[min(max(eighths, 0), 8)]
