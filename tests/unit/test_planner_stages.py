"""A group's number on its way, at the edges: shared limits, unused clusters, silent schedulers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.model.demand import Demand, Quiet, Want
from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.plan import Cancel, SetReplicas
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import LifetimeQuota, Window
from dask_adaptive.model.scaling import GroupBounds, Idle, IdleAction, Scaling, Schedule
from dask_adaptive.planner.frozen import blind, returned
from dask_adaptive.planner.idle import idle_step
from dask_adaptive.planner.rations import end_ratio
from dask_adaptive.planner.stages import drafts_of
from support.worlds import GROUP, NOW, PAST, POLICY, busy, cluster, past_of, pending, worker

GPU = "etl-gpu"
BOTH_PAST = dataclasses.replace(PAST, groups={GROUP: PAST.of(GROUP), GPU: PAST.of(GROUP)})


def policy_of(*groups: GroupBounds, maximum: int = 6, **scaling: Any) -> Policy:
    return dataclasses.replace(POLICY, maximum=maximum, scaling=Scaling(groups=groups, **scaling))


def two_groups(
    default: Sequence[ObservedWorker], gpu: Sequence[ObservedWorker], **scheduler: Any
) -> ObservedCluster:
    rows = tuple(dataclasses.replace(w, group=GPU) for w in gpu)
    return cluster(default, others=[ObservedGroup(GPU, len(rows), rows)], **scheduler)


# What all groups together may have


def limit(needed: int, number: int) -> Step:
    message = f"{needed} needed, {number} for now: maxReplicas of all groups is 6"
    return Step("cluster", number, Reason.CLUSTER_LIMIT, message)


def limited(
    default: Sequence[ObservedWorker], gpu: Sequence[ObservedWorker], wants: tuple[int, int],
    *, priority: int = 0,
) -> list[tuple[int, list[Step]]]:  # fmt: skip
    """The number of each group of six in all, and what the cluster's limit says of it."""
    policy = policy_of(GroupBounds(GROUP, 8, priority=priority), GroupBounds(GPU, 8))
    asked = (Want(wants[0], 60.0, "me"), Want(wants[1], 60.0, "me", GPU))
    world = two_groups(default, gpu, demand=Demand(), wants=asked)
    drafts = drafts_of(world, policy, BOTH_PAST, now=NOW)
    return [(d.number, [s for s in d.steps if s.stage == "cluster"]) for d in drafts]


def several(make: Any, names: str, **changes: Any) -> list[ObservedWorker]:
    return [make(name, **changes) for name in names]


def test_a_limit_that_is_not_reached_says_nothing() -> None:
    assert [(2, []), (4, [])] == limited([], [], (2, 4))


def test_a_limit_says_what_each_group_gets() -> None:
    assert [(3, [limit(5, 3)]), (3, [limit(4, 3)])] == limited([], [], (5, 4))


def test_above_the_limit_who_comes_first_keeps_what_it_has_and_grows_no_more() -> None:
    found = limited(several(busy, "abcd"), several(busy, "xyz"), (7, 3), priority=1)

    assert [(4, [limit(7, 4)]), (2, [limit(3, 2)])] == found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, [2, 4], id="they-come"),
        pytest.param({"unschedulable_s": 300.0}, [2, 4], id="they-may-yet-come"),
        pytest.param({"unschedulable_s": 300.1}, [4, 2], id="no-machine-takes-them"),
        pytest.param({"refused": "exceeded quota"}, [4, 2], id="they-are-refused"),
    ],
)
def test_nobody_waits_for_the_places_of_workers_that_do_not_come(
    changes: dict[str, Any], expected: list[int]
) -> None:
    found = limited(several(busy, "ab"), several(pending, "wxyz", **changes), (4, 4))

    assert expected == [number for number, _ in found]


# A cluster that nobody uses


@pytest.mark.parametrize(
    ("idle", "quiet", "expected"),
    [
        pytest.param({"after_s": 1.0}, Quiet(no_task_s=1.0), "no task for 1s or longer", id="task"),
        pytest.param({"after_s": 1.0}, Quiet(no_task_s=0.9), None, id="task-lately"),
        pytest.param({"after_s": 0.0}, Quiet(no_task_s=0.0), None, id="task-now"),
        pytest.param({"no_client_s": 1.0}, Quiet(no_client_s=1.0),
                     "no client for 1s or longer, and no task", id="client"),
        pytest.param({"no_client_s": 1.0}, Quiet(no_client_s=0.9), None, id="client-lately"),
        pytest.param({"no_client_s": 0.0}, Quiet(no_client_s=0.0), None, id="client-now"),
    ],
)  # fmt: skip
def test_from_when_on_a_cluster_is_unused(
    idle: dict[str, float], quiet: Quiet, expected: str | None
) -> None:
    policy = policy_of(idle=Idle(action=IdleAction.SCALE_TO_ZERO, **idle))
    step = None
    if expected is not None:
        message = f"{expected}: minimums do not hold"
        step = Step("idle", 0, Reason.CLUSTER_IDLE, message)

    assert step == idle_step(cluster([worker("a")], quiet=quiet), policy)


@pytest.mark.parametrize(("left_s", "is_unused"), [(0.5, False), (0.0, True)])
def test_a_want_holds_a_cluster_to_its_last_moment(left_s: float, is_unused: bool) -> None:
    policy = policy_of(idle=Idle(after_s=1.0, action=IdleAction.SCALE_TO_ZERO))
    world = cluster([], quiet=Quiet(no_task_s=60.0), wants=(Want(1, left_s, "me"),))

    assert is_unused == (idle_step(world, policy) is not None)


# A scheduler that does not answer

ALWAYS_9 = Schedule(Window("0 0 * * *", 24 * 3600.0), minimum=9)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(policy_of(GroupBounds(GPU, 4, minimum=3), maximum=2), [(GPU, 3)],
                     id="the-maximum-is-the-default-groups"),
        pytest.param(policy_of(GroupBounds(GROUP, 8, minimum=6), maximum=5), [(GROUP, 5)],
                     id="the-maximum-is-that-of-all"),
        pytest.param(
            policy_of(GroupBounds(GROUP, 8, minimum=4), GroupBounds(GPU, 8, minimum=3), maximum=5),
            [(GROUP, 4), (GPU, 1)], id="the-first-takes-most-of-it"),
        pytest.param(policy_of(maximum=5, schedules=(ALWAYS_9,)), [(GROUP, 5)],
                     id="a-schedule-asks-for-more"),
        pytest.param(policy_of(GroupBounds(GROUP, 8, minimum=2)), [], id="enough-is-there"),
    ],
)  # fmt: skip
def test_floors_hold_without_the_scheduler(policy: Policy, expected: list[tuple[str, int]]) -> None:
    world = two_groups(several(busy, "ab"), [], problem=Reason.SCHEDULER_UNREACHABLE)
    found = blind(world, policy, PAST).actions

    assert expected == [(a.group, a.replicas) for a in found if isinstance(a, SetReplicas)]
    assert len(expected) == len(found)


def test_who_is_deleted_already_is_not_called_back() -> None:
    drains = {"leaving": Leaving.DRAINING, "in_service": False}
    world = cluster([worker("a", **drains), worker("b", **drains), worker("c")])
    back = returned(world, POLICY, past_of(deleted=frozenset("b")), Reason.PAUSED, "paused")

    assert (Cancel("a", ("a",), Reason.PAUSED, "paused"),) == back


# How much of its life a worker has behind it


@pytest.mark.parametrize(
    ("ends_in_s", "expected"),
    [
        pytest.param(math.inf, -1.0, id="no-end"),
        pytest.param(310.0, 0.25, id="a-quarter"),
        pytest.param(10.5, 100 / 100.5, id="half-a-second-is-left"),
        pytest.param(10.0, 1.0, id="only-the-margin-is-left"),
        pytest.param(0.0, 1.0, id="its-end-is-here"),
    ],
)
def test_how_much_of_a_life_is_over(ends_in_s: float, expected: float) -> None:
    one = worker("a", pod_age_s=100.0, ends_in_s=ends_in_s)

    assert expected == end_ratio(one, LifetimeQuota(margin_s=10.0))
