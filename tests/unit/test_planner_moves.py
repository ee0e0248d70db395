"""How a group comes to its number, and what one plan says of it: to the last figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.demand import Demand, Want
from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Blocked, Past
from dask_adaptive.model.plan import Delete, Plan, Retire, SetReplicas
from dask_adaptive.model.policy import Mode, Policy, Retirement
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    MemoryQuota,
    Recycle,
    RecyclePast,
    Strategy,
    TaskQuota,
    Use,
)
from dask_adaptive.model.scaling import GroupBounds, Pause, Scaling
from dask_adaptive.planner.fleet import SETTLE_S
from dask_adaptive.planner.plan import plan
from support.worlds import GROUP, NOW, PAST, POLICY, busy, cluster, past_of, pending, worker

GPU = "etl-gpu"
DRAINED = {"leaving": Leaving.DRAINED, "in_service": False}
DRAINING = {"leaving": Leaving.DRAINING, "in_service": False}


def decide(world: ObservedCluster, past: Past = PAST, **policy: Any) -> Plan:
    return plan(world, replace(POLICY, **policy), past, now=NOW)


# --- one group ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "replicas", "since_s", "deleted", "expected"),
    [
        pytest.param([], 3, 0.0, "", [], id="in-step"),
        pytest.param([], 5, SETTLE_S, "", [SetReplicas], id="nobody-makes-the-rest"),
        pytest.param([], 5, SETTLE_S - 0.1, "", [], id="somebody-may-be-making-them"),
        pytest.param([], 5, SETTLE_S, "c", [], id="one-is-being-deleted"),
        pytest.param([worker("d", **DRAINED)], 5, SETTLE_S, "", [Delete], id="one-is-deleted-now"),
    ],
)
@pytest.mark.parametrize("target", [1, 2])
def test_the_number_is_brought_in_step_with_those_that_exist(
    more: list[ObservedWorker], replicas: int, since_s: float, deleted: str, target: int,
    expected: list[type],
) -> None:  # fmt: skip
    # With a target of 1 the group falls: both are busy, so that nobody leaves.
    workers = [busy("a"), busy("b"), worker("c", going=True), *more]
    gap = {"gap": (replicas, len(workers)), "gap_since": NOW - since_s}
    past = past_of(deleted=frozenset(deleted), **gap)
    decided = decide(cluster(workers, replicas=replicas, target=target), past)

    assert expected == [type(a) for a in decided.actions]
    words = f"3 workers exist, {replicas} are asked for"
    corrected = SetReplicas(GROUP, 3, Reason.REPLICAS_CORRECTED, words)
    assert (SetReplicas in expected) == (corrected in decided.actions)


def test_what_limits_a_group_is_told_even_while_others_leave_it() -> None:
    world = cluster([busy("a"), worker("r", **DRAINING, leaving_reason=Reason.NODE_GOING)])
    scheduler = replace(world.scheduler, target=9)
    decided = decide(replace(world, scheduler=scheduler), maximum=1)

    most = "9 wanted, maxReplicas is 1"
    assert (Reason.TOO_MANY_REPLICAS, most) == (decided.reason, decided.message)
    assert Step("bounds", 1, Reason.TOO_MANY_REPLICAS, most) == decided.groups[0].limited


def test_a_group_is_told_by_all_its_figures() -> None:
    workers = [busy("a"), busy("b"), pending("p", refused="exceeded quota")]
    world = cluster([*workers, worker("r", **DRAINING)], replicas=4, target=3)
    (group,) = decide(world, past_of(gap=(4, 4), gap_since=0.0), minimum=1).groups

    figures = {
        "serving": 3, "pending": 1, "retiring": 1, "replicas": 4, "minReplicas": 1,
        "maxReplicas": 10,
    }  # fmt: skip
    assert figures == {name: group.inputs[name] for name in figures}
    assert {"queued", "running", "arrival_s", "threads"} == set(group.inputs) - set(figures)
    why = "pods of 1 workers are refused: exceeded quota"
    assert Blocked(NOW + 60.0, Reason.QUOTA_EXCEEDED, why, 1, frozenset("p")) == group.blocked
    assert (3, 3, 3) == (group.current, group.serving, group.wanted)


def test_what_was_asked_for_and_is_not_made_yet_is_moved_from() -> None:
    past = past_of(gap=(4, 1), gap_since=NOW)
    (group,) = decide(cluster([busy("a")], replicas=4, target=4), past).groups

    assert (4, 1) == (group.current, group.serving)


# --- the cluster as a whole -----------------------------------------------------------------------


def groups_of(*, minimum: int = 0) -> Policy:
    groups = (GroupBounds(GROUP, 8), GroupBounds(GPU, 8, minimum=minimum))
    return replace(POLICY, maximum=16, scaling=Scaling(groups=groups))


def other(*workers: ObservedWorker) -> Sequence[ObservedGroup]:
    return [ObservedGroup(GPU, len(workers), tuple(replace(w, group=GPU) for w in workers))]


def test_what_does_not_exist_is_waited_for() -> None:
    decided = decide(replace(cluster([]), found=False))

    words = "there is no DaskCluster etl; waiting for it"
    assert Plan(Reason.CLUSTER_NOT_FOUND, words) == decided


@pytest.mark.parametrize(
    ("pause", "mode", "expected"),
    [
        (Pause(), Mode.PAUSED, "paused: nothing is scaled"),
        (Pause(all=True), Mode.AUTO, "paused: nothing is scaled"),
        (
            Pause(all=True, message="by me", problem="no time"), Mode.AUTO,
            "paused: nothing is scaled; by me; no time",
        ),
    ],
)  # fmt: skip
def test_a_pause_of_all_is_told_with_who_holds_it(pause: Pause, mode: Mode, expected: str) -> None:
    decided = decide(replace(cluster([worker("a")]), pause=pause), mode=mode)

    assert (Reason.PAUSED, expected) == (decided.reason, decided.message)


def test_workers_that_are_replaced_do_not_count_as_unneeded() -> None:
    """Of as many as may be on their way out at once."""
    recycle = Recycle(TaskQuota(20), strategy=Strategy.IN_PLACE)
    policy = replace(groups_of(), recycle=recycle, retirement=Retirement(max_concurrent=1))
    spent = busy("a", use=Use(runs=20))
    world = cluster(
        [spent, busy("b")], others=other(worker("x"), worker("y")), demand=Demand(),
        wants=(Want(2, 60.0, "me"),),
    )  # fmt: skip
    past = replace(PAST, groups={GROUP: PAST.of(GROUP), GPU: PAST.of(GROUP)})
    decided = plan(world, policy, past, now=NOW)

    gone = [(a.worker, a.reason) for a in decided.actions if isinstance(a, Retire)]
    assert [("a", Reason.TASK_QUOTA), ("x", Reason.UNDERUTILIZED)] == gone


@pytest.mark.parametrize(("more_s", "is_left"), [(0.0, False), (1.0, True)])
def test_workers_of_other_groups_are_left_where_their_recycle_failed(
    more_s: float, is_left: bool
) -> None:
    recycle = RecyclePast(aborted={"x": (NOW + more_s, "it did not come back")})
    world = cluster([busy("a")], others=other(busy("x", use=Use(runs=20))), target=1)
    decided = decide(world, replace(PAST, recycle=recycle), recycle=Recycle(TaskQuota(20)))

    assert is_left == (not any(isinstance(a, Retire) for a in decided.actions))


@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize(("ago_s", "is_due"), [(60.0, True), (59.0, False)])
def test_memory_that_is_full_for_so_long_is_a_reason(
    ago_s: float, is_due: bool, is_scaled: bool
) -> None:
    past = replace(PAST, recycle=RecyclePast(above_since={"uid-a": NOW - ago_s}))
    workers = [busy("a", use=Use(unmanaged=0.6)), busy("b")]
    world = cluster(workers, target=2) if is_scaled else cluster([], others=other(*workers))
    quota = Recycle(memory=MemoryQuota(soft=0.5, for_s=60.0), strategy=Strategy.IN_PLACE)
    decided = decide(world, past, recycle=quota)

    assert is_due == any(row.worker == "a" for row in decided.replacing)
