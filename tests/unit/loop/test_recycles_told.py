"""What people are told of quotas and recycles; what the agent and the next operator are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.loop.act import Attempts, act
from dask_adaptive.loop.conditions import conditions_of
from dask_adaptive.loop.events import events_of_aborts, events_of_outcomes
from dask_adaptive.loop.ports import EventType
from dask_adaptive.loop.status import ABLE_TO_SCALE, Status
from dask_adaptive.loop.summary import Calendar
from dask_adaptive.model.observed import PlatformView, Retiring
from dask_adaptive.model.plan import Cancel, Outcome, Plan, Restart
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    GroupRecycle,
    Quota,
    Recycle,
    RecyclePast,
    Replacing,
    TaskLimit,
    TaskQuota,
)
from dask_adaptive.model.scaling import WorkerGroup
from support.fake_cluster import EPOCH, W1, FakeCluster, completed
from support.worlds import POLICY, busy, cluster, facts, pending

SENTENCE = "21 of 20 runs"
DUE = Replacing("a", Reason.TASK_QUOTA, SENTENCE, "Due")
RESTART = Restart(W1, (W1,), Reason.TASK_QUOTA, SENTENCE, f"{W1}-0", f"{W1}-uid-0")


def planned(*replacing: Replacing, **more: Any) -> Plan:
    return Plan(Reason.RECYCLING, "", 1, 1, replacing=replacing, **more)


def able(decided: Plan, **more: str) -> tuple[bool | None, Reason]:
    found = conditions_of(cluster([busy("a")]), POLICY, decided, (), **more)
    return next((c.status, c.reason) for c in found if c.type == ABLE_TO_SCALE)


def test_a_storm_is_a_condition() -> None:
    storm, calm = planned(storm="3 of 3 recycles this hour"), planned()

    assert [(True, Reason.RECONCILED), (False, Reason.RECYCLE_STORM)] == [able(calm), able(storm)]


@pytest.mark.parametrize(
    ("exact", "storm", "expected"),
    [
        (True, "", "2 3"),
        (True, "too many", "2 3"),
        (False, "", ""),
    ],
)
def test_the_condition_says_what_an_exact_quota_costs(
    exact: bool, storm: str, expected: str
) -> None:
    stopped: dict[str, Any] = {"stopped": "was given 9 of 9 runs", "stopped_for": Quota.TASKS}
    draining = busy("b", retiring=Retiring(Reason.TASK_QUOTA))
    world = cluster([busy("a", **stopped), draining, busy("c"), pending("d")])
    policy = dataclasses.replace(POLICY, recycle=Recycle(tasks=TaskQuota(9, exact=exact)))
    found = conditions_of(world, policy, planned(storm=storm), ())
    said = next(c.message for c in found if c.type == ABLE_TO_SCALE)

    assert (expected, exact) == (facts(said), "exact" in said)
    assert said.startswith(storm)


def test_limits_that_the_agent_does_not_hear_are_never_silent() -> None:
    assert (False, Reason.ACTION_FAILED) == able(planned(), unheard="no such pattern")


def test_an_aborted_recycle_is_told_once_with_or_without_an_action() -> None:
    none, one = RecyclePast(), RecyclePast(aborted={"a": (500.0, "no replacement: no image")})
    cancelled = Cancel("a", ("a",), Reason.RECYCLE_ABORTED, "no replacement: no image")

    (event,) = events_of_aborts(one, none)
    assert (EventType.WARNING, Reason.RECYCLE_ABORTED, "a") == (
        event.type, event.reason, event.worker,
    )  # fmt: skip
    assert [] == list(events_of_aborts(one, one))
    assert [] == list(events_of_outcomes([Outcome(cancelled, True, cancelled.reason, "")]))


def test_an_annotation_that_cannot_be_read_is_told_once() -> None:
    fake = FakeCluster(1, target=1)
    fake.occupy(1)
    fake.on_platform[W1] = {"annotation_problem": "expires-at says x"}
    fake.steps(3)

    assert [(W1, "expires-at says x")] == [
        (e.worker, e.message) for e in fake.events if e.reason is Reason.INVALID_ANNOTATION
    ]


@pytest.mark.parametrize("drained", [True, False])
def test_a_pod_is_deleted_only_if_the_agent_says_once_more_that_it_has_drained(
    drained: bool,
) -> None:
    fake = FakeCluster(1, target=1)
    if drained:
        fake.cluster.retire(W1, Reason.TASK_QUOTA)
        fake.cluster.advance(fake.cluster.now + 1.0)
    (outcome,) = completed(
        act(planned(actions=(RESTART,)), POLICY, fake.ports(), Attempts(lambda: 0.0))
    )

    assert drained is outcome.done
    assert int(drained) == fake.cluster.workers[W1].pod


def test_limits_are_said_in_each_pass_and_a_deaf_agent_stops_nothing() -> None:
    fake = FakeCluster(1, target=3)
    fake.occupy(3)
    fake.steps(2)
    fake.refusal = "no such pattern"
    fake.steps(1)

    assert 2 == len(fake.limits)
    assert 3 <= fake.replicas
    said = next(c for c in fake.statuses[-1].conditions if c.type == ABLE_TO_SCALE)
    assert "no such pattern" in said.message


QUOTA = Recycle(tasks=TaskQuota(max=20))


def test_meters_are_asked_for_only_where_something_has_a_quota() -> None:
    """A policy, a group of it, or a worker that has an end."""
    fake = FakeCluster(1, target=1)
    group = (WorkerGroup("g", recycle=GroupRecycle(TaskLimit(9))),)
    for policy in ({}, {"recycle": QUOTA}, {"worker_groups": group}):
        fake.steps(1, dataclasses.replace(POLICY, **policy))
    fake.on_platform[W1] = {"ends_at": EPOCH + 3600.0}
    fake.steps(1)

    assert [False, True, True, True] == fake.asked_meters


def test_recycles_of_an_earlier_operator_are_put_on_this_ones_clock_and_back() -> None:
    calendar = Calendar([1_000.0, 1_300.0, 9_999.0])
    begun = calendar.begun(PlatformView(at=1_500.0), now=70.0)
    world = dataclasses.replace(cluster([]), at=1_510.4)
    told = calendar.dates((*begun, 75.0), world, 80.0)
    later = dataclasses.replace(world, at=1_520.9)  # half a second more than our own clock says

    assert (-430.0, -130.0) == begun  # one that is yet to come is nonsense
    assert () == calendar.begun(PlatformView(at=1_500.0), now=71.0)
    assert (1_000.0, 1_300.0, 1_505.0) == told
    assert told == calendar.dates((*begun, 75.0), later, 90.0)


def test_an_operator_that_starts_at_once_counts_what_has_just_begun() -> None:
    world = dataclasses.replace(cluster([]), at=1_500.9)
    told = Calendar().dates((80.0,), world, 80.0)

    assert (80.0 - 0.9,) == pytest.approx(Calendar(told).begun(PlatformView(at=1_500.9), now=80.0))


@pytest.mark.parametrize("begun", [[EPOCH + 400], [EPOCH + 400] * 2], ids=["one", "same-second"])
def test_an_operator_goes_on_counting_where_the_one_before_stopped(begun: list[int]) -> None:
    fake = FakeCluster(1, target=1)
    fake.occupy(1)
    fake.cluster.advance(1_000.0)
    policy: Policy = dataclasses.replace(POLICY, recycle=QUOTA)
    fake.start_operator(Status(recycled={Reason.TASK_QUOTA: 7}, recent=tuple(begun)))
    fake.steps(3, policy)

    assert 1 == len(fake.statuses)
    assert {Reason.TASK_QUOTA: 7} == fake.statuses[0].recycled
    assert tuple(begun) == fake.statuses[0].recent
