"""A group under an allowance: it grows no further, and gives back what it has beyond."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.plan import Claimed, Plan, Retire, SetReplicas
from dask_adaptive.model.policy import Policy, Retirement
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Allowance
from support.any_world import AnyWorld
from support.worlds import NOW, PAST, POLICY, SHUFFLE, busy, cluster, past_of, plan, worker

MESSAGE = "2 of 9 wanted: AdaptiveBudget all has 6 workers"
WATCHED = past_of(PAST)


def allowing(observed: ObservedCluster, workers: int) -> ObservedCluster:
    groups = (
        dataclasses.replace(g, allowance=Allowance(workers, MESSAGE)) for g in observed.groups
    )
    return dataclasses.replace(observed, groups=tuple(groups))


def planned(*workers: Any, allowed: int, wanted: int, policy: Policy = POLICY) -> Plan:
    world = allowing(cluster(workers, target=wanted), allowed)
    return plan(world, policy, WATCHED, now=NOW)


def retired(decided: Plan) -> list[tuple[str, bool]]:
    return [(a.worker, a.busy_ok) for a in decided.actions if isinstance(a, Retire)]


def test_idle_workers_go_at_once_and_then_those_with_fewest_tasks() -> None:
    tasks = {"b": 3, "c": 2, "d": 9}
    fresh = worker("a", idle_since=NOW - 1)  # its idleTimeout is not over
    decided = planned(
        fresh, *(worker(name, processing=n, closable=False) for name, n in tasks.items()),
        allowed=2, wanted=9,
    )  # fmt: skip

    assert [("a", False), ("c", True)] == retired(decided)
    assert (Reason.BUDGET_SHARED, MESSAGE) == (decided.reason, decided.message)


def test_pins_actors_and_last_copies_hold() -> None:
    decided = planned(
        worker("a", pins=(SHUFFLE,)), busy("b", actors=True), busy("c", manual_pin=None),
        allowed=0, wanted=9,
    )  # fmt: skip

    assert [("c", True)] == retired(decided)
    assert {"a", "b"} == {b.worker for b in decided.blockers}


def test_no_more_at_once_than_may_leave_at_once() -> None:
    slow = dataclasses.replace(POLICY, retirement=Retirement(max_concurrent=1))

    assert 1 == len(retired(planned(*map(busy, "abcd"), allowed=1, wanted=9, policy=slow)))


@given(st.integers(0, 10**6), st.integers(0, 9))
def test_whatever_is_allowed_nobody_who_must_stay_leaves(seed: int, allowed: int) -> None:
    world = AnyWorld(seed)
    decided = plan(allowing(world.observed, allowed), world.policy, world.past, now=NOW)
    workers = {w.name: w for g in world.observed.groups for w in g.workers}
    free = plan(world.observed, world.policy, world.past, now=NOW)
    holds = world.observed.pause.scale_in

    for action in decided.actions:
        if isinstance(action, Retire) and action.reason is Reason.BUDGET_SHARED:
            leaving = workers[action.worker]
            assert not leaving.is_pinned
            assert not leaving.process.actors
    for group in decided.groups:
        other = next(g for g in free.groups if g.group == group.group)
        there = world.observed.group(group.group)
        held = max(len(there.workers), there.replicas) if holds else 0
        assert group.is_frozen or group.desired <= max(allowed, held) or (
            other.desired == group.desired
        )  # fmt: skip


def test_without_the_scheduler_floors_do_not_go_beyond_it() -> None:
    least = dataclasses.replace(POLICY, min_replicas=5)
    silent = cluster([worker("a")], problem=Reason.SCHEDULER_UNREACHABLE)
    for allowed, expected in ((0, []), (1, []), (3, [3]), (9, [5])):
        decided = plan(allowing(silent, allowed), least, WATCHED, now=NOW)

        assert expected == [a.replicas for a in decided.actions if isinstance(a, SetReplicas)]
        assert [Claimed(5, 5)] == [group.claim for group in decided.groups]
