"""Floors by schedule, by the minimum and without the scheduler; what a pause leaves of a number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.observed import Demand, Quiet
from dask_adaptive.model.plan import GroupPlan, SetReplicas
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Fallback, Idle, IdleAction, Pause, Schedule, WorkerGroup
from support.tables import table
from support.worlds import (
    GPU,
    GROUP,
    busy,
    cluster,
    decide,
    facts,
    group_of,
    wanting,
    watched,
    worker,
)

BOTH = (WorkerGroup(GROUP, 20), WorkerGroup(GPU, 20))
FIVE = [worker(name) for name in "abcde"]

# Schedules


# The minimum, and a cluster that nobody uses

UNUSED = Idle(after_s=1.0, action=IdleAction.SCALE_TO_ZERO)


@table(
    "target, min_replicas, idle, expected",
    above_the_minimum=(5, 3, Idle(), (5, [])),
    at_the_minimum=(3, 3, Idle(), (3, [])),
    below=(2, 3, Idle(), (3, [("bounds", 3, "2 3")])),
    unused_without_a_minimum=(0, 0, UNUSED, (0, [])),
    unused=(0, 2, UNUSED, (0, [("idle", 0, "1s")])),
    unused_but_wanted=(4, 2, UNUSED, (4, [("idle", 4, "1s")])),
)
def test_a_minimum_is_a_floor_while_the_cluster_is_used(
    target: int, min_replicas: int, idle: Idle, expected: tuple[int, list[Any]]
) -> None:
    world = cluster([], target=target, quiet=Quiet(no_task_s=60.0))
    (group,) = decide(world, min_replicas=min_replicas, idle=idle).groups

    assert ("load", target) == (group.steps[0].stage, group.steps[0].replicas)
    rest = [(s.stage, s.replicas, facts(s.message)) for s in group.steps[1:]]
    assert expected == (group.desired, rest)


# Without an answer of the scheduler

ALWAYS_9 = Schedule("0 0 * * *", 24 * 3600.0, min_replicas=9)
ALWAYS_3 = replace(ALWAYS_9, min_replicas=3)
AGAIN = Fallback(failure_threshold=2, replicas=4)
BELOW, GPU_BELOW, FALLBACK = "2 {}", "0 {}", "2 {}"


def bounds(min_replicas: int, gpu: int | None = None, most: int = 8) -> dict[str, Any]:
    groups = (WorkerGroup(GROUP, most, min_replicas=min_replicas),)
    return {
        "worker_groups": groups if gpu is None else (*groups, WorkerGroup(GPU, 8, min_replicas=gpu))
    }


@table(
    "policy, more, expected",
    the_maximum_is_the_default_groups=({"max_replicas": 2},
        {"worker_groups": (WorkerGroup(GPU, 4, min_replicas=3),)}, {GPU: (3, GPU_BELOW.format(3))}),
    the_maximum_is_that_of_all=({"max_replicas": 5}, bounds(6), {GROUP: (5, BELOW.format(6))}),
    the_first_takes_most_of_it=({"max_replicas": 5}, bounds(4, 3),
        {GROUP: (4, BELOW.format(4)), GPU: (1, GPU_BELOW.format(3))}),
    no_room_for_one_more=({"max_replicas": 2}, bounds(2, 1), {}),
    a_schedule=({"max_replicas": 5}, {"schedules": (ALWAYS_9,)}, {GROUP: (5, "9 0 0")}),
    the_minimum=({"max_replicas": 6}, {**bounds(5), "schedules": (ALWAYS_3,)},
        {GROUP: (5, BELOW.format(5))}),
    or_just_as_high=({"max_replicas": 6}, {**bounds(3), "schedules": (ALWAYS_3,)},
        {GROUP: (3, BELOW.format(3))}),
    fallback=({}, {"fallback": AGAIN}, {GROUP: (4, FALLBACK.format(4))}),
    not_yet=({}, {"fallback": replace(AGAIN, failure_threshold=3)}, {}),
    not_below_the_minimum=({"min_replicas": 6}, {"fallback": AGAIN}, {GROUP: (6, BELOW.format(6))}),
    not_above_the_maximum=({}, {"fallback": replace(AGAIN, replicas=40)},
        {GROUP: (10, FALLBACK.format(10))}),
    the_default_groups_own_bounds=({}, {"worker_groups": (WorkerGroup(GROUP, 3, min_replicas=1),),
        "fallback": replace(AGAIN, replicas=9)}, {GROUP: (3, FALLBACK.format(3))}),
    the_fallback_is_the_default_groups=({},
        {"worker_groups": (WorkerGroup(GPU, 8, 1),), "fallback": AGAIN},
        {GROUP: (4, FALLBACK.format(4)), GPU: (1, GPU_BELOW.format(1))}),
)  # fmt: skip
def test_floors_hold_without_the_scheduler(
    policy: dict[str, Any], more: dict[str, Any], expected: dict[str, tuple[int, str]]
) -> None:
    world = cluster(
        [busy("a"), busy("b")], others=[group_of(GPU)], message="no answer",
        problem=Reason.SCHEDULER_UNREACHABLE, unanswered=2,
    )  # fmt: skip
    decided = decide(world, **more, **policy)

    raised = [a for a in decided.actions if isinstance(a, SetReplicas)]
    assert raised == list(decided.actions)
    assert 0 == decided.wanted
    assert expected == {a.group: (a.replicas, facts(a.message)) for a in raised}
    assert Reason.SCHEDULER_UNREACHABLE is decided.reason
    assert decided.message.startswith("no answer; ")


# What a pause leaves


def paused(desired: int, pause: Pause, workers: Any = FIVE, *, group: str = GROUP) -> GroupPlan:
    """Five workers, where so many are wanted."""
    here, others = ([], [group_of(group, workers)]) if group != GROUP else (workers, [])
    world = cluster(here, others=others, demand=Demand(), wants=(wanting(desired, group),))
    world = replace(world, pause=pause)
    decided = decide(world, watched(GPU), max_replicas=40, worker_groups=BOTH)
    (found,) = [g for g in decided.groups if g.group == group]
    return found


IN, OUT = Reason.SCALING_PAUSED, Reason.SCALING_PAUSED


@table(
    "desired, pause, group, expected, reason",
    paused=(9, {"all": True}, GROUP, 5, Reason.PAUSED),
    no_fall=(2, {"scale_in": True}, GROUP, 5, IN),
    no_rise=(9, {"scale_out": True}, GROUP, 5, OUT),
    nothing_held=(5, {"scale_in": True, "scale_out": True}, GROUP, 5, None),
    both=(2, {"scale_in": True, "scale_out": True}, GROUP, 5, IN),
    every_group=(2, {"scale_in": True}, GPU, 5, IN),
    all_wins=(2, {"scale_in": True, "all": True}, GROUP, 5, Reason.PAUSED),
    over=(2, {"all": True, "left_s": 0.0}, GROUP, 2, None),
    not_over=(2, {"all": True, "left_s": 0.1}, GROUP, 5, Reason.PAUSED),
    unreadable_holds_what_it_is_about=(2, {"problem": "?", "scale_in": True}, GROUP, 5,
        Reason.INVALID_ANNOTATION),
    and_nothing_else=(9, {"problem": "?", "scale_in": True}, GROUP, 9, None),
)  # fmt: skip
def test_a_pause_of_five_workers(
    desired: int, pause: dict[str, Any], group: str, expected: int, reason: Reason | None
) -> None:
    found = paused(desired, Pause(**pause), group=group)

    assert expected == found.desired
    steps = [s.reason for s in found.steps if s.stage == "pause"]
    assert [reason] == (steps or ([found.reason] if found.is_frozen else [None]))


@pytest.mark.parametrize(
    ("desired", "pause", "expected"),
    [
        (2, Pause(scale_in=True, left_s=90.0, message="by me", problem="?"), ("2 5", "; by me; ?")),
        (9, Pause(scale_out=True), ("9 5", "requested")),
    ],
)
def test_a_pause_says_what_it_holds_and_what_cannot_be_read(
    desired: int, pause: Pause, expected: tuple[str, str]
) -> None:
    (message,) = (s.message for s in paused(desired, pause).steps if s.stage == "pause")

    assert (expected[0], True) == (facts(message), message.endswith(expected[1]))
