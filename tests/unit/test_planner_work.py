"""Work to the figure: how long each kind takes, how wide it is, when it can begin."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.model.demand import Demand, PrefixWork
from dask_adaptive.planner.work import (
    Part,
    expected_s,
    left_after,
    parts_of,
    running_s,
    threads_for,
)

UNKNOWN_S, DURATION_S = 0.5, 5.0
NONE_YET = PrefixWork("t", 1.0, running=0, ready=0, waiting=0)


def row(**changes: Any) -> PrefixWork:
    return dataclasses.replace(NONE_YET, **changes)


def parts(*rows: PrefixWork, threads: int = 1, duration_s: float = DURATION_S) -> tuple[Part, ...]:
    demand = Demand(rows, unknown_s=UNKNOWN_S)
    return parts_of(demand, threads=threads, duration_s=duration_s)


@pytest.mark.parametrize(
    ("changes", "unknown_s", "expected"),
    [
        pytest.param({"mean_s": 2.0, "longest_s": 9.0}, 0.5, 2.0, id="as-measured"),
        pytest.param({"mean_s": 0.0}, 0.5, 0.001, id="never-nothing"),
        pytest.param({"mean_s": None}, 0.5, 0.5, id="as-the-scheduler-assumes"),
        pytest.param({"mean_s": None, "longest_s": 3.0}, 0.5, 6.0, id="twice-what-it-took-so-far"),
        pytest.param({"mean_s": None}, 0.0, 0.001, id="nor-where-nothing-is-assumed"),
    ],
)
def test_how_long_one_run_takes(changes: dict[str, Any], unknown_s: float, expected: float) -> None:
    assert expected == expected_s(row(**changes), unknown_s)


@pytest.mark.parametrize(
    ("changes", "threads", "expected"),
    [
        pytest.param({"running": 4}, 4, 8.0, id="all-have-just-begun"),
        pytest.param({"running": 4, "longest_s": 1.0}, 1, 7.0, id="the-rest-has-not-begun"),
        pytest.param({"running": 4, "longest_s": 1.0}, 0, 7.0, id="one-runs-for-sure"),
        pytest.param({"running": 2, "longest_s": 1.0}, 2, 2.5, id="begun-one-after-the-other"),
        pytest.param({"running": 1, "longest_s": 2.0}, 1, 1.0, id="overdue-half-as-long-again"),
        pytest.param({"running": 1, "longest_s": 3.0}, 1, 1.0, id="not-yet-far-beyond-the-mean"),
        pytest.param({"running": 1, "longest_s": 4.0}, 1, 5.0, id="far-beyond-the-mean"),
        pytest.param({"ready": 3, "longest_s": 9.0}, 1, 0.0, id="none-runs"),
        pytest.param({"running": 4, "mean_s": None}, 4, 2.0, id="unknown"),
        pytest.param({"running": 4, "mean_s": None, "longest_s": 3.0}, 1, 21.0,
                     id="unknown-and-long-already"),
    ],
)  # fmt: skip
def test_what_is_left_of_those_that_run(
    changes: dict[str, Any], threads: int, expected: float
) -> None:
    assert expected == running_s(row(**{"mean_s": 2.0, **changes}), UNKNOWN_S, threads)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"ready": 3, "width": 3}, (6.0, 3), id="queued"),
        pytest.param({"running": 1, "ready": 1, "waiting": 2, "width": 4}, (8.0, 4), id="all"),
        pytest.param({"ready": 4, "width": 4, "bound": 1}, (6.0, 3), id="a-quarter-is-bound"),
        pytest.param({"ready": 4, "width": 4, "bound": 4}, None, id="all-are-bound"),
        pytest.param({"done": 9}, None, id="all-are-done"),
        pytest.param({"waiting": 2, "width": 9}, (4.0, 2), id="no-wider-than-it-is-long"),
        pytest.param({"running": 1, "ready": 3, "waiting": 4, "width": 2}, (16.0, 4),
                     id="what-can-run-now-is-as-wide-as-it-is"),
        pytest.param({"waiting": 2, "width": 0}, (4.0, 1), id="one-at-a-time-at-least"),
        pytest.param({"waiting": 5}, (10.0, 1), id="nobody-looked-and-nothing-is-before-it"),
        pytest.param({"running": 1, "ready": 2}, (6.0, 3), id="nobody-looked-and-all-can-run"),
    ],
)  # fmt: skip
def test_the_work_of_one_kind(
    changes: dict[str, Any], expected: tuple[float, float] | None
) -> None:
    found = [(p.seconds, p.width, p.level, p.begins_s) for p in parts(row(mean_s=2.0, **changes))]

    assert ([] if expected is None else [(*expected, 0, 0.0)]) == found


@pytest.mark.parametrize(("waiting", "expected"), [(2, 2), (9, 3)])
def test_what_nobody_looked_at_runs_as_wide_as_what_can_run_now(
    waiting: int, expected: int
) -> None:
    _, found = parts(row(running=1, ready=2), row(waiting=waiting, level=1))

    assert expected == found.width


EIGHT = row(mean_s=4.0, ready=8, width=8)
HALF = row(mean_s=0.5, ready=1, width=1)
CHAIN = row(running=1, waiting=9, width=1)
SHORT_CHAIN = row(mean_s=0.25, ready=1, waiting=3, width=1)
BOUND = row(ready=4, width=4, bound=4)
FOUR = row(ready=4, width=4)
EARLY = row(mean_s=4.0, running=1, ready=7, width=8, longest_s=1.0)
LATE = row(mean_s=4.0, running=1, ready=7, width=8, longest_s=9.0)


@pytest.mark.parametrize(
    ("before", "fan_in", "threads", "expected"),
    [
        pytest.param([EIGHT], 1.0, 2, 4.0, id="when-the-first-has-ended"),
        pytest.param([EARLY], 1.0, 2, 3.0, id="which-has-run-for-a-second"),
        pytest.param([LATE], 1.0, 2, 0.0, id="which-is-overdue"),
        pytest.param([dataclasses.replace(EIGHT, longest_s=1.0)], 1.0, 2, 4.0, id="none-runs-yet"),
        pytest.param([EIGHT, HALF], 1.0, 2, 0.5, id="of-whichever-kind"),
        pytest.param([dataclasses.replace(EIGHT, mean_s=None)], 1.0, 2, 0.5, id="as-assumed"),
        pytest.param([EIGHT], 3.9, 2, 4.0, id="not-half-of-them"),
        pytest.param([EIGHT], 4.0, 2, 5.0, id="half-of-them-is-all-of-them"),
        pytest.param([EIGHT], 4.0, 16, 4.0, id="on-the-threads-that-are-there"),
        pytest.param([dataclasses.replace(EIGHT, mean_s=None)], 4.0, 2, math.inf, id="unknown"),
        pytest.param([row(ready=8, width=8)] * 2, 16.0, 4, 4.0, id="kinds-share-the-threads"),
        pytest.param([HALF, HALF], 2.0, 0, 1.0, id="on-one-thread-where-none-is-there"),
        pytest.param([CHAIN], 10.0, 4, 10.0, id="a-chain-takes-its-time"),
        pytest.param([SHORT_CHAIN], 4.0, 4, 1.0, id="a-short-chain-too"),
        pytest.param([BOUND, FOUR], 8.0, 1, 4.0, id="what-is-bound-is-no-work-of-ours"),
        pytest.param([dataclasses.replace(BOUND, bound=8), FOUR, FOUR], 12.0, 1, 5.0,
                     id="no-more-is-bound-than-there-is"),
    ],
)  # fmt: skip
def test_when_tasks_that_wait_can_begin(
    before: list[PrefixWork], fan_in: float, threads: int, expected: float
) -> None:
    waiting = row(waiting=5, width=5, level=1, fan_in=fan_in)
    found = parts(*before, waiting, threads=threads)[-1]

    assert Part(5.0, 5, 1, expected) == found


def test_what_is_yet_to_begin_has_its_threads_when_it_does() -> None:
    first = row(mean_s=10.0, ready=1, width=1)
    second = row(waiting=40, width=40, level=1)
    third = row(waiting=1, width=1, level=2, fan_in=40.0)
    begin = [part.begins_s for part in parts(first, second, third, duration_s=0.5)]

    assert [0.0, 10.0, 11.0] == begin


def test_a_level_begins_with_the_first_kind_of_the_one_before() -> None:
    first = row(mean_s=4.0, ready=2, width=2)
    second = [row(waiting=9, width=9, level=1, fan_in=n) for n in (2.0, 0.5)]
    third = row(waiting=1, width=1, level=2, fan_in=1.0)

    assert [0.0, 5.0, 4.0, 5.0] == [part.begins_s for part in parts(first, *second, third)]


@pytest.mark.parametrize(
    ("before", "thread_seconds", "expected"),
    [
        pytest.param([Part(10, 2)], 4.0, [Part(6, 2)], id="done-by-the-threads-there"),
        pytest.param([Part(10, 2)], 100.0, [Part(4, 2)], id="no-more-than-can-run-at-once"),
        pytest.param([Part(4, 2)], 100.0, [Part(0, 2)], id="all-of-it"),
        pytest.param([Part(10, 2, 1, 2.0)], 100.0, [Part(8, 2, 1, 0.0)], id="begins-meanwhile"),
        pytest.param([Part(10, 2, 1, 5.0)], 4.0, [Part(10, 2, 1, 2.0)], id="begins-later"),
        pytest.param([Part(10, 2, 1, math.inf)], 4.0, [Part(10, 2, 1, math.inf)],
                     id="nobody-knows-when-it-begins"),
        pytest.param([Part(10, 1), Part(30, 1)], 3.0, [Part(8.5, 1), Part(28.5, 1)],
                     id="kinds-share-alike"),
        pytest.param([], 4.0, [], id="no-work"),
    ],
)  # fmt: skip
def test_what_is_left_after_three_seconds(
    before: list[Part], thread_seconds: float, expected: list[Part]
) -> None:
    assert tuple(expected) == left_after(before, 3.0, thread_seconds)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        pytest.param([], 0.0, id="no-work"),
        pytest.param([Part(10, 4)], 2.0, id="to-be-done-in-time"),
        pytest.param([Part(0.5, 4)], 0.1, id="little"),
        pytest.param([Part(100, 4)], 4.0, id="no-more-than-can-run-at-once"),
        pytest.param([Part(10, 4, 1, 5.0)], 2.0, id="begins-just-in-time"),
        pytest.param([Part(10, 4, 1, 5.1)], 0.0, id="begins-too-late"),
        pytest.param([Part(100, 3, 0), Part(100, 2, 0)], 5.0, id="kinds-side-by-side"),
        pytest.param([Part(100, 3, 0), Part(100, 2, 0), Part(100, 4, 1)], 5.0,
                     id="of-levels-the-widest"),
        pytest.param([Part(100, 1, 0), Part(100, 1, 1), Part(0, 5, 1)], 1.0,
                     id="what-is-done-has-no-width"),
    ],
)  # fmt: skip
def test_threads_for_the_work(work: Sequence[Part], expected: float) -> None:
    assert expected == threads_for(work, DURATION_S)
