"""Who belongs where in a group, what is on its way, and what is said of it: exact, case by case."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import (
    Ending,
    Leaving,
    ObservedGroup,
    ObservedWorker,
    Pin,
)
from dask_adaptive.model.past import Past, Refusal
from dask_adaptive.model.plan import (
    Blocker,
    Cancel,
    GroupPlan,
    Leave,
    Retire,
    SetReplicas,
)
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import MemoryQuota, Recycle, RecyclePast, Strategy
from dask_adaptive.planner.doomed import drain_doomed
from dask_adaptive.planner.due import Due
from dask_adaptive.planner.endings import tell_endings
from dask_adaptive.planner.fleet import (
    Fleet,
    explained_gap,
    homed,
    is_deleting,
    on_the_way,
    set_apart,
    sort_fleet,
)
from dask_adaptive.planner.gates import gate
from dask_adaptive.planner.others import others
from dask_adaptive.planner.rise import Rise, rise
from dask_adaptive.planner.sized import current_workers, wanted_now
from dask_adaptive.planner.why import telling
from support.worlds import GROUP, NOW, PAST, POLICY, SHUFFLE, cluster, past_of, pending, worker

A, B, D = worker("a"), worker("b"), worker("d", node_going="cordoned")
LEAVES = worker("c", leaving=Leaving.DRAINING, in_service=False)
LEAVES_TOO = replace(LEAVES, name="e", dask_names=("e",), sole_bytes=9)
ON_A_NODE = replace(LEAVES, node_going="cordoned")


def group_of(*workers: ObservedWorker, replicas: int, handled: int | None = None) -> ObservedGroup:
    return ObservedGroup(GROUP, replicas, workers, handled=handled)


def names(workers: tuple[ObservedWorker, ...]) -> str:
    return "".join(w.name for w in workers)


# --- more workers ---------------------------------------------------------------------------------

MORE = (Reason.LOAD_INCREASED, "more")


def back(name: str) -> Cancel:
    return Cancel(name, (name,), Reason.WANTED_AGAIN, "wanted again before it had left")


def asked(number: int, reason: Reason = MORE[0], message: str = MORE[1]) -> SetReplicas:
    return SetReplicas(GROUP, number, reason, message)


def corrected(number: int, words: str) -> SetReplicas:
    return asked(number, Reason.REPLICAS_CORRECTED, words)


@pytest.mark.parametrize(
    ("group", "desired", "is_unsettled", "expected"),
    [
        pytest.param(group_of(A, LEAVES, LEAVES_TOO, replicas=3), 2, False,
                     Rise(Reason.WANTED_AGAIN, back("e").message, (back("e"),)),
                     id="the-dearest-comes-back"),
        pytest.param(group_of(A, LEAVES, replicas=2), 3, False,
                     Rise(*MORE, (back("c"), asked(3))), id="and-one-more-is-asked-for"),
        pytest.param(group_of(A, LEAVES, replicas=1, handled=3), 3, False,
                     Rise(Reason.SETTLING, "3 are needed, once 1 replicas are handled",
                          (back("c"),)), id="which-would-be-no-change"),
        pytest.param(group_of(A, LEAVES, replicas=5), 3, True,
                     Rise(Reason.SETTLING, "3 workers were asked for and do not exist yet",
                          (back("c"),)), id="which-is-on-its-way"),
        pytest.param(group_of(A, LEAVES, replicas=5), 3, False,
                     Rise(*MORE, (back("c"), corrected(
                         3, "2 workers exist, 5 are asked for, 3 are needed"))),
                     id="which-never-came"),
        pytest.param(group_of(A, LEAVES, replicas=3), 3, False,
                     Rise(*MORE, (back("c"), corrected(
                         2, "2 workers exist, 3 are asked for, 3 are needed"))),
                     id="told-the-truth-first"),
    ],
)  # fmt: skip
def test_a_rise(group: ObservedGroup, desired: int, is_unsettled: bool, expected: Rise) -> None:
    assert expected == rise(sort_fleet(group), desired, MORE, is_unsettled=is_unsettled)


@pytest.mark.parametrize(
    ("workers", "replaced", "desired", "expected"),
    [
        pytest.param((A, D, ON_A_NODE), "", 3,
                     (Reason.NODE_GOING,
                      "2 workers are on nodes that are about to go: 2 more are needed"),
                     id="for-those-whose-machine-goes"),
        pytest.param((A, D, ON_A_NODE), "", 4, MORE, id="and-for-more"),
        pytest.param((A, B), "b", 2,
                     (Reason.RECYCLING, "1 workers are to be replaced: 1 more must come first"),
                     id="for-those-that-are-replaced"),
        pytest.param((A, B), "b", 3, MORE, id="and-for-others"),
        pytest.param((A, B, D), "b", 3,
                     (Reason.RECYCLING, "1 workers are to be replaced: 2 more must come first"),
                     id="for-both"),
    ],
)  # fmt: skip
def test_a_rise_says_what_it_is_for(
    workers: tuple[ObservedWorker, ...], replaced: str, desired: int, expected: tuple[Reason, str]
) -> None:
    fleet = set_apart(sort_fleet(group_of(*workers, replicas=len(workers))), replaced=replaced)
    up = rise(fleet, desired, MORE, is_unsettled=False)

    assert expected == (up.reason, up.message)


# --- who belongs where ----------------------------------------------------------------------------


def test_who_was_deleted_is_past_saving() -> None:
    fleet = sort_fleet(group_of(A, B, replicas=2), {"a"})

    assert ("b", "a") == (names(fleet.active), names(fleet.other))


def test_a_fleet_is_sorted_once_more_by_its_recycles() -> None:
    three = [replace(LEAVES, name=name) for name in "xyz"]
    fleet: Fleet = sort_fleet(group_of(A, B, *three, replicas=5))
    apart = set_apart(fleet, replaced="b", restarting="x", back="y")

    assert ("ay", "b") == (names(apart.active), names(apart.replaced))
    assert ("x", "z") == (names(apart.restarting), names(apart.retiring))


def test_who_is_gone_belongs_to_the_group_it_is_named_after() -> None:
    bigger = ObservedGroup(f"{GROUP}-big", 1, (worker("here"),))
    gone = frozenset({f"{GROUP}-big-1", f"{GROUP}-1", "nobody", "here", "known"})
    past = replace(PAST, leaving=gone, homes={"known": "elsewhere"})

    homes = homed(past, cluster([A], others=[bigger])).homes
    big = dict.fromkeys([f"{GROUP}-big-1", "here"], f"{GROUP}-big")
    assert {**big, f"{GROUP}-1": GROUP, "nobody": GROUP, "known": "elsewhere"} == homes


@pytest.mark.parametrize(
    ("replicas", "handled", "since_s", "leaving", "expected"),
    [
        pytest.param(4, None, 29.0, "", 2, id="asked-for"),
        pytest.param(4, None, 30.0, "", 0, id="not-for-ever"),
        pytest.param(4, None, 29.0, "x", 1, id="but-for-one-that-we-took"),
        pytest.param(4, None, 29.0, "xy", 0, id="which-are-all"),
        pytest.param(2, None, 29.0, "", 0, id="nothing"),
        pytest.param(1, None, 29.0, "", 0, id="too-many"),
        pytest.param(4, 2, 149.0, "", 2, id="not-handled-yet"),
        pytest.param(4, 2, 150.0, "", 0, id="never-handled"),
        pytest.param(4, 4, 1.9, "", 2, id="handled"),
        pytest.param(4, 4, 2.0, "", 0, id="handled-and-not-made"),
    ],
)
def test_what_is_on_its_way(
    replicas: int, handled: int | None, since_s: float, leaving: str, expected: int
) -> None:
    group = group_of(A, B, replicas=replicas, handled=handled)
    gap = (replicas, 2) if handled is None else (replicas, 2, handled)
    past = past_of(gap=gap, gap_since=NOW - since_s, leaving=frozenset(leaving))

    assert expected == on_the_way(sort_fleet(group), group, past, now=NOW)


def test_a_gap_is_explained_by_those_of_the_group() -> None:
    past = replace(PAST, leaving=frozenset("axyz"), homes={"x": GROUP, "y": "other"})

    assert 2 == explained_gap(group_of(A, replicas=1), past)  # x and z; a is there


@pytest.mark.parametrize(("deleted", "expected"), [("", False), ("a", True), ("x", False)])
def test_a_deletion_lasts_while_the_worker_is_seen(deleted: str, expected: bool) -> None:
    group = group_of(A, B, replicas=2)

    assert expected == is_deleting(group, Past(deleted=frozenset(deleted)))


def test_a_group_that_we_do_not_scale_heeds_no_news_of_machines() -> None:
    soft = Recycle(memory=MemoryQuota(soft=0.5))
    kept = RecyclePast(above_since={"uid-a": 0.0}, aborted={"q": (NOW + 1, "why")})
    world = cluster([A, B, D])
    parts = others(
        world, replace(POLICY, recycle=soft), replace(PAST, deleted=frozenset("b"), recycle=kept),
        scaled=(), left=9, now=NOW,
    )  # fmt: skip

    fleet = parts[0].turn.fleet
    assert ("ad", "b", ()) == (names(fleet.active), names(fleet.other), fleet.doomed)
    assert () == others(world, POLICY, PAST, scaled=[GROUP], left=9, now=NOW)


# --- how many there are, while some stand in for others -------------------------------------------

SPENT = [Due(name, Reason.TASK_QUOTA, "spent") for name in "ab"]
MAKES_ROOM = replace(LEAVES, leaving_reason=Reason.TASK_QUOTA)
FOUR = [worker(name) for name in "abcd"]


@pytest.mark.parametrize(
    ("wanted", "floors", "dues", "expected"),
    [
        pytest.param(4, "a", SPENT, 3, id="one-stands-in"),
        pytest.param(4, "", SPENT, 4, id="none-does"),
        pytest.param(4, "a", [], 4, id="nobody-is-replaced"),
        pytest.param(4, "abc", SPENT, 2, id="never-less-than-desired"),
        pytest.param(5, "a", SPENT, 5, id="more-than-there-are"),
        pytest.param(2, "a", SPENT, 2, id="no-more-than-desired"),
    ],
)
def test_the_load_is_taken_without_those_that_stand_in(
    wanted: int, floors: str, dues: list[Due], expected: int
) -> None:
    fleet = sort_fleet(group_of(*FOUR, replicas=4))
    past = past_of(desired=2, floors=dict.fromkeys(floors, 2))

    assert expected == wanted_now(wanted, fleet, dues, past)


@pytest.mark.parametrize(
    ("workers", "dues", "recycle", "desired", "expected"),
    [
        pytest.param([A, B], [], Recycle(), 9, 4, id="with-those-on-their-way"),
        pytest.param([A, B], SPENT, Recycle(), 9, 9, id="what-was-desired"),
        pytest.param([A, B, MAKES_ROOM], [], Recycle(strategy=Strategy.IN_PLACE), None, 3,
                     id="those-that-come-back"),
        pytest.param([A, B, *map(pending, "pqr")], SPENT, Recycle(), None, 4,
                     id="less-one-that-has-been-asked-for-first"),
        pytest.param([A, B], SPENT, Recycle(), None, 2, id="but-not-less-than-serve"),
    ],
)  # fmt: skip
def test_what_there_is_to_move_from(
    workers: list[ObservedWorker], dues: list[Due], recycle: Recycle, desired: int | None,
    expected: int,
) -> None:  # fmt: skip
    group = group_of(*workers, replicas=len(workers) + 2)
    past = past_of(gap=(group.replicas, len(workers)), gap_since=NOW - 1, desired=desired)

    assert expected == current_workers(sort_fleet(group), group, dues, recycle, past, now=NOW)


# --- machines and pods that go --------------------------------------------------------------------


@pytest.mark.parametrize(("more_s", "goes"), [(0.0, True), (1.0, False)])
def test_a_doomed_worker_leaves_unless_it_was_refused(more_s: float, goes: bool) -> None:
    past = Past(refusals={"d": Refusal(NOW + more_s, Reason.BUSY, "has 1 task")})
    leaving, blockers = drain_doomed(sort_fleet(group_of(A, D, replicas=2)), past, now=NOW)

    retire = Retire("d", ("d",), Reason.NODE_GOING, "cordoned", busy_ok=True)
    assert ((retire,) if goes else ()) == leaving
    assert (() if goes else (Blocker("d", Reason.BUSY, "has 1 task"),)) == blockers


def test_who_is_held_on_a_machine_that_goes_is_told() -> None:
    held = replace(D, name="h", pins=(SHUFFLE, Pin("client", "me", "", 9.0)))
    fleet = sort_fleet(group_of(A, held, replace(D, actors=True), replicas=3))

    pins = "cordoned; pinned by client me, shuffle 5f3a"
    actors = "cordoned; holds actors, which cannot be moved"
    told = (Blocker("h", Reason.PINNED, pins), Blocker("d", Reason.HOLDS_ACTORS, actors))
    assert ((), told) == drain_doomed(fleet, Past(), now=NOW)


@pytest.mark.parametrize(
    ("told_s", "is_told"),
    [(4.9, True), (5.0, False), (15.0, False), (15.1, True), (math.inf, True)],
)
def test_an_end_is_told_unless_it_is_nearly_known(told_s: float, is_told: bool) -> None:
    end = Ending("a", "pod-1", (), 10.0, ("tcp://a",), told_s)
    leaves = tell_endings(replace(cluster([A]), ending=(end,)), Past())

    words = "pod pod-1 is being deleted"
    leave = Leave("a", ("tcp://a",), 10.0, Reason.POD_ENDING, words)
    assert ((leave,) if is_told else ()) == leaves


# --- gates, and which group is told ---------------------------------------------------------------


def test_the_gate_says_how_many_are_away() -> None:
    world = cluster([A, *(pending(name) for name in "xyz")])

    words = "3 of 4 workers that were connected are away, more than 45% (maxUnready)"
    step = Step(
        "gate", 1, Reason.TOO_MANY_UNREADY, f"{words}: nothing is scaled until they are back"
    )
    assert step == gate(world, POLICY, Past(seen=frozenset("axyz")))


def told(reason: Reason, desired: int = 2, *, limits: bool = False, **changes: Any) -> GroupPlan:
    limited = Step("cap", 2, reason, "") if limits else None
    return GroupPlan("g", 2, 2, desired, reason, "", limited=limited, **changes)


def test_of_several_groups_the_one_with_most_to_say_is_told() -> None:
    order = [
        told(Reason.PAUSED, is_frozen=True),
        told(Reason.LOAD_INCREASED, 3),
        told(Reason.UNSCHEDULABLE, limits=True),
        told(Reason.SCALE_DOWN_LIMITED, limits=True),
        told(Reason.UNSCHEDULABLE),
        told(Reason.RETIRING, 3),
        told(Reason.SCALE_DOWN_STABILIZED),
        told(Reason.DESIRED_WITHIN_RANGE),
    ]

    for more, less in itertools.combinations(order, 2):
        assert more is telling([less, more]) is telling([more, less])
