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
from support.worlds import NOW, PAST, busy, cluster, decide, facts, past_of, pending, worker

SPENT: dict[str, Any] = {"use": Use(runs=20)}
TASKS = Recycle(TaskQuota(20))
TWO_AT_ONCE = replace(TASKS, strategy=Strategy(max_surge=Amount(2)))
IN_PLACE = replace(TASKS, strategy=Strategy(StrategyType.IN_PLACE))


@pytest.mark.parametrize(
    ("target", "floors", "spent", "expected"),
    [
        pytest.param(4, "a", "ab", 3, id="one-stands-in"),
        pytest.param(4, "abc", "ab", 2, id="never-less-than-desired"),
        pytest.param(5, "a", "ab", 5, id="more-than-there-are"),
        pytest.param(2, "a", "ab", 2, id="no-more-than-desired"),
    ],
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


@pytest.mark.parametrize(
    ("workers", "recycle", "desired", "expected"),
    [
        pytest.param([A, B], TASKS, 9, 4, id="with-those-on-their-way"),
        pytest.param([OLD_A, OLD_B], TASKS, 9, 9, id="what-was-desired"),
        pytest.param([A, MAKES_ROOM], TASKS, 9, 9, id="also-while-one-drains"),
        pytest.param([A, B, MAKES_ROOM], IN_PLACE, None, 3, id="those-that-come-back"),
        pytest.param([OLD_A, OLD_B, *COMING], TASKS, None, 4, id="less-one-asked-for-first"),
        pytest.param([OLD_A, OLD_B, *COMING], TWO_AT_ONCE, None, 3,
                     id="or-as-many-as-may-be"),
        pytest.param([OLD_A, B, *COMING], TWO_AT_ONCE, None, 4,
                     id="as-are-due"),
        pytest.param([OLD_A, OLD_B], TASKS, None, 2, id="but-not-less-than-serve"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("past", "behavior", "there", "target", "expected"),
    [
        pytest.param(HELD_3, Behavior(), 3, 0, [LEAST_2, ("window", 3, "2 3 30s")],
                     id="held-by-its-window"),
        pytest.param(PAST, Behavior(scale_up=ONE_A_MINUTE), 0, 0,
                     [LEAST_2, ("rate", 1, "2 1 behavior.scaleUp 1 1m"), LEAST_2],
                     id="a-minimum-is-not-slowed-down"),
        pytest.param(PAST, Behavior(scale_up=ONE_A_MINUTE), 3, 9,
                     [("rate", 4, "9 4 behavior.scaleUp 1 1m")], id="what-is-above-it-is"),
    ],
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
