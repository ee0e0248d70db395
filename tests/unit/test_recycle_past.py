"""What is remembered of recycles: how long something lasts, and how often it has been done."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.model.observed import Leaving, ObservedCluster
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, GroupPlan, Outcome, Plan, Restart, Retire, SetReplicas
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, RecyclePast
from dask_adaptive.planner.remember import remember
from support.worlds import GROUP, NOW, PAST, POLICY, busy, cluster, pending, worker

PLAN = Plan(Reason.RECYCLING, "", wanted=2, desired=3)
TASKS = Retire("a", ("a",), Reason.TASK_QUOTA, "", busy_ok=True)
BY_HAND = dataclasses.replace(TASKS, reason=Reason.RECYCLE_REQUESTED)
AB = cluster([busy("a", pod_uid="p"), busy("b")])


def after(
    world: ObservedCluster, *actions: Action, past: Past = PAST, done: bool = True,
    now: float = NOW, timeout_s: float = 600.0, **plan: Any,
) -> Past:  # fmt: skip
    policy = dataclasses.replace(POLICY, recycle=Recycle(ready_timeout_s=timeout_s))
    outcomes = [Outcome(a, done, a.reason, "") for a in actions]
    decided = dataclasses.replace(PLAN, **plan)
    is_frozen = decided.reason is Reason.PAUSED
    group = GroupPlan(GROUP, 2, 2, 3, decided.reason, "", is_frozen=is_frozen)
    decided = dataclasses.replace(decided, groups=(group,))
    return remember(past, world, policy, decided, outcomes, now=now)


@pytest.mark.parametrize(
    ("action", "done", "begun", "totals"),
    [
        pytest.param(TASKS, True, (NOW,), {Reason.TASK_QUOTA: 1}, id="for-a-quota"),
        pytest.param(TASKS, False, (), {}, id="refused"),
        pytest.param(BY_HAND, True, (), {Reason.RECYCLE_REQUESTED: 1}, id="by-hand"),
        pytest.param(
            dataclasses.replace(TASKS, reason=Reason.UNDERUTILIZED), True, (), {}, id="not-needed"
        ),
    ],
)  # fmt: skip
def test_recycles_are_counted(
    action: Retire, done: bool, begun: tuple[float, ...], totals: dict[Reason, int]
) -> None:
    past = after(AB, action, done=done)

    assert (begun, totals) == (past.recycle.begun, past.recycle.totals)


def test_each_pod_is_counted_once() -> None:
    once = after(AB, TASKS)
    again = after(AB, TASKS, past=once, now=NOW + 60)
    next_pod = cluster([busy("a", pod_uid="q"), busy("b")])

    assert {Reason.TASK_QUOTA: 1} == again.recycle.totals
    assert {Reason.TASK_QUOTA: 2} == after(next_pod, TASKS, past=again).recycle.totals


def test_what_else_was_done_does_not_hide_a_recycle() -> None:
    more = SetReplicas(GROUP, 3, Reason.RECYCLING, "")
    past = after(AB, more, TASKS, dataclasses.replace(TASKS, worker="b", reason=Reason.OUTLIER))

    assert {Reason.TASK_QUOTA: 1, Reason.OUTLIER: 1} == past.recycle.totals
    assert {"a": "p", "b": "uid-b"} == past.counted
    assert {"a": ""} == after(cluster([busy("b")]), TASKS).counted  # gone by now


def test_an_hour_slides() -> None:
    past = dataclasses.replace(PAST, recycle=RecyclePast(begun=(NOW - 3600, NOW - 3599)))

    assert (NOW - 3599,) == after(AB, past=past).recycle.begun


def test_it_is_known_since_when_a_replacement_is_waited_for() -> None:
    first = after(AB, waiting=frozenset("a"), floors={"a": 2})
    later = after(AB, past=first, now=NOW + 9, waiting=frozenset("ab"), floors={"a": 2, "b": 2})

    assert {"a": NOW} == first.recycle.surging_since
    assert {"a": NOW, "b": NOW + 9} == later.recycle.surging_since
    assert {"a": 2, "b": 2} == later.floors
    assert {} == after(AB, past=later).recycle.surging_since


def test_each_failure_is_waited_out_for_twice_as_long_up_to_an_hour() -> None:
    past, now, waits = PAST, NOW, []
    for _ in range(6):
        past = after(
            AB, past=past, now=now, aborting={"a": "why"}, waiting=frozenset("a"), timeout_s=300.0
        )
        until, why = past.recycle.aborted["a"]
        waits.append(until - now)
        now = until

    assert [300, 600, 1200, 2400, 3600, 3600] == waits
    assert "why" == why
    assert {} == past.recycle.surging_since


def test_a_failure_is_waited_out_until_its_time() -> None:
    failed = after(AB, aborting={"a": "why"}, timeout_s=300.0)

    assert ["a"] == list(after(AB, past=failed, now=NOW + 299).recycle.aborted)
    assert [] == list(after(AB, past=failed, now=NOW + 300).recycle.aborted)


def test_a_replacement_that_has_come_ends_the_waiting() -> None:
    failed = after(AB, aborting={"b": "why"})

    more = SetReplicas(GROUP, 3, Reason.RECYCLING, "")
    assert ["b"] == list(after(AB, more, past=failed, floors={"a": 2}).recycle.aborted)

    assert {} == after(AB, TASKS, past=failed, floors={"a": 2}).recycle.aborted
    hasty = after(AB, TASKS, past=failed, floors={"a": 2}, waiting=frozenset("a"))
    assert ["b"] == list(hasty.recycle.aborted)


def test_workers_that_are_gone_are_forgotten() -> None:
    past = after(AB, TASKS, aborting={"b": "why", "x": "gone by now"})
    later = after(cluster([busy("c")]), past=past)

    assert ["b"] == list(past.recycle.aborted)
    assert ({}, {}, {}) == (later.recycle.aborted, later.aborts, later.counted)
    assert {"c"} == later.seen


def test_the_past_of_recycles_outlives_a_session() -> None:
    past = after(AB, TASKS, aborting={"b": "why"}, waiting=frozenset("a"), floors={"a": 2})
    new = after(cluster([busy("a", pod_uid="p"), busy("b")], session="new"), TASKS, past=past)

    assert ((NOW,), {Reason.TASK_QUOTA: 1}) == (new.recycle.begun, new.recycle.totals)
    assert (["b"], {"b": 1}) == (list(new.recycle.aborted), new.aborts)
    assert ({}, {}) == (new.recycle.surging_since, new.floors)


def test_a_pod_is_deleted_once_while_its_process_is_still_known() -> None:
    drained = worker("a", leaving=Leaving.DRAINED, in_service=False)
    restart = Restart("a", "a-x", "p", ("a",), Reason.TASK_QUOTA, "")
    past = after(cluster([drained]), restart)

    assert {"a": "p"} == past.restarted == after(cluster([drained]), past=past).restarted
    assert {} == after(cluster([pending("a")]), past=past).restarted
    assert {} == after(cluster([drained]), restart, done=False).restarted


@pytest.mark.parametrize(
    ("seen", "new", "expected"),
    [
        pytest.param({"a"}, busy("b", age_s=20.0), 17.8, id="a-new-worker"),
        pytest.param({"a", "b"}, busy("b", age_s=20.0), 10.0, id="an-old-one"),
        pytest.param({"a"}, pending("b", age_s=20.0), 10.0, id="not-up-yet"),
        pytest.param({"a"}, busy("b", age_s=9_999.0), 10.0, id="back-after-long"),
        pytest.param(set(), busy("b", age_s=20.0), 10.0, id="an-operator-that-has-just-started"),
    ],
)
def test_how_long_new_workers_take_is_measured(seen: set[str], new: Any, expected: float) -> None:
    past = dataclasses.replace(PAST, seen=frozenset(seen))

    assert expected == after(cluster([busy("a"), new]), past=past).recycle.ready_s


def test_what_was_desired_is_forgotten_in_a_pause() -> None:
    assert 3 == after(AB).of(GROUP).desired
    assert after(AB, reason=Reason.PAUSED).of(GROUP).desired is None
