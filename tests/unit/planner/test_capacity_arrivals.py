"""What is measured of workers from pass to pass: how long they take to come, and their pace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.model.observed import Clocks, Deleting, ObservedWorker, WorkerTable
from dask_adaptive.model.past import Past
from dask_adaptive.planner.capacity import arrival_s, at_least_as_long, starts
from support.tables import table
from support.worlds import (
    NOW,
    POLICY,
    changed,
    cluster,
    decide,
    instants,
    pending,
    remember,
    worker,
)

#: These have been waited for from the beginning.
PAST = Past(seen=frozenset({"old"}), awaited=dict.fromkeys(("new", "another", "v", "w"), -1e6))

# How long they take to come


def new(age_s: float, name: str = "new") -> ObservedWorker:
    return worker(name, age_s=age_s)


@table(
    "known_s, workers, expected",
    nothing_is_known=(None, [], None),
    the_first=(None, [new(27.0)], 30.0),
    slower_counts_much=(20.0, [new(27.0)], 26.0),
    faster_counts_little=(50.0, [new(27.0)], 47.0),
    as_ever=(30.0, [new(27.0)], 30.0),
    one_after_the_other=(None, [new(27.0), new(37.0, "another")], 36.0),
    not_slow_to_start_but_held_up=(20.0, [new(3600.0)], 20.0),
    slow_to_start=(3600.0, [new(3599.0)], 3601.2),
    measured_when_it_came=(20.0, [worker("old", age_s=27.0)], 20.0),
    has_yet_to_come=(20.0, [pending("new", age_s=27.0)], 20.0),
)
def test_how_long_a_worker_takes(
    known_s: float | None, workers: Sequence[ObservedWorker], expected: float | None
) -> None:
    assert (None if expected is None else pytest.approx(expected)) == arrival_s(
        known_s, starts(PAST, WorkerTable(workers), Clocks(), now=1e6)
    )


@table(
    "awaited, age_s, joined_s, expected",
    it_was_there_at_the_first_look=({}, 27.0, None, []),
    and_joined_before=({}, 427.0, 400.0, [30.0]),
    it_joined_long_after_it_was_made=({}, 427.0, 300.0, []),
    waited_for=({"new": 480.0}, 27.0, None, [30.0]),
    it_joined_between_two_passes=({"new": 480.0}, 27.0, 20.0, [10.0]),
    the_clock_of_the_platform_is_wrong=({"new": 495.0}, 1200.0, None, [65.0 + 3]),
)
def test_the_very_first_worker(
    awaited: dict[str, float], age_s: float, joined_s: float | None, expected: list[float]
) -> None:
    joined_at = None if joined_s is None else 500.0 - joined_s
    one = changed(new(age_s), joined_at=joined_at)

    workers = WorkerTable([one])
    assert expected == starts(Past(awaited=awaited), workers, Clocks(scheduler=500.0), now=500.0)


def test_what_a_worker_waits_for_its_admission_is_no_part_of_its_start() -> None:
    waits = cluster([pending("new", age_s=480.0, gated=True)])
    decided = decide(waits)
    past = remember(Past(session="s"), waits, POLICY, decided, (), now=NOW)

    assert () == decided.arriving
    assert [10.0] == starts(past, WorkerTable([new(487.0)]), Clocks(), now=NOW + 7.0)


@table(
    "known_s, age_s, changes, expected",
    longer_than_any_before=(50.0, 100.0, {}, 103.0),
    as_long=(103.0, 100.0, {}, 103.0),
    not_yet_as_long=(200.0, 100.0, {}, 200.0),
    longer_than_assumed=(None, 7.1, {}, 10.1),
    held_up_by_something_else=(50.0, 3600.0, {}, 50.0),
    slow_to_start=(50.0, 3599.0, {}, 3602.0),
    it_has_come=(50.0, 100.0, {"dask_names": ("w",)}, 50.0),
    it_is_being_deleted=(50.0, 100.0, {"lifecycle": Deleting()}, 50.0),
    it_has_been_there=(50.0, 100.0, {"name": "old"}, 50.0),
    it_is_refused=(50.0, 100.0, {"refused": "quota"}, 50.0),
    no_machine_takes_it=(50.0, 100.0, {"unschedulable_s": 1.0}, 50.0),
    it_is_not_admitted=(50.0, 100.0, {"gated": True}, 50.0),
)
def test_no_less_than_those_on_their_way_have_taken(
    known_s: float | None, age_s: float, changes: dict[str, Any], expected: float | None
) -> None:
    one = changed(pending("w", age_s=age_s), **instants(**changes))

    assert expected == at_least_as_long(
        known_s, PAST, [pending("v", age_s=1.0), one], Clocks(), now=0.0
    )
