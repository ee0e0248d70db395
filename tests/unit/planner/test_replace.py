"""Workers whose quotas have run out are replaced: case by case, and in a farm that lives long."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.model.observed import ObservedCluster, ObservedWorker, Retiring, TerminatingPod
from dask_adaptive.model.past import Past, Refusal
from dask_adaptive.model.plan import Blocker, Cancel, Restart, Retire, SetReplicas
from dask_adaptive.model.policy import Mode
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Amount,
    Budget,
    FailureQuota,
    LifetimeQuota,
    MemoryQuota,
    Quota,
    RecyclePast,
    Replacing,
    Strategy,
    TaskQuota,
    Use,
)
from support.recycles import (
    DRAINED,
    DRAINING,
    FULL,
    IN_PLACE,
    SPENT,
    actions,
    blocked,
    decide,
    states,
    turn,
)
from support.tables import table
from support.worlds import (
    GPU,
    NOW,
    PAST,
    busy,
    changed,
    cluster,
    facts,
    group_of,
    past_of,
    pending,
    worker,
)

#: All is assigned that an exact quota allows: it gets no more tasks.
AT_EXACT: dict[str, Any] = {
    "use": Use(runs=19), "stopped": "was given 20 of 20 runs", "stopped_for": Quota.TASKS,
}  # fmt: skip

B, C = busy("b"), busy("c")
FOUR = [busy("a", **SPENT), B, C, busy("d")]
ABORTED_A = RecyclePast(
    surging_since={"a": NOW - 1e6}, aborted={"a": (NOW + 60.0, "no replacement within 10m")}
)


OLD_A, OLD_B, D, E = busy("a", **SPENT), busy("b", **SPENT), busy("d"), busy("e")
GOES_A = busy("a", **DRAINING)
LEFT = {**DRAINED, "retiring": Retiring(Reason.DRIFTED, is_drained=True)}
DRIFTED_A = busy("a", **LEFT, drift="image")


@table(
    "workers, target, settings, expected",
    not_if_its_memory_is_full=([GOES_A, busy("b", **FULL), C, D, E], 4, {}, ["=6", "retire b"]),
    and_first_of_those_that_are_idle=([worker("a"), worker("b", **SPENT), worker("c", **SPENT)], 1,
        {}, ["retire b", "retire c"]),
    in_place_one_after_the_other=([GOES_A, OLD_B, C, D], 4, IN_PLACE, []),
    drift_needs_a_new_deployment=([DRIFTED_A, B, C], 3, IN_PLACE, ["=4"]),
)  # fmt: skip
def test_who_is_replaced(
    workers: list[ObservedWorker], target: int, settings: dict[str, Any], expected: list[str]
) -> None:
    rest = dict(settings)
    past = past_of(**rest.pop("past", {}))

    assert expected == actions(decide(cluster(workers, target=target), past, **rest))


@table(
    "past, settings",
    only_one_may_surge=({}, {}),
    no_replacement_came=({"recycle": ABORTED_A}, {}),
    it_was_refused_a_moment_ago=({"refusals": {"a": Refusal(NOW + 4.0, Reason.NO_RECIPIENT,
        "nobody")}}, {}),
)  # fmt: skip
def test_all_that_end_at_once_are_drained_at_once(
    past: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Whoever waits for a turn, or for the next try, is killed with its results."""
    a, b = (busy(name, ends_in_s=5.0, pod_age_s=500.0) for name in "ab")
    world = cluster([a, b, C, busy("d")], target=4)

    done = actions(decide(world, past_of(**past), **settings))

    assert ["retire a", "retire b"] == [one for one in done if "retire" in one]


@table(
    "settings, expected",
    its_replacement_takes_a_while=({}, ["=5"]),
    no_storm_yet=({"max_per_hour": Amount(0)}, []),
)
def test_who_is_due_soon(settings: dict[str, Any], expected: list[str]) -> None:
    soon = busy("a", pod_age_s=95.0)
    world = cluster([soon, B, C, busy("d")], target=4)

    decided = decide(world, lifetime=LifetimeQuota(100.0), **settings)

    assert expected == actions(decided)
    assert () == decided.blockers
    assert not decided.storm
    assert [] == actions(decide(cluster([soon, B, C, busy("d"), busy("e")], target=4),
                                past_of(desired=4, floors={"a": 4}),
                                lifetime=LifetimeQuota(100.0), **settings))  # fmt: skip


# --- a replacement that does not come ---------------------------------------------------------


def surging(since: float, **changes: Any) -> Past:
    recycle = RecyclePast(surging_since={"a": since})
    return past_of(desired=4, floors={"a": 4}, recycle=recycle, **changes)


STUCK = pending("e", waiting="ImagePullBackOff: no such image")


def test_the_old_worker_serves_on_when_its_replacement_does_not_come() -> None:
    decided = decide(cluster([*FOUR, STUCK], target=4), surging(NOW - 600))

    assert ["delete e"] == actions(decided)
    why = "no replacement within 10m: ImagePullBackOff: no such image"
    assert {"a": why} == decided.aborting
    assert Blocker("a", Reason.RECYCLE_ABORTED, why) in decided.blockers


@pytest.mark.parametrize("target", [1, 2])
def test_paused_workers_are_of_no_use_to_each_other(target: int) -> None:
    """Dask pauses workers at 80 % of their memory: none could take what another leaves behind."""
    full = [busy("a", paused=True, **FULL), busy("b", paused=True, **FULL)]
    past = {"policy": {"min_replicas": 1}}

    first = decide(cluster(full, target=target), **past)
    asked = [a.replicas for a in first.actions if isinstance(a, SetReplicas)]
    assert asked
    assert 2 < asked[0]

    settled = past_of(desired=target, floors=first.floors)
    second = decide(cluster([*full, busy("c"), busy("d")], target=target), settled, **past)
    assert "retire a" in actions(second)


# --- other groups -----------------------------------------------------------------------------


def others(*workers: ObservedWorker) -> ObservedCluster:
    serving = sum(w.retiring is None for w in workers)
    return cluster([busy("w")], target=1 + serving, others=[group_of(GPU, workers)])


@table(
    "world, recycle, expected",
    drains=(others(busy("a", **SPENT), B, C, busy("d")), {}, ["retire a"]),
    never_for_drift=(others(busy("a", drift="image"), B), {}, []),
)
def test_other_groups_are_recycled_in_place(
    world: ObservedCluster, recycle: dict[str, Any], expected: list[str]
) -> None:
    assert expected == actions(decide(world, **recycle))


def test_drift_elsewhere_is_told() -> None:
    decided = decide(others(busy("a", drift="image"), B))

    assert {"a": Reason.DRIFTED} == blocked(decided)


def test_the_hour_is_shared_by_all_groups() -> None:
    group = group_of(GPU, [busy("x", **SPENT), busy("y")])
    world = cluster(FOUR, target=6, others=[group])
    past = dataclasses.replace(PAST, recycle=RecyclePast(begun=(NOW - 3601, NOW - 3599)))

    decided = decide(world, past, max_per_hour=Amount(2))

    assert ["=5"] == actions(decided)
    assert {"x": Reason.RECYCLE_STORM} == blocked(decided)
    assert "x" in decided.storm


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.PAUSED])
def test_nothing_is_enforced_unless_the_mode_is_auto(mode: Mode) -> None:
    world = cluster([busy("a", **DRAINING), busy("b", **SPENT), C], target=3)
    decided = decide(world, policy={"mode": mode})

    assert ["cancel a"] == actions(decided)
    assert ({}, 0) == (decided.limits.workers, decided.limits.cordons)
    assert (frozenset(), {}) == (decided.waiting, decided.aborting)


def test_who_is_replaced_is_told() -> None:
    draining = busy("d", retiring=Retiring(Reason.TASK_QUOTA, "19 of 20 tasks run"))
    due = (busy("a", **SPENT), busy("b", use=Use(runs=21)))
    world = cluster([*due, C, draining, busy("e"), busy("f")], target=5)
    decided = decide(world, strategy=Strategy(max_surge=Amount(2)), policy={"min_replicas": 5})

    assert {"a": "Surging", "b": "Due", "d": "Draining"} == states(decided)
    assert Replacing("d", Reason.TASK_QUOTA, "19 of 20 tasks run", "Draining") in decided.replacing
    assert Reason.RECYCLING is decided.reason


# --- why a worker drains, and whether that still holds ----------------------------------------


@pytest.mark.parametrize(
    ("reason", "holds", "gone"),
    [
        (Reason.TASK_QUOTA, {"tasks": TaskQuota(1)}, {"tasks": TaskQuota(0)}),
        (Reason.LIFETIME, {"lifetime": LifetimeQuota(9.0)}, {}),
        (Reason.MEMORY_SOFT, {"memory": MemoryQuota(soft=0.5)}, {"memory": MemoryQuota()}),
        (Reason.MEMORY_HARD, {"memory": MemoryQuota(hard=0.5)}, {"memory": MemoryQuota()}),
        (Reason.FAILURES, {"failures": FailureQuota(3)}, {}),
        (Reason.FAILURES, {"failures": FailureQuota(patterns=("x",))}, {}),
        (Reason.RECYCLE_REQUESTED, {"asked": {"recycle_request": "ann"}}, {}),
        (Reason.DRIFTED, {"asked": {"drift": "image"}}, {}),
    ],
)  # fmt: skip
def test_a_drain_ends_with_its_rule_not_with_its_cause(
    reason: Reason, holds: dict[str, Any], gone: dict[str, Any]
) -> None:
    def world(**changes: Any) -> ObservedCluster:
        draining = busy("a", **{**DRAINING, "retiring": Retiring(reason)}, **changes)
        return cluster([draining, B, C, busy("d")], target=3)

    asked = holds.get("asked", {})
    rules = {name: rule for name, rule in holds.items() if name != "asked"}

    assert [] == actions(decide(world(**asked), **rules))
    assert "cancel a" in actions(decide(world(), **gone))


STILL = cluster([busy(n, **AT_EXACT) for n in "abcd"], target=4)
ONE_WORKS = cluster([busy(n, **AT_EXACT) for n in "abc"] + [busy("d")], target=4)
ABORTED = RecyclePast(aborted={"a": (NOW + 60.0, "no replacement within 10m")})


@table(
    "world, settings, expected",
    one_more_comes_others_come_back=(STILL, {}, ["=5", "retire b"]),
    in_place_but_nobody_could_take_their_results=(STILL, IN_PLACE, ["=5", "retire b"]),
    as_many_drain_as_may_be_missing=(ONE_WORKS,
        {**IN_PLACE, "disruption": {"budgets": (Budget(Amount(2)),)}}, ["retire a", "retire b"]),
    it_is_tried_again_where_nobody_works=(STILL, {"past": {"recycle": ABORTED}},
        ["=5", "retire b"]),
)  # fmt: skip
def test_what_is_at_an_exact_quota_makes_room_at_once(
    world: ObservedCluster, settings: dict[str, Any], expected: list[str]
) -> None:
    options = {"tasks": TaskQuota(20, exact=True), **settings}
    past = past_of(**options.pop("past", {}))

    assert expected == actions(decide(world, past, **options))


# --- places for replacements ----------------------------------------------------------------------


def spent(names: str, **changes: Any) -> list[ObservedWorker]:
    return [busy(name, **SPENT, **changes) for name in names]


def healthy(names: str, **changes: Any) -> list[ObservedWorker]:
    return [busy(name, **changes) for name in names]


SPENT_WORDS = "has run 25 tasks (recycle.tasks.max 20)"
LATE_A = RecyclePast(surging_since={"a": NOW - 600})


def test_the_hasty_have_as_many_places_as_the_others() -> None:
    full = [busy(name, **FULL) for name in "abc"]
    decided = turn([*full, *healthy("d")], strategy=Strategy(max_surge=Amount(2)))

    assert {"a": "Draining", "b": "Draining", "c": "Due"} == states(decided)
    words = (
        "its process uses 95% of its memory (recycle.memory.hard); waits for its turn (maxSurge)"
    )
    assert (Blocker("c", Reason.BUDGET_EXHAUSTED, words),) == decided.blockers


@table(
    "first",
    over_its_soft_line={"use": Use(unmanaged=0.65)},
    ends_but_not_yet={"ends_in_s": 99.0, "too_short": True},
)
def test_who_is_not_about_to_be_killed_has_an_ordinary_place(first: dict[str, Any]) -> None:
    workers = [busy("a", **first), *spent("b"), *healthy("c")]
    decided = turn(workers, memory=MemoryQuota(soft=0.5, for_s=0.0))

    assert {"a": "Surging", "b": "Due"} == states(decided)
    assert {"a"} == decided.waiting
    assert not [a for a in decided.actions if isinstance(a, Retire)]


def test_a_paused_worker_is_no_replacement() -> None:
    workers = [*spent("a"), *healthy("b")]

    paused = turn([*workers, busy("c", paused=True)], desired=2, **IN_PLACE)
    assert {} == paused.floors
    assert {"a"} == set(turn([*workers, busy("c")], desired=2, **IN_PLACE).floors)


@table(
    "floor, expected",
    as_many_as_should_serve_without_it=(3, ("Draining", {})),
    one_fewer=(4, ("Due", {"a": "10m"})),
)
def test_a_replacement_that_is_late_has_failed_if_it_is_missed(floor: int, expected: Any) -> None:
    past = {"floors": {"a": floor}, "recycle": LATE_A}
    decided = turn([*spent("a"), *healthy("bcd")], past=past)

    aborting = {name: facts(message) for name, message in decided.aborting.items()}
    assert expected == (states(decided)["a"], aborting)


# --- who of them leaves now -----------------------------------------------------------------------


def test_each_that_leaves_is_missed_by_the_next() -> None:
    floors = dict.fromkeys("abc", 4)
    workers = [*spent("abc"), *healthy("def")]
    decided = turn(workers, past={"floors": floors}, strategy=Strategy(max_surge=Amount(3)))

    assert {"a": "Draining", "b": "Draining", "c": "Surging"} == states(decided)
    assert ({"c"}, floors) == (decided.waiting, decided.floors)
    leaves = Retire("a", ("a",), Reason.TASK_QUOTA, SPENT_WORDS, busy_ok=True)
    both = [leaves, dataclasses.replace(leaves, worker="b", dask_names=("b",))]
    assert both == [a for a in decided.actions if isinstance(a, Retire)]


@pytest.mark.parametrize(("more_s", "state"), [(0.0, "Draining"), (1.0, "Surging")])
def test_a_refusal_holds_until_its_time(more_s: float, state: str) -> None:
    refusals = {"a": Refusal(NOW + more_s, Reason.BUSY, "has 1 task")}
    past = {"floors": {"a": 3}, "refusals": refusals}
    decided = turn([*spent("a"), *healthy("bcd")], past=past)

    assert {"a": state} == states(decided)
    assert ((Blocker("a", Reason.BUSY, "has 1 task"),) if more_s else ()) == decided.blockers


def fast(runs: int) -> dict[str, Any]:
    return {"past": {"recycle": RecyclePast(pace={"uid-a": (NOW, runs, 1.0)})}}


# --- who that drains comes back -------------------------------------------------------------------


def drains(name: str, *, is_done: bool = True, **changes: Any) -> ObservedWorker:
    usual: dict[str, Any] = DRAINED if is_done else DRAINING
    return worker(name, **{**usual, **changes})


NO_QUOTA: dict[str, Any] = {"tasks": TaskQuota()}
TAKEN_BACK = drains("x", is_done=False, retiring=Retiring(Reason.RECYCLE_REQUESTED))


@table(
    "workers, desired, recycle, expected",
    in_place_one_comes_by_itself=([drains("r")], 1, IN_PLACE, ["restart r"]),
    by_surge_it_leaves_for_good=([drains("r")], 1, {}, ["=2"]),
    who_starts_counts_as_there=([worker("a"), pending("p"), drains("r")], 2, IN_PLACE,
        ["delete r"]),
    as_many_as_are_desired=([drains("r"), drains("s"), drains("t")], 2, IN_PLACE,
        ["delete t", "restart r", "restart s"]),
    who_is_called_back_counts_too=([TAKEN_BACK, drains("r"), drains("s")], 2, IN_PLACE,
        ["cancel x", "delete s", "restart r"]),
    not_asked_any_more=([drains("r", is_done=False), TAKEN_BACK], 1, {}, ["cancel x"]),
    drained_and_surplus_it_goes=([drains("r"), worker("a")], 1, NO_QUOTA, ["delete r"]),
    and_another_is_called_back=([drains("r"), changed(TAKEN_BACK, processing=1), busy("a")], 1,
        NO_QUOTA, ["cancel x", "delete r"]),
    drained_but_needed=([drains("r")], 1, NO_QUOTA, ["cancel r"]),
    draining_it_comes_back_at_once=([drains("r", is_done=False, processing=1), busy("a")], 1,
        NO_QUOTA, ["cancel r"]),
)  # fmt: skip
def test_who_that_drains_comes_back(
    workers: list[ObservedWorker], desired: int, recycle: dict[str, Any], expected: list[str]
) -> None:
    decided = turn(workers, desired=desired, **recycle)

    assert expected == actions(decided)
    backs = [a for a in decided.actions if isinstance(a, Cancel)]
    assert {(Reason.WANTED_AGAIN, "the reason no longer applies")} >= {
        (a.reason, a.message) for a in backs
    }


POD = {"pod": "r-x", "pod_uid": "r-1"}
RESTART = [Restart("r", ("r",), Reason.TASK_QUOTA, "drained: no task, no last copy", "r-x", "r-1")]


@table(
    "changes, restarted, terminating, expected",
    its_pod_is_deleted=(POD, {}, (), RESTART),
    again_if_it_is_still_there=(POD, {"r": "r-1"}, (), RESTART),
    the_next_is_left_alone=(POD, {"r": "r-0"}, (), []),
    nor_what_cannot_be_told_apart=({"pod_uid": ""}, {"r": ""}, (), []),
    nor_one_that_goes=(POD, {}, (TerminatingPod("r", "r-x", (), 9.0),), []),
)
def test_the_pod_of_who_has_drained_is_deleted_once(
    changes: dict[str, Any], restarted: dict[str, str],
    terminating: tuple[TerminatingPod, ...], expected: list[Restart],
) -> None:  # fmt: skip
    world, past = {"terminating": terminating}, {"restarted": restarted}
    decided = turn([drains("r", **changes)], world=world, past=past, **IN_PLACE)

    assert expected == [a for a in decided.actions if isinstance(a, Restart)]
