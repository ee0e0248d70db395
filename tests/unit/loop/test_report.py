"""What people are told, and when they are told nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, get_args

import pytest

from dask_adaptive.loop.act import Attempts, act
from dask_adaptive.loop.conditions import conditions_of
from dask_adaptive.loop.events import events_of_outcomes
from dask_adaptive.loop.ports import EventType, Retired
from dask_adaptive.loop.status import Status
from dask_adaptive.loop.summary import pins_of, status_of
from dask_adaptive.loop.words import _VERBS, sentence
from dask_adaptive.model.observed import (
    ManualPin,
    Note,
    ObservedCluster,
    ObservedScheduler,
    ObservedWorker,
    Pin,
    Retiring,
    SchedulerWorker,
    TerminatingPod,
)
from dask_adaptive.model.plan import Action, Blocker, Delete, Outcome, Plan, Restart, Retire
from dask_adaptive.model.policy import Disruption, Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Replacing
from dask_adaptive_lab.simulate.simulated_ports import completed
from support.fake_cluster import W1, W2, FakeCluster
from support.tables import table
from support.worlds import (
    GOING,
    GPU,
    KEY,
    NOW,
    PAST,
    POLICY,
    SHUFFLE,
    busy,
    cluster,
    group_of,
    pending,
    plan,
    worker,
)


def status(world: ObservedCluster, *outcomes: Outcome, policy: Policy = POLICY) -> Status:
    return status_of(world, policy, plan(world, policy, PAST, now=NOW), outcomes, now=NOW)


def test_workers_are_counted_by_what_they_do() -> None:
    world = cluster(
        [worker("a"), busy("b"), pending("c"), worker("d", pins=(SHUFFLE,)),
         worker("e", retiring=Retiring())], target=3,
    )  # fmt: skip
    s = status(world)

    assert (4, 1, 2, 1, 1, 1) == (s.connected, s.pending, s.idle, s.busy, s.pinned, s.retiring)


SENTENCE = "21 of 20 runs"
DUE = Replacing("a", Reason.TASK_QUOTA, SENTENCE, "Due")
DRAINS = {"retiring": Retiring(message="1 task")}
RETIRE = Retire("a", ("a",), Reason.UNDERUTILIZED, "idle")
SPENT = Retire("a", ("a",), Reason.TASK_QUOTA, SENTENCE, busy_ok=True)


def planned(*replacing: Replacing, **more: Any) -> Plan:
    return Plan(Reason.RECYCLING, "", 1, 1, replacing=replacing, **more)


def blocked(reason: Reason, message: str) -> Plan:
    return planned(DUE, blockers=(Blocker("a", reason, message),))


def done(action: Action) -> Outcome:
    return Outcome(action, True, action.reason, "")


@table(
    "seen, decided, outcomes, expected",
    nothing_to_say=(busy("a"), planned(), [], None),
    nothing_of_an_idle_one=(worker("a", idle_s=1.0), planned(), [], None),
    pinned=(worker("a", pins=(SHUFFLE,)), planned(), [],
        ("Active", Reason.PINNED, "pinned by shuffle 5f3a")),
    pending=(pending("a", waiting="ImagePullBackOff: no such image"), planned(), [],
        ("Pending", Reason.NEVER_CONNECTED, "ImagePullBackOff: no such image")),
    not_admitted=(pending("a", gated=True, waiting="SchedulingGated: queue"), planned(), [],
        ("Pending", Reason.ADMISSION_GATED, "SchedulingGated: queue")),
    its_pin_cannot_be_read=(
        worker("a", manual_pin=ManualPin(5.0, "", "cannot be read")), planned(), [],
        ("Active", Reason.INVALID_ANNOTATION, "cannot be read")),
    nor_its_end=(busy("a", annotation_problem="expires-at says x"), planned(), [],
        ("Active", Reason.INVALID_ANNOTATION, "expires-at says x")),
    # An operator that dies before its next pass must leave word of whom it was taking away.
    told_at_once=(worker("a"), planned(), [done(RETIRE)], ("Draining", Reason.RETIRING, "idle")),
    deleted=(worker("a"), planned(), [done(Delete("a", (), Reason.DRAINED, "drained", "u"))],
        ("Going", Reason.DRAINED, "drained")),
    retired_at_its_quota=(
        busy("a"), planned(DUE), [done(SPENT)], ("Draining", Reason.TASK_QUOTA, SENTENCE)),
    restarted_at_its_quota=(busy("a"), planned(DUE),
        [done(Restart("a", ("a",), Reason.TASK_QUOTA, SENTENCE, "p", "u"))],
        ("Going", Reason.TASK_QUOTA, SENTENCE)),
    due=(busy("a"), planned(DUE), [], ("Due", Reason.TASK_QUOTA, SENTENCE)),
    stopped=(busy("a", stopped="has had 20 runs"), planned(), [],
        ("Stopped", Reason.QUOTA_REACHED, "has had 20 runs")),
    stopped_and_due=(busy("a", stopped="at 20 runs"), planned(DUE), [],
        ("Stopped", Reason.TASK_QUOTA, f"{SENTENCE}; at 20 runs")),
    draining=(busy("a", stopped="x", **DRAINS), planned(dataclasses.replace(DUE, state="Draining")),
        [], ("Draining", Reason.TASK_QUOTA, f"{SENTENCE}; 1 task")),
    due_and_pinned=(busy("a", pins=(SHUFFLE,)), planned(DUE), [],
        ("Due", Reason.PINNED, f"{SENTENCE}; pinned by shuffle 5f3a")),
    held=(busy("a"), blocked(Reason.NOT_YET, "it opens at 02:00"), [],
        ("Due", Reason.NOT_YET, f"{SENTENCE}; it opens at 02:00")),
    stopped_and_held=(busy("a", stopped="at 20 runs"),
        blocked(Reason.BUDGET_EXHAUSTED, f"{SENTENCE}; waits for its turn"), [],
        ("Stopped", Reason.BUDGET_EXHAUSTED, f"{SENTENCE}; waits for its turn")),
    its_node_goes=(
        busy("a", **GOING), planned(), [], ("Active", Reason.NODE_GOING, "node n1: cordoned")),
    its_node_goes_though_pinned=(busy("a", pins=(SHUFFLE,), **GOING), None, [],
        ("Active", Reason.PINNED, "node n1: cordoned; pinned by shuffle 5f3a")),
    its_node_goes_too=(worker("a", **DRAINS, **GOING), planned(), [],
        ("Draining", Reason.RETIRING, "node n1: cordoned: 1 task")),
)  # fmt: skip
def test_the_row_of_a_worker(
    seen: ObservedWorker, decided: Plan | None, outcomes: list[Outcome],
    expected: tuple[str, Reason, str] | None,
) -> None:  # fmt: skip
    """Without `decided` by what is decided about it."""
    world = cluster([seen])
    decided = decided or plan(world, POLICY, PAST, now=NOW)
    rows = status_of(world, POLICY, decided, outcomes, now=NOW).workers

    assert [expected] * bool(expected) == [(r.state, r.reason, r.message) for r in rows]


def test_who_else_has_a_row() -> None:
    other = group_of(GPU, [busy("a")])
    deaf = dataclasses.replace(POLICY, disruption=Disruption(node_signals=False))

    def rows(world: ObservedCluster, decided: Plan, policy: Policy = POLICY) -> int:
        return len(status_of(world, policy, decided, [], now=NOW).workers)

    assert (1, 0) == tuple(rows(cluster([], others=[other]), p) for p in (planned(DUE), planned()))
    assert 0 == rows(cluster([busy("a", **GOING)]), planned(), deaf)


def test_pending_workers_are_counted_by_what_they_wait_for() -> None:
    world = cluster([pending("q", waiting="ImagePullBackOff: no such image")], target=1)

    assert {"ImagePullBackOff": 1} == status(world).pending_reasons


def test_time_alone_changes_nothing_in_a_status() -> None:
    def world(idle_s: float) -> ObservedCluster:
        left = dataclasses.replace(SHUFFLE, until=1_000 - idle_s)
        return cluster([worker("a", idle_s=idle_s, pins=(left,)), busy("b")], target=2)

    assert status(world(100.0)) == status(world(105.0))


@table(
    "world, policy, expected",
    well=(cluster([busy("a")], target=1), POLICY, {"Ready": True}),
    all_paused=(cluster([busy("a", paused=True, stuck=1)]), POLICY, {"Ready": False}),
    one_for_a_moment=(cluster([busy("a", paused=True, stuck=1), busy("b", paused=True)]), POLICY,
        {"Ready": True}),
    scheduler_down=(cluster([busy("a")], problem=Reason.SCHEDULER_UNREACHABLE), POLICY,
        {"Ready": False, "SchedulerConnected": False, "Injected": None, "AbleToScale": False}),
    no_agent=(cluster([busy("a")], problem=Reason.AGENT_MISSING), POLICY,
        {"Ready": False, "SchedulerConnected": True, "Injected": False, "AbleToScale": False}),
    still_rising=(cluster([busy("a")], target=99), POLICY, {"ScalingLimited": False}),
    at_the_maximum=(cluster([busy(f"w{i}") for i in range(10)], target=99), POLICY,
        {"ScalingLimited": True}),
    paused=(cluster([busy("a")]), dataclasses.replace(POLICY, mode=Mode.PAUSED),
        {"Paused": True, "Ready": True}),
    no_cluster=(ObservedCluster(
            key=KEY, found=False, scheduler=ObservedScheduler(Reason.CLUSTER_NOT_FOUND)
        ),
        POLICY, {"Ready": False, "SchedulerConnected": None}),
)  # fmt: skip
def test_conditions(world: ObservedCluster, policy: Policy, expected: dict[str, Any]) -> None:
    decided = plan(world, policy, PAST, now=NOW)
    found = {c.type: c.status for c in conditions_of(world, policy, decided, ())}

    assert 8 == len(found)
    assert expected == {kind: found[kind] for kind in expected}


def test_a_refusal_is_told_once_and_asked_again_later() -> None:
    """The agent refuses what has become wrong since: a normal result, and the worker stays."""

    class Reluctant(FakeCluster):
        async def retire(self, names: Sequence[str], *_: Any, **__: Any) -> list[Retired]:
            return [Retired(name, "active", Reason.BUSY, "has 1 task") for name in names]

    fake = Reluctant(1, target=0)
    fake.steps(40)

    refused = [e for e in fake.events if e.reason is Reason.BUSY]
    assert refused
    assert {EventType.NORMAL} == {e.type for e in refused}
    assert [W1] == list(fake.cluster.workers)
    assert len(refused) <= 40 * 5 / 15


@pytest.mark.parametrize("state", ["active", "gone"])
def test_processes_of_a_pod_end_together_or_not_at_all(state: str) -> None:
    asked: list[tuple[str, ...]] = []

    class Agent(FakeCluster):
        async def retire(self, names: Sequence[str], *_: Any, **how: Any) -> list[Retired]:
            asked.append((*names, how["ends"]))
            return [Retired(name, state if name == "w" else "drained") for name in names]

        async def cancel(self, names: Sequence[str]) -> list[Retired]:
            asked.append(tuple(names))
            return []

    delete = Delete("w", ("w-0",), Reason.DRAINED, "drained", "u")
    decided = Plan(Reason.DRAINED, "drained", actions=(delete,))
    (outcome,) = completed(act(decided, POLICY, Agent(1).ports(), Attempts(lambda: 0.0)))

    assert outcome.done is (state == "gone")
    assert [("w-0", "w", "names"), ("w-0", "w")][: 2 - outcome.done] == asked


def test_workers_that_are_lost_for_good_go_when_they_have_been_waited_for() -> None:
    """Their machines do not come back, and there is no more work."""
    fake = FakeCluster(10, target=10)
    fake.steps(2)
    fake.start_s, fake.target = 1e9, 0
    for name in list(fake.cluster.workers)[:5]:
        fake.cluster.crash(name)
    fake.steps(100)
    assert 10 == len(fake.cluster.workers)
    assert Reason.TOO_MANY_UNREADY is fake.last.plan.reason

    fake.steps(100)

    assert not fake.cluster.workers


CLIENT = Pin("client", "nb-1", "debugging", until=10.0, latest=3600.0, since=-5.0)


def test_notes_are_told_once_each_about_its_worker() -> None:
    fake = FakeCluster(2, target=2)
    fake.notes = [
        Note(1, Reason.WORKER_LEFT, "left with nothing", (W2,)),
        Note(2, Reason.PIN_EXPIRED, "shuffle 5f3a ran on", (W1, W2)),
        Note(3, Reason.TASKS_GIVEN_BACK, "1 task given back", (f"{W1}-1",)),
        Note(4, Reason.TASKS_GIVEN_BACK, "1 task given back", ("gone",)),
        Note(5, Reason.TASK_TOO_LONG, "said", (W1,)),
        Note(6, Reason.QUOTA_REACHED, "said", (W1,)),
        Note(7, Reason.RELIEF_FAILED, "said"),
        Note(8, Reason.SERIALIZATION_HEAVY, "etl.step takes 31 %"),
    ]
    fake.steps(3)

    assert [
        (EventType.NORMAL, Reason.WORKER_LEFT, W2),
        (EventType.WARNING, Reason.PIN_EXPIRED, ""),
        (EventType.WARNING, Reason.TASKS_GIVEN_BACK, W1),
        (EventType.WARNING, Reason.TASKS_GIVEN_BACK, ""),
        (EventType.WARNING, Reason.TASK_TOO_LONG, W1),
        (EventType.NORMAL, Reason.QUOTA_REACHED, W1),
        (EventType.WARNING, Reason.RELIEF_FAILED, ""),
        (EventType.WARNING, Reason.SERIALIZATION_HEAVY, ""),
    ] == [(e.type, e.reason, e.worker) for e in fake.events]
    assert "etl.step takes 31 %" == fake.events[-1].message


def test_an_ending_pod_is_told_of_whatever_the_mode() -> None:
    fake = FakeCluster(2, target=2)
    fake.terminating = (TerminatingPod(W2, "w1-x", ("10.0.0.2",), 42.0),)
    paused = dataclasses.replace(POLICY, mode=Mode.PAUSED)
    fake.steps(1, paused)

    assert [(("tcp://10.0.0.2:1",), 42.0)] == fake.left
    assert [(Reason.POD_ENDING, W2)] == [(e.reason, e.worker) for e in fake.events]
    row = next(r for r in fake.statuses[-1].workers if r.name == W2)
    assert ("Pending", Reason.POD_ENDING) == (row.state, row.reason)


def test_an_agent_that_does_not_hear_of_an_end_is_told_on_once() -> None:
    fake = FakeCluster(1, target=1)
    fake.terminating = (TerminatingPod(W1, "w0-x", ("10.0.0.1",), 42.0),)

    async def too_old(names: Any, **_: Any) -> list[Retired]:
        return [Retired(n, "active", None, "agent 0.0.1 is too old") for n in names]

    fake.leave = too_old  # type: ignore[method-assign]
    fake.steps(5)

    assert [(Reason.RETIREMENT_REFUSED, "agent 0.0.1 is too old", W1)] == [
        (e.reason, e.message, e.worker) for e in fake.events
    ]


def test_pins_are_rows_that_renewals_do_not_change() -> None:
    fake = FakeCluster(2, target=2)
    for _ in range(10):  # renewed each time: the latest end stays
        fake.steps(1)
        # Two clocks are never quite the same.
        now = fake.cluster.now
        fake.pins = (dataclasses.replace(CLIENT, until=now + 10.0, latest=3600.0 + now % 7),)
        fake.steps(1, after_s=0.0)

    assert 2 == len(fake.statuses)  # without the pin, and with it
    (row,) = fake.statuses[-1].held_by
    assert ("client", "nb-1", "debugging", (W1, W2), 2) == (
        row.source, row.owner, row.reason, row.workers, row.count,
    )  # fmt: skip

    fake.pins = (dataclasses.replace(CLIENT, until=9_000.0),)
    fake.steps(2)
    assert 3 == len(fake.statuses)  # a later end is news


def test_a_status_stays_small_and_its_order_the_same() -> None:
    many = tuple(Pin("client", f"c{i:03}", "", 60.0, 60.0) for i in range(120))
    names = [f"w{i:02}" for i in range(12)]
    world = processes({n: many if n == "w00" else (Pin("shuffle", "s", "", 9.0),) for n in names})
    rows = status(world).held_by

    assert 100 == len(rows)
    assert ("shuffle", 11, tuple(names[1:11])) == (rows[0].source, rows[0].count, rows[0].workers)
    assert [f"c{i:03}" for i in range(99)] == [r.owner for r in rows[1:]]


def processes(pins_by_name: dict[str, tuple[Pin, ...]], **scheduler: Any) -> ObservedCluster:
    rows = tuple(
        SchedulerWorker(n, f"tcp://{n}", "running", 1, 0, 9.0, 0, pins=p)
        for n, p in pins_by_name.items()
    )
    named = [worker(n) for n in pins_by_name if not n.startswith("stranger")]
    return dataclasses.replace(
        cluster(named),
        scheduler=dataclasses.replace(cluster([]).scheduler, workers=rows, **scheduler),
    )


def test_a_pin_of_a_stranger_or_of_a_departing_worker_is_shown_too() -> None:
    pin = Pin("client", "nb-1", "", 5.0, latest=60.0)
    world = processes({"a-0": (pin,), "stranger": (pin,)})
    departing = dataclasses.replace(world.groups[0], workers=(pending("a"),))

    (held,) = pins_of(dataclasses.replace(world, groups=(departing,)), now=NOW)
    assert ("a", "stranger") == held.workers


def test_each_action_has_a_verb_and_an_event_names_three_workers() -> None:
    retired = [done(dataclasses.replace(RETIRE, worker=name)) for name in "abcd"]
    failed = dataclasses.replace(retired[0], done=False, reason=Reason.ACTION_FAILED, message="503")

    assert {*_VERBS, "SetReplicas"} == {kind.__name__ for kind in get_args(Action)}
    assert "Retiring a, b, c and 1 more: idle" == sentence(events_of_outcomes(retired))
    assert "Retiring a: failed: 503" == sentence(events_of_outcomes([failed]))
