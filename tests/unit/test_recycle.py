"""Workers whose quotas have run out are replaced: case by case, and in a farm that lives long."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.model.observed import (
    Leaving,
    ManualPin,
    ObservedCluster,
    ObservedGroup,
    ObservedWorker,
)
from dask_adaptive.model.past import Past, Refusal
from dask_adaptive.model.plan import (
    Action,
    Blocker,
    Cancel,
    Delete,
    Plan,
    Restart,
    Retire,
    SetPin,
    SetReplicas,
)
from dask_adaptive.model.policy import Disruption, Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Amount,
    Budget,
    FailureQuota,
    GpuQuota,
    LifetimeQuota,
    MemoryQuota,
    Quota,
    QuotaNotes,
    Recycle,
    RecyclePast,
    Selection,
    Strategy,
    TaskQuota,
    Trait,
    Use,
    Window,
)
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.walltime import with_walltimes
from support.farm import Farm
from support.worlds import NOW, PAST, POLICY, SHUFFLE, busy, cluster, past_of, pending, worker

RECYCLE = Recycle(tasks=TaskQuota(20), memory=MemoryQuota(hard=0.9))
SPENT = {"use": Use(runs=25)}
FULL = {"use": Use(process=0.95)}
DRAINING = {
    "leaving": Leaving.DRAINING, "in_service": False, "leaving_reason": Reason.TASK_QUOTA,
}  # fmt: skip
DRAINED = {**DRAINING, "leaving": Leaving.DRAINED, "pod": "x", "pod_uid": "p"}
AT = 1_700_000_000.0


def short(action: Action) -> str:
    match action:
        case SetReplicas(_, replicas):
            return f"={replicas}"
        case Retire(over_pins=True):
            return f"retire! {action.worker}"
    verbs = {Retire: "retire", Cancel: "cancel", Delete: "delete", Restart: "restart"}
    return f"{verbs[type(action)]} {action.worker}"  # type: ignore[index,union-attr]


def policy_of(disruption: dict[str, Any], policy: dict[str, Any], **recycle: Any) -> Policy:
    return dataclasses.replace(
        POLICY,
        recycle=dataclasses.replace(RECYCLE, **recycle),
        disruption=Disruption(**disruption),
        **policy,
    )


def decide(
    world: ObservedCluster, past: Past = PAST, *, disruption: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None, **recycle: Any,
) -> Plan:  # fmt: skip
    world = dataclasses.replace(world, at=AT)
    return plan(world, policy_of(disruption or {}, policy or {}, **recycle), past, now=NOW)


def actions(decided: Plan) -> list[str]:
    return [short(a) for a in decided.actions if not isinstance(a, SetPin)]


def blocked(decided: Plan) -> dict[str, Reason]:
    return {b.worker: b.reason for b in decided.blockers}


#: All is assigned that an exact quota allows: it gets no more tasks.
AT_EXACT: dict[str, Any] = {
    "use": Use(runs=19), "stopped": "was given 20 of 20 runs", "stopped_for": Quota.TASKS,
}  # fmt: skip

A, B, C = busy("a"), busy("b"), busy("c")
FOUR = [busy("a", **SPENT), B, C, busy("d")]
NIGHT = Window("0 2 * * *", 3600.0)  # AT is 22:13 UTC
ABORTED_A = RecyclePast(
    surging_since={"a": NOW - 1e6}, aborted={"a": (NOW + 60.0, "no replacement within 10m")}
)


@pytest.mark.parametrize(
    ("world", "settings", "expected"),
    [
        pytest.param(cluster(FOUR, target=4), {}, ["=5"], id="its-replacement-is-asked-for"),
        pytest.param(
            cluster([*FOUR, pending("e")], target=4), {}, [], id="until-it-has-come-it-serves"
        ),
        pytest.param(
            cluster([*FOUR, busy("e")], target=5),
            {"past": {"desired": 4, "floors": {"a": 4}}}, ["retire a"],
            id="retired-when-it-has-come",
        ),
        pytest.param(
            cluster([*FOUR, busy("e")], target=5), {"policy": {"maximum": 4}}, ["retire a"],
            id="beyond-the-maximum",
        ),
        pytest.param(
            cluster([*FOUR[:3], busy("d", **DRAINED), busy("e")], target=4), {}, ["=6"],
            id="a-drained-one-does-not-hold-up-the-next",
        ),
        pytest.param(
            cluster([busy("a", **DRAINED), B, C], target=2), {}, ["delete a"], id="drained-goes"
        ),
        pytest.param(
            cluster([busy("a", **DRAINING), B, C], target=3), {}, ["=4"],
            id="not-called-back-when-wanted",
        ),
        pytest.param(
            cluster([busy("a", **SPENT), busy("b", **SPENT), C, busy("d")], target=4),
            {}, ["=5"], id="one-at-a-time",
        ),
        pytest.param(
            cluster([busy(n, **SPENT) for n in "abcd"], target=4),
            {"max_surge": Amount(percent=50.0)}, ["=6"], id="two-at-a-time",
        ),
        pytest.param(
            cluster([busy("a", **DRAINING), busy("b", **SPENT), C, busy("d"), busy("e")], target=4),
            {}, [], id="one-that-drains-is-one-more-than-desired",
        ),
        pytest.param(
            cluster([busy("a", **DRAINING), busy("b", **FULL), C, busy("d"), busy("e")], target=4),
            {}, ["=6", "retire b"], id="not-if-its-memory-is-full",
        ),
        pytest.param(
            cluster([busy("a", **FULL), B, C, busy("d")], target=4), {}, ["=5", "retire a"],
            id="memory-does-not-wait",
        ),
        pytest.param(
            cluster([busy(n, **FULL) for n in "abcd"], target=4), {"max_surge": Amount(4)},
            ["=8", "retire a"], id="but-never-beyond-the-budget",
        ),
        pytest.param(
            cluster([busy("a", **SPENT), B, C], target=1), {}, ["retire a"],
            id="who-is-due-leaves-in-a-scale-down",
        ),
        pytest.param(
            cluster([worker("a"), worker("b", **SPENT), worker("c", **SPENT)], target=1), {},
            ["retire b", "retire c"], id="and-first-of-those-that-are-idle",
        ),
        pytest.param(
            cluster([busy("a", **AT_EXACT), B, C, busy("d")], target=4),
            {"tasks": TaskQuota(20, exact=True)}, ["=5"], id="the-agent-counts-what-is-assigned",
        ),
        pytest.param(
            cluster(FOUR, target=4), {"strategy": Strategy.IN_PLACE}, ["retire a"], id="in-place"
        ),
        pytest.param(
            cluster([busy("a", **SPENT), busy("b", **SPENT), C, busy("d")], target=4),
            {"strategy": Strategy.IN_PLACE}, ["retire a"], id="in-place-within-the-budget",
        ),
        pytest.param(
            cluster([busy("a", **DRAINING), busy("b", **SPENT), C, busy("d")], target=4),
            {"strategy": Strategy.IN_PLACE}, [], id="in-place-one-after-the-other",
        ),
        pytest.param(
            cluster([busy("a", **DRAINED), B, C, busy("d")], target=4),
            {"strategy": Strategy.IN_PLACE}, ["restart a"], id="in-place-drained",
        ),
        pytest.param(
            cluster([pending("a", ending="its pod"), busy("b", **SPENT), C, busy("d")], target=4),
            {"strategy": Strategy.IN_PLACE}, [], id="in-place-not-back-yet",
        ),
        pytest.param(
            cluster([busy("a", **DRAINED), B, C], target=2), {"strategy": Strategy.IN_PLACE},
            ["delete a"], id="in-place-and-not-needed-any-more",
        ),
        pytest.param(
            cluster([busy("a", **DRAINED), B, C], target=3),
            {"strategy": Strategy.IN_PLACE, "past": {"restarted": {"a": "before"}}}, [],
            id="in-place-the-old-process-is-still-known",
        ),
        pytest.param(
            cluster([busy("a", **{**DRAINED, "leaving_reason": Reason.DRIFTED}, drift="image"), B,
                     C], target=3),
            {"strategy": Strategy.IN_PLACE}, ["=4"], id="drift-needs-a-new-deployment",
        ),
        pytest.param(
            cluster([busy("a", **DRAINING), B, C], target=3), {"tasks": TaskQuota(0)},
            ["cancel a"], id="its-quota-is-gone",
        ),
        pytest.param(
            cluster([busy("a", **DRAINED), B, C], target=2), {"tasks": TaskQuota(0)},
            ["delete a"], id="its-quota-is-gone-and-it-is-surplus",
        ),
        pytest.param(
            cluster([busy("a", **DRAINED), B, C], target=3), {"tasks": TaskQuota(0)},
            ["cancel a"], id="its-quota-is-gone-and-it-is-wanted",
        ),
        pytest.param(
            cluster([busy("a", **SPENT, gpus=1), B, C, busy("d")], target=4), {}, ["retire a"],
            id="gpus-unknown-in-place",
        ),
        pytest.param(
            dataclasses.replace(
                cluster([busy("a", **SPENT, gpus=1), B, C, busy("d")], target=4), free_gpus=1
            ),
            {}, ["=5"], id="a-gpu-is-free",
        ),
        pytest.param(
            dataclasses.replace(
                cluster([busy("a", **SPENT, gpus=1), B, C, busy("d"), pending("e")], target=4),
                free_gpus=0,
            ),
            {}, [], id="the-replacement-has-taken-it",
        ),
        pytest.param(
            cluster([busy("a", **DRAINED, gpus=1), B, C], target=3), {}, ["restart a"],
            id="gpu-drained-in-place",
        ),
    ],
)  # fmt: skip
def test_who_is_replaced(
    world: ObservedCluster, settings: dict[str, Any], expected: list[str]
) -> None:
    past = past_of(**settings.get("past", {}))
    rest = {k: v for k, v in settings.items() if k != "past"}

    assert expected == actions(decide(world, past, **rest))


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        pytest.param({"pins": (SHUFFLE,)}, {}, Reason.PINNED, id="pinned"),
        pytest.param({"manual_pin": ManualPin(60.0, "")}, {}, Reason.PINNED, id="pinned-by-hand"),
        pytest.param({"actors": True}, {}, Reason.HOLDS_ACTORS, id="actors"),
        pytest.param({}, {"disruption": {"windows": (NIGHT,)}}, Reason.OUTSIDE_WINDOW, id="window"),
        pytest.param({"pod_age_s": 50.0}, {"min_age_s": 60.0}, Reason.TOO_YOUNG, id="minAge"),
        pytest.param(
            {}, {"disruption": {"budgets": (Budget(Amount(0)),)}}, Reason.BUDGET_EXHAUSTED,
            id="forbidden",
        ),
        pytest.param(
            {}, {"disruption": {"max_per_hour": Amount(0)}}, Reason.RECYCLE_STORM, id="storm"
        ),
        pytest.param(
            {}, {"aborted": {"a": (NOW + 1, "no image")}}, Reason.RECYCLE_ABORTED, id="back-off"
        ),
        pytest.param(
            {}, {"aborted": {"b": (NOW + 1, "no image")}}, Reason.RECYCLE_ABORTED,
            id="back-off-of-another",
        ),
    ],
)  # fmt: skip
def test_what_stands_against_a_replacement(
    changes: dict[str, Any], settings: dict[str, Any], expected: Reason
) -> None:
    world = cluster([busy("a", **SPENT, **changes), B, C, busy("d")], target=4)
    recycle = RecyclePast(aborted=settings.get("aborted", {}))
    past = dataclasses.replace(PAST, recycle=recycle)
    rest = {k: v for k, v in settings.items() if k != "aborted"}

    decided = decide(world, past, **rest)

    assert {"a": expected} == blocked(decided)
    assert [] == actions(decided)
    assert bool(decided.storm) == (expected is Reason.RECYCLE_STORM)
    if expected not in {Reason.PINNED, Reason.HOLDS_ACTORS}:  # the agent looks at those itself
        assert not decided.limits.workers["a"].runs if decided.limits.workers else True


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        pytest.param(
            {"recycle_asked": "ann"}, {"disruption": {"windows": (NIGHT,)}}, ["=5"], id="by-hand"
        ),
        pytest.param(
            {"recycle_asked": "ann"}, {"disruption": {"max_per_hour": Amount(0)}}, ["=5"],
            id="by-hand-in-a-storm",
        ),
        pytest.param({"recycle_asked": "ann"}, {"min_age_s": 1e9}, ["=5"], id="by-hand-young"),
        pytest.param(
            FULL, {"disruption": {"windows": (NIGHT,)}, "min_age_s": 1e9}, ["=5", "retire a"],
            id="full-memory",
        ),
        pytest.param(
            {**FULL, "manual_pin": ManualPin(60.0, "")},
            {"memory": MemoryQuota(hard=0.9, over_pins=True)}, ["=5", "retire! a"],
            id="full-memory-beats-pins-of-people",
        ),
        pytest.param(
            {**FULL, "pins": (SHUFFLE,)}, {"memory": MemoryQuota(hard=0.9, over_pins=True)}, [],
            id="but-not-those-of-shuffles",
        ),
        pytest.param(
            {"ends_in_s": 5.0}, {"disruption": {"windows": (NIGHT,), "max_per_hour": Amount(0)}},
            ["=5", "retire a"], id="it-ends-anyway",
        ),
        pytest.param({"drift": "image"}, {}, ["=5"], id="drift"),
        pytest.param(
            {"drift": "image"}, {"disruption": {"windows": (NIGHT,)}}, [],
            id="drift-is-rolled-out-in-windows",
        ),
    ],
)  # fmt: skip
def test_what_does_not_stand_against_it(
    changes: dict[str, Any], settings: dict[str, Any], expected: list[str]
) -> None:
    world = cluster([busy("a", **changes), B, C, busy("d")], target=4)

    assert expected == actions(decide(world, **settings))


@pytest.mark.parametrize(
    ("past", "settings"),
    [
        pytest.param({}, {}, id="only-one-may-surge"),
        pytest.param({}, {"max_surge": Amount(2)}, id="two-may-surge"),
        pytest.param({"recycle": ABORTED_A}, {}, id="no-replacement-came"),
        pytest.param(
            {"refusals": {"a": Refusal(NOW + 4.0, Reason.NO_RECIPIENT, "nobody")}}, {},
            id="it-was-refused-a-moment-ago",
        ),
    ],
)  # fmt: skip
def test_all_that_end_at_once_are_drained_at_once(
    past: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Whoever waits for a turn, or for the next try, is killed with its results."""
    world = cluster([busy("a", ends_in_s=5.0), busy("b", ends_in_s=5.0), C, busy("d")], target=4)

    done = actions(decide(world, past_of(**past), **settings))

    assert ["retire a", "retire b"] == [one for one in done if "retire" in one]


def test_the_next_reason_counts_where_the_first_is_forbidden() -> None:
    both = busy("a", use=Use(runs=25, process=0.95))
    world = cluster([both, B, C, busy("d")], target=4)
    no_memory = Budget(Amount(0), frozenset({Reason.MEMORY_HARD}))

    decided = decide(world, disruption={"budgets": (no_memory,)})

    assert (Reason.TASK_QUOTA, "Surging") == (
        decided.replacing[0].reason, decided.replacing[0].state,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({}, ["=5"], id="its-replacement-takes-a-while"),
        pytest.param({"strategy": Strategy.IN_PLACE}, [], id="in-place-there-is-none"),
        pytest.param({"disruption": {"max_per_hour": Amount(0)}}, [], id="no-storm-yet"),
        pytest.param({"disruption": {"windows": (NIGHT,)}}, [], id="outside-the-window"),
    ],
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


def test_no_recycle_without_an_agent() -> None:
    decided = decide(cluster(FOUR, target=4, agent=""))

    assert {"a": Reason.AGENT_MISSING} == blocked(decided)
    assert {} == decided.limits.workers


def test_the_smallest_budget_counts() -> None:
    full = cluster([busy(n, **FULL) for n in "abcdefgh"], target=8)
    budgets = (Budget(Amount(percent=50.0)), Budget(Amount(2), frozenset({Reason.MEMORY_HARD})))

    decided = decide(full, disruption={"budgets": budgets}, max_surge=Amount(8))

    assert ["=10", "retire a", "retire b"] != actions(decided)
    assert ["retire a", "retire b"] == [a for a in actions(decided) if a.startswith("retire")]


def test_a_refusal_is_heard_for_a_while() -> None:
    past = past_of(
        desired=4, floors={"a": 4}, refusals={"a": Refusal(NOW + 9, Reason.NO_RECIPIENT, "x")}
    )

    decided = decide(cluster([*FOUR, busy("e")], target=4), past)

    assert [] == actions(decided)
    assert Blocker("a", Reason.NO_RECIPIENT, "x") in decided.blockers


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
    past = {"policy": {"minimum": 1}}

    first = decide(cluster(full, target=target), **past)
    asked = [a.replicas for a in first.actions if isinstance(a, SetReplicas)]
    assert asked
    assert 2 < asked[0]

    settled = past_of(desired=target, floors=first.floors)
    second = decide(cluster([*full, busy("c"), busy("d")], target=target), settled, **past)
    assert "retire a" in actions(second)


def test_it_is_waited_for_until_then() -> None:
    decided = decide(cluster([*FOUR, STUCK], target=4), surging(NOW - 599))

    assert [] == actions(decided)
    assert ({"a"}, {"a": 4}) == (decided.waiting, decided.floors)


def test_a_drain_is_called_back_when_the_replacement_has_died() -> None:
    draining = busy("a", **DRAINING)
    world = cluster([draining, B, C, busy("d"), STUCK], target=4)

    late, early = decide(world, surging(NOW - 600)), decide(world, surging(NOW - 599))

    assert ["cancel a", "delete e"] == actions(late)
    assert ["a"] == list(late.aborting)
    assert [] == actions(early)
    assert {"a"} == early.waiting


def test_under_load_each_worker_that_connects_lets_one_go() -> None:
    """More is desired than there is room for: what counts is how many served before."""
    world = cluster([*FOUR, busy("e"), *(pending(f"p{i}") for i in range(5))], target=10)
    past = surging(NOW - 10)

    assert ["=11", "retire a"] == actions(decide(world, past))
    assert ["=11"] == actions(decide(world, dataclasses.replace(past, floors={"a": 5})))


# --- other groups -----------------------------------------------------------------------------


def others(*workers: ObservedWorker, replicas: int | None = None) -> ObservedCluster:
    rows = tuple(dataclasses.replace(w, group="etl-gpu") for w in workers)
    group = ObservedGroup("etl-gpu", len(rows) if replicas is None else replicas, rows)
    serving = sum(w.leaving is Leaving.NO for w in rows)
    return cluster([busy("w")], target=1 + serving, others=(group,))


@pytest.mark.parametrize(
    ("world", "recycle", "expected"),
    [
        pytest.param(others(busy("a", **SPENT), B, C, busy("d")), {}, ["retire a"], id="drains"),
        pytest.param(others(busy("a", **SPENT), busy("b", **SPENT), C), {}, ["retire a"],
                     id="one-after-the-other"),
        pytest.param(others(busy("a", **DRAINED), B, C), {}, ["restart a"], id="restarts"),
        pytest.param(others(busy("a", **DRAINING), B, C), {}, [], id="waits"),
        pytest.param(others(busy("a", **DRAINING), B), {"tasks": TaskQuota(0)}, ["cancel a"],
                     id="its-quota-is-gone"),
        pytest.param(others(busy("a", drift="image"), B), {}, [], id="never-for-drift"),
    ],
)  # fmt: skip
def test_other_groups_are_recycled_in_place(
    world: ObservedCluster, recycle: dict[str, Any], expected: list[str]
) -> None:
    assert expected == actions(decide(world, **recycle))


def test_drift_elsewhere_is_told() -> None:
    decided = decide(others(busy("a", drift="image"), B))

    assert {"a": Reason.DRIFTED} == blocked(decided)


def test_a_group_may_have_quotas_of_its_own() -> None:
    own = {"etl-gpu": Recycle(tasks=TaskQuota(100))}
    world = others(busy("a", **SPENT), B)

    assert [] == actions(decide(world, policy={"group_recycle": own}))


def test_the_hour_is_shared_by_all_groups() -> None:
    group = ObservedGroup("etl-gpu", 2, (busy("x", group="etl-gpu", **SPENT), busy("y")))
    world = cluster(FOUR, target=6, others=(group,))
    past = dataclasses.replace(PAST, recycle=RecyclePast(begun=(NOW - 3601, NOW - 3599)))

    decided = decide(world, past, disruption={"max_per_hour": Amount(2)})

    assert ["=5"] == actions(decided)
    assert {"x": Reason.RECYCLE_STORM} == blocked(decided)
    assert "x" in decided.storm


# --- what the agent is told -------------------------------------------------------------------


def test_a_walltime_is_an_end() -> None:
    old = [busy("a", pod_age_s=250.0), busy("b", pod_age_s=299.0), busy("c", pod_age_s=50.0)]
    rules = Recycle(lifetime=LifetimeQuota(300.0, margin_s=10.0, is_walltime=True))
    policy = dataclasses.replace(POLICY, recycle=rules)
    seen = with_walltimes(cluster(old, target=3), policy)
    decided = plan(dataclasses.replace(seen, at=AT), policy, PAST, now=NOW)

    assert {"a": 40.0, "b": 0.001, "c": 240.0} == {
        n: limit.left_s for n, limit in decided.limits.workers.items()
    }
    assert [290.0] == [p.fresh_s for p in decided.limits.profiles]
    assert "retire b" in actions(decided)
    assert with_walltimes(seen, POLICY) is seen


def test_newcomers_are_watched_for_failures_from_the_start() -> None:
    world = dataclasses.replace(cluster([A, B]), strangers=("x",))
    limits = decide(world, failures=FailureQuota(5)).limits
    assert limits.others is not None
    newcomers = limits.profiles[limits.others]
    assert (5, 20) == (newcomers.failures, newcomers.runs)
    stranger = limits.workers["x"]
    assert (0, 0) == (limits.profiles[stranger.profile].failures, stranger.runs)


@pytest.mark.parametrize("exact", [False, True])
def test_newcomers_run_no_more_than_the_others(exact: bool) -> None:
    """While the operator is away nobody tells them of a quota of their own."""
    limits = decide(cluster([A, B]), tasks=TaskQuota(20, 0.5, exact=exact)).limits
    assert limits.others is not None
    newcomers = limits.profiles[limits.others]
    assert (20, exact) == (newcomers.runs, newcomers.exact)


@pytest.mark.parametrize("rules", [{"min_age_s": 60.0}, {"failures": FailureQuota()}])
def test_newcomers_are_not_watched(rules: dict[str, Any]) -> None:
    rules = {"failures": FailureQuota(5), "tasks": TaskQuota(), **rules}
    assert decide(cluster([A, B]), **rules).limits.others is None


def test_workers_have_limits() -> None:
    decided = decide(cluster([A, B, C, busy("d")], target=4), failures=FailureQuota(5))

    assert {n: 20 for n in "abcd"} == {n: r.runs for n, r in decided.limits.workers.items()}
    assert (1, [5]) == (decided.limits.stops, [p.failures for p in decided.limits.profiles])


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        pytest.param([A, B, C, busy("d")], 1, id="the-budget"),
        pytest.param([busy("a", stopped="x"), B, C, busy("d")], 1, id="whoever-is-stopped"),
        pytest.param([A, B, C, busy("d"), busy("e")], 2, id="and-a-connected-spare"),
        pytest.param([A, B, C, pending("d", ending="its pod")], 0, id="less-who-is-missing"),
        pytest.param([A, B, C, pending("d")], 1, id="one-that-never-connected-is-not"),
    ],
)
def test_how_many_may_be_stopped(workers: list[ObservedWorker], expected: int) -> None:
    decided = decide(cluster(workers, target=4), policy={"minimum": 4})

    assert expected == decided.limits.stops


def test_an_end_is_told_even_where_no_quota_may_be_followed() -> None:
    world = cluster([busy("a", ends_in_s=100.0), B, C, busy("d")], target=4)
    decided = decide(world, disruption={"windows": (NIGHT,)})

    assert {"a": (0, 90.0)} == {
        n: (limit.runs, limit.left_s) for n, limit in decided.limits.workers.items()
    }
    assert 0 == decided.limits.stops


def test_a_worker_may_have_a_number_of_its_own() -> None:
    noted = busy("a", quota_notes=QuotaNotes(tasks=7, failures=3))
    limits = decide(cluster([noted, B], target=2), failures=FailureQuota(5)).limits

    assert 7 == limits.workers["a"].runs
    assert 3 == limits.profiles[limits.workers["a"].profile].failures
    assert 5 == limits.profiles[limits.workers["b"].profile].failures


def test_no_more_are_stopped_than_may_be_replaced_within_the_hour() -> None:
    world = cluster([busy(n) for n in "abcdefghijkl"], target=12)
    policy = {"maximum": 12}

    free = decide(world, policy=policy)
    tight = decide(world, policy=policy, disruption={"max_per_hour": Amount(1)})

    assert (3, 1) == (free.limits.stops, tight.limits.stops)


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.PAUSED])
def test_nothing_is_enforced_unless_the_mode_is_auto(mode: Mode) -> None:
    world = cluster([busy("a", **DRAINING), busy("b", **SPENT), C], target=3)
    decided = decide(world, policy={"mode": mode})

    assert ["cancel a"] == actions(decided)
    assert ({}, 0) == (decided.limits.workers, decided.limits.stops)
    assert (frozenset(), {}) == (decided.waiting, decided.aborting)


def test_other_groups_return_to_service_as_well() -> None:
    world = others(busy("a", **DRAINING), B)

    assert ["cancel a"] == actions(decide(world, policy={"mode": Mode.PAUSED}))
    assert ["cancel a"] == actions(decide(world, policy={"mode": Mode.ADVISE}))


def test_who_is_replaced_is_told() -> None:
    world = cluster(
        [busy("a", **SPENT), busy("b", use=Use(runs=21)), C, busy("d", **DRAINING), busy("e"),
         busy("f")], target=5,
    )  # fmt: skip
    decided = decide(world, max_surge=Amount(2), policy={"minimum": 5})

    states = {row.worker: row.state for row in decided.replacing}
    assert {"a": "Surging", "b": "Due", "d": "Draining"} == states
    assert Reason.RECYCLING is decided.reason


# --- why a worker drains, and whether that still holds ----------------------------------------


@pytest.mark.parametrize(
    ("reason", "holds", "gone"),
    [
        (Reason.TASK_QUOTA, {"tasks": TaskQuota(1)}, {"tasks": TaskQuota(0)}),
        (Reason.LIFETIME, {"lifetime": LifetimeQuota(9.0)}, {}),
        (Reason.MEMORY_SOFT, {"memory": MemoryQuota(soft=0.5)}, {"memory": MemoryQuota()}),
        (Reason.MEMORY_HARD, {"memory": MemoryQuota(hard=0.5)}, {"memory": MemoryQuota()}),
        (Reason.MEMORY_LEAK, {"memory": MemoryQuota(leak_rate=9.0)}, {"memory": MemoryQuota()}),
        (Reason.GPU_MEMORY, {"gpu": GpuQuota(hard=0.5)}, {}),
        (Reason.FAILURES, {"failures": FailureQuota(3)}, {}),
        (Reason.FAILURES, {"failures": FailureQuota(patterns=("x",))}, {}),
        (Reason.OUTLIER, {"selection": Selection((Trait.DURATION,))}, {}),
        (Reason.RECYCLE_REQUESTED, {"asked": {"recycle_asked": "ann"}}, {}),
        (Reason.RESTART_REQUESTED, {"policy": {"restart_at": AT}}, {}),
        (Reason.DRIFTED, {"asked": {"drift": "image"}}, {}),
    ],
)  # fmt: skip
def test_a_drain_ends_with_its_rule_not_with_its_cause(
    reason: Reason, holds: dict[str, Any], gone: dict[str, Any]
) -> None:
    def world(**changes: Any) -> ObservedCluster:
        draining = busy("a", **{**DRAINING, "leaving_reason": reason}, **changes)
        return cluster([draining, B, C, busy("d")], target=3)

    asked = holds.get("asked", {})
    rules = {name: rule for name, rule in holds.items() if name != "asked"}

    assert [] == actions(decide(world(**asked), **rules))
    assert "cancel a" in actions(decide(world(), **gone))


# --- a farm that lives for long ---------------------------------------------------------------


def farm_policy(size: int, **recycle: Any) -> Policy:
    quotas = Recycle(**{"tasks": TaskQuota(20), **recycle})
    return dataclasses.replace(POLICY, minimum=size, maximum=size, recycle=quotas)


@pytest.mark.parametrize("forgets", [False, True], ids=["remembers", "forgets-after-each-pass"])
@pytest.mark.parametrize(
    ("size", "budget", "surge", "farm", "recycle", "at_least"),
    [
        pytest.param(4, 1, 1, {}, {}, 12, id="surge"),
        pytest.param(4, 1, 1, {"knows_handled": False}, {}, 12, id="handled-is-not-known"),
        pytest.param(4, 1, 1, {"handle_s": 4.0}, {}, 8, id="slow-upstream"),
        pytest.param(4, 1, 1, {"drain_s": 40.0}, {}, 2, id="long-drains"),
        pytest.param(4, 1, 1, {"start_s": 20.0}, {}, 5, id="slow-pods"),
        pytest.param(10, 3, 3, {}, {"max_surge": Amount(percent=25.0)}, 35, id="three-at-a-time"),
        pytest.param(4, 1, 0, {}, {"strategy": Strategy.IN_PLACE}, 14, id="in-place"),
        pytest.param(
            10, 3, 0, {"start_s": 20.0}, {"strategy": Strategy.IN_PLACE}, 14,
            id="in-place-slow-pods",
        ),
    ],
)  # fmt: skip
def test_workers_are_replaced_for_ever_within_the_budget(
    size: int, budget: int, surge: int, farm: dict[str, Any], recycle: dict[str, Any],
    at_least: int, *, forgets: bool,
) -> None:  # fmt: skip
    world = Farm(size, **farm)
    policy = farm_policy(size, **recycle)
    for _ in range(150):
        world.step(policy, size, forgets=forgets)

    assert world.least >= size - budget
    assert (0, 0) == (world.killed, world.refused)
    assert world.most <= size + 2 * surge  # those asked for, and those drained but still there
    assert len(world.retired) >= at_least


def test_every_worker_is_replaced_in_the_end_and_the_number_is_what_it_was() -> None:
    world, policy = Farm(6), farm_policy(6)
    for _ in range(60):
        world.step(policy, 6)
    olds = {n for n, h in world.hands.items() if h.runs >= 20}
    calm = dataclasses.replace(policy, recycle=Recycle(tasks=TaskQuota(6_000)))
    for _ in range(120):
        world.step(dataclasses.replace(calm, restart_at=1_700_000_000.0 + NOW + 60), 6)

    assert olds
    assert not olds & set(world.hands)
    assert 6 == len(world.hands) == world.replicas == world.in_service


@pytest.mark.parametrize(
    ("world", "past", "expected"),
    [
        pytest.param(
            cluster([busy("a", ends_in_s=121.0), B, C, busy("d")], target=4, expected_s=100.0),
            {}, [], id="it-has-time-for-another-task-once-its-replacement-is-there",
        ),
        pytest.param(
            cluster([busy("a", ends_in_s=119.0), B, C, busy("d")], target=4, expected_s=100.0),
            {}, ["=5"], id="asked-for-before-the-agent-keeps-tasks-from-it",
        ),
        pytest.param(
            cluster(
                [busy("a", ends_in_s=105.0, too_short=True), B, C, busy("d"), pending("e")],
                target=4, expected_s=100.0,
            ),
            {"desired": 4, "floors": {"a": 4}}, [], id="it-gets-none-and-keeps-its-results",
        ),
        pytest.param(
            cluster(
                [busy("a", ends_in_s=105.0, too_short=True), B, C, busy("d"), busy("e")],
                target=5, expected_s=100.0,
            ),
            {"desired": 4, "floors": {"a": 4}}, ["retire a"], id="retired-when-the-other-is-there",
        ),
    ],
)  # fmt: skip
def test_who_ends_soon_is_replaced_before_it_is_short_of_time(
    world: ObservedCluster, past: dict[str, Any], expected: list[str]
) -> None:
    """A margin of 10 s before its end, and a new worker takes 10 s."""
    assert expected == actions(decide(world, past_of(**past), tasks=TaskQuota()))


STILL = cluster([busy(n, **AT_EXACT) for n in "abcd"], target=4)
ONE_WORKS = cluster([busy(n, **AT_EXACT) for n in "abc"] + [busy("d")], target=4)
ABORTED = RecyclePast(aborted={"a": (NOW + 60.0, "no replacement within 10m")})


@pytest.mark.parametrize(
    ("world", "settings", "expected"),
    [
        pytest.param(STILL, {}, ["=5", "retire b"], id="one-more-comes-others-come-back"),
        pytest.param(
            STILL, {"disruption": {"windows": (NIGHT,)}, "min_age_s": 9999.0}, ["=5", "retire b"],
            id="windows-and-minAge-protect-those-that-serve",
        ),
        pytest.param(
            STILL, {"strategy": Strategy.IN_PLACE}, ["=5", "retire b"],
            id="in-place-but-nobody-could-take-their-results",
        ),
        pytest.param(
            ONE_WORKS, {"strategy": Strategy.IN_PLACE}, ["retire a"], id="in-place-one-drains",
        ),
        pytest.param(
            ONE_WORKS,
            {"strategy": Strategy.IN_PLACE, "disruption": {"budgets": (Budget(Amount(2)),)}},
            ["retire a", "retire b"], id="as-many-drain-as-may-be-missing",
        ),
        pytest.param(
            ONE_WORKS, {"past": {"recycle": ABORTED}}, ["retire a"],
            id="in-place-where-no-replacement-came",
        ),
        pytest.param(
            STILL, {"past": {"recycle": ABORTED}}, ["=5", "retire b"],
            id="it-is-tried-again-where-nobody-works",
        ),
        pytest.param(STILL, {"disruption": {"max_per_hour": Amount(0)}}, [], id="but-no-storm"),
        pytest.param(
            cluster([busy("a", **{**DRAINED, "in_service": False}), B, C], target=3), {},
            ["restart a"], id="drained-it-comes-back",
        ),
        pytest.param(
            cluster([busy("a", **AT_EXACT, manual_pin=ManualPin(60.0, "mine")), B, C], target=3),
            {}, [], id="pins-hold",
        ),
    ],
)  # fmt: skip
def test_what_is_at_an_exact_quota_makes_room_at_once(
    world: ObservedCluster, settings: dict[str, Any], expected: list[str]
) -> None:
    options = {"tasks": TaskQuota(20, exact=True), **settings}
    past = past_of(**options.pop("past", {}))

    assert expected == actions(decide(world, past, **options))


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("holds_results", [False, True])
@pytest.mark.parametrize(
    ("recycle", "farm"),
    [
        pytest.param({}, {}, id="surge"),
        pytest.param({"max_surge": Amount(4)}, {}, id="all-at-once"),
        pytest.param({"strategy": Strategy.IN_PLACE}, {}, id="in-place"),
        pytest.param({"strategy": Strategy.IN_PLACE}, {"start_s": 20.0}, id="in-place-slow-pods"),
        pytest.param({"ready_timeout_s": 8.0}, {"room": 5}, id="room-for-one-more"),
        pytest.param({"min_age_s": 600.0}, {}, id="young"),
    ],
)
def test_an_exact_quota_is_never_passed_and_all_work_is_done(
    recycle: dict[str, Any], farm: dict[str, Any], *, holds_results: bool, forgets: bool
) -> None:
    """Finding 10: a quota of 15, 400 tasks, 4 workers that come to it in the same second."""
    world = Farm(4, holds_results=holds_results, **farm)
    policy = farm_policy(4, tasks=TaskQuota(15, exact=True), **recycle)
    while world.runs < 400:
        world.step(policy, 4, forgets=forgets)
        assert world.now < NOW + 1500, f"stands still at {world.runs}: {world.decided}"

    assert 15 == world.most_runs
    assert 0 == world.killed
    assert world.most <= 4 + 2 * max(1, policy.recycle.max_surge.number)


def test_where_no_other_worker_can_come_an_exact_quota_waits_for_room_and_goes_on() -> None:
    world = Farm(3, holds_results=True, room=3)
    policy = farm_policy(3, tasks=TaskQuota(15, exact=True), ready_timeout_s=20.0)
    for _ in range(200):
        world.step(policy, 3)
    assert (45, 15) == (world.runs, world.most_runs)

    world.room = 4
    for _ in range(200):
        world.step(policy, 3)
    assert 100 < world.runs
    assert 15 == world.most_runs


def test_a_bad_image_costs_no_capacity_once_it_is_known() -> None:
    world, policy = Farm(4), farm_policy(4, ready_timeout_s=20.0)
    world.is_broken = True
    while 2 not in world.past.aborts.values():
        world.step(policy, 4)
        assert world.now < NOW + 120
    world.step(policy, 4)  # limits are lifted, the pod that never started is deleted
    world.least = 4
    for _ in range(35):  # it is twice as long each time: 40 s
        world.step(policy, 4)

    assert 4 == world.least == len(world.hands) == world.replicas
    assert [] == world.retired


def test_recycles_do_not_let_a_cluster_grow() -> None:
    """All workers have tasks, and no fewer are asked for than have: still none is added."""
    world = Farm(4)
    policy = dataclasses.replace(farm_policy(4), minimum=0, maximum=10)
    for _ in range(200):
        up = sum(h.is_up(world.now) and h.leaving is Leaving.NO for h in world.hands.values())
        world.step(policy, up)

    assert len(world.retired) >= 12
    assert world.most <= 6
    assert world.least >= 3


events = st.lists(
    st.tuples(
        st.integers(1, 12),  # seconds until then
        st.sampled_from(
            ["load", "strategy", "no quota", "quota", "die", "broken", "mended", "crash", "manual"]
        ),
        st.integers(0, 8),
    ),
    max_size=14,
)


@pytest.mark.long
@settings(max_examples=60)
@given(events, st.booleans(), st.sampled_from([0.0, 1.0, 6.0]), st.integers(1, 3))
def test_whatever_happens_nobody_is_killed_and_all_settles(
    history: list[tuple[int, str, int]], knows_handled: bool, handle_s: float, surge: int
) -> None:
    """Anything may happen; then nothing does, and there are as many workers as are desired."""
    world = Farm(5, handle_s=handle_s, knows_handled=knows_handled)
    base = dataclasses.replace(
        POLICY, minimum=1, maximum=8, idle_timeout_s=5.0,
        recycle=Recycle(tasks=TaskQuota(15), max_surge=Amount(surge), ready_timeout_s=30.0),
    )  # fmt: skip
    policy, target = base, 5
    for seconds, what, number in history:
        for i in range(seconds):
            world.step(policy, target, forgets=what == "die" and i == 0)
        policy, target = _happen(world, policy, base, what, number, target)
    world.is_broken = False
    for hand in world.hands.values():
        hand.ready_at = min(hand.ready_at, world.now + world.start_s)
        hand.changes.clear()
    quiet = dataclasses.replace(base, recycle=Recycle())
    for _ in range(150):
        world.step(quiet, target)

    assert 0 == world.killed
    assert max(1, target) == len(world.hands) == world.replicas == world.in_service
    assert () == world.decided.actions


def _happen(
    world: Farm, policy: Policy, base: Policy, what: str, number: int, target: int
) -> tuple[Policy, int]:
    hands = list(world.hands.values())
    match what:
        case "load":
            return policy, number
        case "strategy":
            other = dataclasses.replace(base.recycle, strategy=Strategy.IN_PLACE)
            return dataclasses.replace(policy, recycle=other), target
        case "no quota":
            return dataclasses.replace(policy, recycle=Recycle()), target
        case "quota":
            return base, target
        case "broken" | "mended":
            world.is_broken = what == "broken"
        case "crash" if hands:
            hand = hands[number % len(hands)]
            hand.ready_at, hand.leaving, hand.reason = world.now + 9.0, Leaving.NO, None
        case "manual" if hands:
            hands[number % len(hands)].changes["recycle_asked"] = "ann"
    return policy, target
