"""Why a worker stays, in whose name, and how that is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.observed import Ending, Leaving, ManualPin, ObservedWorker, Pin
from dask_adaptive.model.past import Past, Refusal
from dask_adaptive.model.plan import Blocker, SetPin, Unpin
from dask_adaptive.model.policy import Disruption
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Amount, LifetimeQuota, MemoryQuota, Recycle, RecyclePast
from dask_adaptive.planner.budget import (
    HOUR_S,
    Rules,
    count_heads,
    is_last_chance,
    left_this_hour,
    objection,
    rules_for,
)
from dask_adaptive.planner.candidates import Context, claims, veto
from dask_adaptive.planner.due import Due
from dask_adaptive.planner.fleet import sort_fleet
from dask_adaptive.planner.pins import OWNER, SLACK_S, sync_pins
from dask_adaptive.planner.plan import count_blockers
from support.worlds import NOW, POLICY, SHUFFLE, cluster, pending, worker

CLIENT, NOTED = Pin("client", "me", "", 60.0), Pin("client", "me", "a long loop", 60.0)
BY_HAND, BY_HAND_WHY = Pin("manual", "x", "", 60.0), Pin("manual", "x", "debugging", 60.0)
ASKED, ASKED_WHY = ManualPin(60.0, ""), ManualPin(60.0, "debugging")


# --- who holds a worker ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, set(), id="nobody"),
        pytest.param({"pins": (SHUFFLE,)}, {"shuffle 5f3a"}, id="a-shuffle"),
        pytest.param({"pins": (Pin("shuffle", "5f3a", "takes part in it", 60.0),)},
                     {"shuffle 5f3a"}, id="a-shuffle-says-why-by-itself"),
        pytest.param({"pins": (CLIENT,)}, {"client me"}, id="a-client"),
        pytest.param({"pins": (NOTED,)}, {"client me (a long loop)"}, id="a-client-says-why"),
        pytest.param({"pins": (BY_HAND,)}, {"annotation"}, id="a-person"),
        pytest.param({"pins": (BY_HAND_WHY,)}, {"annotation (debugging)"}, id="a-person-says-why"),
        pytest.param({"manual_pin": ASKED}, {"annotation"}, id="not-yet-told-to-the-agent"),
        pytest.param({"manual_pin": ASKED_WHY}, {"annotation (debugging)"}, id="nor-why"),
        pytest.param({"manual_pin": ASKED_WHY, "pins": (CLIENT,)},
                     {"annotation (debugging)", "client me"}, id="both"),
        pytest.param({"manual_pin": ASKED_WHY, "pins": (SHUFFLE, BY_HAND)},
                     {"annotation", "shuffle 5f3a"}, id="as-the-agent-was-told-if-it-was"),
    ],
)  # fmt: skip
def test_who_holds_a_worker(changes: dict[str, Any], expected: set[str]) -> None:
    assert expected == claims(worker("a", **changes))


def test_who_holds_it_by_some_of_its_pins() -> None:
    held = worker("a", pins=(SHUFFLE, BY_HAND), manual_pin=ASKED_WHY)

    assert {"shuffle 5f3a"} == claims(held, [SHUFFLE])


HELD = Pin("manual", OWNER, "why", 60.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"manual_pin": ManualPin(60.0, "why")}, SetPin(
            "a", ("a",), 60.0, "why", Reason.PIN_REQUESTED, "pinned by annotation for 1m"),
            id="asked-for"),
        pytest.param({"manual_pin": ManualPin(60.0, "why", "cannot be read")}, SetPin(
            "a", ("a",), 60.0, "why", Reason.INVALID_PIN, "cannot be read"), id="unreadable"),
        pytest.param({"pins": (HELD,)}, Unpin(
            "a", ("a",), Reason.PIN_REMOVED, "its annotation is gone or has run out"), id="gone"),
        pytest.param({"pins": (replace(HELD, owner="me"),)}, None, id="not-ours"),
        pytest.param({"pins": (replace(HELD, source="client"),)}, None, id="nor-a-persons"),
        pytest.param({"pins": (HELD,), "manual_pin": ManualPin(60.0 + SLACK_S, "why")}, None,
                     id="in-step"),
        pytest.param({"pins": (HELD,), "manual_pin": ManualPin(61.0 + SLACK_S, "why")}, SetPin(
            "a", ("a",), 91.0, "why", Reason.PIN_REQUESTED, "pinned by annotation for 1m31s"),
            id="to-be-renewed"),
    ],
)  # fmt: skip
def test_pins_follow_annotations(changes: dict[str, Any], expected: object) -> None:
    told = sync_pins(cluster([worker("a", **changes)]), POLICY)

    assert (() if expected is None else (expected,)) == told


@pytest.mark.parametrize(
    ("pin", "is_lifted"),
    [(HELD, True), (replace(HELD, owner="me"), False), (replace(HELD, source="client"), False)],
)
def test_of_a_pod_that_ends_only_our_own_pin_is_lifted(pin: Pin, is_lifted: bool) -> None:
    world = cluster([worker("b")])
    process = replace(world.scheduler.workers[0], address="tcp://a", pins=(pin,))
    scheduler = replace(world.scheduler, workers=(process,))
    ending = (Ending("a", "a-x", (), 60.0, ("tcp://a",)),)
    told = sync_pins(replace(world, scheduler=scheduler, ending=ending), POLICY)

    why = "its annotation is gone; pod a-x is being deleted"
    lift = Unpin("a", ("tcp://a", "a"), Reason.PIN_REMOVED, why)
    assert ((lift,) if is_lifted else ()) == told


# --- what keeps an idle worker --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason", "message"),
    [
        pytest.param({}, None, "", id="nothing"),
        pytest.param({"pins": (SHUFFLE, CLIENT)}, Reason.PINNED,
                     "pinned by client me, shuffle 5f3a", id="pinned"),
        pytest.param({"processing": 1}, Reason.BUSY, "has tasks", id="busy"),
        pytest.param({"actors": True}, Reason.HOLDS_ACTORS, "holds actors, which cannot be moved",
                     id="actors"),
        pytest.param({"idle_s": 90.0}, None, "", id="idle-for-long-enough"),
        pytest.param({"idle_s": 89.9}, Reason.IDLE_GRACE, "idle for less than 1m30s (idleTimeout)",
                     id="idle-for-less"),
        pytest.param({"closable": False}, Reason.NOT_OFFERED,
                     "not offered by the scheduler's workers_to_close: its memory is needed",
                     id="not-offered"),
        pytest.param({"sole_bytes": 1, "dask_names": ("a", "b")}, Reason.NO_RECIPIENT,
                     "holds the last copy of results and no other worker could take them",
                     id="nobody-to-take-its-results"),
        pytest.param({"sole_bytes": 1}, None, "", id="somebody-to-take-them"),
        pytest.param({"name": "refused"}, Reason.BUSY, "has 1 task", id="refused-lately"),
        pytest.param({"name": "free-again"}, None, "", id="refused-before"),
    ],
)  # fmt: skip
def test_a_veto(changes: dict[str, Any], reason: Reason | None, message: str) -> None:
    refusals = {
        "refused": Refusal(NOW + 1, Reason.BUSY, "has 1 task"),
        "free-again": Refusal(NOW, Reason.BUSY, "has 1 task"),
    }
    one = worker(**{"name": "a", **changes})
    found = veto(one, Context(Past(refusals=refusals), NOW, in_service=2, idle_s=90.0))

    assert found == (None if reason is None else Blocker(one.name, reason, message))


def test_blockers_are_counted_by_reason_most_first() -> None:
    reasons = [Reason.PINNED, Reason.IDLE_GRACE, Reason.BUSY, Reason.PINNED, Reason.HOLDS_ACTORS]
    counted = count_blockers([Blocker(f"w{i}", r, "") for i, r in enumerate(reasons)])

    once = [(Reason.BUSY, 1), (Reason.HOLDS_ACTORS, 1), (Reason.IDLE_GRACE, 1)]  # as words
    assert ((Reason.PINNED, 2), *once) == counted
    assert () == count_blockers([])


# --- what stands against a replacement ------------------------------------------------------------

SPENT = Due("a", Reason.TASK_QUOTA, "spent")
WANTED = Due("a", Reason.RECYCLE_REQUESTED, "asked", is_manual=True)
FULL = Due("a", Reason.MEMORY_HARD, "full", is_urgent=True)
ENDING = Due("a", Reason.LIFETIME, "ends", is_urgent=True)
LATER, OTHERS = (NOW + 9, "its own did not come"), (NOW + 99, "that of b did not come")


def rules(**changes: Any) -> Rules:
    usual: dict[str, Any] = {
        "recycle": Recycle(), "forbidden": frozenset(), "has_agent": True, "is_open": True,
        "surge": True, "is_scaled": True, "now": NOW,
    }  # fmt: skip
    return Rules(**{**usual, **changes})


OVER_PINS = rules(recycle=Recycle(memory=MemoryQuota(hard=0.9, over_pins=True)))
HOUR_OLD = rules(recycle=Recycle(min_age_s=3600.0))
BOTH = {"a": LATER, "b": OTHERS}


@pytest.mark.parametrize(
    ("due", "changes", "at", "expected"),
    [
        pytest.param(SPENT, {}, rules(), None, id="nothing"),
        pytest.param(SPENT, {}, rules(has_agent=False),
                     (Reason.AGENT_MISSING, "spent; the scheduler has no agent"), id="no-agent"),
        pytest.param(SPENT, {}, rules(forbidden=frozenset({Reason.TASK_QUOTA})),
                     (Reason.BUDGET_EXHAUSTED, "spent; a budget of 0 forbids TaskQuota"),
                     id="forbidden"),
        pytest.param(SPENT, {"pins": (SHUFFLE, CLIENT)}, rules(),
                     (Reason.PINNED, "spent; pinned by client me, shuffle 5f3a"), id="pinned"),
        pytest.param(FULL, {"pins": (CLIENT,)}, OVER_PINS, None, id="over-pins"),
        pytest.param(FULL, {"pins": (CLIENT, SHUFFLE)}, OVER_PINS,
                     (Reason.PINNED, "full; pinned by client me, shuffle 5f3a"),
                     id="never-over-those-of-shuffles"),
        pytest.param(SPENT, {"actors": True}, rules(),
                     (Reason.HOLDS_ACTORS, "spent; holds actors, which cannot be moved"),
                     id="actors"),
        pytest.param(SPENT, {}, rules(is_open=False),
                     (Reason.OUTSIDE_WINDOW, "spent; waits for a window (disruption.windows)"),
                     id="closed"),
        pytest.param(WANTED, {}, rules(is_open=False), None, id="closed-but-somebody-wants-it"),
        pytest.param(SPENT, {"pod_age_s": 3600.0}, HOUR_OLD, None, id="old-enough"),
        pytest.param(SPENT, {"pod_age_s": 3599.0}, HOUR_OLD,
                     (Reason.TOO_YOUNG, "spent; its pod is younger than 1h (minAge)"), id="young"),
        pytest.param(FULL, {"pod_age_s": 1.0}, HOUR_OLD, None, id="young-but-urgent"),
        pytest.param(SPENT, {}, rules(aborted=BOTH), (Reason.RECYCLE_ABORTED, LATER[1]),
                     id="its-own-failure-before-that-of-others"),
        pytest.param(SPENT, {}, rules(aborted={"b": OTHERS}), (Reason.RECYCLE_ABORTED, OTHERS[1]),
                     id="that-of-others-too"),
        pytest.param(SPENT, {}, rules(aborted={"b": OTHERS}, surge=False), None,
                     id="but-where-none-is-asked-for-first"),
        pytest.param(SPENT, {}, rules(aborted={"a": LATER}, surge=False),
                     (Reason.RECYCLE_ABORTED, LATER[1]), id="its-own-even-there"),
        pytest.param(WANTED, {}, rules(aborted={"b": OTHERS}), None, id="by-hand-it-is-tried"),
        pytest.param(WANTED, {}, rules(aborted={"a": LATER}), (Reason.RECYCLE_ABORTED, LATER[1]),
                     id="by-hand-once"),
        pytest.param(ENDING, {"ends_in_s": 10.0}, rules(aborted=BOTH), None, id="the-last-chance"),
        pytest.param(ENDING, {"ends_in_s": 10.1}, rules(aborted=BOTH),
                     (Reason.RECYCLE_ABORTED, LATER[1]), id="not-yet-the-last"),
    ],
)  # fmt: skip
def test_an_objection(
    due: Due, changes: dict[str, Any], at: Rules, expected: tuple[Reason, str] | None
) -> None:
    assert expected == objection(worker("a", **changes), due, at)


@pytest.mark.parametrize(
    ("one", "due", "expected"),
    [
        (worker("a", ends_in_s=30.0), ENDING, True),
        (worker("a", ends_in_s=30.1), ENDING, False),
        (worker("a", ends_in_s=30.0), SPENT, False),
    ],
)
def test_the_last_chance_begins_at_the_margin(
    one: ObservedWorker, due: Due, expected: bool
) -> None:
    recycle = Recycle(lifetime=LifetimeQuota(margin_s=30.0))

    assert expected == is_last_chance(one, due, recycle)


# --- how many should be in service ----------------------------------------------------------------

REPLACED = worker("r", leaving=Leaving.DRAINING, in_service=False, leaving_reason=Reason.TASK_QUOTA)


@pytest.mark.parametrize(
    ("changes", "seen", "is_missed"),
    [
        pytest.param({}, (), False, id="never-there"),
        pytest.param({}, ("x",), True, id="there-before"),
        pytest.param({"ending": "it is deleted"}, (), True, id="its-pod-goes"),
        pytest.param({"pod_age_s": 0.5}, (), True, id="a-new-pod-of-an-old-one"),
        pytest.param({"pod_age_s": 469.9}, (), True, id="a-second-pod"),
        pytest.param({"pod_age_s": 470.0}, (), False, id="its-first-pod-a-little-late"),
        pytest.param({"pod_age_s": 500.0}, (), False, id="its-first-pod"),
    ],
)
def test_who_was_connected_is_missed(
    changes: dict[str, Any], seen: tuple[str, ...], is_missed: bool
) -> None:
    (group,) = cluster([worker("a"), pending("x", **changes)]).groups
    heads = count_heads(sort_fleet(group), Past(seen=frozenset(seen)), 9)

    assert (1 + is_missed, is_missed) == (heads.base, heads.missing)


@pytest.mark.parametrize(
    ("floors", "missing"),
    [
        pytest.param({}, 1, id="without-a-past-it-is"),
        pytest.param({"r": 1}, 0, id="as-many-serve-as-did"),
        pytest.param({"r": 3}, 2, id="more-served"),
    ],
)
def test_who_left_before_its_replacement_came_is_missed(
    floors: dict[str, int], missing: int
) -> None:
    (group,) = cluster([worker("a"), REPLACED]).groups

    assert missing == count_heads(sort_fleet(group), Past(floors=floors), 9).missing


@pytest.mark.parametrize(("ago_s", "left"), [(HOUR_S - 1.0, 2), (HOUR_S, 3)])
def test_a_recycle_counts_for_an_hour(ago_s: float, left: int) -> None:
    policy = replace(POLICY, disruption=Disruption(max_per_hour=Amount(3)))
    past = RecyclePast(begun=(NOW - ago_s,))

    assert left == left_this_hour(policy, cluster([worker("a")]), past, NOW)


def test_what_failed_is_tried_again_after_its_time() -> None:
    past = RecyclePast(aborted={"a": (NOW, "none came"), "b": (NOW + 0.1, "none came")})
    found = rules_for(cluster([]), POLICY, Recycle(), past, is_scaled=True, now=NOW)

    assert {"b"} == set(found.aborted)
