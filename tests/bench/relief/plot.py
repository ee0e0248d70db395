"""Some bars: how many times better a scheduler with the agent is, on the newest release."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.drawing import pyplot

if TYPE_CHECKING:
    from report import Figure

#: A load as a user would name it, and the case and unit that measured it. The table has the others.
LOADS = {
    "a script's function, per scheduler CPU second": ("map-script", "tasks/scheduler CPU s"),
    "a partial with 2,000 paths, default": ("map-bigpartial", "tasks/scheduler CPU s"),
    "the same with pickling: Shared": ("map-bigpartial-shared", "tasks/s"),
    "the identity of 800 workers": ("identity, 800 workers", "ms CPU"),
}


def draw(figures: Sequence[Figure], folder: Path) -> None:
    plt = pyplot("relief")
    newest = max((f.release for f in figures), key=lambda r: tuple(map(int, r.split("."))))
    found = {(f.case, f.unit): f.ratio for f in figures if f.release == newest}
    shown = {label: found[key] for label, key in LOADS.items() if key in found}
    # Narrow, with large letters: a phone is 390 pixels wide.
    canvas, axis = plt.subplots(figsize=(4.4, 0.3 + 0.62 * len(shown)), layout="constrained")
    for line, (label, ratio) in enumerate(shown.items()):
        axis.barh(line, ratio, height=0.42, color="#0b57b0")
        axis.text(0, line - 0.28, label, va="bottom", fontsize=10)
        axis.text(ratio, line, f" {ratio:.1f}x", va="center", fontsize=10)
    axis.axvline(1, color="gray", lw=0.8, ls=":", zorder=0)
    axis.set_xlim(0, 1.15 * max(shown.values(), default=1))
    axis.set_ylim(len(shown) - 0.6, -0.8)
    axis.set_yticks([])
    axis.set_xlabel(f"times better than stock, distributed {newest}", fontsize=10)
    axis.spines[["top", "right", "left"]].set_visible(False)
    canvas.savefig(folder / "relief.svg", metadata={"Date": None})
