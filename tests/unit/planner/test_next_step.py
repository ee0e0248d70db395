"""What is done so that a group comes to its number, and what is said of it: through `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.observed import Demand, ManualPin, ObservedWorker, Pin, Retiring
from dask_adaptive.model.past import Past, Refusal
from dask_adaptive.model.plan import Action, Blocker, Cancel, Delete, Plan, Retire, SetReplicas
from dask_adaptive.model.policy import Retirement
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, TaskQuota, Use
from dask_adaptive.model.scaling import WorkerGroup
from support.tables import table
from support.worlds import (
    GPU,
    GROUP,
    NOW,
    PAST,
    SHUFFLE,
    busy,
    changed,
    cluster,
    decide,
    facts,
    group_of,
    past_of,
    pending,
    wanting,
    watched,
    worker,
)

A, B, D = busy("a"), busy("b"), busy("d", node_terminating="cordoned")
LEAVES = worker("c", retiring=Retiring())
LEAVES_TOO = changed(LEAVES, name="e", dask_names=("e",), sole_bytes=9)
DRAINED = worker("g", retiring=Retiring(is_drained=True))


def asked(number: int, reason: Reason, message: str) -> SetReplicas:
    return SetReplicas(GROUP, number, reason, message)


def corrected(number: int, figures: str) -> SetReplicas:
    return asked(number, Reason.REPLICAS_CORRECTED, figures)


def told(decided: Plan) -> list[Action]:
    """Its actions, with the figures of their messages."""
    return [replace(action, message=facts(action.message)) for action in decided.actions]


def settled(
    replicas: int, workers: Sequence[ObservedWorker], since_s: float, handled: int | None = None
) -> Past:
    """For so long nobody has acted on the number of replicas, nor on the workers."""
    gap = (replicas, len(workers), *(() if handled is None else (handled,)))
    return past_of(gap=gap, gap_since=NOW - since_s)


# More workers


def back(name: str) -> Cancel:
    return Cancel(name, (name,), Reason.WANTED_AGAIN, "")


MORE = (Reason.LOAD_INCREASED, "3 1 3")


@table(
    "workers, replicas, handled, since_s, expected",
    the_dearest_comes_back_first=([A, LEAVES, LEAVES_TOO, DRAINED], 4, None, 0.0,
        [back("e"), back("c")]),
    which_would_be_no_change=([A, LEAVES], 1, 3, 0.0, [back("c")]),
)  # fmt: skip
def test_more_workers(
    workers: list[ObservedWorker], replicas: int, handled: int | None, since_s: float,
    expected: list[Action],
) -> None:  # fmt: skip
    world = cluster(workers, replicas=replicas, target=3)
    group = replace(world.groups[0], handled=handled)
    decided = decide(replace(world, groups=(group,)), settled(replicas, workers, since_s, handled))

    assert expected == told(decided)


SPENT: dict[str, Any] = {"use": Use(runs=20)}
RECYCLE = Recycle(TaskQuota(20))
OLD = busy("b", **SPENT)


def test_a_deletion_that_was_sent_is_past_saving() -> None:
    """Nobody calls it back, and the number is not put right while it is still to be seen."""
    drains = [replace(LEAVES, name=name, dask_names=(name,)) for name in "xy"]
    decided = decide(cluster([A, *drains], target=3), past_of(deleted=frozenset("x")))

    assert [back("y"), asked(4, *MORE)] == told(decided)
    unseen = replace(settled(3, [A, B], 1.0), deleted=frozenset("a"), leaving=frozenset("x"))
    assert () == decide(cluster([A, B], replicas=3, target=2), unseen).actions


# What is on its way


@table(
    "replicas, handled, since_s, leaving, expected",
    but_for_one_that_we_took=(4, None, 29.0, "x", 1),
    which_are_all=(4, None, 29.0, "xy", 0),
    one_that_is_there_is_not_missing=(4, None, 29.0, "ax", 1),
)
def test_a_number_moves_from_those_that_are_there_or_were_asked_for(
    replicas: int, handled: int | None, since_s: float, leaving: str, expected: int
) -> None:
    world = cluster([A, B], replicas=replicas, target=2)
    group = replace(world.groups[0], handled=handled)
    gap = (replicas, 2) if handled is None else (replicas, 2, handled)
    past = past_of(gap=gap, gap_since=NOW - since_s, leaving=frozenset(leaving), homes={"o": GPU})
    (found,) = decide(replace(world, groups=(group,)), past).groups

    assert (2, 2 + expected) == (found.serving, found.current)


# Fewer workers

HELD_BUSY = Blocker("b", Reason.BUSY, "has tasks")
IDLE = worker("i")
NO_NODE = pending("p", waiting="0/3 nodes are available")
GATED = pending("g", waiting="0/3 nodes are available", gated=True, made_at=-900.0)

GONE = Delete("p", (), Reason.NEVER_CONNECTED, "0 3", "uid-p")
NOT_ADMITTED = Delete("g", (), Reason.ADMISSION_GATED, "0 3", "uid-g")
LEFT = Retire("i", ("i",), Reason.UNDERUTILIZED, "1m40s 1")


@table(
    "workers, target, actions, blockers, reason, figures",
    in_the_words_of_the_platform=([IDLE, NO_NODE], 1, [GONE], [], Reason.NEVER_CONNECTED, "1 1 2"),
    pinned=([IDLE, changed(NO_NODE, manual_pin=ManualPin(60.0, ""))], 1, [], [],
        Reason.NO_CANDIDATES, ""),
    gated_ones_first=([IDLE, NO_NODE, GATED], 2, [NOT_ADMITTED], [], Reason.ADMISSION_GATED,
        "1 2 3"),
    the_idle_one=([IDLE, B], 1, [LEFT], [HELD_BUSY], Reason.UNDERUTILIZED, "1 1 2"),
    both=([IDLE, B, NO_NODE], 1, [GONE, LEFT], [HELD_BUSY], Reason.UNDERUTILIZED, "1 1 3"),
    as_many_as_may_be_leave=([IDLE, B, LEAVES], 1, [], [HELD_BUSY], Reason.BUDGET_EXHAUSTED,
        "1 retirement.maxConcurrent"),
)  # fmt: skip
def test_fewer_workers(
    workers: list[ObservedWorker], target: int, actions: list[Action], blockers: list[Blocker],
    reason: Reason, figures: str,
) -> None:  # fmt: skip
    once = Retirement(max_concurrent=1)
    decided = decide(cluster(workers, target=target), retirement=once)

    assert (actions, blockers) == (told(decided), list(decided.blockers))
    assert (reason, figures) == (decided.reason, facts(decided.message))
    deleted = [a.message for a in decided.actions if isinstance(a, Delete)]
    assert all("0/3 nodes are available" in message for message in deleted)


def test_several_idle_workers_leave_at_once() -> None:
    decided = decide(cluster([worker(name) for name in "abc"], target=1))

    assert ["a", "b"] == [a.worker for a in decided.actions if isinstance(a, Retire)]
    assert "2 1 3" == facts(decided.message)


@pytest.mark.parametrize(
    ("other", "can_take"),
    [
        ({}, True),
        ({"status": "paused"}, False),
        ({"retiring": Retiring()}, False),
        ({"terminating": "its pod is being deleted"}, False),
    ],
)
def test_results_need_another_worker_that_takes_them(other: dict[str, Any], can_take: bool) -> None:
    world = cluster([worker("a", sole_bytes=1), busy("b")], target=1)
    first, second = world.scheduler.workers
    scheduler = replace(world.scheduler, workers=(first, replace(second, **other)))
    decided = decide(replace(world, scheduler=scheduler))

    assert can_take == bool(decided.actions)
    assert can_take == (Reason.NO_RECIPIENT not in [b.reason for b in decided.blockers])


# Terminating nodes

PINNED = changed(D, name="h", pins=(SHUFFLE, Pin("client", "me", "", 9.0)))


@pytest.mark.parametrize(("more_s", "goes"), [(0.0, True), (1.0, False)])
def test_a_worker_leaves_a_terminating_node_unless_it_was_refused(
    more_s: float, goes: bool
) -> None:
    refusals = {"d": Refusal(NOW + more_s, Reason.BUSY, "has 1 task")}
    decided = decide(cluster([A, B, D], target=2), replace(PAST, refusals=refusals))

    retire = Retire("d", ("d",), Reason.NODE_GOING, "cordoned", busy_ok=True)
    assert ((retire,) if goes else ()) == decided.actions
    if goes:
        assert (Reason.NODE_GOING, "cordoned") == (decided.reason, decided.message)
    assert (() if goes else (Blocker("d", Reason.BUSY, "has 1 task"),)) == decided.blockers


def test_who_is_held_on_a_terminating_node_is_told() -> None:
    decided = decide(cluster([A, PINNED, changed(D, actors=True)], target=3))

    pins = "cordoned; pinned by client me, shuffle 5f3a"
    actors = "cordoned; holds actors, which cannot be moved"
    told = (Blocker("h", Reason.PINNED, pins), Blocker("d", Reason.HOLDS_ACTORS, actors))
    assert ((), told) == (decided.actions, decided.blockers)


# `replicas` put right


# What is said of a group, and of several


RECYCLED: dict[str, Any] = {"recycle": RECYCLE}


@table(
    "workers, target, changes, expected",
    called_back=([A, LEAVES, LEAVES_TOO], 3, {}, (Reason.WANTED_AGAIN, "")),
    not_handled_yet=([A, LEAVES], 3, {"replicas": 1, "handled": 3}, (Reason.SETTLING, "3 1")),
    for_the_load=([A, D], 3, {}, MORE),
    for_those_on_a_terminating_node=([A, D, changed(LEAVES, node_terminating="cordoned")], 3, {},
        (Reason.NODE_GOING, "2 2")),
    for_one_that_is_replaced=([A, OLD], 2, {"desired": 2, **RECYCLED}, (Reason.RECYCLING, "1 1")),
    for_those_that_are_replaced=([A, OLD, D], 3, {"desired": 3, **RECYCLED},
        (Reason.RECYCLING, "1 2")),
    for_the_load_first=([A, OLD], 3, {"desired": 2, **RECYCLED}, MORE),
)  # fmt: skip
def test_a_group_is_told_by_what_makes_its_number(
    workers: list[ObservedWorker], target: int, changes: dict[str, Any],
    expected: tuple[Reason, str],
) -> None:  # fmt: skip
    policy = dict(changes)
    world = cluster(workers, replicas=policy.pop("replicas", None), target=target)
    group = replace(world.groups[0], handled=policy.pop("handled", None))
    past = past_of(desired=policy.pop("desired", None))
    decided = decide(replace(world, groups=(group,)), past, **policy)

    assert expected == (decided.reason, facts(decided.message))


def two_groups(default: Any, gpu: Any, wants: tuple[int, int], **policy: Any) -> Plan:
    asked = (wanting(wants[0]), wanting(wants[1], GPU))
    world = cluster(default, others=[group_of(GPU, gpu)], demand=Demand(), wants=asked)
    groups = (WorkerGroup(GROUP, policy.pop("most", 8)), WorkerGroup(GPU, 8))
    return decide(world, watched(GPU), max_replicas=16, worker_groups=groups, **policy)


NO_PLACE = pending("n", unschedulable_s=400.0, age_s=400.0)


@table(
    "default, gpu, wants, changes, expected",
    what_moves=([A], [B], (1, 2), {}, (Reason.CLIENT_WANTS, GPU, "2 2 1")),
    the_first_of_equals=([A], [B], (2, 2), {}, (Reason.CLIENT_WANTS, GROUP, "2 2 1")),
    what_moves_before_what_limits=([A, NO_PLACE], [B], (2, 2), {},
        (Reason.CLIENT_WANTS, GPU, "2 2 1")),
)  # fmt: skip
def test_of_several_groups_the_one_with_most_to_say_is_told(
    default: list[ObservedWorker], gpu: list[ObservedWorker], wants: tuple[int, int],
    changes: dict[str, Any], expected: tuple[Reason, str, str],
) -> None:  # fmt: skip
    decided = two_groups(default, gpu, wants, **changes)

    reason, group, figures = expected
    assert (reason, figures) == (decided.reason, facts(decided.message))
    assert decided.message.startswith(f"{group}: " if group else "")
    numbers = [(g.wanted, g.desired) for g in decided.groups]
    assert (decided.wanted, decided.desired) == tuple(map(sum, zip(*numbers, strict=True)))
