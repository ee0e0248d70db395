"""Runs as a picture: SVG or PNG, with matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dask_adaptive.simulate.draw import CURVES, Shown


class PlotUnavailable(RuntimeError):
    """matplotlib is not installed; the message says how to mend it."""


def plot(shown: Sequence[Shown], path: Path) -> None:
    """
    Write a picture; its name says which kind. The same runs give the same bytes.

    Raises:
        PlotUnavailable: matplotlib is missing.
        OSError: The file can't be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise PlotUnavailable(
            "a picture needs matplotlib: pip install 'dask-adaptive[plot]'"
        ) from exc
    # Names of parts of an SVG are random otherwise.
    with matplotlib.rc_context({"svg.hashsalt": "dask-adaptive"}):
        figure: Any = Figure(figsize=(9, 6), layout="constrained")
        axes = figure.subplots(len(CURVES), 1, sharex=True)
        for axis, (name, _, value) in zip(axes, CURVES, strict=True):
            for s in shown:
                times, values = [p.t for p in s.points], [value(p) for p in s.points]
                axis.step(times, values, where="post", label=s.title)
            axis.set_ylabel(name)
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
        axes[0].legend()
        axes[-1].set_xlabel("seconds")
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, metadata=metadata)
