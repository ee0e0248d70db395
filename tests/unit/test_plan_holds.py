"""What keeps the planner from scaling: people, gates, a scheduler that is away, nobody there."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.loop.conditions import conditions_of
from dask_adaptive.loop.report import status_of
from dask_adaptive.model.demand import Demand, Quiet, Want
from dask_adaptive.model.observed import (
    Ending,
    Leaving,
    ManualPin,
    ObservedCluster,
    ObservedGroup,
    ObservedWorker,
)
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import (
    Cancel,
    Delete,
    DeleteCluster,
    Leave,
    Plan,
    Retire,
    SetPin,
    SetReplicas,
)
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, TaskQuota, Use, Window
from dask_adaptive.model.scaling import (
    Behavior,
    Caps,
    Direction,
    Fallback,
    GroupBounds,
    Idle,
    IdleAction,
    Pause,
    RatePolicy,
    RateType,
    Room,
    Scaling,
    Schedule,
)
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.remember import remember
from support.worlds import GROUP, NOW, PAST, POLICY, busy, cluster, past_of, pending, worker

A, B, C = worker("a"), worker("b"), worker("c")
DRAINING = {"leaving": Leaving.DRAINING, "in_service": False}
DRAINED = {"leaving": Leaving.DRAINED, "in_service": False}
AT = 1_700_000_000.0


def scaling(**changes: Any) -> Policy:
    mode = changes.pop("mode", Mode.AUTO)
    policy = {k: changes.pop(k) for k in ("minimum", "maximum", "recycle") if k in changes}
    return dataclasses.replace(POLICY, mode=mode, scaling=Scaling(**changes), **policy)


def decide(
    world: ObservedCluster, policy: Policy = POLICY, past: Past = PAST, *, at: float = AT
) -> Plan:
    return plan(dataclasses.replace(world, at=at), policy, past, now=NOW)


def short(decided: Plan) -> list[str]:
    words = []
    for action in decided.actions:
        match action:
            case SetReplicas(group, replicas):
                words.append(f"={replicas}" if group == GROUP else f"{group}={replicas}")
            case DeleteCluster(uid):
                words.append(f"end {uid}")
            case Retire() | Cancel() | Delete() | Leave() | SetPin():
                words.append(f"{type(action).__name__.lower()} {action.worker}")
            case _:
                raise AssertionError(action)
    return words


def conditions(world: ObservedCluster, policy: Policy, decided: Plan) -> dict[str, Any]:
    return {
        c.type: (c.status, c.reason, c.message) for c in conditions_of(world, policy, decided, ())
    }


# --- too many workers away --------------------------------------------------------------------

AWAY = [pending(f"p{i}") for i in range(4)]
SEEN = dataclasses.replace(PAST, seen=frozenset("abcd") | {w.name for w in AWAY})


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(cluster([*AWAY, A, B], target=0), id="no-fall"),
        pytest.param(cluster([*AWAY, busy("a"), busy("b")], target=9), id="no-rise"),
        pytest.param(cluster([*AWAY, A, worker("b", **DRAINED)], target=0), id="no-deletion"),
        pytest.param(cluster([*AWAY, A, B], target=0, replicas=9), id="no-correction"),
    ],
)
def test_with_too_many_away_nothing_moves(world: ObservedCluster) -> None:
    decided = decide(world, POLICY, SEEN)

    assert [] == short(decided)
    assert Reason.TOO_MANY_UNREADY is decided.reason
    found = conditions(world, POLICY, decided)
    assert (False, Reason.TOO_MANY_UNREADY) == found["AbleToScale"][:2]
    assert decided.desired == decided.groups[0].serving


def test_pins_and_ends_are_told_all_the_same() -> None:
    pinned = worker("a", manual_pin=ManualPin(600.0, "note"))
    ending = Ending("b", "b-x", (), 60.0, ("tcp://b",))
    world = dataclasses.replace(cluster([*AWAY, pinned, B]), ending=(ending,))

    assert ["leave b", "setpin a"] == short(decide(world, POLICY, SEEN))


def test_what_is_recommended_meanwhile_is_not_believed() -> None:
    world = cluster([*AWAY, A, B], target=0)
    policy, past, now = POLICY, SEEN, NOW
    for _ in range(10):
        now += 5.0
        past = remember(past, world, policy, plan(world, policy, past, now=now), (), now=now)
    back = cluster([*(worker(w.name) for w in AWAY), A, B], target=0)

    assert () == plan(back, policy, past, now=now).actions  # the window begins anew


def test_a_gate_can_be_opened_wide() -> None:
    world = cluster([*AWAY, A, B], target=0)

    assert short(decide(world, scaling(caps=Caps(max_unready=1.0)), SEEN))


# --- the scheduler is away --------------------------------------------------------------------


def away(
    count: int, workers: list[ObservedWorker], *, others: tuple[ObservedGroup, ...] = ()
) -> ObservedCluster:
    return cluster(
        workers, problem=Reason.SCHEDULER_UNREACHABLE, unanswered=count, others=others,
        message="no answer",
    )  # fmt: skip


FIVE = {"fallback": Fallback(3, replicas=5)}
MORNING = Schedule(Window("0 0 * * *", 24 * 3600.0), minimum=4)


@pytest.mark.parametrize(
    ("world", "policy", "expected"),
    [
        pytest.param(away(2, [A]), scaling(**FIVE), [], id="not-for-long-yet"),
        pytest.param(away(3, [A]), scaling(**FIVE), ["=5"], id="up-to-the-fallback"),
        pytest.param(away(9, [A] * 7), scaling(**FIVE), [], id="never-down"),
        pytest.param(away(9, [A]), scaling(), [], id="hold"),
        pytest.param(away(9, [A]), scaling(**FIVE, maximum=3), ["=3"], id="no-more-than-may-be"),
        pytest.param(away(9, [A]), scaling(**FIVE, mode=Mode.ADVISE), [], id="advised"),
        pytest.param(away(9, [A]), scaling(**FIVE, mode=Mode.PAUSED), [], id="paused"),
        pytest.param(
            dataclasses.replace(away(9, [A]), pause=Pause(all=True)), scaling(**FIVE), [],
            id="paused-by-annotation",
        ),
        pytest.param(
            dataclasses.replace(away(9, [A]), pause=Pause(scale_out=True)), scaling(**FIVE), [],
            id="scale-out-is-paused",
        ),
        pytest.param(away(1, [A]), scaling(schedules=(MORNING,)), ["=4"], id="schedules-hold"),
        pytest.param(away(1, [A]), scaling(minimum=2), ["=2"], id="minimums-hold"),
        pytest.param(
            away(1, [A], others=(ObservedGroup("etl-gpu", 0), ObservedGroup("etl-x", 0))),
            scaling(groups=(GroupBounds("etl-gpu", 4, minimum=2),)), ["etl-gpu=2"],
            id="of-each-group",
        ),
        pytest.param(
            away(1, [A], others=(ObservedGroup("etl-gpu", 0),)),
            scaling(
                groups=(GroupBounds(GROUP, 9, 1), GroupBounds("etl-gpu", 9, minimum=9)), maximum=4
            ),
            ["etl-gpu=3"], id="within-the-clusters-limit",
        ),
    ],
)  # fmt: skip
def test_without_the_scheduler_workers_are_only_added(
    world: ObservedCluster, policy: Policy, expected: list[str]
) -> None:
    decided = decide(world, policy)

    assert expected == short(decided)
    assert Reason.SCHEDULER_UNREACHABLE is decided.reason
    if policy.mode is Mode.ADVISE:
        assert decided.advice


def test_a_fallback_is_a_condition() -> None:
    policy = scaling(**FIVE)
    short_, long_ = away(2, [A]), away(3, [A])

    before = conditions(short_, policy, decide(short_, policy))["AbleToScale"]
    after = conditions(long_, policy, decide(long_, policy))["AbleToScale"]
    later = away(30, [A])

    assert (False, Reason.SCHEDULER_UNREACHABLE) == before[:2]
    assert (False, Reason.FALLBACK) == after[:2]
    assert after == conditions(later, policy, decide(later, policy))["AbleToScale"]


def test_a_cluster_that_was_scaled_to_zero_is_not_woken_by_an_outage() -> None:
    idle = Idle(after_s=60.0, action=IdleAction.SCALE_TO_ZERO)
    policy = scaling(idle=idle, minimum=2)

    assert [] == short(decide(away(1, []), policy, past_of(desired=0)))
    assert ["=2"] == short(decide(away(1, []), policy, past_of(desired=2)))
    assert ["=2"] == short(decide(away(1, []), policy, Past()))


# --- pauses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pause", "target", "expected"),
    [
        pytest.param(Pause(all=True), 9, [], id="all-no-rise"),
        pytest.param(Pause(all=True), 0, [], id="all-no-fall"),
        pytest.param(Pause(all=True, left_s=0.0), 0, ["retire a", "retire b"], id="it-is-over"),
        pytest.param(Pause(problem="can't be read"), 0, [], id="what-cant-be-read-holds-all"),
        pytest.param(Pause(scale_in=True), 0, [], id="no-fall"),
        pytest.param(Pause(scale_in=True), 3, ["=3"], id="a-rise"),
        pytest.param(Pause(scale_out=True), 3, [], id="no-rise"),
        pytest.param(Pause(scale_out=True), 1, ["retire a"], id="a-fall"),
        pytest.param(Pause(replicas=4), 0, ["=4"], id="a-number"),
        pytest.param(Pause(replicas=1), 9, ["retire a"], id="a-lower-number"),
        pytest.param(Pause(replicas=1, scale_in=True), 9, [], id="both-count"),
    ],
)
def test_pauses(pause: Pause, target: int, expected: list[str]) -> None:
    world = dataclasses.replace(cluster([A, B], target=target), pause=pause)

    assert expected == short(decide(world))


def test_a_pause_of_all_returns_who_is_on_the_way_out() -> None:
    group = ObservedGroup("etl-gpu", 1, (worker("g", group="etl-gpu", **DRAINING),))
    world = cluster([A, worker("b", **DRAINING)], others=[group])
    world = dataclasses.replace(world, pause=Pause(all=True, message="paused on the cluster"))
    policy = scaling(groups=(GroupBounds("etl-gpu", 4),))
    decided = decide(world, policy)

    assert ["cancel b", "cancel g"] == short(decided)
    assert Reason.PAUSED is decided.reason
    assert "paused on the cluster" in decided.message


def test_a_pause_of_scaling_in_returns_them_as_well_but_no_recycle() -> None:
    world = cluster([A, worker("b", **DRAINING)])
    world = dataclasses.replace(world, pause=Pause(scale_in=True))
    assert ["cancel b"] == short(decide(world))

    spent = [busy("a", use=Use(runs=99)), busy("b"), busy("c")]
    world = dataclasses.replace(cluster(spent, target=3), pause=Pause(scale_in=True))
    assert ["=4"] == short(decide(world, scaling(recycle=Recycle(tasks=TaskQuota(20)))))


def test_a_pause_is_told_with_its_end_that_does_not_move() -> None:
    def told(left_s: float, at: float, before: Any = None) -> Any:
        pause = Pause(scale_out=True, left_s=left_s, message="paused-scale-out on the policy")
        world = dataclasses.replace(cluster([A], target=3), pause=pause, at=at)
        decided = plan(world, POLICY, PAST, now=NOW)
        return status_of(world, POLICY, decided, (), now=NOW, before=before)

    first = told(600.0, AT)
    later = told(590.2, AT + 10.0, first)
    moved = told(900.0, AT + 10.0, first)

    assert first == later != moved
    condition = next(c for c in first.conditions if c.type == "Paused")
    assert (True, Reason.SCALE_OUT_PAUSED) == (condition.status, condition.reason)
    assert condition.message == "paused-scale-out on the policy, until 2023-11-14T22:23:20Z"
    assert first.pause is not None
    assert AT + 600.0 == first.pause.until


# --- nobody there -----------------------------------------------------------------------------

UNUSED = {"quiet": Quiet(no_task_s=120.0), "demand": Demand()}


def idle(action: IdleAction, **changes: Any) -> Policy:
    return scaling(idle=Idle(after_s=60.0, action=action), **changes)


@pytest.mark.parametrize(
    ("world", "policy", "expected"),
    [
        pytest.param(cluster([A], **UNUSED), idle(IdleAction.NOTHING, minimum=1), [], id="nothing"),
        pytest.param(
            cluster([A], **UNUSED), idle(IdleAction.SCALE_TO_ZERO, minimum=1), ["retire a"],
            id="below-the-minimum",
        ),
        pytest.param(
            cluster([A], quiet=Quiet(no_task_s=50.0), demand=Demand()),
            idle(IdleAction.SCALE_TO_ZERO, minimum=1), [], id="not-for-long-enough",
        ),
        pytest.param(
            cluster([A], **UNUSED),
            idle(IdleAction.SCALE_TO_ZERO, minimum=1, schedules=(MORNING,)), ["=4"],
            id="a-schedule-keeps-them-warm",
        ),
        pytest.param(
            dataclasses.replace(cluster([A], **UNUSED), uid="u"), idle(IdleAction.DELETE_CLUSTER),
            ["end u"], id="deleted",
        ),
        pytest.param(
            dataclasses.replace(cluster([A], **UNUSED), uid="u", pause=Pause(scale_in=True)),
            idle(IdleAction.DELETE_CLUSTER), [], id="not-while-scaling-in-is-paused",
        ),
        pytest.param(
            dataclasses.replace(
                cluster([A], **UNUSED, wants=(Want(1, 60.0, "client nb"),)), uid="u"
            ),
            idle(IdleAction.DELETE_CLUSTER), [], id="not-while-somebody-wants-a-worker",
        ),
    ],
)  # fmt: skip
def test_idle_clusters(world: ObservedCluster, policy: Policy, expected: list[str]) -> None:
    assert expected == short(decide(world, policy))


def test_in_advise_mode_a_deletion_is_advised() -> None:
    world = dataclasses.replace(cluster([A], **UNUSED), uid="u")
    decided = decide(world, idle(IdleAction.DELETE_CLUSTER, mode=Mode.ADVISE))

    assert [] == short(decided)
    assert ["u"] == [a.uid for a in decided.advice if isinstance(a, DeleteCluster)]


# --- floors, rates, caps ----------------------------------------------------------------------


def up(count: int) -> dict[str, Any]:
    return {"behavior": Behavior(up=Direction(policies=(RatePolicy(RateType.PODS, count, 60.0),)))}


@pytest.mark.parametrize(
    ("world", "policy", "expected", "limited"),
    [
        pytest.param(
            cluster([A], target=1), scaling(schedules=(MORNING,)), ["=4"], None, id="schedule"
        ),
        pytest.param(cluster([A], target=9), scaling(**up(2)), ["=3"], Reason.SCALE_UP_LIMITED,
                     id="rate"),
        pytest.param(cluster([A], target=9), scaling(**up(2), minimum=5), ["=5"], None,
                     id="a-minimum-holds-at-once"),
        pytest.param(
            cluster([A], target=9), scaling(behavior=Behavior(max_pending=3)), ["=4"],
            Reason.MAX_PENDING, id="max-pending",
        ),
        pytest.param(
            cluster([busy("a"), pending("p", unschedulable_s=400.0)], target=9), scaling(), [],
            Reason.UNSCHEDULABLE, id="none-would-come",
        ),
        pytest.param(
            cluster([busy("a"), pending("p", unschedulable_s=400.0)], target=1), scaling(),
            ["delete p"], None, id="a-stuck-one-goes-once-it-is-not-needed",
        ),
        pytest.param(
            cluster([busy(n) for n in "abc"], target=3), scaling(maximum=3), [], None, id="at-ease"
        ),
        pytest.param(
            cluster([busy(n) for n in "abc"], target=9), scaling(maximum=3), [],
            Reason.TOO_MANY_REPLICAS, id="at-the-maximum",
        ),
        pytest.param(
            cluster([A, B, C], target=0), scaling(minimum=3), [], Reason.TOO_FEW_REPLICAS,
            id="at-the-minimum",
        ),
        pytest.param(
            cluster([A, B, C], target=0),
            scaling(behavior=Behavior(down=Direction(
                window_s=None, policies=(RatePolicy(RateType.PODS, 1, 60.0),)))),
            ["retire a"], Reason.SCALE_DOWN_LIMITED, id="one-a-minute",
        ),
    ],
)  # fmt: skip
def test_what_bounds_a_number(
    world: ObservedCluster, policy: Policy, expected: list[str], limited: Reason | None
) -> None:
    decided = decide(world, policy)
    found = conditions(world, policy, decided)["ScalingLimited"]

    assert expected == short(decided)
    assert (limited is not None) == found[0]
    assert limited is None or limited is found[1]


def test_a_quota_of_the_namespace_is_not_run_against() -> None:
    world = cluster([busy("a")], target=9)
    group = dataclasses.replace(world.groups[0], room=Room(2, "ResourceQuota team has pods 2"))
    decided = decide(dataclasses.replace(world, groups=(group,)))

    assert ["=3"] == short(decided)
    assert "team" in conditions(world, POLICY, decided)["ScalingLimited"][2]


def test_a_pending_worker_is_no_reason_to_close_a_running_one() -> None:
    """Pinned, and stuck: it can't go, and nobody else goes for it."""
    held = pending("p", manual_pin=ManualPin(600.0, ""), unschedulable_s=400.0)
    world = cluster([A, held], target=1)

    assert [] == short(decide(world))


def test_the_most_important_limit_is_told_first() -> None:
    stuck = pending("p", unschedulable_s=400.0, waiting="Unschedulable: 0/3 nodes")
    full = ObservedGroup(
        "etl-gpu", 1, (busy("g", group="etl-gpu"),), room=Room(0, "quota team is used up")
    )
    world = cluster(
        [busy("a"), stuck], target=9, others=[full], demand=Demand(),
        wants=(Want(5, 60.0, "nb"), Want(3, 60.0, "nb", "etl-gpu")),
    )  # fmt: skip
    policy = scaling(groups=(GroupBounds("etl-gpu", 4),))
    _, reason, message = conditions(world, policy, decide(world, policy))["ScalingLimited"]

    assert Reason.UNSCHEDULABLE is reason
    assert message.index("etl-default") < message.index("etl-gpu: quota team is used up")
