"""What people are told, and when they are told nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.loop.conditions import conditions_of
from dask_adaptive.loop.marks import AT_ONCE, Marked, marks, wanted_mark
from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.loop.ports import Event, EventType, PlatformError, Retired
from dask_adaptive.loop.report import status_of
from dask_adaptive.loop.status import Status
from dask_adaptive.model.observed import (
    Ending,
    Leaving,
    ManualPin,
    Mark,
    Note,
    ObservedCluster,
    ObservedScheduler,
    ObservedWorker,
    Pin,
)
from dask_adaptive.model.plan import Delete, Outcome, Retire
from dask_adaptive.model.policy import Disruption, Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.plan import plan
from support.world import World
from support.worlds import KEY, NOW, PAST, POLICY, SHUFFLE, busy, cluster, pending, worker


def status(world: ObservedCluster, *outcomes: Outcome, policy: Policy = POLICY) -> Status:
    return status_of(world, policy, plan(world, policy, PAST, now=NOW), outcomes, now=NOW)


def test_workers_are_counted_by_what_they_do() -> None:
    world = cluster(
        [worker("a"), busy("b"), pending("c"), worker("d", pins=(SHUFFLE,)),
         worker("e", leaving=Leaving.DRAINING, in_service=False)], target=3,
    )  # fmt: skip
    s = status(world)

    assert (4, 1, 2, 1, 1, 1) == (s.connected, s.pending, s.idle, s.busy, s.pinned, s.retiring)
    assert (("shuffle", 1),) == s.pins


def test_only_workers_with_something_to_say_have_a_row() -> None:
    world = cluster(
        [busy("b"), worker("i", idle_s=1.0), worker("p", pins=(SHUFFLE,)),
         pending("q", waiting="ImagePullBackOff: no such image"),
         worker("m", manual_pin=ManualPin(5.0, "", "cannot be read"))], target=5,
    )  # fmt: skip

    rows = {r.name: (r.state, r.reason, r.message) for r in status(world).workers}

    assert {
        "p": ("Active", Reason.PINNED, "pinned by shuffle 5f3a"),
        "q": ("Pending", Reason.NEVER_CONNECTED, "ImagePullBackOff: no such image"),
        "m": ("Active", Reason.INVALID_PIN, "cannot be read"),
    } == rows
    assert (("ImagePullBackOff", 1),) == status(world).pending_reasons


def test_what_was_just_done_is_told_at_once() -> None:
    """An operator that dies before its next pass must leave word of whom it was taking away."""
    begun = Outcome(Retire("a", ("a",), Reason.UNDERUTILIZED, "idle"), True, Reason.DRAINED, "")
    gone = Outcome(Delete("b", "u", (), Reason.DRAINED, "drained"), True, Reason.DRAINED, "")
    states = {
        r.name: r.state for r in status(cluster([worker("a"), worker("b")]), begun, gone).workers
    }

    assert {"a": "Draining", "b": "Going"} == states


def test_time_alone_changes_nothing_in_a_status() -> None:
    def world(idle_s: float) -> ObservedCluster:
        left = dataclasses.replace(SHUFFLE, left_s=1_000 - idle_s)
        return cluster([worker("a", idle_s=idle_s, pins=(left,)), busy("b")], target=2)

    assert status(world(100.0)) == status(world(105.0))


@pytest.mark.parametrize(
    ("world", "policy", "expected"),
    [
        pytest.param(cluster([busy("a")], target=1), POLICY, {"Ready": True}, id="well"),
        pytest.param(
            cluster([busy("a")], problem=Reason.SCHEDULER_UNREACHABLE, agent=""), POLICY,
            {"Ready": False, "SchedulerConnected": False, "Injected": None, "AbleToScale": False},
            id="scheduler-down",
        ),
        pytest.param(
            cluster([busy("a")], target=1, agent="", degraded=Reason.INJECTION_REFUSED), POLICY,
            {"Ready": True, "Injected": False}, id="no-agent",
        ),
        pytest.param(
            cluster([busy("a")], target=99), POLICY, {"ScalingLimited": False}, id="still-rising"
        ),
        pytest.param(
            cluster([busy(f"w{i}") for i in range(10)], target=99), POLICY,
            {"ScalingLimited": True}, id="at-the-maximum",
        ),
        pytest.param(
            cluster([busy("a")]), dataclasses.replace(POLICY, mode=Mode.PAUSED),
            {"Paused": True, "Ready": True}, id="paused",
        ),
        pytest.param(
            ObservedCluster(
                KEY, found=False, scheduler=ObservedScheduler(Reason.CLUSTER_NOT_FOUND)
            ),
            POLICY, {"Ready": False, "SchedulerConnected": None}, id="no-cluster",
        ),
    ],
)  # fmt: skip
def test_conditions(world: ObservedCluster, policy: Policy, expected: dict[str, Any]) -> None:
    decided = plan(world, policy, PAST, now=NOW)
    found = {c.type: c.status for c in conditions_of(world, policy, decided, ())}

    assert 7 == len(found)
    assert expected == {kind: found[kind] for kind in expected}


async def test_an_unchanged_world_causes_no_report() -> None:
    world = World(workers=2, target=2)
    await world.passes(ClusterLoop(KEY, world.ports()), 20)

    assert 1 == len(world.statuses)
    assert [] == world.events


async def test_an_event_that_cannot_be_posted_costs_no_status() -> None:
    world = World(workers=1, target=0)

    async def refuse(event: Event) -> None:
        raise PlatformError("exceeded quota: events")

    world.event = refuse  # type: ignore[method-assign]
    await world.passes(ClusterLoop(KEY, world.ports()), 12)

    assert {Reason.SCALE_DOWN_STABILIZED, Reason.UNDERUTILIZED} <= {
        s.reason for s in world.statuses
    }


async def test_a_refusal_is_told_once_and_asked_again_later() -> None:
    """The agent refuses what has become wrong since: a normal result, and the worker stays."""
    world = World(workers=1, target=0)
    await world.passes(ClusterLoop(KEY, world.ports()), 40)

    refused = [e for e in world.events if e.reason is Reason.BUSY]
    assert refused
    assert {EventType.NORMAL} == {e.type for e in refused}
    assert ["w0"] == world.names
    assert len(refused) <= 40 * 5 / 15


CLIENT = Pin("client", "nb-1", "debugging", left_s=10.0, latest_s=3600.0, for_s=5.0)


async def test_notes_are_told_once_each_about_its_worker() -> None:
    world = World(workers=2, target=2)
    loop = ClusterLoop(KEY, world.ports())
    world.notes = [
        Note(1, Reason.WORKER_LEFT, "left with nothing", ("w1",)),
        Note(2, Reason.SHUFFLE_PIN_EXPIRED, "shuffle 5f3a ran on", ("w0", "w1")),
        Note(3, Reason.TASKS_GIVEN_BACK, "1 task given back", ("w0-1",)),
        Note(4, Reason.TASKS_GIVEN_BACK, "1 task given back", ("gone",)),
    ]
    await world.passes(loop, 3)

    assert [
        (EventType.NORMAL, Reason.WORKER_LEFT, "w1"),
        (EventType.WARNING, Reason.SHUFFLE_PIN_EXPIRED, ""),
        (EventType.WARNING, Reason.TASKS_GIVEN_BACK, "w0"),
        (EventType.WARNING, Reason.TASKS_GIVEN_BACK, ""),
    ] == [(e.type, e.reason, e.worker) for e in world.events]


async def test_an_ending_pod_is_told_of_whatever_the_mode() -> None:
    world = World(workers=2, target=2)
    world.ending = (Ending("w1", "w1-x", ("10.0.0.1",), 42.0),)
    paused = dataclasses.replace(POLICY, mode=Mode.PAUSED)
    await world.passes(ClusterLoop(KEY, world.ports()), 1, paused)

    assert [(("tcp://10.0.0.1:1",), 42.0)] == world.left
    assert [(Reason.POD_ENDING, "w1")] == [(e.reason, e.worker) for e in world.events]
    row = next(r for r in world.statuses[-1].workers if r.name == "w1")
    assert ("Pending", Reason.POD_ENDING) == (row.state, row.reason)


async def test_an_agent_that_does_not_hear_of_an_end_is_told_on_once() -> None:
    world = World(workers=1, target=1)
    world.ending = (Ending("w0", "w0-x", ("10.0.0.0",), 42.0),)

    async def too_old(names: Any, **_: Any) -> list[Retired]:
        return [Retired(n, "active", None, "agent 0.0.1 is too old to hear of it") for n in names]

    world.leave = too_old  # type: ignore[method-assign]
    await world.passes(ClusterLoop(KEY, world.ports()), 5)

    assert [(Reason.RETIREMENT_REFUSED, "agent 0.0.1 is too old to hear of it", "w0")] == [
        (e.reason, e.message, e.worker) for e in world.events
    ]


async def test_pins_are_rows_that_renewals_do_not_change() -> None:
    world = World(workers=2, target=2)
    loop = ClusterLoop(KEY, world.ports())
    for _ in range(10):  # renewed each time: `left_s` stays, the latest end comes nearer
        await world.passes(loop, 1)
        left_s = 3600.0 - world.now + (world.now % 7)  # two clocks are never quite the same
        world.pins = (dataclasses.replace(CLIENT, latest_s=left_s),)
        await world.passes(loop, 1, every_s=0.0)

    assert 2 == len(world.statuses)  # without the pin, and with it
    (row,) = world.statuses[-1].held_by
    assert ("client", "nb-1", "debugging", ("w0", "w1"), 2) == (
        row.source, row.owner, row.reason, row.workers, row.count,
    )  # fmt: skip

    world.pins = (dataclasses.replace(CLIENT, latest_s=9_000.0),)
    await world.passes(loop, 1)
    assert 3 == len(world.statuses)  # a later end is news


async def test_marks_follow_pins_and_tasks_on_edges_only() -> None:
    world = World(workers=2, target=2)
    loop = ClusterLoop(KEY, world.ports())
    await world.passes(loop, 5)
    assert [] == world.asked

    world.pins = (CLIENT,)
    await world.passes(loop, 20)
    held = Mark("client nb-1 (debugging)", keep=True)
    assert [("w0", held), ("w1", held)] == world.asked

    world.pins, world.busy = (), True
    await world.passes(loop, 3, every_s=5.0)
    assert 2 == len(world.asked)  # a pin that is gone for a moment is not worth a call
    await world.passes(loop, 10, every_s=5.0)
    assert [("w0", Mark("", keep=True)), ("w1", Mark("", keep=True))] == world.asked[2:]

    world.busy = False
    await world.passes(loop, 20)
    assert [("w0", Mark()), ("w1", Mark())] == world.asked[4:]


async def test_a_mark_that_cannot_be_set_costs_no_pass() -> None:
    world = World(workers=1, target=1)
    world.busy = True

    async def refuse(worker: str, mark: Mark) -> None:
        raise PlatformError("pods is forbidden")

    world.mark = refuse  # type: ignore[method-assign]
    await world.passes(ClusterLoop(KEY, world.ports()), 3)

    assert world.statuses


async def test_hints_switched_off_and_a_policy_that_goes_leave_no_mark() -> None:
    world = World(workers=3, target=3)
    world.busy = True
    loop = ClusterLoop(KEY, world.ports())
    await world.passes(loop, 2)
    assert {Mark("", keep=True)} == set(world.marks.values())

    off = dataclasses.replace(POLICY, disruption=Disruption(hints=False))
    await world.passes(loop, 2, off)
    assert {Mark()} == set(world.marks.values())

    await world.passes(loop, 2)
    assert {Mark("", keep=True)} == set(world.marks.values())
    await loop.unmark()
    assert {Mark()} == set(world.marks.values())


def test_many_marks_are_spread_over_passes_pinned_workers_first() -> None:
    busy_ones = [busy(f"b{i:02}") for i in range(AT_ONCE)]
    pinned = [worker(f"p{i}", pins=(SHUFFLE,)) for i in range(5)]
    first, memory = marks([*busy_ones, *pinned], Marked(), hints=True, now=0.0)
    again, _ = marks([*busy_ones, *pinned], memory, hints=True, now=1.0)

    assert AT_ONCE == len(first)
    assert [f"p{i}" for i in range(5)] == [name for name, _ in first[:5]]
    assert {Mark("shuffle", keep=True)} == {mark for _, mark in first[:5]}
    assert [f"b{i:02}" for i in range(AT_ONCE - 5, AT_ONCE)] == [name for name, _ in again]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(worker("a"), Mark(), id="idle"),
        pytest.param(busy("a"), Mark("", keep=True), id="busy"),
        pytest.param(busy("a", node_going="n1 is cordoned"), Mark(), id="its-machine-goes"),
        pytest.param(
            worker("a", pins=(SHUFFLE,), node_going="n1 is cordoned"), Mark("shuffle", keep=True),
            id="pinned-though-its-machine-goes",
        ),
        pytest.param(worker("a", leaving=Leaving.DRAINED), Mark(), id="drained"),
        pytest.param(
            worker("a", pins=(SHUFFLE, dataclasses.replace(SHUFFLE, owner="other"))),
            Mark("shuffle", keep=True), id="two-shuffles-read-like-one",
        ),
        pytest.param(
            worker("a", pins=tuple(Pin("client", f"c{i}", "", 1.0) for i in range(7))),
            Mark("client c0, client c1, client c2, client c3, client c4 and 2 more", keep=True),
            id="many",
        ),
    ],
)  # fmt: skip
def test_the_mark_that_is_true(seen: ObservedWorker, expected: Mark) -> None:
    assert expected == wanted_mark(seen)


def test_a_worker_on_a_node_that_goes_has_a_row_that_says_so() -> None:
    going = {"node_going": "node n1: cordoned"}
    world = cluster(
        [busy("a", **going), busy("p", pins=(SHUFFLE,), **going),
         worker("d", leaving=Leaving.DRAINING, leaving_message="1 task", **going)],
        target=3,
    )  # fmt: skip

    rows = {r.name: (r.reason, r.message) for r in status(world).workers}
    assert {
        "a": (Reason.NODE_GOING, "node n1: cordoned"),
        "p": (Reason.PINNED, "node n1: cordoned; pinned by shuffle 5f3a"),
        "d": (Reason.RETIRING, "node n1: cordoned: 1 task"),
    } == rows
    deaf = dataclasses.replace(POLICY, disruption=Disruption(node_signals=False))
    assert {"p", "d"} == {r.name for r in status(world, policy=deaf).workers}


def test_pins_of_annotations_are_shown_without_an_agent() -> None:
    asked = ManualPin(7200.0, "why not")
    world = cluster([worker("a", manual_pin=asked), worker("b", manual_pin=asked)], agent="")

    (row,) = status(world).held_by
    assert ("manual", "why not", ("a", "b"), NOW + 7200.0) == (
        row.source, row.reason, row.workers, row.until,
    )  # fmt: skip
