"""What people are told, and when they are told nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.loop.ports import Event, EventType, PlatformError, Ports, Retired
from dask_adaptive.loop.report import conditions_of, status_of
from dask_adaptive.loop.status import Status
from dask_adaptive.model.observed import (
    Leaving,
    ManualPin,
    ObservedCluster,
    ObservedScheduler,
    PlatformGroup,
    PlatformView,
    PlatformWorker,
    SchedulerWorker,
)
from dask_adaptive.model.plan import Delete, Outcome, Retire
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.plan import plan
from support.worlds import GROUP, KEY, NOW, PAST, POLICY, SHUFFLE, busy, cluster, pending, worker


def status(world: ObservedCluster, *outcomes: Outcome, policy: Policy = POLICY) -> Status:
    return status_of(world, policy, plan(world, policy, PAST, now=NOW), outcomes)


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

    assert 6 == len(found)
    assert expected == {kind: found[kind] for kind in expected}


class World:
    """A platform, a scheduler and a reporter in one: a cluster that fits in a test."""

    def __init__(self, workers: int, target: int) -> None:
        self.target, self.now = target, 0.0
        self.names = [f"w{i}" for i in range(workers)]
        self.replicas = workers
        self.statuses: list[Status] = []
        self.events: list[Event] = []

    def ports(self) -> Ports:
        return Ports(self, self, self, lambda: self.now)

    async def look(self) -> PlatformView:
        return PlatformView(
            groups=(PlatformGroup(GROUP, self.replicas),),
            workers=tuple(PlatformWorker(n, f"u-{n}", GROUP, 9.0) for n in self.names),
        )

    async def set_replicas(self, group: str, replicas: int) -> None:
        self.replicas = replicas

    async def delete_worker(self, worker: str, uid: str) -> None:
        self.names.remove(worker)

    async def observe(self, policy: Policy) -> ObservedScheduler:
        workers = tuple(
            SchedulerWorker(n, f"tcp://{n}", "running", 1, 0, 100.0, 0, closable=True)
            for n in self.names
        )
        return ObservedScheduler(session="s", agent="1", target=self.target, workers=workers)

    async def retire(self, names: Any, policy: Policy, reason: Reason) -> list[Retired]:
        return [Retired(n, "active", Reason.BUSY, "has 1 task") for n in names]

    async def cancel(self, names: Any) -> list[Retired]:
        return []

    async def pin(self, names: Any, *, ttl_s: float, note: str) -> None: ...

    async def unpin(self, names: Any) -> None: ...

    async def status(self, status: Status) -> None:
        self.statuses.append(status)

    async def event(self, event: Event) -> None:
        self.events.append(event)

    async def passes(self, loop: ClusterLoop, count: int) -> None:
        for _ in range(count):
            self.now += 5.0
            await loop.one_pass(POLICY)


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
