"""A group's number while workers stand in for others, and where floors meet windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.past import Past, Recommendation
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Amount, Recycle, Strategy, StrategyType, TaskQuota, Use
from dask_adaptive.model.scaling import Behavior, RatePolicy, RateType, ScaleUp
from support.tables import table
from support.worlds import NOW, PAST, busy, cluster, decide, facts, past_of, pending, worker

SPENT: dict[str, Any] = {"use": Use(runs=20)}
TASKS = Recycle(TaskQuota(20))
TWO_AT_ONCE = replace(TASKS, strategy=Strategy(max_surge=Amount(2)))
IN_PLACE = replace(TASKS, strategy=Strategy(StrategyType.IN_PLACE))


@table(
    "target, floors, spent, expected",
    one_stands_in=(4, "a", "ab", 3),
    never_less_than_desired=(4, "abc", "ab", 2),
    more_than_there_are=(5, "a", "ab", 5),
    no_more_than_desired=(2, "a", "ab", 2),
)
def test_the_load_is_taken_without_those_that_stand_in(
    target: int, floors: str, spent: str, expected: int
) -> None:
    workers = [busy(name, **(SPENT if name in spent else {})) for name in "abcd"]
    past = past_of(desired=2, floors=dict.fromkeys(floors, 2))
    (group,) = decide(cluster(workers, target=target), past, recycle=TASKS).groups

    assert expected == group.wanted
    told = [(s.replicas, s.reason, facts(s.message)) for s in group.steps if s.stage == "recycle"]
    stand_in = (expected, Reason.RECYCLING, f"{target - expected} {target}")
    assert ([stand_in] if expected < target else []) == told


A, B = busy("a"), busy("b")
OLD_A, OLD_B = busy("a", **SPENT), busy("b", **SPENT)
MAKES_ROOM = worker("r", leaving_reason=Reason.TASK_QUOTA)
COMING = [pending(name) for name in "pqr"]


@table(
    "workers, recycle, desired, expected",
    with_those_on_their_way=([A, B], TASKS, 9, 4),
    what_was_desired=([OLD_A, OLD_B], TASKS, 9, 9),
    also_while_one_drains=([A, MAKES_ROOM], TASKS, 9, 9),
    those_that_come_back=([A, B, MAKES_ROOM], IN_PLACE, None, 3),
    less_one_asked_for_first=([OLD_A, OLD_B, *COMING], TASKS, None, 4),
    or_as_many_as_may_be=([OLD_A, OLD_B, *COMING], TWO_AT_ONCE, None, 3),
    as_are_due=([OLD_A, B, *COMING], TWO_AT_ONCE, None, 4),
    but_not_less_than_serve=([OLD_A, OLD_B], TASKS, None, 2),
)
def test_what_a_number_moves_from(
    workers: list[ObservedWorker], recycle: Recycle, desired: int | None, expected: int
) -> None:
    replicas = len(workers) + 2
    past = past_of(gap=(replicas, len(workers)), gap_since=NOW - 1, desired=desired)
    world = cluster(workers, replicas=replicas, target=9)
    (group,) = decide(world, past, recycle=recycle).groups

    assert expected == group.current


ONE_A_MINUTE = ScaleUp(policies=(RatePolicy(RateType.PODS, 1, 60.0),))
HELD_3 = past_of(recommendations=(Recommendation(NOW - 5, 3),))
LEAST_2 = ("bounds", 2, "0 2")


@table(
    "past, behavior, there, target, expected",
    held_by_its_window=(HELD_3, Behavior(), 3, 0, [LEAST_2, ("window", 3, "2 3 30s")]),
    a_minimum_is_not_slowed_down=(PAST, Behavior(scale_up=ONE_A_MINUTE), 0, 0,
        [LEAST_2, ("rate", 1, "2 1 behavior.scaleUp 1 1m"), LEAST_2]),
    what_is_above_it_is=(PAST, Behavior(scale_up=ONE_A_MINUTE), 3, 9,
        [("rate", 4, "9 4 behavior.scaleUp 1 1m")]),
)  # fmt: skip
def test_a_floor_holds_at_once(
    past: Past, behavior: Behavior, there: int, target: int, expected: list[tuple[str, int, str]]
) -> None:
    workers = [worker(name) for name in "abc"[:there]]
    (group,) = decide(
        cluster(workers, target=target), past, min_replicas=2, behavior=behavior
    ).groups

    assert expected == [(s.stage, s.replicas, facts(s.message)) for s in group.steps[1:]]
    assert expected[-1][1] == group.desired


@pytest.mark.parametrize("since", ["cluster", "group"])
def test_a_load_is_watched_since_both_cluster_and_group_are(since: str) -> None:
    """A fall waits for its window to have been watched: 30 s."""
    lately = NOW - 29.0
    past = replace(PAST, since=lately) if since == "cluster" else PAST
    if since == "group":
        mine = replace(PAST.of("etl-default"), since=lately)
        past = replace(PAST, groups={"etl-default": mine})
    workers = [worker("a"), worker("b")]

    assert () == decide(cluster(workers), past).actions
    assert decide(cluster(workers)).actions
