"""Tables and a picture of docs/benchmarks/upstream.jsonl: upstream's autoscaler beside ours."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from upstream.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs/benchmarks"

Row = dict[str, Any]
Runs = dict[str, dict[str, list[Row]]]

_COLUMNS = (
    ("makespan, s", "makespan_s"),
    ("worker-seconds", "worker_seconds"),
    ("redone", "redone"),
    ("busy closed", "killed"),
    ("of another group", "wrong_group"),
    ("changes of direction", "direction_changes"),
    ("six there after, s", "all_there_s"),
    ("most pods", "peak"),
)


def read(path: Path) -> Runs:
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for line in path.read_text().splitlines():
        row = json.loads(line)
        runs[row["workload"]][row["side"]].append(row)
    return runs


def spread(rows: Sequence[Row], key: str) -> str:
    """Median and, where runs differ, the least and the most."""
    values = sorted(row[key] for row in rows if row[key] is not None)
    if not values:
        return "never"
    middle = f"{median(values):.0f}"
    if values[0] == values[-1]:
        return middle
    return f"{middle} ({values[0]:.0f} to {values[-1]:.0f})"


def page(runs: Runs) -> str:
    lines = [
        "# Upstream's autoscaler beside ours",
        "",
        "The same workloads on the node of [localnode](../../localnode/README.md), two cores,",
        "workers of one thread, minimum 1, maximum 6 (30 in `too-many`, where 6 fit); ours with",
        "`idleTimeout: 15s`, else defaults. Both run at the same time, each in a namespace of its",
        "own (`too-many`: one after the other). Medians; in brackets the least and the most.",
        "Worker-seconds are those of connected workers of the scaled group until the results were",
        "there. Made by `make bench-upstream`; raw figures: `upstream.jsonl`.",
        "",
    ]  # fmt: skip
    for name, sides in runs.items():
        workload = WORKLOADS[name]
        lines += [f"## {name}", "", (workload.run.__doc__ or "").strip(), ""]
        if workload.ideal_s:
            lines += [
                f"On six workers that are there from the start: {workload.ideal_s:.0f} s.",
                "",
            ]
        lines += ["| | upstream | ours |", "|---|---|---|"]
        for title, key in _COLUMNS:
            cells = " | ".join(spread(sides.get(side, []), key) for side in ("upstream", "ours"))
            lines.append(f"| {title} | {cells} |")
        lines += [f"| runs | {len(sides['upstream'])} | {len(sides['ours'])} |"]
        for side, rows in sides.items():
            notes = sorted({row["note"] for row in rows if row["note"]})
            lines += ["", *(f"{side}: {note}." for note in notes)] if notes else []
        lines.append("")
    return "\n".join([*lines, "## Ratios, ours to upstream's", "", *_ratios(runs), ""])


def _ratios(runs: Runs) -> Iterable[str]:
    yield "| workload | makespan | worker-seconds |"
    yield "|---|---|---|"
    for name, sides in runs.items():
        cells = []
        for key in ("makespan_s", "worker_seconds"):
            theirs, ours = (median(r[key] for r in sides[s]) for s in ("upstream", "ours"))
            cells.append(f"{ours / theirs:.2f}" if theirs else "")
        yield f"| {name} | {cells[0]} | {cells[1]} |"


def draw(runs: Runs, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(runs), 2, figsize=(9, 1.9 * len(runs)), squeeze=False)
    for (name, sides), pair in zip(runs.items(), axes, strict=True):
        longest = max(r["samples"][-1][0] for rows in sides.values() for r in rows if r["samples"])
        for side, axis in zip(("upstream", "ours"), pair, strict=True):
            for row in sides.get(side, []):
                times = [s[0] for s in row["samples"]]
                axis.step(
                    times,
                    [s[1] for s in row["samples"]],
                    where="post",
                    lw=1,
                    alpha=0.5,
                    color="tab:gray",
                )
                axis.step(
                    times,
                    [s[2] for s in row["samples"]],
                    where="post",
                    lw=1.2,
                    color="tab:orange" if side == "upstream" else "tab:blue",
                )
            axis.set_title(f"{name}: {side}", fontsize=9, loc="left")
            axis.set_xlim(0, longest)
            axis.set_ylim(bottom=0)
            axis.tick_params(labelsize=7)
            axis.spines[["top", "right"]].set_visible(False)
        highest = max(axis.get_ylim()[1] for axis in pair)
        for axis in pair:
            axis.set_ylim(0, highest)
    axes[-1][0].set_xlabel("seconds; gray: Deployments, in colour: connected workers", fontsize=8)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=Path, default=FOLDER / "upstream.jsonl")
    options = parser.parse_args()
    runs = read(options.lines)
    (FOLDER / "upstream.md").write_text(page(runs))
    draw(runs, FOLDER / "upstream.svg")


if __name__ == "__main__":
    main()
