"""When the agent takes a snapshot for a caller that waits; the clock moves by sleep alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from dask_adaptive_agent import wire
from dask_adaptive_agent.protocol.changes import (
    BURST,
    GAP_S,
    GROWN_S,
    LOOK_PART,
    MOST_GONE,
    PAUSE_S,
    REFILL_S,
    RESERVED,
    SECTIONS,
    Changes,
    Signs,
    Watch,
)
from support.tables import table

QUIET = Signs(events=(0,), load=(100, 0), activity=(0,))


def snapshot(number: int, slots: tuple[int, ...] = ()) -> dict[str, Any]:
    columns: dict[str, Any] = dict.fromkeys(wire.Columns.__annotations__, [0] * len(slots))
    parts: dict[str, Any] = {name: [] for name in SECTIONS}
    of_workers = {"workers": {**columns, "slot": list(slots)}, "closable": [], "actors": []}
    return {**parts, **of_workers, "meters": None, "now_ms": 0, "totals": {"tasks": number}}


class Moment:
    """A scheduler that does what a test says, and an agent that watches it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.look_s = 100.0, 0.0
        self.signs: Signs | None = QUIET
        self.happens: Callable[[float], None] = lambda now: None
        self.watch = Watch(lambda: self.signs, lambda: self.now)
        self.began = self.now
        self.watch.answer("", 0, self.take)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.happens(self.now - self.began)

    def take(self) -> dict[str, Any]:
        self.now += self.look_s
        return snapshot(hash((self.signs, self.now)))

    def wait(self, wait_s: float = 60.0, known: int = 1) -> tuple[Any, float]:
        """The answer, and how long after the beginning it came."""
        answer = asyncio.run(self.watch.wait("", known, wait_s, self.take))
        return answer, self.now - self.began


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Moment:
    return Moment(monkeypatch)


@table(
    "signs, after_s",
    nothing=(QUIET, 60.0),
    an_event=(QUIET._replace(events=(1,)), GAP_S),
    more_tasks=(QUIET._replace(load=(130, 0)), GAP_S),
    the_first_queued_one=(QUIET._replace(load=(100, 1)), GAP_S),
    no_more_tasks_worth_the_name=(QUIET._replace(load=(110, 0)), 60.0),
    little_happens=(QUIET._replace(activity=(1,)), GAP_S),
    tasks_run_on=(QUIET._replace(is_busy=True), GROWN_S),
    nobody_knows=(None, GROWN_S),
)
def test_what_is_worth_an_answer(moment: Moment, signs: Signs | None, after_s: float) -> None:
    moment.signs = signs
    answer, took_s = moment.wait()

    assert after_s <= took_s <= after_s + PAUSE_S
    assert (after_s == 60.0) == ("unchanged" in answer)


def test_a_change_long_after_the_last_answer_is_answered_at_once(moment: Moment) -> None:
    moment.wait(30.0)
    moment.signs = QUIET._replace(events=(1,))

    assert moment.wait()[1] <= 30.0 + PAUSE_S


def answers(moment: Moment, seconds: float) -> list[float]:
    """When they come, to one who always asks again."""
    known, times = 1, []
    while moment.now < moment.began + seconds:
        answer, at = moment.wait(known=known)
        known = answer["version"]
        times.append(at)
    return times


def test_what_never_ends_leaves_answers_for_what_matters(moment: Moment) -> None:
    def happens(now: float) -> None:
        moment.signs = QUIET._replace(activity=(now,), events=(now > 59.0,))

    moment.happens = happens
    times = answers(moment, 60.0)
    gaps = [later - at for at, later in pairwise(times)]

    assert min(gaps) >= GAP_S
    assert len(times) <= BURST - RESERVED + 60.0 / REFILL_S + 1
    assert any(59.0 < at <= 59.0 + GAP_S for at in times)


def test_not_even_what_matters_is_answered_without_end(moment: Moment) -> None:
    def happens(now: float) -> None:
        moment.signs = QUIET._replace(events=(now,))

    moment.happens = happens

    assert len(answers(moment, 60.0)) <= BURST + 60.0 / REFILL_S + 1


def test_tasks_that_run_for_long_are_looked_at_less_and_less_often(moment: Moment) -> None:
    moment.signs = QUIET._replace(is_busy=True)

    assert 30 < len(answers(moment, 600.0)) < 50


def test_snapshots_take_a_small_part_of_the_time(moment: Moment) -> None:
    moment.look_s = 0.05

    def happens(now: float) -> None:
        moment.signs = QUIET._replace(events=(now,))

    moment.happens = happens
    times = answers(moment, 20.0)

    assert all(later - at >= 0.05 / LOOK_PART for at, later in pairwise(times))


def test_of_whom_is_forgotten_nothing_is_known() -> None:
    changes = Changes()
    changes.note(snapshot(0, tuple(range(MOST_GONE + 1))), is_news=False)
    assert changes.knows(1)
    changes.note(snapshot(0), is_news=False)

    assert not changes.knows(1)
    assert 0 == changes.since(snapshot(0), 1)["since"]
    assert changes.knows(2)
