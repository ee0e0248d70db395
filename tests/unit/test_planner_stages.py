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
from dask_adaptive.model.past import Past, Recommendation
from dask_adaptive.model.plan import Cancel, GroupPlan, Plan, SetReplicas
from dask_adaptive.model.policy import Disruption, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import LifetimeQuota, Recycle, TaskQuota, Window
from dask_adaptive.model.scaling import (
    Fallback,
    GroupBounds,
    Idle,
    IdleAction,
    Pause,
    Scaling,
    Schedule,
)
from dask_adaptive.planner.frozen import blind, frozen, returned
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


def test_those_that_have_yet_to_leave_keep_their_places() -> None:
    found = limited(several(worker, "abcd"), several(busy, "x"), (1, 8))

    assert [1, 2] == [number for number, _ in found]


def test_at_the_limit_the_first_does_not_take_what_another_has() -> None:
    default = [*several(busy, "abc"), pending("d", refused="exceeded quota")]
    found = limited(default, several(busy, "xyz"), (8, 8), priority=1)

    assert [3, 3] == [number for number, _ in found]


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


# From the load to the number


def stages(
    world: ObservedCluster, policy: Policy, past: Past = PAST
) -> tuple[int, list[tuple[str, int, str]]]:
    (found,) = drafts_of(world, policy, past, now=NOW)
    return found.number, [(s.stage, s.replicas, s.message) for s in found.steps]


UNUSED_FOR_1S = Idle(after_s=1.0, action=IdleAction.SCALE_TO_ZERO)


@pytest.mark.parametrize(
    ("target", "minimum", "policy", "expected"),
    [
        pytest.param(5, 3, {}, (5, []), id="above-the-minimum"),
        pytest.param(3, 3, {}, (3, []), id="at-the-minimum"),
        pytest.param(2, 3, {}, (3, [("bounds", 3, "2 wanted, minReplicas is 3")]), id="below-it"),
        pytest.param(0, 0, {"idle": UNUSED_FOR_1S}, (0, []), id="unused-without-a-minimum"),
        pytest.param(0, 2, {"idle": UNUSED_FOR_1S},
                     (0, [("idle", 0, "no task for 1s or longer: minimums do not hold")]),
                     id="unused"),
        pytest.param(4, 2, {"idle": UNUSED_FOR_1S},
                     (4, [("idle", 4, "no task for 1s or longer: minimums do not hold")]),
                     id="unused-but-wanted"),
    ],
)  # fmt: skip
def test_a_minimum_is_a_floor_while_the_cluster_is_used(
    target: int, minimum: int, policy: dict[str, Any], expected: tuple[int, list[Any]]
) -> None:
    world = cluster([], target=target, quiet=Quiet(no_task_s=60.0))
    number, (first, *rest) = stages(
        world, dataclasses.replace(policy_of(**policy), minimum=minimum)
    )

    assert ("load", target) == first[:2]
    assert expected == (number, rest)


def test_a_fall_to_the_minimum_is_held_and_not_told_twice() -> None:
    policy = dataclasses.replace(POLICY, minimum=2)
    world = cluster(several(worker, "abc"))
    slow = past_of(recommendations=(Recommendation(NOW - 5, 3),))

    wanted, least = ("load", 0), ("bounds", 2, "0 wanted, minReplicas is 2")
    held = ("window", 3, "2 wanted, 3 held until the fall has lasted 30s")
    for past, number, expected in ((PAST, 2, [least]), (slow, 3, [least, held])):
        found, (first, *rest) = stages(world, policy, past)
        assert (number, wanted, expected) == (found, first[:2], rest)


def test_those_that_stand_in_for_others_are_not_wanted() -> None:
    recycle = Recycle(TaskQuota(20))
    drains = worker("d", leaving=Leaving.DRAINING, in_service=False,
                    leaving_reason=Reason.TASK_QUOTA)  # fmt: skip
    world = cluster([*several(busy, "abc"), drains], target=3)
    policy = dataclasses.replace(POLICY, recycle=recycle)
    past = past_of(desired=2, floors={"d": 2})

    number, (_, step) = stages(world, policy, past)
    assert (2, ("recycle", 2, "1 of 3 stand in for workers that leave")) == (number, step)


def test_whose_deletion_was_sent_is_not_there() -> None:
    world = cluster(several(worker, "ab"), target=2)
    (one,) = drafts_of(world, POLICY, past_of(deleted=frozenset("b")), now=NOW)

    assert (["a"], ["b"]) == ([w.name for w in one.fleet.active], [w.name for w in one.fleet.other])


@pytest.mark.parametrize("node_signals", [True, False])
def test_a_frozen_group_is_told_as_it_is(node_signals: bool) -> None:
    workers = [worker("a"), worker("b"), worker("c", node_going="cordoned")]
    policy = dataclasses.replace(POLICY, disruption=Disruption(node_signals=node_signals))
    world, past = cluster(workers), past_of(deleted=frozenset("b"))
    found = frozen(world, policy, past, Reason.PAUSED, "paused", wanted={})

    n = 1 if node_signals else 2
    group = GroupPlan(GROUP, n, 0, n, Reason.PAUSED, "paused", current=n, is_frozen=True)
    assert Plan(Reason.PAUSED, "paused", 0, n, groups=(group,)) == found


def test_frozen_groups_are_told_once() -> None:
    world = two_groups([worker("a")], [worker("x")])
    policy = policy_of(GroupBounds(GPU, 8))
    found = frozen(world, policy, PAST, Reason.PAUSED, "paused", wanted={GPU: 3})

    assert (Reason.PAUSED, "paused", 3, 2) == (
        found.reason, found.message, found.wanted, found.desired,
    )  # fmt: skip


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


DAILY_3 = Schedule(Window("0 0 * * *", 24 * 3600.0), minimum=3)
ONE_MORE = (GroupBounds(GROUP, 8, minimum=2), GroupBounds(GPU, 8, minimum=1))
AGAIN = Fallback(failure_threshold=2, replicas=4)


@pytest.mark.parametrize(
    ("policy", "pause", "expected"),
    [
        pytest.param(policy_of(*ONE_MORE, maximum=2), Pause(), {}, id="no-room-for-one-more"),
        pytest.param(policy_of(*ONE_MORE), Pause(), {
            GPU: (1, "0 replicas are below minReplicas 1"),
        }, id="room-for-one-more"),
        pytest.param(policy_of(*ONE_MORE), Pause(replicas=3), {
            GROUP: (3, "2 replicas are below minReplicas 2"),
            GPU: (1, "0 replicas are below minReplicas 1"),
        }, id="the-default-group-is-held"),
        pytest.param(policy_of(*ONE_MORE[1:], maximum=9, fallback=AGAIN), Pause(), {
            GROUP: (4, "no answer to 2 questions (fallback): at least 4 workers"),
            GPU: (1, "0 replicas are below minReplicas 1"),
        }, id="the-fallback-is-the-default-groups"),
        pytest.param(policy_of(GroupBounds(GROUP, 8, minimum=5), schedules=(DAILY_3,)), Pause(),
                     {GROUP: (5, "2 replicas are below minReplicas 5")}, id="the-minimum"),
        pytest.param(policy_of(GroupBounds(GROUP, 8, minimum=3), schedules=(DAILY_3,)), Pause(),
                     {GROUP: (3, "2 replicas are below minReplicas 3")}, id="or-just-as-high"),
    ],
)  # fmt: skip
def test_what_is_asked_for_without_the_scheduler_says_why(
    policy: Policy, pause: Pause, expected: dict[str, tuple[int, str]]
) -> None:
    world = two_groups(
        several(busy, "ab"), [], problem=Reason.SCHEDULER_UNREACHABLE, message="no answer",
        unanswered=2,
    )  # fmt: skip
    found = blind(dataclasses.replace(world, pause=pause), policy, PAST)

    assert "no answer; no worker is taken away" == found.message
    raised = [a for a in found.actions if isinstance(a, SetReplicas)]
    assert expected == {a.group: (a.replicas, a.message) for a in raised}


def test_workers_of_other_groups_are_called_back_in_the_same_words() -> None:
    drains = {"leaving": Leaving.DRAINING, "in_service": False, "leaving_reason": Reason.TASK_QUOTA}
    world = two_groups([worker("a")], [worker("x", **drains)])

    assert (Cancel("x", ("x",), Reason.PAUSED, "by me"),) == returned(
        world, POLICY, PAST, Reason.PAUSED, "by me"
    )


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
