"""
The books of a soak, kept outside of Dask: each run of a task, each fault, and what came of both.
Pure, but for reading the notes that tasks leave.

A task that ran again needs an excuse: a fault that took what an earlier run had given, or was about
to give. A fault excuses one more run of a task, and only of tasks that were there to be taken.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import NamedTuple

#: What a worker had is asked for a moment before it is killed.
SLACK_S = 2.0


class Task(NamedTuple):
    """A task of the `attempt`-th submission of the graph of one round."""

    round: int
    attempt: int
    number: int

    @classmethod
    def parse(cls, key: str) -> Task:
        """From `head-round-attempt-number`, as all keys are named whose runs are noted."""
        return cls(*map(int, key.split("-")[-3:]))


@dataclass
class Run:
    """One run of a task, as it noted it itself."""

    task: Task
    pod: str
    began: float  # seconds since 1970, as all times here
    ended: float = inf


@dataclass
class Fault:
    """Something that was done to the cluster."""

    kind: str
    target: str
    began: float
    over: float = inf  # from then on the cluster can recover
    recovered: float = inf
    is_done: bool = True  # false: it was refused, and nothing has happened
    cause: str = ""  # of what is run again because of it; empty: it excuses nothing
    pod: str = ""  # what ran there as it happened is taken
    held: frozenset[Task] = frozenset()  # and this


@dataclass(frozen=True)
class Shape:
    """What is known of a graph before it runs."""

    kind: str
    #: The tasks that each needs, by number. None: as in a shuffle, what takes one takes all.
    needs: Mapping[int, Sequence[int]] | None = None

    def upstream_of(self, numbers: Iterable[int]) -> set[int] | None:
        """The tasks that may have to run again for these; None: all."""
        if self.needs is None:
            return None
        found: set[int] = set()
        left = list(numbers)
        while left:
            number = left.pop()
            if number not in found:
                found.add(number)
                left += self.needs[number]
        return found


@dataclass
class Audit:
    """What the books say in the end."""

    tasks: int = 0
    runs: int = 0
    redone: Counter[str] = field(default_factory=Counter)  # by cause
    unexcused: list[Run] = field(default_factory=list)


def read(folder: Path) -> list[Run]:
    """All runs that tasks have noted, a file for each pod; in the order of their beginnings."""
    runs: list[Run] = []
    for file in sorted(folder.iterdir()):
        open_runs: dict[str, Run] = {}
        for line in file.read_text().splitlines():
            what, key, at = line.split()
            if what == "began":
                open_runs[key] = Run(Task.parse(key), file.name, float(at))
                runs.append(open_runs[key])
            else:
                open_runs[key].ended = float(at)
    return sorted(runs, key=lambda run: (run.began, run.pod))


class _Excuse:
    """What a fault took, with all that it was made of; each task is excused once."""

    def __init__(self, fault: Fault, runs: Iterable[Run], shapes: Mapping[int, Shape]) -> None:
        self.fault = fault
        self._given: set[Task] = set()
        numbers: dict[int, set[int]] = defaultdict(set)
        for task in fault.held:
            numbers[task.round].add(task.number)
        for run in runs:
            was_there = run.began <= fault.over and run.ended >= fault.began - SLACK_S
            if run.pod == fault.pod and was_there:
                numbers[run.task.round].add(run.task.number)
        self._taken = {n: shapes[n].upstream_of(those) for n, those in numbers.items()}

    def holds(self, before: Run, again: Run) -> bool:
        """Whether a task ran again because of this fault, and it has not been an excuse yet."""
        task, fault = again.task, self.fault
        numbers = self._taken.get(task.round, set())
        is_between = before.began <= fault.over + SLACK_S and fault.began - SLACK_S <= again.began
        is_taken = numbers is None or task.number in numbers
        if not (is_between and is_taken) or task in self._given:
            return False
        self._given.add(task)
        return True


def audit(
    runs: Sequence[Run], faults: Iterable[Fault], shapes: Mapping[int, Shape],
    again: Mapping[tuple[int, int], str],
) -> Audit:  # fmt: skip
    """
    Count what ran more than once, by cause.

    Args:
        runs: In the order of their beginnings.
        shapes: By round.
        again: Why a graph was submitted again, by round and attempt.
    """
    told = Audit(runs=len(runs))
    in_order = sorted((fault for fault in faults if fault.cause), key=lambda fault: fault.began)
    excuses = [_Excuse(fault, runs, shapes) for fault in in_order]
    last: dict[Task, Run] = {}
    known: set[tuple[int, int]] = set()  # round and number
    for run in runs:
        round_, attempt, number = run.task
        causes: Iterable[str] = ()
        if run.task in last:
            causes = (e.fault.cause for e in excuses if e.holds(last[run.task], run))
        elif (round_, number) in known:
            # Of a graph that was given up, workers may finish what they have, or even begin it.
            causes = filter(None, (again.get((round_, n)) for n in (attempt, attempt + 1)))
        else:
            told.tasks += 1
            causes = ("",)
        cause = next(iter(causes), None)
        last[run.task] = run
        known.add((round_, number))
        if cause is None:
            told.unexcused.append(run)
        elif cause:
            told.redone[cause] += 1
    return told
