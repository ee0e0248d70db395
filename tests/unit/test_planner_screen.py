"""Which workers the rules of quotas look at: no more than may be due, and none too few."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.recycle import LifetimeQuota, MemoryQuota, Recycle, RecyclePast, TaskQuota
from dask_adaptive.planner.due import Scene
from dask_adaptive.planner.outliers import Outlier
from dask_adaptive.planner.screen import suspects
from support.worlds import NOW, worker

A, B = worker("a"), worker("b")


def looked_at(
    recycle: Recycle, *workers: ObservedWorker, restart_at: float = -math.inf, **changes: Any
) -> str:
    past = RecyclePast(ready_s=10.0, **changes)
    scene = Scene(recycle, past, NOW, 0.0, restart_at, 0.0, {})
    return "".join(w.name for w in suspects(workers, scene))


def run(name: str, runs: int, **changes: Any) -> ObservedWorker:
    return worker(name, use=replace(A.use, runs=runs), **changes)


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (TaskQuota(9), ""),
        (TaskQuota(9, exact=True), "a"),  # as many as any of them has been given
        (TaskQuota(10, jitter=0.5), "a"),
        (TaskQuota(), ""),
    ],
)
def test_who_is_near_its_quota_of_tasks_is_looked_at(quota: TaskQuota, expected: str) -> None:
    assert expected == looked_at(
        Recycle(quota), run("a", 5), run("b", 4), worker("c", processing=4)
    )


def test_by_their_usual_pace_and_the_fastest_by_its_own() -> None:
    # On average 3 a second, of which twice as much counts: 60 in the 10 s that one takes to come.
    pace = {f"uid-{name}": (0.0, 0, 9.0 if name == "d" else 1.0) for name in "abcd"}
    workers = [run("a", 40), run("b", 39), run("c", 10)]

    assert "ad" == looked_at(Recycle(TaskQuota(100)), *workers, run("d", 10), pace=pace)
    assert "a" == looked_at(Recycle(TaskQuota(100)), *workers, run("d", 9), pace=pace)


def test_only_those_that_leak_or_stand_out_are_looked_at() -> None:
    leak = Recycle(memory=MemoryQuota(leak_rate=100.0))
    scene = Scene(Recycle(), RecyclePast(), NOW, 0.0, -math.inf, 0.0, {"b": Outlier("it is", 2.0)})

    assert "b" == looked_at(leak, A, B, growth={"uid-a": 99.0, "uid-b": 100.0})
    assert [B] == list(suspects([A, B], scene))


def test_by_its_own_pace_is_looked_at_who_is_faster_than_usual() -> None:
    # On average 2 a second: twice as much is usual, and no faster than that.
    paces = {"a": 6.0, "b": 4.0, "c": 0.0, "d": 0.0, "e": 0.0}
    pace = {f"uid-{name}": (0.0, 0, each) for name, each in paces.items()}
    quota = Recycle(TaskQuota(100))

    assert "a" == looked_at(quota, run("a", 59), run("b", 59), pace=pace)
    assert "ab" == looked_at(quota, run("a", 60), run("b", 60), pace=pace)


@pytest.mark.parametrize(
    ("quota", "restart_at", "expected"),
    [
        pytest.param(LifetimeQuota(), -math.inf, "", id="no-lifetime"),
        pytest.param(LifetimeQuota(60.0), -math.inf, "bc", id="less-what-a-new-one-takes"),
        pytest.param(LifetimeQuota(100.0, jitter=0.5), -math.inf, "abc", id="and-all-the-jitter"),
        pytest.param(LifetimeQuota(), -50.0, "bc", id="made-before-the-restart"),
        pytest.param(LifetimeQuota(jitter=1.0), -50.0, "bc", id="jitter-of-no-lifetime"),
    ],
)
def test_who_is_old_is_looked_at(quota: LifetimeQuota, restart_at: float, expected: str) -> None:
    ages = {"a": 45.0, "b": 50.0, "c": 55.0}
    workers = [worker(name, pod_age_s=age_s) for name, age_s in ages.items()]

    assert expected == looked_at(Recycle(lifetime=quota), *workers, restart_at=restart_at)
