"""What the agent keeps of the operator's plans, and for how long."""

from __future__ import annotations

import math
from typing import Any

from dask_adaptive_agent import wire
from dask_adaptive_agent.component import OperatorLease, OperatorPlans
from dask_adaptive_agent.protocol.requests import AgentSettings, Request
from support.agent_cluster import StillClock
from support.tables import table

MESSAGE: dict[str, Any] = {
    "arriving": [(2, 10_000), [3, 60_000]],
    "groups": ["cpu", "gpu"],
    "can_grow": 7,
    "grow_ms": 20_000,
    "policy": "etl",
    "message": "5 wanted",
    "workers": [("w1", "stays: idle grace has 5 s left")],
    "decisions": [(1_700_000_000_500, "etl-default", "LoadIncreased", "8 tasks wait")],
}


def test_the_message_is_the_one_of_the_wire() -> None:
    assert set(MESSAGE) | {"protocol"} == set(wire.AnnounceRequest.__annotations__)


def known(plans: OperatorPlans) -> tuple[Any, ...]:
    return (
        plans.policy, plans.message, plans.workers, plans.decisions, plans.can_grow, plans.grow_s,
        plans.arriving,
    )  # fmt: skip


def test_each_message_is_the_whole_and_is_kept_until_it_is_cleared() -> None:
    plans = OperatorPlans(clock := StillClock())
    nothing = ("", "", {}, [], 0, None, [])
    assert nothing == known(plans)

    plans.update(Request(MESSAGE))
    clock.now += 1e6
    decision = (1_700_000_000.5, "etl-default", "LoadIncreased", "8 tasks wait")
    workers = {"w1": "stays: idle grace has 5 s left"}
    assert ("etl", "5 wanted", workers, [decision], 7, 20.0, []) == known(plans)

    plans.update(Request(policy="other"))
    assert ("other", *nothing[1:]) == known(plans)
    plans.update(Request(MESSAGE))
    plans.clear()
    assert nothing == known(plans)


def test_arrivals_count_down() -> None:
    plans = OperatorPlans(clock := StillClock())
    plans.update(Request(MESSAGE))
    assert [(2, 10.0), (3, 60.0)] == plans.arriving

    clock.now += 20

    assert [(2, 0.0), (3, 40.0)] == plans.arriving


@table(
    "expected_s, later_s, left",
    overdue_within_grace=(0, 30, 1),
    overdue_beyond_grace=(0, 30.1, 0),
    short_expectation_within_grace=(10, 40, 1),
    short_expectation_beyond_grace=(10, 40.1, 0),
    long_expectation_within_twice_that=(60, 180, 1),
    long_expectation_beyond_twice_that=(60, 180.1, 0),
)
def test_who_is_long_overdue_is_given_up(expected_s: int, later_s: float, left: int) -> None:
    plans = OperatorPlans(clock := StillClock())
    plans.update(Request(arriving=[(1, expected_s * 1000)]))

    clock.now += later_s

    assert left == len(plans.arriving)


def test_who_has_joined_is_not_waited_for() -> None:
    plans = OperatorPlans(StillClock())
    plans.update(Request(MESSAGE))
    assert plans.are_arriving({"gpu"})

    left = []
    for group in ("gpu", "gpu", "gpu", "cpu", "neither", "neither"):
        plans.worker_joined(group)
        left.append([workers for workers, _ in plans.arriving])

    assert [[2, 2], [2, 1], [2], [1], [], []] == left
    assert not plans.are_arriving(())


def test_a_lease_is_begun_by_anything_and_renewed_by_the_leader_alone() -> None:
    clock, ended = StillClock(), []
    lease = OperatorLease(clock, AgentSettings(lease_ms=300_000), lambda: ended.append(clock.now))
    assert (math.inf, math.inf) == (lease.left_s, lease.silent_s)

    lease.begin()
    clock.now += 200
    lease.begin()
    assert (100, 200) == (lease.left_s, lease.silent_s)
    lease.renew()
    clock.now += 300
    lease.check()
    assert [] == ended
    clock.now += 1
    lease.check()
    lease.check()

    assert ([clock.now], 1, math.inf) == (ended, lease.lapses, lease.left_s)
