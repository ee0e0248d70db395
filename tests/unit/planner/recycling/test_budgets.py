"""What stands against a replacement, and how many may be missing at once: as `plan` tells it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.model.observed import ManualPin, ObservedWorker, Pin
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Amount,
    Budget,
    LifetimeQuota,
    MemoryQuota,
    RecyclePast,
    Strategy,
    TaskQuota,
    Use,
)
from support.recycles import DRAINING, FULL, IN_PLACE, NIGHT, SPENT, actions, decide, states, turn
from support.worlds import NOW, PAST, SHUFFLE, busy, cluster, pending, worker

CLIENT = Pin("client", "me", "", 60.0)
ASKED = {"recycle_asked": "ann"}
LATER, OTHERS = (NOW + 9, "its own did not come"), (NOW + 99, "that of b did not come")
OVER_PINS = {"memory": MemoryQuota(hard=0.9, override_pins=True)}
HOUR_OLD = {"min_age_s": 3600.0}
SHUT = {"disruption": {"windows": (NIGHT,)}}
NEVER = {"disruption": {"budgets": (Budget(Amount(0), frozenset({Reason.TASK_QUOTA})),)}}


def aborted(**names: tuple[float, str]) -> dict[str, Any]:
    return {"past": dataclasses.replace(PAST, recycle=RecyclePast(aborted=names))}


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        pytest.param(SPENT, {}, None, id="nothing"),
        pytest.param(SPENT, NEVER,
                     (Reason.BUDGET_EXHAUSTED, "0 forbids TaskQuota"),
                     id="forbidden"),
        pytest.param({**SPENT, "pins": (SHUFFLE, CLIENT)}, {},
                     (Reason.PINNED, "client me, shuffle 5f3a"), id="pinned"),
        pytest.param({**FULL, "pins": (CLIENT,)}, OVER_PINS, None, id="over-pins"),
        pytest.param({**FULL, "pins": (CLIENT, SHUFFLE)}, OVER_PINS,
                     (Reason.PINNED, "client me, shuffle 5f3a"),
                     id="never-over-those-of-shuffles"),
        pytest.param({**SPENT, "pins": (CLIENT,)}, OVER_PINS,
                     (Reason.PINNED, "client me"), id="nor-for-anything-else"),
        pytest.param({**SPENT, "actors": True}, {},
                     (Reason.HOLDS_ACTORS, ""),
                     id="actors"),
        pytest.param(SPENT, SHUT,
                     (Reason.NOT_YET, "(disruption.windows)"),
                     id="closed"),
        pytest.param({**SPENT, "pod_age_s": 3600.0}, HOUR_OLD, None, id="old-enough"),
        pytest.param({**SPENT, "pod_age_s": 3599.0}, HOUR_OLD,
                     (Reason.NOT_YET, "1h (minAge)"),
                     id="young"),
        pytest.param({**FULL, "pod_age_s": 1.0}, HOUR_OLD, None, id="young-but-urgent"),
        pytest.param({**ASKED, "pod_age_s": 1.0}, HOUR_OLD, None, id="young-but-by-hand"),
        pytest.param({**FULL, "manual_pin": ManualPin(60.0, "")}, OVER_PINS, None,
                     id="over-pins-of-people"),
        pytest.param(SPENT, aborted(a=LATER, b=OTHERS), (Reason.RECYCLE_ABORTED, LATER[1]),
                     id="its-own-failure-before-that-of-others"),
        pytest.param(SPENT, aborted(b=OTHERS), (Reason.RECYCLE_ABORTED, OTHERS[1]),
                     id="that-of-others-too"),
        pytest.param(SPENT, aborted(b=OTHERS, c=LATER), (Reason.RECYCLE_ABORTED, OTHERS[1]),
                     id="of-them-the-one-that-lasts-longest"),
        pytest.param(SPENT, aborted(a=(NOW, "none came")), None, id="until-its-time"),
        pytest.param(SPENT, {**aborted(b=OTHERS), **IN_PLACE}, None,
                     id="but-where-none-is-asked-for-first"),
        pytest.param(ASKED, aborted(b=OTHERS), None, id="by-hand-it-is-tried"),
        pytest.param(ASKED, aborted(a=LATER), (Reason.RECYCLE_ABORTED, LATER[1]),
                     id="by-hand-once"),
        pytest.param({"ends_in_s": 30.0}, {**aborted(a=LATER, b=OTHERS),
                     "lifetime": LifetimeQuota(margin_s=30.0)}, None, id="the-last-chance"),
    ],
)  # fmt: skip
def test_what_stands_against_a_replacement(
    changes: dict[str, Any], settings: dict[str, Any], expected: tuple[Reason, str] | None
) -> None:
    world = cluster([busy("a", **changes), busy("b"), busy("c"), busy("d")], target=3)
    decided = decide(world, policy={"min_replicas": 3, "max_replicas": 3}, **settings)

    assert ("Due" if expected else "Draining") == states(decided)["a"]
    blocked = [b for b in decided.blockers if b.worker == "a"]
    assert bool(expected) == bool(blocked)
    if expected:
        (found,) = blocked
        assert (expected[0], True) == (found.reason, found.message.endswith(expected[1]))


# --- how many should be in service ----------------------------------------------------------------

TWO = (Budget(Amount(1)),)


def missing(*workers: ObservedWorker, **past: Any) -> int:
    """Workers that budgets miss, by how many more may go: all are due at once, in place."""
    full = [busy(f"f{i}", **FULL) for i in range(9)]
    decided = turn([*workers, *full], budgets=(Budget(Amount(9)),), past=past, **IN_PLACE)

    return 9 - sum(action.startswith("retire f") for action in actions(decided))


@pytest.mark.parametrize(
    ("changes", "seen", "is_missed"),
    [
        pytest.param({}, (), False, id="never-there"),
        pytest.param({}, ("x",), True, id="there-before"),
        pytest.param({"terminating": "it is deleted"}, (), True, id="its-pod-goes"),
        pytest.param({"pod_age_s": 469.9}, (), True, id="a-second-pod"),
        pytest.param({"pod_age_s": 470.0}, (), False, id="its-first-pod-a-little-late"),
        pytest.param({"pod_age_s": 500.0}, (), False, id="its-first-pod"),
    ],
)
def test_who_was_connected_is_missed(
    changes: dict[str, Any], seen: tuple[str, ...], is_missed: bool
) -> None:
    assert is_missed == missing(pending("x", **changes), seen=frozenset(seen))


@pytest.mark.parametrize(
    ("floors", "expected"),
    [
        pytest.param({}, 1, id="without-a-past-it-is"),
        pytest.param({"r": 9}, 0, id="as-many-serve-as-did"),
        pytest.param({"r": 10}, 1, id="more-served"),
    ],
)
def test_who_left_before_its_replacement_came_is_missed(
    floors: dict[str, int], expected: int
) -> None:
    goes = worker("r", **DRAINING)
    full = [busy(f"f{i}", **FULL) for i in range(9)]
    nine = {"budgets": (Budget(Amount(9)),), "strategy": Strategy(max_surge=Amount(9))}
    decided = turn([goes, *full], past={"floors": floors}, **nine)

    assert 9 - expected == sum(action.startswith("retire f") for action in actions(decided))


@pytest.mark.parametrize(("ago_s", "begins"), [(3599.0, False), (3600.0, True)])
def test_a_recycle_counts_for_an_hour(ago_s: float, begins: bool) -> None:
    past = dataclasses.replace(PAST, recycle=RecyclePast(begun=(NOW - ago_s,)))
    world = cluster([busy("a", **SPENT), busy("b"), busy("c")], target=2)
    rules = {"min_replicas": 2, "max_replicas": 2}
    decided = decide(world, past, max_per_hour=Amount(1), policy=rules)

    assert begins == ("retire a" in actions(decided))
    assert bool(decided.storm) == (not begins)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"paused": True}, ["retire a"], id="who-is-paused-is-missing-already"),
        pytest.param({"stopped": "x"}, ["retire a"], id="or-cordoned"),
    ],
)
def test_who_takes_no_tasks_is_not_missed_twice(
    changes: dict[str, Any], expected: list[str]
) -> None:
    workers = [busy("a", **FULL, **changes), busy("b", use=Use(process=0.91))]
    decided = turn(workers, budgets=TWO, tasks=TaskQuota(), **IN_PLACE)

    assert expected == actions(decided)
