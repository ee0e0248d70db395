"""
The figures of reliefs: kept in docs/benchmarks/relief.jsonl, shown as a table.

    python report.py --add LINES --release 2026.8.0
    python report.py

Figures of another run of the same release and case are replaced. Nothing is written that
names a machine, but for the make of its CPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import pages
from bench.pages import FOLDER, Row, read, table, take_over

RAW = FOLDER / "relief.jsonl"


def ratio(row: Row) -> float:
    """How many times better ours is; below 1: worse."""
    is_rate = row["unit"].startswith("tasks/")
    over, under = (row["ours"], row["stock"]) if is_rate else (row["stock"], row["ours"])
    return float(over / under) if under else 1.0 if not over else float("inf")


def is_clear(row: Row) -> bool:
    """Whether no repetition of one side is as good as any of the other."""
    stock, ours = row["spread"]
    return bool(min(stock) > max(ours) or min(ours) > max(stock))


def ordinal(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def machine() -> str:
    """The make of the CPU, and how many cores of it; nothing that tells whose it is."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2]
            break
    model = re.sub(r"\((R|TM)\)|@.*|\b(CPU|Processor)\b|\d+-Core", "", model)
    return f"{os.cpu_count()} cores ({' '.join(model.split())}), Python {platform.python_version()}"


def key(row: Row) -> tuple[Any, ...]:
    return (row["release"], row.get("case", row.get("side")), row.get("unit"))


def add(lines: Path, release: str) -> None:
    stamp = {"date": datetime.date.today().isoformat(), "machine": machine()}
    stamp["code"] = pages.digest("relief")
    new = [
        {"release": release, **json.loads(line), **stamp}
        for line in lines.read_text().splitlines()
        if line.startswith("{")
    ]
    if not new:
        print(f"no figures on {release}")
    take_over(RAW, new, key)


def number(value: float) -> str:
    if value == 0 or 0.01 <= abs(value) < 100_000:
        return f"{float(f'{value:.3g}'):,g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.2g}"


def times(row: Row) -> str:
    times = ratio(row)
    text = f"{times:.0f}x" if times >= 10 else f"{times:.2f}x" if times < 2 else f"{times:.1f}x"
    return (text if is_clear(row) else f"({text})") + mark(row)


def mark(row: Row) -> str:
    return pages.mark([row], "relief")


def overview(rows: Sequence[Row], releases: Sequence[str]) -> str:
    """Ratios: a line a case, a column a release."""
    cells = {(row["case"], row["unit"], row["release"]): times(row) for row in rows}
    lines = [
        [case, unit, *(cells.get((case, unit, release), "") for release in releases)]
        for case, unit in dict.fromkeys((row["case"], row["unit"]) for row in rows)
    ]
    return table(["case", "unit", *releases], lines, texts=2)


def page(every: Sequence[Row]) -> str:
    rows = [row for row in every if "case" in row]
    releases = sorted({row["release"] for row in rows}, key=ordinal)
    dates = sorted({row["date"] for row in every})
    newest = [
        [row["case"], row["unit"], number(row["stock"]), number(row["ours"]) + mark(row)]
        for row in rows
        if row["release"] == releases[-1]
    ]
    return pages.filled(
        __file__,
        when=dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        machines="; ".join(sorted({row["machine"] for row in every})),
        old=pages.OLD,
        overview=overview(rows, releases),
        newest=releases[-1],
        figures=table(["case", "unit", "stock", "ours"], newest, texts=2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--add", type=Path)
    parser.add_argument("--release", default="")
    given = parser.parse_args()
    if given.add:
        add(given.add, given.release)
    else:
        (FOLDER.parent / "contributing/relief.md").write_text(page(read(RAW)))


if __name__ == "__main__":
    main()
