"""Tables and a picture of docs/benchmarks/upstream.jsonl: upstream's autoscaler beside ours."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from upstream.workloads import WORKLOADS

from bench.pages import (
    FOLDER,
    OLD,
    Row,
    current,
    filled,
    into_readme,
    is_current,
    mark,
    pyplot,
    table,
)
from bench.pages import read as read_rows

Runs = dict[str, dict[str, list[Row]]]

#: What the README calls a workload.
CALLED = {
    "burst-tail": "240 tasks of 0.5 s, then 4 of 40 s",
    "too-many": "480 tasks, `maximum: 30` where 6 fit",
    "notebook": "a notebook: 8 bursts, pauses of 9 s",
    "oscillating": "6 bursts near upstream's cooldown",
    "p2p": "a P2P shuffle that begins on one worker",
    "two-groups": "two groups, one of them scaled",
    "slow-step": "a slow step behind quick sources",
}

_COLUMNS = (
    ("makespan, s", "makespan_s"),
    ("worker-seconds", "worker_seconds"),
    ("until one is left", "in_all"),
    ("slowest burst after the first, s", "wave_s"),
    ("redone", "redone"),
    ("busy closed", "killed"),
    ("of another group", "wrong_group"),
    ("changes of direction", "direction_changes"),
    ("six there after, s", "all_there_s"),
    ("most pods", "peak"),
)


def read(path: Path) -> Runs:
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for row in read_rows(path):
        runs[row["workload"]][row["side"]].append(row)
    return runs


def spread(rows: Sequence[Row], key: str) -> str:
    """Median and, where runs differ, the least and the most."""
    values = sorted(row[key] for row in rows if row.get(key) is not None)
    if not values:
        return "never"
    digits = 1 if key == "wave_s" else 0
    middle = f"{median(values):.{digits}f}"
    if values[0] == values[-1]:
        return middle
    return f"{middle} ({values[0]:.{digits}f} to {values[-1]:.{digits}f})"


def page(runs: Runs) -> str:
    lines: list[str] = []
    for name, sides in runs.items():
        workload = WORKLOADS[name]
        every = [row for rows in sides.values() for row in rows]
        title = f"## {name}{mark(every, 'upstream')}"
        lines += [title, "", (workload.run.__doc__ or "").strip(), ""]
        if workload.ideal_s:
            lines += [
                f"On six workers that are there from the start: {workload.ideal_s:.0f} s.",
                "",
            ]
        figures = [
            [title, *(spread(sides[side], key) for side in ("upstream", "ours"))]
            for title, key in _COLUMNS
            if any(row.get(key) for row in every)
        ]
        figures.append(["runs", *(str(len(sides[side])) for side in ("upstream", "ours"))])
        lines.append(table(["", "upstream", "ours"], figures))
        for side, rows in sides.items():
            notes = sorted({row["note"] for row in rows if row["note"]})
            lines += ["", *(f"{side}: {note}." for note in notes)] if notes else []
        lines.append("")
    ratios = table(["workload", "makespan", "worker-seconds"], _ratios(runs))
    return filled(__file__, old=OLD, workloads="\n".join(lines), ratios=ratios)


def _ratios(runs: Runs) -> Iterable[list[str]]:
    for name, sides in runs.items():
        cells = []
        for key in ("makespan_s", "worker_seconds"):
            theirs, ours = (median(r[key] for r in sides[s]) for s in ("upstream", "ours"))
            cells.append(f"{ours / theirs:.2f}" if theirs else "")
        yield [name, *cells]


def readme(runs: Runs) -> str:
    """The README's table: medians of workloads whose runs are all current; bold: ours is worse."""
    lines = []
    for name, what in CALLED.items():
        sides = [runs.get(name, {}).get(side, []) for side in ("upstream", "ours")]
        if not all(rows and all(is_current(row, "upstream") for row in rows) for rows in sides):
            continue
        cells = [what]
        for key, unit in (("makespan_s", " s"), ("worker_seconds", ""), ("redone", "")):
            values = [round(median(row[key] for row in rows)) for rows in sides]
            texts = [f"{value:,}{unit}" for value in values]
            if values[1] > values[0]:
                texts[1] = f"**{texts[1]}**"
            if key == "makespan_s":
                texts = [
                    next((row["note"] for row in rows if row["note"]), text)
                    for rows, text in zip(sides, texts, strict=True)
                ]
            cells += texts
        lines.append([*cells, str(len(sides[1]))])
    head = [
        "workload", "makespan, upstream", "ours", "worker-seconds, upstream", "ours",
        "redone, upstream", "ours", "runs",
    ]  # fmt: skip
    return current(head, lines, "make bench-upstream")


def draw(runs: Runs, path: Path) -> None:
    """Connected workers over time, a panel for each workload; narrow enough for a phone."""
    plt = pyplot("upstream")
    colours = {"upstream": "#c25a00", "ours": "#0b57b0"}
    figure, axes = plt.subplots(
        len(runs), 1, figsize=(4.4, 1.5 * len(runs)), squeeze=False, layout="constrained"
    )
    for (name, sides), axis in zip(runs.items(), axes[:, 0], strict=True):
        for side, colour in colours.items():
            for row in sides.get(side, []):
                times, _, connected = zip(*row["samples"], strict=True)
                axis.step(times, connected, where="post", lw=1.5, alpha=0.7, color=colour)
        axis.set_title(name, fontsize=11, loc="left")
        axis.set_xlim(left=0)
        axis.set_ylim(0, 6.5)
        axis.set_yticks((0, 2, 4, 6))
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1][0].set_xlabel("seconds")
    lines = [plt.Line2D([], [], color=colour, lw=2) for colour in colours.values()]
    figure.legend(lines, colours, loc="outside upper right", ncols=2, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=Path, default=FOLDER / "upstream.jsonl")
    options = parser.parse_args()
    runs = read(options.lines)
    (FOLDER / "upstream.md").write_text(page(runs))
    into_readme("upstream", readme(runs))
    draw(runs, FOLDER / "upstream.svg")


if __name__ == "__main__":
    main()
