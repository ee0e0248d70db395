"""What has happened in a soak so far, as a timeline on the terminal and in a file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from soak.books import Fault, Run, Shape


class Spoiled(Exception):
    """Something went wrong that must not; the journal has it."""


class Journal:
    """
    Notes faults, graphs and problems as they come. A problem ends the run.

    Args:
        folder: Of the timeline; tasks leave their notes in `notes` below it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.notes = folder, folder / "notes"
        self.notes.mkdir(parents=True)
        self.notes.chmod(0o777)  # whatever user the workers run as
        self.began = time.time()
        self.faults: list[Fault] = []
        self.shapes: dict[int, Shape] = {}  # of graphs, by round
        self.again: dict[tuple[int, int], str] = {}  # see `books.audit`
        self.rounds = self.results = self.wrong = self.lost = self.kept = 0
        self.problems: list[str] = []

    def say(self, text: str) -> None:
        line = f"{time.time() - self.began:8.1f} s  {text}"
        print(line, flush=True)
        with (self.folder / "timeline.txt").open("a") as file:
            print(line, file=file)

    def begin(self, kind: str, target: str, **known: Any) -> Fault:
        fault = Fault(kind, target, time.time(), **known)
        self.faults.append(fault)
        self.say(f"{kind}: {target}")
        return fault

    def end(self, fault: Fault, *, refused: str = "") -> None:
        fault.over = time.time()
        if refused:
            fault.is_done, fault.recovered = False, fault.over
        self.say(f"  {refused or 'over'}: {fault.kind}: {fault.target}")

    def problem(self, text: str) -> None:
        self.problems.append(text)
        self.say(f"PROBLEM: {text}")

    def tell(self, runs: Sequence[Run]) -> None:
        """The runs of one task, and the faults around them: for whoever looks for the cause."""
        rows = [(run.began, f"{run.task} began on {run.pod}") for run in runs]
        rows += [(run.ended, f"{run.task} ended on {run.pod}") for run in runs]
        first, last = runs[0].began - 60, runs[-1].began + 1
        for fault in self.faults:
            if fault.began <= last and fault.over >= first:
                what = f"{fault.kind}: {fault.target}"
                rows += [(fault.began, f"{what}, with {len(fault.held)} tasks or results")]
                rows += [(fault.over, f"  over: {what}")]
        for at, text in sorted(rows):
            self.say(f"      {at - self.began:8.1f} s  {text}")
