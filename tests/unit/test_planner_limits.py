"""How far a number may move, to the figure: what limits it, in which words, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.demand import Quiet
from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Blocked, Change, GroupPast, Recommendation
from dask_adaptive.model.plan import DeleteCluster
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import (
    Behavior,
    Direction,
    GroupBounds,
    Idle,
    IdleAction,
    Pause,
    RatePolicy,
    RateType,
    Scaling,
    Select,
)
from dask_adaptive.planner.behavior import damped, remembered
from dask_adaptive.planner.caps import FIRST_WAIT_S, capped, shared
from dask_adaptive.planner.fleet import sort_fleet
from dask_adaptive.planner.pauses import held
from dask_adaptive.planner.plan import plan
from support.worlds import GROUP, NOW, PAST, POLICY, cluster, pending, worker

TWO_A_MINUTE = RatePolicy(RateType.PODS, 2, 60.0)
HALF_A_MINUTE = RatePolicy(RateType.PERCENT, 50, 60.0)
NEAR, NONE_TOO_FAR = Direction(tolerance=0.5), Direction(tolerance=1.0)
RATES = Direction(policies=(TWO_A_MINUTE, HALF_A_MINUTE))
LEAST = replace(RATES, select=Select.MIN)
NEVER = Direction(select=Select.DISABLED)
SECOND = Behavior(delay_after_up_s=1.0, down=Direction())


def step(stage: str, replicas: int, reason: Reason, message: str) -> Step:
    return Step(stage, replicas, reason, message)


# --- how fast a number moves ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "current", "behavior", "past", "expected"),
    [
        pytest.param(3, 3, Behavior(), {}, None, id="nothing-to-do"),
        pytest.param(4, 4, Behavior(up=NEAR, down=NEAR), {}, None, id="no-step-is-not-small"),
        pytest.param(9, 0, Behavior(up=RATES), {"asked": 5},
                     step("rate", 2, Reason.SCALE_UP_LIMITED, "9 needed, 2 allowed now "
                          "(behavior.scaleUp: 2 in 1m or 50% in 1m)"), id="none-are-needed-still"),
        pytest.param(9, 0, Behavior(up=RATES), {"desired": 5},
                     step("rate", 2, Reason.SCALE_UP_LIMITED, "9 needed, 2 allowed now "
                          "(behavior.scaleUp: 2 in 1m or 50% in 1m)"), id="none-have-been"),
        pytest.param(6, 4, Behavior(up=NEAR), {},
                     step("tolerance", 4, Reason.WITHIN_TOLERANCE, "6 are within 50% of 4"),
                     id="a-small-rise"),
        pytest.param(2, 4, Behavior(down=NEAR), {},
                     step("tolerance", 4, Reason.WITHIN_TOLERANCE, "2 are within 50% of 4"),
                     id="a-small-fall"),
        pytest.param(1, 2, Behavior(down=NEAR), {},
                     step("tolerance", 2, Reason.WITHIN_TOLERANCE, "1 are within 50% of 2"),
                     id="a-small-fall-to-one"),
        pytest.param(0, 2, Behavior(down=NONE_TOO_FAR), {}, None, id="to-none-is-never-small"),
        pytest.param(9, 4, Behavior(up=RATES), {},
                     step("rate", 6, Reason.SCALE_UP_LIMITED, "9 needed, 6 allowed now "
                          "(behavior.scaleUp: 2 in 1m or 50% in 1m)"), id="a-fast-rise"),
        pytest.param(6, 4, Behavior(up=RATES), {}, None, id="a-rise-as-fast-as-may-be"),
        pytest.param(9, 4, Behavior(up=NEVER), {},
                     step("rate", 4, Reason.SCALE_UP_LIMITED, "9 needed, 4 allowed now "
                          "(behavior.scaleUp.selectPolicy is Disabled)"), id="no-rise"),
        pytest.param(1, 8, Behavior(down=RATES), {},
                     step("rate", 4, Reason.SCALE_DOWN_LIMITED, "1 needed, 4 allowed now "
                          "(behavior.scaleDown: 2 in 1m or 50% in 1m)"), id="a-fast-fall"),
        pytest.param(4, 8, Behavior(down=RATES), {}, None, id="a-fall-as-fast-as-may-be"),
        pytest.param(1, 8, Behavior(down=LEAST), {},
                     step("rate", 6, Reason.SCALE_DOWN_LIMITED, "1 needed, 6 allowed now "
                          "(behavior.scaleDown: 2 in 1m and 50% in 1m)"), id="as-the-least-allows"),
        pytest.param(1, 2, SECOND, {"up_at": NOW - 0.9},
                     step("delay", 2, Reason.DELAY_AFTER_SCALE_UP,
                          "1 needed, 2 held for 1s after more were asked for"), id="just-risen"),
        pytest.param(1, 2, SECOND, {"up_at": NOW - 1.0}, None, id="risen-a-while-ago"),
    ],
)  # fmt: skip
def test_what_limits_a_move(
    wanted: int, current: int, behavior: Behavior, past: dict[str, Any], expected: Step | None
) -> None:
    before = GroupPast(**past)
    number, steps = damped(
        wanted, current, behavior, before, idle_timeout_s=0.0, since=0.0, now=NOW
    )

    told = () if expected is None else (expected,)
    assert (wanted if expected is None else expected.replicas, told) == (number, steps)


def test_a_fall_that_was_not_watched_is_held() -> None:
    number = damped(1, 2, Behavior(), GroupPast(), idle_timeout_s=60.0, since=None, now=NOW)

    words = "1 wanted, 2 held until the fall has lasted 1m"
    assert (2, (Step("window", 2, Reason.SCALE_DOWN_STABILIZED, words),)) == number


def test_without_a_delay_a_fall_need_not_have_been_watched() -> None:
    fall = Behavior(down=Direction())

    assert (1, ()) == damped(1, 2, fall, GroupPast(), idle_timeout_s=0.0, since=None, now=NOW)


# --- what is kept of it ---------------------------------------------------------------------------


def kept(past: GroupPast, before: int, after: int, **changes: Any) -> GroupPast:
    usual: dict[str, Any] = {"wanted": after, "behavior": Behavior(up=RATES), "idle_timeout_s": 0.0}
    return remembered(past, before=before, after=after, now=NOW, **{**usual, **changes})


@pytest.mark.parametrize(
    ("past", "before", "after", "expected"),
    [
        pytest.param({}, 0, 0, (0, None, ()), id="nothing-was-asked-for"),
        pytest.param({}, 2, 2, (2, None, ()), id="nothing-changed"),
        pytest.param({}, 2, 3, (3, NOW, (Change(NOW, 1),)), id="one-more"),
        pytest.param({}, 3, 2, (2, None, (Change(NOW, -1),)), id="one-fewer"),
        pytest.param({"asked": 5, "desired": 5, "up_at": 7.0}, 3, 5, (5, 7.0, ()),
                     id="those-that-died-are-no-change"),
        pytest.param({"asked": 5, "desired": 5}, 3, 6, (6, NOW, (Change(NOW, 1),)),
                     id="but-one-beyond-them-is"),
        pytest.param({"asked": 5}, 3, 2, (2, None, (Change(NOW, -1),)), id="a-fall-begins-anew"),
        pytest.param({"asked": 5}, 3, 3, (5, None, ()), id="the-most-since-then"),
    ],
)  # fmt: skip
def test_changes_are_remembered(
    past: dict[str, Any], before: int, after: int, expected: tuple[int, float | None, Any]
) -> None:
    later = kept(GroupPast(**past), before, after)

    assert expected == (later.asked, later.up_at, later.changes)


@pytest.mark.parametrize(
    ("earlier", "up_s", "down_s", "is_kept"),
    [
        pytest.param((10.0, 6), 0.0, 60.0, True, id="higher-within-the-window-of-a-fall"),
        pytest.param((59.9, 6), 0.0, 60.0, True, id="higher-at-its-beginning"),
        pytest.param((60.0, 6), 0.0, 60.0, False, id="higher-before-it"),
        pytest.param((10.0, 5), 0.0, 60.0, False, id="no-higher"),
        pytest.param((10.0, 4), 0.0, 60.0, False, id="lower-where-rises-have-no-window"),
        pytest.param((10.0, 4), 60.0, 0.0, True, id="lower-within-the-window-of-a-rise"),
        pytest.param((59.9, 4), 60.0, 0.0, True, id="lower-at-its-beginning"),
        pytest.param((60.0, 4), 60.0, 0.0, False, id="lower-before-it"),
        pytest.param((10.0, 5), 60.0, 0.0, False, id="no-lower"),
        pytest.param((10.0, 6), 60.0, 0.0, False, id="higher-where-falls-have-no-window"),
    ],
)
def test_recommendations_are_remembered_as_long_as_they_count(
    earlier: tuple[float, int], up_s: float, down_s: float, is_kept: bool
) -> None:
    ago_s, replicas = earlier
    before = Recommendation(NOW - ago_s, replicas)
    behavior = Behavior(up=Direction(window_s=up_s), down=Direction(window_s=down_s))
    later = kept(GroupPast(recommendations=(before,)), 5, 5, behavior=behavior)

    newest = Recommendation(NOW, 5)
    assert ((before, newest) if is_kept else (newest,)) == later.recommendations


# --- what is not asked for in vain ----------------------------------------------------------------

EQUALS = [GroupBounds(name, 50) for name in "abc"]


@pytest.mark.parametrize(
    ("desired", "maximum", "expected"),
    [
        pytest.param({"a": 1, "b": 0}, 1, {"a": 1, "b": 0}, id="one-that-lacks-one"),
        pytest.param({"a": 0, "b": 4, "c": 4}, 5, {"a": 0, "b": 3, "c": 2}, id="who-lacks-none"),
        pytest.param({"a": 2, "b": 2}, 2, {"a": 1, "b": 1}, id="one-each"),
        pytest.param({"a": 2, "b": 2}, 3, {"a": 2, "b": 1}, id="the-odd-one-to-the-first"),
        pytest.param({"a": 5, "b": 1, "c": 1}, 12, {"a": 5, "b": 1, "c": 1}, id="more-than-enough"),
        pytest.param({"a": 5, "b": 9, "c": 1}, 14, {"a": 5, "b": 8, "c": 1}, id="in-rounds"),
    ],
)  # fmt: skip
def test_equals_share_alike(
    desired: dict[str, int], maximum: int, expected: dict[str, int]
) -> None:
    assert expected == shared(desired, EQUALS, {}, maximum)[0]


def test_a_group_that_gets_less_is_told_why() -> None:
    _, steps = shared({"a": 3, "b": 4}, EQUALS, {}, 5)

    words = "all groups together 7: maxReplicas is 5"
    assert steps == {"b": Step("cluster", 2, Reason.CLUSTER_LIMIT, f"4 needed, {words}")}


@pytest.mark.parametrize(("younger_s", "is_over"), [(0.0, False), (0.1, True)])
def test_a_worker_made_since_the_wait_began_ends_it(younger_s: float, is_over: bool) -> None:
    began = NOW - 20.0
    known = Blocked(began + FIRST_WAIT_S, Reason.UNSCHEDULABLE, "no node")
    group = ObservedGroup(GROUP, 1, (worker("a", age_s=20.0 - younger_s),))
    past = GroupPast(blocked=known)
    _, _, blocked = capped(1, sort_fleet(group), group, POLICY, past, now=NOW)

    assert (None if is_over else known) == blocked


def test_a_wait_doubles_with_each_try_in_vain() -> None:
    waits = []
    for times in range(1, 8):
        known = Blocked(NOW, Reason.UNSCHEDULABLE, "no node", times)
        group = ObservedGroup(GROUP, 1, (pending("a", age_s=9.0),))
        past = GroupPast(blocked=known)
        _, _, blocked = capped(9, sort_fleet(group), group, POLICY, past, now=NOW)
        assert blocked is not None
        waits.append(blocked.until - NOW)

    assert [120, 240, 480, 960, 1800, 1800, 1800] == waits


REFUSED = pending("r", refused="exceeded quota: gpus")
STUCK = {"unschedulable_s": 400.0, "waiting": "no node"}


def blocked_by(*workers: ObservedWorker, known: Blocked | None = None) -> Blocked | None:
    group = ObservedGroup(GROUP, len(workers), workers)
    return capped(9, sort_fleet(group), group, POLICY, GroupPast(blocked=known), now=NOW)[2]


def test_what_blocks_now_is_told_and_who_is_waited_for() -> None:
    known = Blocked(NOW + 5.0, Reason.UNSCHEDULABLE, "no node", 2, frozenset({"g", "gone"}))
    going = pending("g", going=True)

    words, waited_for = "pods of 1 workers are refused: exceeded quota: gpus", frozenset("gr")
    again = Blocked(NOW + 5.0, Reason.QUOTA_EXCEEDED, words, 2, waited_for)
    assert again == blocked_by(REFUSED, going, known=known)


def test_of_those_without_a_node_the_one_that_waits_longest_is_told() -> None:
    waits = [pending("a", **STUCK), pending("b", unschedulable_s=500.0, waiting="no zone")]

    words = "2 workers have found no node for over 5m: no zone"
    first = Blocked(NOW + FIRST_WAIT_S, Reason.UNSCHEDULABLE, words, workers=frozenset("ab"))
    assert first == blocked_by(*waits)


# --- what people hold, and the end of it all ------------------------------------------------------


@pytest.mark.parametrize(
    ("pause", "expected"),
    [
        ({"all": True}, step("pause", 5, Reason.PAUSED, "nothing is scaled")),
        ({"replicas": 3}, step("pause", 3, Reason.REPLICAS_HELD, "9 wanted, 3 held")),
        (
            {"scale_out": True, "message": "by me"},
            step("pause", 5, Reason.SCALE_OUT_PAUSED,
                 "9 wanted, 5 held: no worker is asked for; by me"),
        ),
    ],
)  # fmt: skip
def test_a_pause_is_a_step(pause: dict[str, Any], expected: Step) -> None:
    assert (expected.replicas, expected) == held(9, 5, Pause(**pause), is_default=True)


def test_a_cluster_that_goes_is_told_by_why_it_goes() -> None:
    idle = Idle(after_s=60.0, action=IdleAction.DELETE_CLUSTER)
    world = replace(cluster([worker("a")], quiet=Quiet(no_task_s=90.0), target=5), uid="u")
    decided = plan(world, replace(POLICY, scaling=Scaling(idle=idle)), PAST, now=NOW)

    (end,) = decided.actions
    assert isinstance(end, DeleteCluster)
    assert (Reason.CLUSTER_IDLE, end.message) == (decided.reason, decided.message)
    assert "no task for 1m or longer: it is deleted" == end.message
