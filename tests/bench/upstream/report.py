"""Tables and a picture of docs/benchmarks/upstream.jsonl: upstream's autoscaler beside ours."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median

from upstream.workloads import WORKLOADS

from bench.pages import (
    FOLDER,
    OLD,
    Row,
    filled,
    into_readme,
    is_current,
    mark,
    pyplot,
    table,
)
from bench.pages import read as read_rows

Runs = dict[str, dict[str, list[Row]]]

#: What the README calls a workload, and why ours takes more of something where it does.
CALLED = {
    "burst-tail": ("240 tasks of 0.5 s, then 4 of 40 s", "its workers start sooner"),
    "too-many": ("480 tasks; up to 30 workers, room for 6", ""),
    "notebook": ("a notebook: 8 bursts, pauses of 9 s", "it keeps workers through the pauses"),
    "oscillating": ("6 bursts near the cooldown of `adapt()`", ""),
    "p2p": ("a P2P shuffle that begins on one worker", ""),
    "two-groups": ("two groups, one of them scaled", "it adds no worker for so little work"),
    "slow-step": (
        "a slow step behind quick sources",
        "it adds workers only once the first tasks show how long they take",
    ),
}
#: The picture of the README, and the rows of its first table: figures from these workloads.
STORY = FOLDER.parent / "images/workers.svg"
TODAY = (
    (
        "too-many",
        "**Pods stay pending**: 30 workers requested, room for 6",
        "{time}, {redone:,} reruns",
    ),
    ("too-many", "**Busy workers closed** meanwhile", "{killed:,}"),
    ("p2p", "**A P2P shuffle** begins on one worker", "{time}"),
)
HANDOVER = (
    "**A worker's pod is deleted** or evicted",
    "the results that only it had are lost ([distributed#3300]"
    "(https://github.com/dask/distributed/issues/3300))",
    "it hands them over first ([test on a node](tests/e2e/test_pod_ends.py))",
)

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
        lines += [f"On six workers that are there from the start: {workload.ideal_s:.0f} s.", ""]
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
    return filled(__file__, old=OLD, workloads="\n".join(lines))


def _shown(runs: Runs, name: str) -> list[Row]:
    """Medians of both sides, if all runs are current; else nothing."""
    sides = [runs.get(name, {}).get(side, []) for side in ("upstream", "ours")]
    if not all(rows and all(is_current(row, "upstream") for row in rows) for rows in sides):
        return []
    keys = ("makespan_s", "worker_seconds", "redone", "killed")
    shown: list[Row] = [{k: round(median(row[k] for row in rows)) for k in keys} for rows in sides]
    for row, rows in zip(shown, sides, strict=True):
        row["note"] = next((each["note"] for each in rows if each["note"]), "")
        row["time"] = row["note"] or f"{row['makespan_s']} s"
    return shown


def today(runs: Runs) -> str:
    """The README's first table: what goes wrong today, with what is measured here."""
    lines = [
        [what, *(form.format(**row) for row in sides)]
        for name, what, form in TODAY
        if (sides := _shown(runs, name))
    ]
    head = ["", "`adapt()` today", "with dask-adaptive"]
    return table(head, [*lines, HANDOVER], texts=3)


def _difference(name: str, theirs: Row, ours: Row) -> str:
    """In words, good or bad."""
    words = []
    for key, less, what in (
        ("makespan_s", "less", "time"),
        ("worker_seconds", "fewer", "worker-seconds"),
    ):
        if percent := round(100 * (ours[key] / theirs[key] - 1)):
            words.append(f"{abs(percent)} % {'more' if percent > 0 else less} {what}")
    text = f"{'at least ' if theirs['note'] else ''}{', '.join(words) or 'none'}"
    return f"{text}: {CALLED[name][1]}" if "more" in text and CALLED[name][1] else text


def readme(runs: Runs) -> str:
    """The README's table of all workloads."""
    lines = []
    for name, (what, _) in CALLED.items():
        if sides := _shown(runs, name):
            cells = (f"{row['time']}, {row['worker_seconds']:,}" for row in sides)
            lines.append([what, *cells, _difference(name, *sides)])
    head = ["makespan, worker-seconds", "`adapt()`", "dask-adaptive", "difference"]
    return table(head, lines, texts=4)


def draw(runs: Runs, path: Path) -> None:
    """Connected workers over time, two panels for each workload; narrow enough for a phone."""
    plt = pyplot("upstream")
    called = {"upstream": ("adapt()", "#c25a00"), "ours": ("dask-adaptive", "#0b57b0")}
    figure, axes = plt.subplots(
        2 * len(runs), 1, figsize=(5, 2.7 * len(runs)), squeeze=False, layout="constrained"
    )
    panels = iter(axes[:, 0])
    for workload, sides in runs.items():
        longest = max(row["samples"][-1][0] for rows in sides.values() for row in rows)
        for side, (name, colour) in called.items():
            axis = next(panels)
            row = sorted(sides[side], key=itemgetter("makespan_s"))[len(sides[side]) // 2]
            steps = [next(same) for _, same in groupby(row["samples"], itemgetter(2))]
            edges = [*(step[0] for step in steps), row["samples"][-1][0]]
            axis.stairs([step[2] for step in steps], edges, fill=True, color=colour)
            end = row["note"] or f"done after {row['makespan_s']:.0f} s"
            title = f"{name}: {end}, {row['redone']:,} reruns"
            axis.set_title(title, fontsize=11, loc="left", color=colour)
            axis.set(xlim=(0, longest), ylim=(0, 6.5), yticks=(0, 3, 6), ylabel="workers")
            axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel(f"seconds ({CALLED[workload][0].replace('`', '')})")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=Path, default=FOLDER / "upstream.jsonl")
    options = parser.parse_args()
    runs = read(options.lines)
    (FOLDER / "upstream.md").write_text(page(runs))
    into_readme("upstream", readme(runs))
    into_readme("today", today(runs))
    draw({"too-many": runs["too-many"]}, STORY)
    draw(runs, FOLDER / "upstream.svg")


if __name__ == "__main__":
    main()
