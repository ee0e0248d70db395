"""What is measured of workers from pass to pass: how long they take to come, and their pace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.recycle import MemoryQuota, Recycle, RecyclePast, Use
from dask_adaptive.planner.arrivals import arrival_s, at_least
from dask_adaptive.planner.quota_past import remember_quotas
from support.worlds import NOW, POLICY, cluster, pending, worker

PAST = Past(seen=frozenset({"old"}))

# How long they take to come


def new(age_s: float, name: str = "new") -> ObservedWorker:
    return worker(name, age_s=age_s)


@pytest.mark.parametrize(
    ("known_s", "workers", "expected"),
    [
        pytest.param(None, [], None, id="nothing-is-known"),
        pytest.param(None, [new(27.0)], 30.0, id="the-first"),
        pytest.param(20.0, [new(27.0)], 26.0, id="slower-counts-much"),
        pytest.param(50.0, [new(27.0)], 47.0, id="faster-counts-little"),
        pytest.param(30.0, [new(27.0)], 30.0, id="as-ever"),
        pytest.param(None, [new(27.0), new(37.0, "another")], 36.0, id="one-after-the-other"),
        pytest.param(20.0, [new(3600.0)], 20.0, id="not-slow-to-start-but-held-up"),
        pytest.param(3600.0, [new(3599.0)], 3601.2, id="slow-to-start"),
        pytest.param(20.0, [worker("old", age_s=27.0)], 20.0, id="measured-when-it-came"),
        pytest.param(20.0, [pending("new", age_s=27.0)], 20.0, id="has-yet-to-come"),
    ],
)
def test_how_long_a_worker_takes(
    known_s: float | None, workers: Sequence[ObservedWorker], expected: float | None
) -> None:
    assert (None if expected is None else pytest.approx(expected)) == arrival_s(
        known_s, PAST, workers
    )


def test_a_new_operator_has_waited_for_nobody() -> None:
    assert 20.0 == arrival_s(20.0, Past(), [new(27.0)])


@pytest.mark.parametrize(
    ("known_s", "age_s", "changes", "expected"),
    [
        pytest.param(50.0, 100.0, {}, 103.0, id="longer-than-any-before"),
        pytest.param(103.0, 100.0, {}, 103.0, id="as-long"),
        pytest.param(200.0, 100.0, {}, 200.0, id="not-yet-as-long"),
        pytest.param(None, 7.1, {}, 10.1, id="longer-than-assumed"),
        pytest.param(None, 7.0, {}, None, id="not-longer-than-assumed"),
        pytest.param(50.0, 3600.0, {}, 50.0, id="held-up-by-something-else"),
        pytest.param(50.0, 3599.0, {}, 3602.0, id="slow-to-start"),
        pytest.param(50.0, 100.0, {"dask_names": ("w",)}, 50.0, id="it-has-come"),
        pytest.param(50.0, 100.0, {"going": True}, 50.0, id="it-is-being-deleted"),
        pytest.param(50.0, 100.0, {"name": "old"}, 50.0, id="it-has-been-there"),
        pytest.param(50.0, 100.0, {"refused": "quota"}, 50.0, id="it-is-refused"),
        pytest.param(50.0, 100.0, {"unschedulable_s": 1.0}, 50.0, id="no-machine-takes-it"),
    ],
)
def test_no_less_than_those_on_their_way_have_taken(
    known_s: float | None, age_s: float, changes: dict[str, Any], expected: float | None
) -> None:
    one = dataclasses.replace(pending("w", age_s=age_s), **changes)

    assert expected == at_least(known_s, PAST, [pending("v", age_s=1.0), one])


def test_with_nobody_on_their_way_it_is_as_measured() -> None:
    assert 3.5 == at_least(3.5, PAST, [])
    assert None is at_least(None, PAST, [])


# Their pace


def paced(
    past: tuple[float, int, float] | None, runs: int, **changes: Any
) -> tuple[float, int, float]:
    """The pace of one worker after one more pass, averaged over 100 seconds."""
    known = RecyclePast(ready_s=100.0, pace={} if past is None else {"uid-a": past})
    world = cluster([worker("a", use=Use(runs=runs), **changes)])
    return remember_quotas(known, world, POLICY, now=NOW).pace["uid-a"]


@pytest.mark.parametrize(
    ("runs", "pod_age_s", "expected"),
    [(10, 20.0, 0.5), (10, 1.0, 10.0), (10, 0.5, 20.0), (10, 0.0, 0.0), (0, 20.0, 0.0)],
)
def test_the_pace_begins_with_what_the_pod_has_done(
    runs: int, pod_age_s: float, expected: float
) -> None:
    assert (NOW, runs, expected) == paced(None, runs, pod_age_s=pod_age_s)


NEW_WEIGHT = 1 - math.exp(-1)


@pytest.mark.parametrize(
    ("past", "runs", "changes", "expected"),
    [
        pytest.param((NOW - 100, 500, 0.0), 600, {}, NEW_WEIGHT, id="averaged"),
        pytest.param((NOW - 50, 500, 3.0), 600, {}, 3.0 - (1 - math.exp(-0.5)), id="it-slows-down"),
        pytest.param((NOW - 100.5, 500, 3.0), 600, {}, 3.0, id="it-has-rested"),
        pytest.param((NOW - 10, 500, 3.0), 400, {}, 3.0, id="another-process"),
        pytest.param((NOW - 1, 500, 0.0), 600, {}, 100 * (1 - math.exp(-0.01)), id="in-a-second"),
        pytest.param((NOW - 100, 500, 0.0), 600, {"pod_age_s": 50.0}, 12.0, id="young"),
        pytest.param((NOW - 1, 500, 0.0), 600, {"pod_age_s": 1.0}, 600.0, id="just-born"),
        pytest.param((NOW - 1, 500, 0.0), 600, {"pod_age_s": 0.5}, 1200.0, id="younger-still"),
        pytest.param((NOW - 100, 500, 9.0), 600, {"pod_age_s": 250.0}, 9.0 - 8.0 * NEW_WEIGHT,
                     id="young-and-faster-of-late"),
        pytest.param((NOW - 100, 500, 0.0), 600, {"pod_age_s": 299.9}, 600 / 299.9,
                     id="just-young-enough"),
        pytest.param((NOW - 100, 500, 0.0), 600, {"pod_age_s": 300.0}, NEW_WEIGHT,
                     id="not-young-any-more"),
    ],
)  # fmt: skip
def test_the_pace_of_a_worker(
    past: tuple[float, int, float], runs: int, changes: dict[str, Any], expected: float
) -> None:
    at, before, pace = paced(past, runs, **changes)

    assert (NOW, runs) == (at, before)
    assert pytest.approx(expected) == pace


@pytest.mark.parametrize(
    ("past", "changes"),
    [
        pytest.param((NOW - 0.9, 500, 3.0), {"use": Use(runs=600)}, id="too-soon-to-tell"),
        pytest.param((NOW - 50, 600, 3.0), {"use": Use(runs=600)}, id="it-rests"),
    ],
)
def test_what_says_nothing_of_the_pace_leaves_it(
    past: tuple[float, int, float], changes: dict[str, Any]
) -> None:
    known = RecyclePast(ready_s=100.0, pace={"uid-a": past})
    found = remember_quotas(known, cluster([worker("a", **changes)]), POLICY, now=NOW)

    assert {"uid-a": past} == found.pace


# How their memory grows


@pytest.mark.parametrize(
    ("sampled_at", "growth", "expected"),
    [
        pytest.param(NOW - 5, {"uid-a": 0.5}, {"uid-a": 0.5}, id="as-told-from-the-same-samples"),
        pytest.param(NOW - 5, {}, {}, id="told-nothing"),
        pytest.param(NOW - 120, {"uid-a": 0.5}, {}, id="one-sample-more-and-too-few-to-tell"),
    ],
)
def test_growth_is_told_anew_with_each_sample(
    sampled_at: float, growth: dict[str, float], expected: dict[str, float]
) -> None:
    known = RecyclePast(
        pace={"uid-a": (NOW - 5, 0, 0.0)}, samples={"uid-a": ((sampled_at, 10),)}, growth=growth
    )
    leaks = Recycle(memory=MemoryQuota(leak_rate=100.0))
    policy = dataclasses.replace(POLICY, recycle=leaks)
    found = remember_quotas(known, cluster([worker("a")]), policy, now=NOW)

    assert expected == found.growth
    assert (2 if sampled_at == NOW - 120 else 1) == len(found.samples["uid-a"])


def test_memory_that_grows_is_told_by_the_hour() -> None:
    samples = tuple((NOW - 200.0 * n, 1000 - 10 * n) for n in range(17, 0, -1))
    known = RecyclePast(pace={"uid-a": (NOW - 5, 0, 0.0)}, samples={"uid-a": samples})
    policy = dataclasses.replace(POLICY, recycle=Recycle(memory=MemoryQuota(leak_rate=100.0)))
    world = cluster([worker("a", use=Use(unmanaged_bytes=1000))])

    assert {"uid-a": 180.0} == remember_quotas(known, world, policy, now=NOW).growth
