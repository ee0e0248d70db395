"""What is measured of workers from pass to pass: how long they take to come, and their pace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.model.observed import Deleting, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.planner.number.capacity import arrival_s, at_least_as_long, starts
from support.worlds import instants, pending, worker

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
        known_s, starts(PAST, workers, at=0.0, now=1e6)
    )


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        pytest.param(500.0, 20.0, id="it-was-there-at-the-first-look"),
        pytest.param(None, 20.0, id="a-new-operator-has-waited-for-nobody"),
        pytest.param(473.0, 20.0, id="it-was-there-when-we-came"),
        pytest.param(472.5, 26.0, id="it-was-made-since"),
    ],
)
def test_the_very_first_worker(since: float | None, expected: float) -> None:
    assert expected == arrival_s(20.0, starts(Past(since=since), [new(27.0)], at=0.0, now=500.0))


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
        pytest.param(50.0, 100.0, {"lifecycle": Deleting()}, 50.0, id="it-is-being-deleted"),
        pytest.param(50.0, 100.0, {"name": "old"}, 50.0, id="it-has-been-there"),
        pytest.param(50.0, 100.0, {"refused": "quota"}, 50.0, id="it-is-refused"),
        pytest.param(50.0, 100.0, {"unschedulable_s": 1.0}, 50.0, id="no-machine-takes-it"),
    ],
)
def test_no_less_than_those_on_their_way_have_taken(
    known_s: float | None, age_s: float, changes: dict[str, Any], expected: float | None
) -> None:
    one = dataclasses.replace(pending("w", age_s=age_s), **instants(**changes))

    assert expected == at_least_as_long(known_s, PAST, [pending("v", age_s=1.0), one], at=0.0)


def test_with_nobody_on_their_way_it_is_as_measured() -> None:
    assert 3.5 == at_least_as_long(3.5, PAST, [], at=0.0)
    assert None is at_least_as_long(None, PAST, [], at=0.0)
