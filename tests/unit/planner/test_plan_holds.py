"""What keeps the planner from scaling: people, gates, a scheduler that is away, nobody there."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.loop.conditions import conditions_of
from dask_adaptive.model.observed import (
    Demand,
    ObservedCluster,
    ObservedGroup,
    ObservedWorker,
    Quiet,
)
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Cancel, DeleteCluster, GroupPlan, Plan
from dask_adaptive.model.policy import Disruption, Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits, Recycle, RecyclePast, TaskQuota, Use
from dask_adaptive.model.scaling import Fallback, Idle, IdleAction, Pause, Schedule
from support.tables import table
from support.worlds import (
    DRAINED,
    DRAINING,
    GROUP,
    NOW,
    PAST,
    POLICY,
    actions,
    busy,
    cluster,
    dated,
    past_of,
    pending,
    plan,
    worker,
)

A, B, C = worker("a"), worker("b"), worker("c")
AT = 1_700_000_000.0


def policy_of(**changes: Any) -> Policy:
    return dataclasses.replace(POLICY, **changes)


def decide(
    world: ObservedCluster, policy: Policy = POLICY, past: Past = PAST, *, at: float = AT
) -> Plan:
    return plan(dated(world, at), policy, past, now=NOW)


def conditions(world: ObservedCluster, policy: Policy, decided: Plan) -> dict[str, Any]:
    return {
        c.type: (c.status, c.reason, c.message) for c in conditions_of(world, policy, decided, ())
    }


# --- nothing to decide about ------------------------------------------------------------------


def test_what_does_not_exist_is_waited_for() -> None:
    decided = decide(dataclasses.replace(cluster([]), found=False))

    words = "DaskCluster etl does not exist"
    assert Plan(Reason.CLUSTER_NOT_FOUND, words) == decided


# --- too many workers away --------------------------------------------------------------------

AWAY = [pending(f"p{i}") for i in range(4)]
SEEN = dataclasses.replace(PAST, seen=frozenset("abcd") | {w.name for w in AWAY})


@table(
    "world",
    no_fall=cluster([*AWAY, A, B], target=0),
    no_deletion=cluster([*AWAY, A, worker("b", **DRAINED)], target=0),
    no_correction=cluster([*AWAY, A, B], target=0, replicas=9),
)
def test_with_too_many_away_nothing_moves(world: ObservedCluster) -> None:
    decided = decide(world, POLICY, SEEN)

    assert [] == actions(decided)
    assert Reason.TOO_MANY_UNREADY is decided.reason
    found = conditions(world, POLICY, decided)
    assert (False, Reason.TOO_MANY_UNREADY) == found["AbleToScale"][:2]
    assert decided.desired == decided.groups[0].serving


#: Of ten workers, all of which have been connected.
TEN = dataclasses.replace(PAST, seen=frozenset(f"w{i}" for i in range(10)))
FIVE_NAMES = [f"w{i}" for i in range(5)]
COUNTED = {
    pod: dataclasses.replace(TEN, counted=dict.fromkeys(FIVE_NAMES, pod)) for pod in ("old", "same")
}


def lost_for(seconds: float) -> Past:
    return dataclasses.replace(TEN, lost=dict.fromkeys(FIVE_NAMES, NOW - seconds))


def ten(gone: int, of: int = 10, **changes: Any) -> list[ObservedWorker]:
    """Workers of which the first are away, as `changes` say."""
    return [pending(f"w{i}", **changes) if i < gone else worker(f"w{i}") for i in range(of)]


@table(
    "workers, past, most, is_held",
    more=(ten(5), TEN, 0.45, True),
    three_are=(ten(3, of=3), TEN, 0.45, True),
    deleted=(ten(5, deleting=True), TEN, 0.45, False),
    preempted=(ten(5, gated=True), TEN, 0.45, False),
    let_go_by_us=(ten(5), dataclasses.replace(TEN, leaving=TEN.seen), 0.45, False),
    restarted_by_us=(ten(5), dataclasses.replace(TEN, restarted=dict.fromkeys(FIVE_NAMES, "p")),
        0.45, False),
    the_next_pod_starts=(ten(5, pod_uid="new", pod_age_s=60.0), COUNTED["old"], 0.45, False),
    away_before_it_was_replaced=(ten(5, pod_uid="same", pod_age_s=60.0), COUNTED["same"], 0.45,
        True),
    one_that_leaves_is_not_counted=([*ten(5, of=9), worker("d", **DRAINING)], TEN, 0.5, True),
    they_may_come_back=(ten(5), lost_for(599), 0.45, True),
    given_up=(ten(5), lost_for(600), 0.45, False),
    no_node_so_far=(ten(5, unschedulable_s=1.0), lost_for(299), 0.45, True),
    no_node=(ten(5, unschedulable_s=1.0), lost_for(300), 0.45, False),
)  # fmt: skip
def test_how_many_away_are_too_many(
    workers: list[ObservedWorker], past: Past, most: float, is_held: bool
) -> None:
    decided = decide(cluster(workers), policy_of(max_unready=most), past)

    assert is_held == (decided.reason is Reason.TOO_MANY_UNREADY)


# --- the scheduler is away --------------------------------------------------------------------


def away(
    count: int, workers: list[ObservedWorker], *, others: tuple[ObservedGroup, ...] = ()
) -> ObservedCluster:
    return cluster(
        workers, problem=Reason.SCHEDULER_UNREACHABLE, unanswered=count, others=others,
        message="no answer",
    )  # fmt: skip


FIVE = {"fallback": Fallback(3, replicas=5)}
MORNING = Schedule("0 0 * * *", 24 * 3600.0, min_replicas=4)


@table(
    "workers, mode, expected",
    up_to_the_fallback=([A], Mode.AUTO, ["=5"]),
    never_down=([A] * 7, Mode.AUTO, []),
    advised=([A], Mode.ADVISE, []),
    paused=([A], Mode.PAUSED, []),
)
def test_without_the_scheduler_workers_are_only_added(
    workers: list[ObservedWorker], mode: Mode, expected: list[str]
) -> None:
    decided = decide(away(9, workers), policy_of(**FIVE, mode=mode))

    assert expected == actions(decided)
    assert Reason.SCHEDULER_UNREACHABLE is decided.reason
    assert (mode is Mode.ADVISE) == bool(decided.advice)


def test_a_cluster_that_was_scaled_to_zero_is_not_woken_by_an_outage() -> None:
    idle = Idle(after_s=60.0, action=IdleAction.SCALE_TO_ZERO)
    policy = policy_of(idle=idle, min_replicas=2)

    assert [] == actions(decide(away(1, []), policy, past_of(desired=0)))
    assert ["=2"] == actions(decide(away(1, []), policy, past_of(desired=2)))
    assert ["=2"] == actions(decide(away(1, []), policy, Past()))


# --- pauses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pause", "mode", "expected"),
    [
        (Pause(), Mode.PAUSED, "paused: nothing is scaled"),
        (Pause(all=True), Mode.AUTO, "paused: nothing is scaled"),
        (Pause(all=True, message="by me", problem="no time"), Mode.AUTO,
         "paused: nothing is scaled; by me; no time"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("node_signals", [True, False])
def test_what_is_paused_is_told_as_it_is(
    pause: Pause, mode: Mode, expected: str, node_signals: bool
) -> None:
    workers = [A, B, worker("c", node_terminating="cordoned")]
    world = dataclasses.replace(cluster(workers, target=2), pause=pause)
    disruption = Disruption(node_signals=node_signals)
    policy = dataclasses.replace(POLICY, mode=mode, disruption=disruption)
    decided = decide(world, policy, past_of(deleted=frozenset("b")))

    n = 1 if node_signals else 2
    group = GroupPlan(GROUP, n, 2, n, Reason.PAUSED, expected, current=n, is_frozen=True)
    assert Plan(Reason.PAUSED, expected, 2, n, groups=(group,)) == decided


# --- nobody there -----------------------------------------------------------------------------

UNUSED = {"quiet": Quiet(no_task_s=120.0), "demand": Demand()}


def idle(action: IdleAction, **changes: Any) -> Policy:
    return policy_of(idle=Idle(after_s=60.0, action=action), **changes)


@pytest.mark.parametrize(
    ("schedules", "expected"),
    [((), ["retire a"]), ((MORNING,), ["=4"])],
    ids=["below-the-minimum", "a-schedule-keeps-them-warm"],
)
def test_an_idle_cluster_goes_to_zero(schedules: tuple[Schedule, ...], expected: list[str]) -> None:
    policy = idle(IdleAction.SCALE_TO_ZERO, min_replicas=1, schedules=schedules)

    assert expected == actions(decide(cluster([A], **UNUSED), policy))


def test_a_cluster_that_goes_is_told_by_why_it_goes() -> None:
    world = dataclasses.replace(cluster([A], **UNUSED, target=5), uid="u")
    decided = decide(world, idle(IdleAction.DELETE_CLUSTER))

    message = "no task for 1m or longer: it is deleted"
    assert (DeleteCluster("u", Reason.CLUSTER_IDLE, message),) == decided.actions
    assert (Reason.CLUSTER_IDLE, message) == (decided.reason, decided.message)


IN_VAIN = RecyclePast(surging_since={"a": -1e6})


@table(
    "more, recycle_past, waits",
    waits=([pending("p")], RecyclePast(), ("floors", "waiting", "arriving")),
    no_replacement_came=([], IN_VAIN, ("aborting",)),
)
def test_advice_enforces_nothing_and_nobody_waits(
    more: list[ObservedWorker], recycle_past: RecyclePast, waits: tuple[str, ...]
) -> None:
    spent = [busy("a", use=Use(runs=99)), busy("b"), busy("c"), worker("r", **DRAINING)]
    world, past = cluster([*spent, *more], target=5), past_of(desired=5, recycle=recycle_past)
    recycle = Recycle(tasks=TaskQuota(20))
    acting = decide(world, policy_of(recycle=recycle), past)
    advised = decide(world, policy_of(recycle=recycle, mode=Mode.ADVISE), past)

    cancel = Cancel("r", ("r",), Reason.ADVISING, "mode is Advise")
    assert (acting.actions, (cancel,)) == (advised.advice, advised.actions)
    assert acting.limits != Limits() == advised.limits
    assert {"Due"} == {row.state for row in advised.replacing}
    assert acting.groups == advised.groups
    for what in waits:
        assert getattr(acting, what)
        assert not getattr(advised, what)


# --- floors, rates, caps ----------------------------------------------------------------------
