"""Ratios of ours to stock, a dot a case and release: at a glance, what gains and where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

if TYPE_CHECKING:
    from report import Figure

#: Beyond this, how many times better it is says nothing any more; the table has the figure.
MOST = 1000.0
LEAST = 0.5


def draw(figures: Sequence[Figure], folder: Path) -> None:
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "relief"  # the same figures give the same file
    import matplotlib.pyplot as plt

    parts = [
        ("Whole clusters", [f for f in figures if f.source == "clusters"]),
        ("One call at a time", [f for f in figures if f.source != "clusters"]),
    ]
    parts = [(title, part) for title, part in parts if part]
    heights = [len(cases(part)) + 1.5 for _, part in parts]
    canvas, axes = plt.subplots(
        len(parts), 1, figsize=(9, 1.4 + 0.27 * sum(heights)), squeeze=False, sharex=True,
        gridspec_kw={"height_ratios": heights}, layout="constrained",
    )  # fmt: skip
    releases = sorted({f.release for f in figures}, key=lambda r: tuple(map(int, r.split("."))))
    colours = dict(zip(releases, plt.colormaps["viridis"](spaced(len(releases))), strict=True))
    for axis, (title, part) in zip(axes[:, 0], parts, strict=True):
        panel(axis, title, part, colours)
    axes[-1, 0].set_xlabel("times better than stock, in the same run")
    handles = [mpl.lines.Line2D([], [], marker="o", ls="", color=c) for c in colours.values()]
    canvas.legend(handles, releases, loc="outside upper center", ncols=len(releases), frameon=False)
    for ending, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 110})):
        canvas.savefig(folder / f"relief.{ending}", **options)


def spaced(count: int) -> list[float]:
    return [0.95 * i / max(1, count - 1) for i in range(count)]


def cases(figures: Sequence[Figure]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((f.case, f.unit) for f in figures))


def panel(axis: Any, title: str, figures: Sequence[Figure], colours: dict[str, Any]) -> None:
    lines = cases(figures)
    order = list(colours)
    for figure in figures:
        line = lines.index((figure.case, figure.unit))
        # Dots of one line lie a little below each other, so that equal ones can be told apart.
        shift = (order.index(figure.release) - (len(order) - 1) / 2) * 0.7 / max(1, len(order))
        ratio = min(max(figure.ratio, LEAST), MOST)
        colour = colours[figure.release]
        is_off = not math.isclose(ratio, figure.ratio)
        axis.plot(
            ratio, line + shift, marker=">" if is_off else "o", ms=5, ls="", color=colour,
            markerfacecolor=colour if figure.is_clear else "none",
        )  # fmt: skip
    axis.axvline(1, color="black", lw=0.8)
    axis.set_xscale("log")
    axis.set_xlim(LEAST * 0.9, MOST * 1.2)
    ticks = (0.5, 1, 2, 5, 10, 20, 50, 100, 300, 1000)
    axis.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axis.minorticks_off()
    axis.set_yticks(range(len(lines)), [f"{case}, {unit}" for case, unit in lines], fontsize=8)
    axis.set_ylim(len(lines) - 0.4, -0.6)
    axis.grid(axis="x", lw=0.4)
    axis.set_title(title, loc="left", fontsize=10)
