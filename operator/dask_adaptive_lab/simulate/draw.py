"""Runs as people see them: a table, or a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from dask_adaptive.model.amounts import format_duration
from dask_adaptive_lab.simulate.replay import Figures, Point, Run

#: Curves: name, and the number at a point.
CURVES: tuple[tuple[str, Callable[[Point], int]], ...] = (
    ("workers", lambda p: p.present),
    ("tasks to do", lambda p: p.unfinished),
)

#: Rows of the table: what a figure is called, and how it reads; empty: there is nothing to say.
_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("workers at most", lambda f: str(f.peak)),
    ("worker-seconds", lambda f: f"{f.worker_s:.0f}"),
    ("makespan", lambda f: format_duration(f.makespan_s)),
    (
        "mean wait of a task",
        lambda f: "" if f.mean_wait_s is None else format_duration(f.mean_wait_s),
    ),
    ("changes of direction", lambda f: str(f.turns)),
    ("redone tasks", lambda f: "" if f.redone is None else str(f.redone)),
    ("not done at the end", lambda f: str(f.unfinished or "")),
)


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
        for axis, (name, value) in zip(axes, CURVES, strict=True):
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
