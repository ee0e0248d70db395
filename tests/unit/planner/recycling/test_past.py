"""What recycling remembers of a pass for the next: as `remember` keeps it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedScheduler, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, GroupPlan, Outcome, Plan, Restart, Retire, SetReplicas
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    MemoryQuota,
    Recycle,
    RecyclePast,
    Strategy,
    Use,
)
from dask_adaptive.planner.memory import remember
from support.worlds import GROUP, NOW, PAST, POLICY, busy, cluster, pending, worker

HOUR_S = 3600.0
PLAN = Plan(Reason.RECYCLING, "", wanted=2, desired=3)


# --- of workers -----------------------------------------------------------------------------------

SOFT = Recycle(memory=MemoryQuota(soft=0.8))


def seen(
    past: RecyclePast, *workers: ObservedWorker, at: float = NOW, recycle: Recycle = SOFT
) -> RecyclePast:
    """What quotas know after one more pass."""
    policy = dataclasses.replace(POLICY, recycle=recycle)
    there = frozenset(w.name for w in workers)
    known = Past(session="s", since=at, seen=there, recycle=past)
    return remember(known, cluster(workers), policy, PLAN, [], now=at).recycle


def test_it_is_known_since_when_a_worker_is_above_a_soft_line() -> None:
    high, low = Use(unmanaged=0.8), Use(unmanaged=0.79)
    first = seen(RecyclePast(), worker("a", use=high), worker("b", use=low))
    second = seen(first, worker("a", use=high), worker("b", use=high), at=NOW + 5)
    third = seen(second, worker("a", use=low), worker("b", use=high), at=NOW + 10)

    assert {"uid-a": NOW} == first.above_since
    assert {"uid-a": NOW, "uid-b": NOW + 5} == second.above_since
    assert {"uid-b": NOW + 5} == third.above_since


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(worker("a", use=Use(unmanaged=0.9, runs=9), pod_uid="2"), id="another-pod"),
        pytest.param(worker("a", use=Use(unmanaged=0.9, runs=1), pod_uid="1"), id="begun-anew"),
    ],
)
def test_another_process_begins_with_clean_memory(other: ObservedWorker) -> None:
    first = seen(RecyclePast(), worker("a", use=Use(unmanaged=0.9, runs=5), pod_uid="1"))
    second = seen(first, other, at=NOW + 300)

    assert {other.pod_uid: NOW + 300} == second.above_since


def test_without_a_soft_line_no_worker_is_above_it() -> None:
    high = worker("a", use=Use(unmanaged=2.0))

    assert {} == seen(RecyclePast(), high, recycle=Recycle()).above_since


@pytest.mark.parametrize("gone", [(), (pending("a"),), (worker("a", deleting=True),)])
def test_who_is_gone_is_forgotten(gone: tuple[ObservedWorker, ...]) -> None:
    first = seen(RecyclePast(), worker("a", use=Use(unmanaged=0.9)))

    assert RecyclePast() == seen(first, *gone)


def test_a_scheduler_that_does_not_answer_changes_nothing() -> None:
    silent = dataclasses.replace(
        cluster([pending("a")]), scheduler=ObservedScheduler(Reason.SCHEDULER_UNREACHABLE)
    )
    past = dataclasses.replace(PAST, recycle=RecyclePast(above_since={"uid-a": 1.0}))

    assert past is remember(past, silent, POLICY, PLAN, [], now=NOW + 5)


def paced(
    past: tuple[float, int, float] | None, runs: int, **changes: Any
) -> tuple[float, int, float]:
    """The pace of one worker after one more pass, averaged over 100 seconds."""
    known = RecyclePast(ready_s=100.0, pace={} if past is None else {"uid-a": past})
    return seen(known, worker("a", use=Use(runs=runs), **changes)).pace["uid-a"]


@pytest.mark.parametrize(
    ("runs", "pod_age_s", "expected"),
    [(10, 20.0, 0.5), (10, 1.0, 10.0), (10, 0.5, 20.0), (10, 0.0, 0.0), (0, 20.0, 0.0)],
)
def test_the_pace_begins_with_what_the_pod_has_done(
    runs: int, pod_age_s: float, expected: float
) -> None:
    assert (NOW, runs, expected) == paced(None, runs, pod_age_s=pod_age_s)


NEW_WEIGHT = 1 - math.exp(-1)


@pytest.mark.parametrize(
    ("past", "runs", "changes", "expected"),
    [
        pytest.param((NOW - 100, 500, 0.0), 600, {}, NEW_WEIGHT, id="averaged"),
        pytest.param((NOW - 50, 500, 3.0), 600, {}, 3.0 - (1 - math.exp(-0.5)), id="it-slows-down"),
        pytest.param((NOW - 100.5, 500, 3.0), 600, {}, 3.0, id="it-has-rested"),
        pytest.param((NOW - 100, 600, 3.0), 600, {"processing": 1}, 3.0 * math.exp(-1),
                     id="one-long-task"),
        pytest.param((NOW - 10, 500, 3.0), 400, {}, 3.0, id="another-process"),
        pytest.param((NOW - 1, 500, 0.0), 600, {}, 100 * (1 - math.exp(-0.01)), id="in-a-second"),
        pytest.param((NOW - 100, 500, 0.0), 600, {"pod_age_s": 50.0}, 12.0, id="young"),
        pytest.param((NOW - 1, 500, 0.0), 600, {"pod_age_s": 1.0}, 600.0, id="just-born"),
        pytest.param((NOW - 1, 500, 0.0), 600, {"pod_age_s": 0.5}, 1200.0, id="younger-still"),
        pytest.param((NOW - 100, 500, 9.0), 600, {"pod_age_s": 250.0}, 9.0 - 8.0 * NEW_WEIGHT,
                     id="young-and-faster-of-late"),
        pytest.param((NOW - 100, 500, 0.0), 600, {"pod_age_s": 299.9}, 600 / 299.9,
                     id="just-young-enough"),
        pytest.param((NOW - 100, 500, 0.0), 600, {"pod_age_s": 300.0}, NEW_WEIGHT,
                     id="not-young-any-more"),
    ],
)  # fmt: skip
def test_the_pace_of_a_worker(
    past: tuple[float, int, float], runs: int, changes: dict[str, Any], expected: float
) -> None:
    at, before, pace = paced(past, runs, **changes)

    assert (NOW, runs) == (at, before)
    assert pytest.approx(expected) == pace


@pytest.mark.parametrize(
    ("past", "changes"),
    [
        pytest.param((NOW - 0.9, 500, 3.0), {"use": Use(runs=600)}, id="too-soon-to-tell"),
        pytest.param((NOW - 50, 600, 3.0), {"use": Use(runs=600)}, id="it-rests"),
    ],
)
def test_what_says_nothing_of_the_pace_leaves_it(
    past: tuple[float, int, float], changes: dict[str, Any]
) -> None:
    known = RecyclePast(ready_s=100.0, pace={"uid-a": past})

    assert {"uid-a": past} == seen(known, worker("a", **changes)).pace


# --- of recycles ----------------------------------------------------------------------------------

TASKS = Retire("a", ("a",), Reason.TASK_QUOTA, "", busy_ok=True)
BY_HAND = dataclasses.replace(TASKS, reason=Reason.RECYCLE_REQUESTED)
AB = cluster([busy("a", pod_uid="p"), busy("b")])


def after(
    world: ObservedCluster, *actions: Action, past: Past = PAST, done: bool = True,
    now: float = NOW, timeout_s: float = 600.0, **plan: Any,
) -> Past:  # fmt: skip
    policy = dataclasses.replace(
        POLICY, recycle=Recycle(strategy=Strategy(ready_timeout_s=timeout_s))
    )
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
    past = after(AB, more, TASKS, dataclasses.replace(TASKS, worker="b", reason=Reason.FAILURES))

    assert {Reason.TASK_QUOTA: 1, Reason.FAILURES: 1} == past.recycle.totals
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
    restart = Restart("a", ("a",), Reason.TASK_QUOTA, "", "a-x", "p")
    past = after(cluster([drained]), restart)

    assert {"a": "p"} == past.restarted == after(cluster([drained]), past=past).restarted
    assert {} == after(cluster([pending("a")]), past=past).restarted
    assert {} == after(cluster([drained]), restart, done=False).restarted
