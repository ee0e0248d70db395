"""Runs as people see them: a table and charts of blocks on a terminal, or a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dask_adaptive.model.amounts import format_duration
from dask_adaptive_lab.simulate.replay import Figures, Point, Run

_BLOCKS = " ▁▂▃▄▅▆▇█"

#: Rows and columns of a chart.
HEIGHT, WIDTH = 5, 72

#: Curves: name, colour, and the number at a point.
CURVES: tuple[tuple[str, str, Callable[[Point], int]], ...] = (
    ("workers", "green", lambda p: p.present),
    ("tasks to do", "yellow", lambda p: p.unfinished),
)

#: Rows of the table: what a figure is called, and how it reads; empty: there is nothing to say.
_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("workers at most", lambda f: str(f.peak)),
    ("worker-seconds", lambda f: f"{f.worker_s:.0f}"),
    ("cost", lambda f: "" if f.cost is None else f"{f.cost:.2f}"),
    ("makespan", lambda f: format_duration(f.makespan_s)),
    (
        "mean wait of a task",
        lambda f: "" if f.mean_wait_s is None else format_duration(f.mean_wait_s),
    ),
    ("changes of direction", lambda f: str(f.turns)),
    ("redone tasks", lambda f: "" if f.redone is None else str(f.redone)),
    ("not done at the end", lambda f: str(f.unfinished or "")),
)


def draw(console: Console, runs: Sequence[Run]) -> None:
    """Draw runs side by side: figures in one table, charts with one scale below each other."""
    console.print(table_of(runs))
    lasted_s = max(run.points[-1].t for run in runs)
    for name, colour, value in CURVES:
        top = max((value(p) for run in runs for p in run.points), default=0)
        for run in runs:
            console.print()
            console.print(Text(f"{name}: {run.title}", style="bold"))
            console.print(Text("\n".join(chart(run.points, value, top, lasted_s)), style=colour))


def table_of(runs: Sequence[Run]) -> Table:
    """Render the figures of runs side by side, without rows that are empty for all."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for run in runs:
        table.add_column(run.title, justify="right")
    for name, cell in _ROWS:
        cells = [cell(run.figures) for run in runs]
        is_broken = name == "redone tasks" and any(c not in ("0", "") for c in cells)
        if any(cells):
            table.add_row(name, *cells, style="bold red" if is_broken else "")
    return table


def chart(
    points: Sequence[Point], value: Callable[[Point], int], top: int, lasted_s: float
) -> list[str]:
    """One curve as lines of blocks, with its scale; `top` and `lasted_s` are the scales' ends."""
    values = _columns(points, value, lasted_s)
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


def _columns(points: Sequence[Point], value: Callable[[Point], int], lasted_s: float) -> list[int]:
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


def scatter(points: Sequence[tuple[float, float, str]], x: str, y: str) -> list[str]:
    """
    Points of a plane as lines of text; of several in one place the last is seen.

    Args:
        points: Where, and the character that marks it. Not negative.
        x, y: What the axes are.
    """
    right, top = max(p[0] for p in points) or 1.0, max(p[1] for p in points) or 1.0
    grid = [[" "] * WIDTH for _ in range(2 * HEIGHT)]
    for across, up, mark in points:
        row = len(grid) - 1 - round(up / top * (len(grid) - 1))
        grid[row][round(across / right * (WIDTH - 1))] = mark
    label = max(len(f"{top:.3g}"), 1)
    marks = {0: f"{top:.3g}", len(grid) - 1: "0"}
    lines = [f"{marks.get(n, ''):>{label}} │{''.join(row)}".rstrip() for n, row in enumerate(grid)]
    lines.append(" " * label + " └" + "─" * WIDTH)
    lines.append(" " * label + "  0" + f"{right:.3g}".rjust(WIDTH - 1))
    return [y, *lines, f"{x:>{label + 2 + WIDTH}}"]


def plot(runs: Sequence[Run], path: Path) -> None:
    """
    Write a picture; its name says which kind. The same runs give the same bytes.

    Raises:
        OSError: The file can't be written.
    """
    import matplotlib  # most of a second, and only for pictures
    from matplotlib.figure import Figure

    # Names of parts of an SVG are random otherwise.
    with matplotlib.rc_context({"svg.hashsalt": "dask-adaptive"}):
        figure: Any = Figure(figsize=(9, 6), layout="constrained")
        axes = figure.subplots(len(CURVES), 1, sharex=True)
        for axis, (name, _, value) in zip(axes, CURVES, strict=True):
            for run in runs:
                times, values = [p.t for p in run.points], [value(p) for p in run.points]
                axis.step(times, values, where="post", label=run.title)
            axis.set_ylabel(name)
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
        axes[0].legend()
        axes[-1].set_xlabel("seconds")
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, metadata=metadata)
