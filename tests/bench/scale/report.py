"""
Tables of what `run.py` has measured.

    python -m bench.scale.report --add LINES     take over new figures; those of their size go
    python -m bench.scale.report                 write docs/{benchmarks/scale,howto/sizes}.md
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from bench import pages
from bench.pages import FOLDER, OLD, Row, digest, filled, mark, read, table, take_over

LINES = FOLDER / "scale.jsonl"


def quantile(values: Sequence[float | None], q: float) -> float | None:
    found = sorted(v for v in values if v is not None)
    return found[min(len(found) - 1, int(q * len(found)))] if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--add", type=Path)
    options = parser.parse_args()
    if options.add:
        new = [{**row, "code": digest("scale")} for row in read(options.add)]
        take_over(LINES, new, size)
    else:
        (FOLDER / "scale.md").write_text(page(read(LINES)))
        pages.into_readme("sizes", sizes(read(LINES)), FOLDER.parent / "howto/sizes.md")


def size(row: Row) -> tuple[int, int, int]:
    return row["clusters"], row["workers"], row.get("operators", 1)


def page(rows: Sequence[Row]) -> str:
    parts: list[str] = []
    for one in sorted(set(map(size, rows)), reverse=True):
        clusters = f"{one[0]:,} cluster{'s' if one[0] > 1 else ''} of {one[1]:,} workers"
        clusters += f", {one[2]} operators together" if one[2] > 1 else ""
        mine = [row for row in rows if size(row) == one]
        parts.append(f"## {clusters}{mark(mine, 'scale')}\n\n{usage(mine)}\n")
        has_reactions = any(row.get("rises_s") or row.get("falls_s") for row in mine)
        parts += [f"{reactions(mine)}\n"] if has_reactions else []
        parts += [f"{writes(row)}\n" for row in mine if row["phase"] == "churn"]
    return filled(__file__, old=OLD, sizes="\n".join(parts))


def sizes(rows: Sequence[Row]) -> str:
    """What to plan for: the highest that was measured, rounded up."""
    lines = []
    for one in sorted({row_size for row in rows if (row_size := size(row))[2] == 1}):
        of = {row["phase"]: row for row in rows if size(row) == one}
        cpu = [f"{ceil(100 * of[phase]['cpu']) / 100:.2f} core" for phase in ("rest", "churn")]
        memory = ceil(max(row["peak"] for row in of.values()) / 10) * 10
        name = f"{one[0]:,} of {one[1]:,}{mark(of.values(), 'scale')}"
        lines.append([name, *cpu, f"{memory} MiB", f"{ceil(of['start']['visited_s'])} s"])
    return table(["clusters of workers", "CPU at rest", "in churn", "memory", "start"], lines)


def usage(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row["phase"] == "start":
            took = f"{row['visited_s']:.0f} s to visit all, {row['cpu_s']:.0f} s of CPU"
            lines.append([took, "", f"{row['rss']:.0f} MiB", f"{row['peak']:.0f} MiB", "", ""])
            continue
        lines.append([
            row["phase"], f"{row['cpu']:.2f}", f"{row['rss']:.0f} MiB", f"{row['peak']:.0f} MiB",
            f"{1000 * row['late_p99_s']:.0f} ms", f"{row['load']:.1f}",
        ])  # fmt: skip
    return table(["phase", "CPU", "RSS", "peak", "late", "load"], lines)


def reactions(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        for what, key in (("up", "rises_s"), ("down", "falls_s")):
            if not (found := row.get(key)):
                continue
            missing = sum(v is None for v in found)
            p50, p99 = quantile(found, 0.5), quantile(found, 0.99)
            lines.append([
                row["phase"], what, str(len(found)), seconds(p50), seconds(p99), str(missing),
            ])  # fmt: skip
    return table(["phase", "reaction", "changes", "p50", "p99", "none seen"], lines, texts=2)


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def writes(row: Row) -> str:
    total, made = sum(row["writes"].values()), row["decisions"]
    kinds = ", ".join(f"{k} {n}" for k, n in sorted(row["writes"].items(), key=lambda i: -i[1]))
    text = f"Writes in '{row['phase']}': {total} for {row['changes']} changes of load"
    return f"{text}, {made} decisions ({total / made:.1f} each): {kinds}."


if __name__ == "__main__":
    main()
