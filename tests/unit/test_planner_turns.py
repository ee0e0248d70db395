"""Who moves in one pass, told to the last field: recycles taking turns, falls, advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.observed import Leaving, ManualPin, ObservedCluster, ObservedWorker
from dask_adaptive.model.past import Refusal
from dask_adaptive.model.plan import Arriving, Blocker, Cancel, Delete, Plan, Retire
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Amount,
    Budget,
    Limits,
    Recycle,
    RecyclePast,
    Replacing,
    TaskQuota,
)
from dask_adaptive.planner.due import Due
from dask_adaptive.planner.fall import Fall, fall
from dask_adaptive.planner.fleet import sort_fleet
from dask_adaptive.planner.joined import as_advice
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.recycle import Turn
from support.turning import turn
from support.worlds import NOW, PAST, POLICY, busy, cluster, pending, worker


def spent(*names: str) -> list[Due]:
    return [Due(name, Reason.TASK_QUOTA, "spent") for name in names]


def full(*names: str) -> list[Due]:
    return [Due(name, Reason.MEMORY_HARD, "full", is_urgent=True) for name in names]


def fleet_of(names: str, **changes: Any) -> list[ObservedWorker]:
    return [busy(name, **changes) for name in names]


def states(taken: Turn) -> dict[str, str]:
    return {row.worker: row.state for row in taken.rows}


# --- places for replacements ----------------------------------------------------------------------


def test_the_hasty_have_as_many_places_as_the_others() -> None:
    taken = turn(fleet_of("abcd"), full("a", "b", "c"), recycle=Recycle(max_surge=Amount(2)))

    assert {"a": "Draining", "b": "Draining", "c": "Due"} == states(taken)
    wait = Blocker("c", Reason.BUDGET_EXHAUSTED, "full; waits its turn (maxSurge)")
    assert (wait,) == taken.blockers


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(Due("a", Reason.GPU_MEMORY, "soft"), id="over-the-soft-line-of-its-gpu"),
        pytest.param(Due("a", Reason.LIFETIME, "short", is_urgent=True), id="ends-but-not-yet"),
    ],
)
def test_who_is_not_about_to_be_killed_has_an_ordinary_place(first: Due) -> None:
    taken = turn(fleet_of("abc"), [first, *spent("b")], recycle=Recycle())

    assert {"a": "Surging", "b": "Due"} == states(taken)
    assert ((), {"a"}) == (taken.retire, taken.waiting)


@pytest.mark.parametrize(
    ("desired", "free_gpus", "expected"),
    [
        pytest.param(5, 0, set(), id="none-without-a-gpu"),
        pytest.param(5, 2, {"a", "b"}, id="one-for-each-free-gpu"),
        pytest.param(4, 1, {"a", "b"}, id="the-one-that-is-there-takes-no-gpu"),
        pytest.param(3, 0, {"a", "b"}, id="one-for-each-that-is-there"),
        pytest.param(5, None, set(), id="none-where-gpus-are-unknown"),
    ],
)
def test_replacements_share_the_free_gpus(
    desired: int, free_gpus: int | None, expected: set[str]
) -> None:
    workers = fleet_of("abcde", gpus=1)
    taken = turn(workers, spent("a", "b", "c"), desired=desired, free_gpus=free_gpus)

    assert expected == set(taken.floors)


@pytest.mark.parametrize(
    ("floor", "expected"),
    [
        pytest.param(3, ("Draining", {}), id="as-many-as-should-serve-without-it"),
        pytest.param(4, ("Due", {"a": "no replacement within 10m: no worker was made"}),
                     id="one-fewer"),
    ],
)  # fmt: skip
def test_a_replacement_that_is_late_has_failed_if_it_is_missed(floor: int, expected: Any) -> None:
    waited = RecyclePast(surging_since={"a": NOW - 600})
    taken = turn(fleet_of("abcd"), spent("a"), floors={"a": floor}, recycle_past=waited)

    assert expected == (states(taken)["a"], taken.aborting)


def test_a_failure_is_told_in_the_words_of_the_platform() -> None:
    waited = RecyclePast(surging_since={"a": NOW - 600})
    workers, floors = fleet_of("abc"), {"a": 3}
    why = [
        turn([*workers, late], spent("a"), floors=floors, recycle_past=waited).aborting["a"]
        for late in (pending("p"), pending("p", waiting="0/3 nodes are available"))
    ]

    late = "no replacement within 10m"
    assert [f"{late}: still starting", f"{late}: 0/3 nodes are available"] == why


def test_a_paused_worker_is_no_replacement() -> None:
    workers = [*fleet_of("ab", gpus=1), busy("c", paused=True)]

    assert {} == turn(workers, spent("a"), desired=2, free_gpus=0).floors
    assert {"a"} == set(turn(fleet_of("abc"), spent("a"), desired=2, free_gpus=0).floors)


@pytest.mark.parametrize(
    ("second", "state"),
    [
        pytest.param(Due("a", Reason.TASK_QUOTA, "spent"), "Due", id="over"),
        pytest.param(Due("a", Reason.TASK_QUOTA, "soon", is_over=False), None, id="soon"),
    ],
)
def test_those_that_take_no_tasks_have_the_first_place(second: Due, state: str | None) -> None:
    workers = [*fleet_of("ac"), busy("b", stopped="it is")]
    taken = turn(workers, [second, *spent("b")], recycle=Recycle())

    assert ("Surging", state) == (states(taken)["b"], states(taken).get("a"))


def test_who_is_only_due_soon_is_not_told_what_stands_against_it() -> None:
    soon = Due("a", Reason.TASK_QUOTA, "soon", is_over=False)
    taken = turn([busy("a", actors=True), busy("b")], [soon])

    assert ((), ()) == (taken.blockers, taken.rows)


# --- who of them leaves now -----------------------------------------------------------------------


def test_each_that_leaves_is_missed_by_the_next() -> None:
    floors = dict.fromkeys("abc", 4)
    taken = turn(fleet_of("abcdef"), spent("a", "b", "c"), floors=floors)

    assert {"a": "Draining", "b": "Draining", "c": "Surging"} == states(taken)
    assert ({"c"}, floors) == (taken.waiting, taken.floors)
    leaves = Retire("a", ("a",), Reason.TASK_QUOTA, "spent", busy_ok=True)
    assert (leaves, replace(leaves, worker="b", dask_names=("b",))) == taken.retire


@pytest.mark.parametrize(("more_s", "state"), [(0.0, "Draining"), (1.0, "Surging")])
def test_a_refusal_holds_until_its_time(more_s: float, state: str) -> None:
    refusals = {"a": Refusal(NOW + more_s, Reason.BUSY, "has 1 task")}
    taken = turn(fleet_of("abcd"), spent("a"), floors={"a": 3}, refusals=refusals)

    assert {"a": state} == states(taken)
    held = (Blocker("a", Reason.BUSY, "has 1 task"),) if more_s else ()
    assert held == taken.blockers


def test_a_budget_says_how_many_are_missing_of_how_many() -> None:
    floors, budgets = dict.fromkeys("abc", 2), (Budget(Amount(2)),)
    taken = turn(fleet_of("abcde"), spent("a", "b", "c"), floors=floors, budgets=budgets)

    assert {"a": "Draining", "b": "Draining", "c": "Surging"} == states(taken)
    words = "spent; 2 of 5 are missing, 2 may be (disruption.budgets)"
    assert (Blocker("c", Reason.BUDGET_EXHAUSTED, words),) == taken.blockers


def test_who_is_replaced_in_place_and_may_not_leave_is_due() -> None:
    taken = turn(fleet_of("ab", gpus=1), spent("a", "b"), free_gpus=0, budgets=(Budget(Amount(1)),))

    assert {"a": "Draining", "b": "Due"} == states(taken)


@pytest.mark.parametrize(("free_gpus", "expected"), [(1, []), (0, ["a"]), (None, ["a"])])
def test_a_drained_worker_comes_back_if_there_is_no_gpu_for_another(
    free_gpus: int | None, expected: list[str]
) -> None:
    drained = busy(
        "a", gpus=1, leaving=Leaving.DRAINED, leaving_reason=Reason.TASK_QUOTA, in_service=False
    )
    taken = turn([drained, busy("b")], [], recycle=Recycle(TaskQuota(9)), free_gpus=free_gpus)

    assert expected == [w.name for w in taken.fleet.restarting]


# --- fewer workers --------------------------------------------------------------------------------

HELD_BUSY = Blocker("b", Reason.BUSY, "has tasks")
NO_NODE = pending("p", waiting="0/3 nodes are available")


def gone(why: str) -> Delete:
    message = f"not needed and never connected ({why})"
    return Delete("p", "uid-p", (), Reason.NEVER_CONNECTED, message)


def left(idle: str) -> Retire:
    return Retire("a", ("a",), Reason.UNDERUTILIZED, f"idle for {idle}, 1 workers desired")


def fallen(world: ObservedCluster, desired: int, *, leaving: int = 0) -> Fall:
    fleet = sort_fleet(world.groups[0])
    return fall(world, fleet, desired, POLICY, PAST, idle_s=30.0, leaving=leaving, now=NOW)


@pytest.mark.parametrize(
    ("workers", "desired", "leaving", "expected"),
    [
        pytest.param(
            [worker("a"), worker("b"), pending("p")], 2, 0,
            Fall(Reason.NEVER_CONNECTED, "2 desired: 1 workers that never connected leave first",
                 (gone("still starting"),)), id="those-that-never-connected-are-enough"),
        pytest.param(
            [worker("a"), NO_NODE], 1, 0,
            Fall(Reason.NEVER_CONNECTED, "1 desired: 1 workers that never connected leave first",
                 (gone("0/3 nodes are available"),)), id="in-the-words-of-the-platform"),
        pytest.param(
            [worker("a"), replace(NO_NODE, manual_pin=ManualPin(60.0, ""))], 1, 0,
            Fall(Reason.NO_CANDIDATES, "workers that never connected are pinned"), id="pinned"),
        pytest.param(
            [worker("a"), busy("b")], 1, 0,
            Fall(Reason.UNDERUTILIZED, "2 workers, 1 desired: 1 idle ones leave",
                 (left("1m40s"),), (HELD_BUSY,)), id="the-idle-one"),
        pytest.param(
            [worker("a"), busy("b"), NO_NODE], 1, 0,
            Fall(Reason.UNDERUTILIZED, "3 workers, 1 desired: 1 idle ones leave",
                 (gone("0/3 nodes are available"), left("1m40s")), (HELD_BUSY,)), id="both"),
        pytest.param(
            [worker("a"), busy("b")], 1, 5,
            Fall(Reason.BUDGET_EXHAUSTED,
                 "5 workers are on their way out (retirement.maxConcurrent)", (), (HELD_BUSY,)),
            id="as-many-as-may-be-leave"),
        pytest.param(
            [busy("b")], 0, 0,
            Fall(Reason.NO_CANDIDATES, "1 of 1 workers are not needed, none may leave now", (),
                 (HELD_BUSY,)), id="busy"),
    ],
)  # fmt: skip
def test_a_fall(workers: list[ObservedWorker], desired: int, leaving: int, expected: Fall) -> None:
    assert expected == fallen(cluster(workers), desired, leaving=leaving)


@pytest.mark.parametrize(
    ("other", "can_take"),
    [
        ({}, True),
        ({"status": "paused"}, False),
        ({"leaving": Leaving.DRAINING}, False),
        ({"departing": "its pod is being deleted"}, False),
    ],
)
def test_results_need_another_worker_that_takes_them(other: dict[str, Any], can_take: bool) -> None:
    world = cluster([worker("a", sole_bytes=1), busy("b")])
    first, second = world.scheduler.workers
    scheduler = replace(world.scheduler, workers=(first, replace(second, **other)))
    down = fallen(replace(world, scheduler=scheduler), 1)

    assert can_take == bool(down.actions)
    assert can_take == (Reason.NO_RECIPIENT not in [b.reason for b in down.blockers])


def test_a_group_that_cannot_fall_is_told_by_what_leaves_it_anyway() -> None:
    world = cluster([busy("a"), busy("b"), busy("c", node_going="cordoned")], target=1)
    decided = plan(world, POLICY, PAST, now=NOW)

    retired = Retire("c", ("c",), Reason.NODE_GOING, "cordoned", busy_ok=True)
    assert (retired,) == decided.actions
    assert (Reason.NODE_GOING, "cordoned") == (decided.reason, decided.message)


# --- advice ---------------------------------------------------------------------------------------


def test_advice_enforces_nothing_and_nobody_waits() -> None:
    retire = Retire("a", ("a",), Reason.TASK_QUOTA, "spent")
    cancel = Cancel("b", ("b",), Reason.ADVISING, "the policy only advises")
    row = Replacing("a", Reason.TASK_QUOTA, "spent", "Draining")
    said = {"wanted": 2, "desired": 3, "blockers": (HELD_BUSY,), "storm": "a storm"}
    decided = Plan(
        Reason.RECYCLING, "said", actions=(retire,), limits=Limits(stops=1), replacing=(row,),
        floors={"a": 2}, waiting=frozenset("a"), aborting={"c": "why"},
        arriving=(Arriving(1, 9.0),), **said,
    )  # fmt: skip

    expected = Plan(
        Reason.RECYCLING, "said", actions=(cancel,), advice=(retire,),
        replacing=(replace(row, state="Due"),), **said,
    )  # fmt: skip
    assert expected == as_advice(decided, (cancel,))
