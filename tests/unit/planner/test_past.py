"""What recycling remembers of a pass for the next: as `remember` keeps it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from dask_adaptive.model.observed import ObservedCluster, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, GroupPlan, Outcome, Plan, Retire
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import MemoryQuota, Recycle, RecyclePast, Strategy, Use
from support.tables import table
from support.worlds import GROUP, NOW, PAST, POLICY, busy, cluster, remember, worker

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


@table(
    "other",
    another_pod=worker("a", use=Use(unmanaged=0.9, runs=9), pod_uid="2"),
    begun_anew=worker("a", use=Use(unmanaged=0.9, runs=1), pod_uid="1"),
)
def test_another_process_begins_with_clean_memory(other: ObservedWorker) -> None:
    first = seen(RecyclePast(), worker("a", use=Use(unmanaged=0.9, runs=5), pod_uid="1"))
    second = seen(first, other, at=NOW + 300)

    assert {other.platform.pod_uid: NOW + 300} == second.above_since


def paced(
    past: tuple[float, int, float] | None, runs: int, **changes: Any
) -> tuple[float, int, float]:
    """The pace of one worker after one more pass, averaged over 100 seconds."""
    known = RecyclePast(ready_s=100.0, pace={} if past is None else {"uid-a": past})
    return seen(known, worker("a", use=Use(runs=runs), **changes)).pace["uid-a"]


NEW_WEIGHT = 1 - math.exp(-1)


@table(
    "past, runs, changes, expected",
    averaged=((NOW - 100, 500, 0.0), 600, {}, NEW_WEIGHT),
    it_slows_down=((NOW - 50, 500, 3.0), 600, {}, 3.0 - (1 - math.exp(-0.5))),
    it_has_rested=((NOW - 100.5, 500, 3.0), 600, {}, 3.0),
    one_long_task=((NOW - 100, 600, 3.0), 600, {"processing": 1}, 3.0 * math.exp(-1)),
    another_process=((NOW - 10, 500, 3.0), 400, {}, 3.0),
    in_a_second=((NOW - 1, 500, 0.0), 600, {}, 100 * (1 - math.exp(-0.01))),
    young=((NOW - 100, 500, 0.0), 600, {"pod_age_s": 50.0}, 12.0),
    just_born=((NOW - 1, 500, 0.0), 600, {"pod_age_s": 1.0}, 600.0),
    younger_still=((NOW - 1, 500, 0.0), 600, {"pod_age_s": 0.5}, 1200.0),
    young_and_faster_of_late=((NOW - 100, 500, 9.0), 600, {"pod_age_s": 250.0},
        9.0 - 8.0 * NEW_WEIGHT),
    just_young_enough=((NOW - 100, 500, 0.0), 600, {"pod_age_s": 299.9}, 600 / 299.9),
    not_young_any_more=((NOW - 100, 500, 0.0), 600, {"pod_age_s": 300.0}, NEW_WEIGHT),
)  # fmt: skip
def test_the_pace_of_a_worker(
    past: tuple[float, int, float], runs: int, changes: dict[str, Any], expected: float
) -> None:
    at, before, pace = paced(past, runs, **changes)

    assert (NOW, runs) == (at, before)
    assert pytest.approx(expected) == pace


# --- of recycles ----------------------------------------------------------------------------------

TASKS = Retire("a", ("a",), Reason.TASK_QUOTA, "", busy_ok=True)
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


def test_the_past_of_recycles_outlives_a_session() -> None:
    past = after(AB, TASKS, aborting={"b": "why"}, waiting=frozenset("a"), floors={"a": 2})
    new = after(cluster([busy("a", pod_uid="p"), busy("b")], session="new"), TASKS, past=past)

    assert ((NOW,), {Reason.TASK_QUOTA: 1}) == (new.recycle.begun, new.recycle.totals)
    assert (["b"], {"b": 1}) == (list(new.recycle.aborted), new.aborts)
    assert ({}, {}) == (new.recycle.surging_since, new.floors)
