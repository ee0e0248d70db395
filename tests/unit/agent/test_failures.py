"""Whose fault a failure is: pure, with a clock of its own."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive_agent.quotas import failures
from dask_adaptive_agent.quotas.failures import Failures, Record
from dask_adaptive_agent.quotas.worker_limits import MOST_FAILURES
from support.tables import table


class World:
    """Some workers that fail."""

    def __init__(self, workers: int = 10) -> None:
        self.now = 1000.0
        self.workers = workers
        self.failures = Failures(lambda: self.now, lambda: self.workers)
        self.records = [Record() for _ in range(workers)]

    def fail(self, worker: int, key: Any, text: str = "ValueError('no')", **more: Any) -> None:
        more.setdefault("prefix", str(key).split("-")[0])
        self.failures.add(self.records[worker], key=key, text=text, **more)

    def counts(self, window_s: float = 600.0) -> list[int]:
        return [record.within(window_s, self.now) for record in self.records]


def test_the_same_task_on_two_workers_is_to_blame_itself() -> None:
    world = World()
    world.fail(0, "x")
    world.fail(0, "x")  # tried again in the same place
    world.fail(0, "y")
    assert 3 == world.counts()[0]

    world.fail(1, "x")
    world.fail(2, "x")

    assert [1, 0, 0] == world.counts()[:3]


def test_a_match_is_taken_off_with_its_task() -> None:
    world = World()
    world.fail(0, "x", "RuntimeError('CUDA')", pattern="CUDA")
    world.fail(0, "y", "RuntimeError('CUDA 2')", pattern="CUDA")
    match = world.records[0].match
    assert match is not None
    assert ("RuntimeError('CUDA')", "CUDA") == (match.text, match.pattern)

    world.fail(1, "x", "RuntimeError('CUDA')", pattern="CUDA")
    assert "RuntimeError('CUDA 2')" == world.records[0].match.text  # type: ignore[union-attr]
    world.fail(1, "y")

    assert world.records[0].match is None
    assert world.records[1].match is None
    assert [0, 0] == world.counts()[:2]


def test_a_match_outlasts_the_window_and_can_still_be_taken_off() -> None:
    world = World()
    world.failures.keep_for([10_000])
    world.fail(0, "x", pattern="CUDA")
    world.now += 5000
    assert 0 == world.counts()[0]
    assert world.records[0].match is not None

    world.fail(1, "x")

    assert world.records[0].match is None
    assert [0, 0] == world.counts()[:2]


def test_a_task_that_failed_long_ago_speaks_for_nobody() -> None:
    world = World()
    world.fail(0, "x")
    world.now += 601
    world.fail(1, "x")

    assert [0, 1] == world.counts()[:2]


@table(
    "workers, on, keys, counts",
    half_is_not_most=(4, [0, 1], "abcd", True),
    most=(4, [0, 1, 2], "abcd", False),
    two_of_three=(3, [0, 1], "abcd", False),
    too_few_to_tell=(2, [0, 1], "abcd", True),
)
def test_what_fails_on_most_workers_is_the_fault_of_the_code(
    workers: int, on: list[int], keys: str, counts: bool
) -> None:
    world = World(workers)
    for worker in on:
        world.fail(worker, f"kind-{keys[worker]}")

    assert [1 if counts else 0] * len(on) == [world.counts()[i] for i in on]


def test_other_tasks_and_other_exceptions_are_judged_for_themselves() -> None:
    world = World(3)
    world.fail(0, "a-1")
    world.fail(1, "b-1")  # another prefix
    world.fail(2, "a-2", "KeyError(1)")  # another type
    assert [1, 1, 1] == world.counts()

    world.fail(1, "a-3", "ValueError('something else')")  # the same type
    assert [0, 1, 1] == world.counts()
    world.fail(2, "a-4", "ValueError('once more')")
    assert [0, 1, 1] == world.counts()


def test_those_who_have_left_are_no_part_of_the_workers() -> None:
    world = World(4)
    world.fail(0, "a-0")
    world.fail(1, "a-1")
    world.failures.forget(world.records[0])
    world.fail(2, "a-2")
    assert [1, 1, 1] == world.counts()[:3]


def test_what_failed_long_ago_on_many_says_nothing_of_now() -> None:
    world = World(4)
    world.fail(0, "a-0")
    world.now += 400
    world.fail(1, "a-1")
    world.now += 400
    world.fail(2, "a-2")

    assert [0, 1, 1] == world.counts()[:3]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "TASKS", 50)
    monkeypatch.setattr(failures, "KINDS", 5)
    world = World(4)
    for i in range(2 * MOST_FAILURES):
        world.fail(0, f"kind{i}-{i}", pattern="CUDA")
        world.fail(0, "same-1", pattern="CUDA")

    assert MOST_FAILURES == world.counts()[0] == len(world.records[0].recent)
    assert 10 == len(world.records[0].matched)
    assert 50 == len(world.failures._tasks)
    assert 5 == len(world.failures._kinds)
    world.fail(1, "same-1")
    assert 0 <= world.counts()[0] < MOST_FAILURES
