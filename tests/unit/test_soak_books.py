"""The books of `make soak`: what ran twice has an excuse, and none covers more than it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak import books
from soak.books import Fault, Run, Shape, Task

#: 0 -> 1 -> 2, and 3 by itself.
CHAIN = Shape("plain", {0: (), 1: (0,), 2: (1,), 3: ()})
SHUFFLE = Shape("shuffle")


def run(number: int, at: float, pod: str = "a", *, round_: int = 1, attempt: int = 1) -> Run:
    return Run(Task(round_, attempt, number), pod, at, at + 1)


def killed(at: float, *held: int, pod: str = "a", round_: int = 1, over: float = 0) -> Fault:
    tasks = frozenset(Task(round_, 1, number) for number in held)
    return Fault("killed", pod, at, over or at + 1, cause="killed", pod=pod, held=tasks)


@pytest.mark.parametrize(
    ("runs", "faults", "redone", "unexcused"),
    [
        pytest.param([run(0, 0), run(1, 2)], [], 0, 0, id="each-once"),
        pytest.param([run(3, 0), run(3, 9)], [], 0, 1, id="nothing-happened"),
        pytest.param([run(3, 0), run(3, 9)], [killed(5, 3)], 1, 0, id="was-only-there"),
        pytest.param([run(3, 0), run(3, 9)], [killed(5, 2)], 0, 1, id="was-not-there"),
        pytest.param([run(3, 0), run(3, 9)], [killed(15, 3)], 0, 1, id="killed-later"),
        pytest.param([run(3, 20), run(3, 29)], [killed(5, 3)], 0, 1, id="killed-before-both"),
        pytest.param([run(3, 5), run(3, 9)], [killed(5)], 1, 0, id="ran-there"),
        pytest.param([run(3, 5), run(3, 9)], [killed(5, pod="b")], 0, 1, id="ran-elsewhere"),
        pytest.param(
            [run(3, 0), run(3, 6), run(3, 9)], [killed(5, 3, pod="b")], 1, 1, id="twice-for-one"
        ),
        pytest.param(
            [run(0, 0), run(1, 2), run(0, 9), run(1, 10)],
            [killed(5, 1, pod="b")],
            2,
            0,
            id="with-what-it-is-made-of",
        ),
        pytest.param(
            [run(0, 0), run(1, 2), run(1, 9)], [killed(5, 0, pod="b")], 0, 1, id="made-of-it"
        ),
        pytest.param(
            [run(1, 0, round_=2), run(1, 9, round_=2)],
            [killed(5, 7, pod="b", round_=2)],
            1,
            0,
            id="a-shuffle-hangs-together",
        ),
        pytest.param(
            [run(1, 0, round_=2), run(1, 9, round_=2)], [killed(5, 1)], 0, 1, id="another-graph"
        ),
        pytest.param([run(3, 0), run(3, 9, attempt=2)], [], 1, 0, id="submitted-again"),
        pytest.param([run(3, 0, attempt=2), run(3, 9)], [], 1, 0, id="given-up-but-still-running"),
        pytest.param([run(3, 0), run(3, 9, attempt=3)], [], 0, 1, id="again-for-no-reason"),
    ],
)  # fmt: skip
def test_what_ran_twice_has_an_excuse(
    runs: list[Run], faults: list[Fault], redone: int, unexcused: int
) -> None:
    told = books.audit(runs, faults, {1: CHAIN, 2: SHUFFLE}, {(1, 2): "scheduler killed"})

    assert (redone, unexcused) == (told.redone.total(), len(told.unexcused))
    assert len(runs) == told.runs == told.tasks + redone + unexcused


def test_a_fault_without_a_cause_excuses_nothing() -> None:
    deleted = Fault("deleted", "a", 5, 6, pod="a", held=frozenset({Task(1, 1, 3)}))

    told = books.audit([run(3, 0), run(3, 9)], [deleted], {1: CHAIN}, {})
    assert [run(3, 9)] == told.unexcused


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("began plain-1-1-0 5.000\nbegan total-2-1-999 6.5\n")
    (tmp_path / "a").write_text("began plain-1-1-0 1.25\nended plain-1-1-0 2.5\n")

    first, again, other = books.read(tmp_path)
    assert Run(Task(1, 1, 0), "a", 1.25, 2.5) == first
    assert Run(Task(1, 1, 0), "b", 5.0) == again
    assert Task(2, 1, 999) == other.task
