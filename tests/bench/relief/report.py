"""
What has been measured: kept in docs/benchmarks/relief.jsonl, shown as a table and as a plot.

    python report.py --add LINES --release 2026.8.0 --source prefixes
    python report.py

Figures of another run of the same release, source and case are replaced. Nothing is written that
names a machine, but for the make of its CPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[3] / "docs/benchmarks"
RAW = OUT / "relief.jsonl"
MADE = "<!-- Made by `make bench-relief` from relief.jsonl. -->"
#: Where whole clusters are measured; the others measure one call at a time.
CLUSTERS = "clusters"


@dataclass(frozen=True)
class Figure:
    """One thing measured on one release, stock and ours."""

    release: str
    source: str
    case: str
    unit: str
    stock: float
    ours: float
    spread: tuple[tuple[float, ...], tuple[float, ...]]

    @property
    def ratio(self) -> float:
        """How many times better ours is; below 1: worse."""
        is_rate = self.unit.startswith("tasks/")
        over, under = (self.ours, self.stock) if is_rate else (self.stock, self.ours)
        return over / under if under else 1.0 if not over else float("inf")

    @property
    def is_clear(self) -> bool:
        """Whether no repetition of one side is as good as any of the other."""
        stock, ours = self.spread
        return min(stock) > max(ours) or min(ours) > max(stock)


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RAW.read_text().splitlines()] if RAW.exists() else []


def ordinal(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def figures(of: Iterable[dict[str, Any]]) -> list[Figure]:
    return [
        Figure(
            row["release"], row["source"], row["case"], row["unit"],
            row["stock"], row["ours"], (tuple(row["spread"][0]), tuple(row["spread"][1])),
        )
        for row in of
        if "case" in row
    ]  # fmt: skip


def machine() -> str:
    """The make of the CPU, and how many cores of it; nothing that tells whose it is."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2]
            break
    model = re.sub(r"\((R|TM)\)|@.*|\b(CPU|Processor)\b|\d+-Core", "", model)
    return f"{os.cpu_count()} cores ({' '.join(model.split())}), Python {platform.python_version()}"


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["release"], row["source"], row.get("case", row.get("side")), row.get("unit"))


def is_row(row: Any) -> bool:
    return isinstance(row, dict) and (
        {"case", "stock", "ours", "unit", "spread"} <= row.keys()
        or {"side", "relief"} == row.keys()
    )


def add(lines: Path, release: str, source: str) -> None:
    stamp = {"date": datetime.date.today().isoformat(), "machine": machine()}
    new = [
        {"release": release, "source": source, **row, **stamp}
        for line in lines.read_text().splitlines()
        if line.startswith("{")
        if is_row(row := json.loads(line))
    ]
    if not new:
        print(f"no figures from {source} on {release}")
    replaced = {key(row) for row in new}
    kept = [row for row in rows() if key(row) not in replaced]
    merged = sorted(kept + new, key=lambda row: ordinal(row["release"]))
    OUT.mkdir(parents=True, exist_ok=True)
    RAW.write_text("".join(json.dumps(row) + "\n" for row in merged))


def number(value: float) -> str:
    if value == 0 or 0.01 <= abs(value) < 100_000:
        return f"{float(f'{value:.3g}'):,g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.2g}"


def times(figure: Figure) -> str:
    ratio = figure.ratio
    text = f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2f}x" if ratio < 2 else f"{ratio:.1f}x"
    return text if figure.is_clear else f"({text})"


def overview(of: list[Figure]) -> list[str]:
    """Ratios: a line a case, a column a release."""
    releases = sorted({f.release for f in of}, key=ordinal)
    cells = {(f.source, f.case, f.unit, f.release): times(f) for f in of}
    lines = [
        "| case | unit | " + " | ".join(releases) + " |",
        "|---|---" + "|---:" * len(releases) + "|",
    ]
    for source, case, unit in dict.fromkeys((f.source, f.case, f.unit) for f in of):
        found = " | ".join(cells.get((source, case, unit, r), "") for r in releases)
        lines.append(f"| {case} | {unit} | {found} |")
    return lines


def table(of: list[Figure]) -> list[str]:
    lines = ["| case | unit | stock | ours |", "|---|---|---:|---:|"]
    for f in of:
        lines.append(f"| {f.case} | {f.unit} | {number(f.stock)} | {number(f.ours)} |")
    return lines


def page() -> str:
    every = rows()
    measured = figures(every)
    by_source = [
        [f for f in measured if (f.source == CLUSTERS) is whole] for whole in (True, False)
    ]
    dates = sorted({row["date"] for row in every})
    machines = sorted({row["machine"] for row in every})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lines = [
        MADE, "# Loads off the scheduler, measured\n",
        f"{when}, {'; '.join(machines)}. [How to read this](README.md). Above 1, ours is better.",
        "In brackets, the repetitions of both sides overlap: the difference may be chance.\n",
        "![Some loads, and how many times better the scheduler with the agent is](relief.svg)\n",
    ]  # fmt: skip
    for title, part in zip(("Whole clusters", "One call at a time"), by_source, strict=True):
        if part:
            lines += [f"## {title}\n", *overview(part), ""]
    newest = max((f.release for f in measured), key=ordinal)
    of_newest = [f for part in by_source for f in part if f.release == newest]
    lines += [f"## Figures on distributed {newest}\n", "All others are in relief.jsonl.\n"]
    return "\n".join([*lines, *table(of_newest), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--add", type=Path)
    parser.add_argument("--release", default="")
    parser.add_argument("--source", default="")
    given = parser.parse_args()
    if given.add:
        add(given.add, given.release, given.source)
        return
    (OUT / "relief.md").write_text(page())
    from plot import draw

    draw(figures(rows()), OUT)


if __name__ == "__main__":
    main()
