"""The operator's side of the wire, against a real scheduler that behaves or does not."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import dask.config
import pytest
from distributed import Client, Scheduler, Worker
from distributed.core import rpc
from distributed.protocol.serialize import ToPickle

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.ports import LinkError, PageContent
from dask_adaptive.loop.status import SCHEDULER_CONFIGURED
from dask_adaptive.model.observed import (
    Note,
    ObservedScheduler,
    SchedulerWorker,
    Serialized,
    SerializedFunction,
    Want,
)
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import ClientPins, ClusterRef, Pins, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limit, Limits, Profile
from dask_adaptive.model.scheduler_settings import scheduler_settings
from dask_adaptive.scheduler import link as link_module
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.link import ReadOnlyLink, connect
from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install, uninstall
from dask_adaptive_lab.local import Machine
from dask_adaptive_lab.rehearse.rehearsal import Rehearsal
from dask_adaptive_lab.rehearse.views import Watcher
from support.agent_work import MAY_END, heard, held, observe_once, until, within

POLICY = Policy(ClusterRef("t"), 3)
TOLD = PageContent("etl", "5 wanted", (("w1", "stays"),), ((1.5, "g", "LoadIncreased", "8 tasks"),))
COMING = (Arriving(2, 100.0),)
TTL = "distributed.scheduler.worker-ttl"
LEVELS = {"distributed": {"logging": {"distributed.core": "debug"}}}


def policy(config: Any = None, **relief: str) -> Policy:
    spec = {"scheduler": {"relief": relief, "config": config or {}}}
    return dataclasses.replace(POLICY, scheduler=scheduler_settings(spec))


def told(s: Any, **more: Any) -> None:
    """The scheduler's next snapshots say this, too."""
    install(s)
    stock = s.handlers[wire.OBSERVE]

    def observe(**request: Any) -> Any:
        answer = {**stock(**request), **more}
        return {key: value for key, value in answer.items() if value is not Ellipsis}

    s.handlers[wire.OBSERVE] = observe


async def test_a_scheduler_without_the_agent_gets_it(s, link) -> None:
    seen = await link.observe(POLICY)

    assert seen.is_connected
    assert seen.agent
    assert wire.OBSERVE in s.handlers


async def test_an_agent_that_is_gone_is_put_back(s, link) -> None:
    await link.observe(POLICY)
    uninstall(s)

    assert (await link.observe(POLICY)).agent


async def test_an_agent_whose_attaching_took_too_long_is_found(s, link, monkeypatch) -> None:
    async def attach(calls: Any) -> None:
        install(s)
        raise LinkError("it did not answer run_function")

    monkeypatch.setattr(link_module, "attach", attach)

    assert (await link.observe(POLICY)).agent


async def test_another_protocol_is_a_problem_with_a_remedy(s, link) -> None:
    install(s)
    s.handlers[wire.HELLO] = lambda **_: {"protocol": 99}

    seen = await link.observe(POLICY)

    assert Reason.AGENT_MISSING is seen.problem
    assert "speaks protocol 99" in seen.message
    assert "upgrade the older side" in seen.message


#: Meters without the runs of workers, which every agent sends.
COLUMNS = {key: [] for key in ("failures", "managed", "matched", "lifetimes", "too_short")}
NO_RUNS = {**COLUMNS, "held": 0, "expected_ms": 0}


@pytest.mark.parametrize("parts", [{}, {"relief": [{"name": "idle"}]}, {"meters": NO_RUNS}])
async def test_a_senseless_snapshot_is_no_snapshot(s, link, parts) -> None:
    install(s)
    await link.observe(POLICY)
    if parts:
        told(s, **parts)
    else:
        s.handlers[wire.OBSERVE] = lambda **_: "text"

    seen = await link.observe(POLICY)

    assert Reason.AGENT_INVALID is seen.problem
    assert () == seen.workers


async def test_a_scheduler_that_is_not_there() -> None:
    link = connect("tcp://127.0.0.1:9", timeout_s=0.5)
    seen = await link.observe(POLICY)
    await link.close()

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem
    assert "tcp://127.0.0.1:9" in seen.message


class Trap:
    """Runs code where it is unpickled."""

    sprung = False

    def __reduce__(self) -> Any:
        return _spring, ()


def _spring() -> None:
    Trap.sprung = True


@pytest.mark.parametrize("op", [wire.HELLO, wire.OBSERVE])
async def test_not_even_what_distributed_unpickles_everywhere(s, op) -> None:
    """`distributed` opens `ToPickle` for whoever reads it, whatever `deserialize` is."""
    install(s)
    s.handlers[op] = lambda **_: {"agent": ToPickle(Trap())}
    trusting = rpc(s.address, deserialize=False)
    link = connect(s.address)

    await getattr(trusting, op)()
    assert Trap.sprung
    Trap.sprung = False
    seen = await link.observe(POLICY)

    assert not Trap.sprung
    assert seen.problem
    await trusting.close_rpc()
    await link.close()


async def test_the_error_of_a_handler_arrives_as_text(s) -> None:
    def raises() -> None:
        raise ZeroDivisionError("of all things")

    s.handlers["fails"] = raises
    calls = SchedulerCalls(s.address, timeout_s=20.0)

    with pytest.raises(LinkError, match=r"fails failed on .*of all things"):
        await calls.call("fails", dict)
    await calls.close()


async def test_the_agent_knows_what_is_on_its_way(agent, link) -> None:
    await link.observe(POLICY)

    await link.announce(COMING, TOLD)

    (row,) = agent.plans.arriving
    assert (2, pytest.approx(100, abs=5)) == row
    assert ("etl", "5 wanted", {"w1": "stays"}) == (
        agent.plans.policy, agent.plans.message, agent.plans.workers,
    )  # fmt: skip
    assert [(1.5, "g", "LoadIncreased", "8 tasks")] == agent.plans.decisions


async def test_a_worker_that_joins_is_not_on_its_way_any_more(s, agent, link) -> None:
    await link.announce(COMING, TOLD)

    async with Worker(s.address, nthreads=1, memory_limit=0, dashboard=False):
        assert [1] == [workers for workers, _ in agent.plans.arriving]


async def test_what_has_not_changed_is_not_sent(s, link) -> None:
    install(s)
    requests = heard(s, wire.ANNOUNCE)

    await link.announce((), PageContent())
    assert [] == requests
    for _ in range(3):
        await link.announce((), TOLD)

    assert 1 == len(requests)


@pytest.mark.parametrize(
    ("op", "say"),
    [
        (wire.ANNOUNCE, lambda link: link.announce((), TOLD)),
        (wire.LIMIT, lambda link: link.limit(Limits({"a": Limit(runs=2)}, (Profile(),)))),
    ],
)
async def test_what_was_not_heard_is_said_again(s, link, op, say) -> None:
    await link.observe(POLICY)
    handler = s.handlers[op]
    said = {"error": wire.E_INVALID, "message": "no such session", "protocol": wire.PROTOCOL}
    s.handlers[op] = lambda **_: said
    with pytest.raises(LinkError, match="no such session"):
        await say(link)
    s.handlers[op] = handler
    requests = heard(s, op)
    await say(link)

    assert 1 == len(requests)


@pytest.fixture
async def there(s: Any) -> AsyncIterator[ReadOnlyLink]:
    made = ReadOnlyLink(s.address, timeout_s=2.0)
    yield made
    await made.close()


async def test_it_neither_attaches_nor_configures(s, there) -> None:
    assert Reason.AGENT_MISSING is (await there.observe()).problem
    assert wire.OBSERVE not in s.handlers

    agent = install(s)
    before = dataclasses.asdict(agent.settings)
    assert (await there.observe()).is_connected
    assert before == dataclasses.asdict(agent.settings)


async def test_demand_is_asked_for(s, there) -> None:
    install(s)
    async with (
        Worker(s.address, nthreads=1, name="w1"),
        Client(s.address, asynchronous=True) as client,
    ):
        futures = client.map(held, range(5), pure=False)
        while not s.running or not s.tasks:
            await asyncio.sleep(0.01)
        seen = await there.observe(demand=True)

        assert 5 == sum(p.unfinished for p in seen.demand.prefixes)
        assert (await there.observe()).demand is None, "not asked for"
        MAY_END.set()
        await client.gather(futures)
        (worker,) = (await observe_once(s.address)).workers
        assert 5 == worker.use.runs, "meters are asked for"


async def test_a_scheduler_that_goes_and_comes_is_said_hello_again(s, there) -> None:
    install(s)
    first = await there.observe()
    uninstall(s)
    assert (await there.observe()).problem is not None
    install(s)
    again = await there.observe()

    assert first.session != again.session
    assert again.is_connected


async def test_notes_are_read_once_however_often_the_link_is_opened(s, agent, link) -> None:
    agent.notes.add(wire.N_PINS_OVERRIDDEN, "retire_workers broke a pin", ["a"])
    first = await link.observe(POLICY)
    agent.notes.add(wire.N_WORKER_LEFT, "left", ["b"])
    second = await link.observe(POLICY)
    observe, s.handlers[wire.OBSERVE] = s.handlers[wire.OBSERVE], lambda **_: "nonsense"
    lost = await link.observe(POLICY)
    s.handlers[wire.OBSERVE] = observe
    agent.notes.add(wire.N_RELIEF_FAILED, "failed")
    agent.notes.add(wire.N_SERIALIZATION_HEAVY, "heavy", [])
    third = await link.observe(POLICY)

    assert not lost.is_connected
    assert [
        (Note(1, Reason.PINS_OVERRIDDEN, "retire_workers broke a pin", ("a",)),),
        (Note(2, Reason.WORKER_LEFT, "left", ("b",)),),
        (Note(3, Reason.RELIEF_FAILED, "failed"), Note(4, Reason.SERIALIZATION_HEAVY, "heavy")),
    ] == [first.notes, second.notes, third.notes]


async def test_a_new_operator_does_not_repeat_what_is_old_news(agent, link) -> None:
    now = agent.clock()
    with mock.patch.object(agent.notes, "_clock", return_value=now - 61):
        agent.notes.add(wire.N_WORKER_LEFT, "old")
    agent.notes.add(wire.N_WORKER_LEFT, "fresh")
    agent.notes.add("FromTheFuture", "unknown")

    assert ["fresh"] == [n.message for n in (await link.observe(POLICY)).notes]
    assert () == (await link.observe(POLICY)).notes


async def test_what_the_policy_says_of_pins_reaches_the_agent(agent, link) -> None:
    policy = Policy(ClusterRef("t"), 3, pins=Pins(client=ClientPins(False, 90.0)))
    await link.observe(policy)

    assert (False, 90_000) == (agent.settings.client_pins, agent.settings.client_max_ms)


async def test_the_agent_hears_what_is_wanted_and_again_when_that_changes(agent, link) -> None:
    await link.observe(policy({TTL: "10m", **LEVELS}, pickling="Shared", host="Disabled"))

    assert {"pickling": "Shared", "host": "Disabled"} == agent.settings.relief
    config = {TTL: "10m", "distributed.logging": {"distributed.core": "debug"}}
    assert config == agent.settings.config

    await link.observe(POLICY)
    assert ({}, {}) == (agent.settings.relief, agent.settings.config)


async def test_every_relief_is_reported_with_its_state(agent, link) -> None:
    seen = await link.observe(policy(**dict.fromkeys(wire.RELIEFS, wire.DISABLED)))

    assert [row["name"] for row in agent.reliefs.rows()] == [r.name for r in seen.relief]
    assert {wire.R_DISABLED} >= {r.state for r in seen.relief}


async def test_the_values_in_force_are_read(s, link) -> None:
    wanted = {TTL: "11m", "distributed.scheduler.worker-tll": "11m"}

    assert ((TTL, '"5 minutes"'),) == (await link.observe(policy(wanted))).config
    assert () == (await link.observe(POLICY)).config


async def test_what_serializing_costs_is_read(s, link) -> None:
    row = {"function": "etl.step", "calls": 2, "us": 1_500_000, "bytes": 70, "size": 40}
    whole = {"calls": 3, "us": 2_000_000, "bytes": 100, "share": 25, "top": [row] * 12}
    told(s, serialized=whole)
    seen = await link.observe(POLICY)

    one = SerializedFunction("etl.step", 2, 1.5, 70, 40)
    assert Serialized(3, 2.0, 100, 0.25, (one,) * 10) == seen.serialized
    assert seen.serialized == (await observe_once(s.address)).serialized


async def test_wants_and_idleness_are_read(s, link) -> None:
    row = {"workers": 3, "left_ms": 15_000, "owner": "x", "group": "g"}
    told(s, wants=[row], quiet={"no_task_ms": 2500, "no_client_ms": 0})
    seen = await link.observe(POLICY)
    (want,) = seen.wants

    assert Want(3, want.left_s, "x", "g") == want
    assert 10.0 < want.left_s <= 15.0
    assert 2.5 <= seen.quiet.no_task_s < 7.5
    assert 0.0 == seen.quiet.no_client_s


class Wire:
    """All requests that reach a scheduler, and how often its agent says that its lease ended."""

    def __init__(self, s: Any) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.lapses = 0
        for op in [op for op in s.handlers if op.startswith("adaptive_")]:
            s.handlers[op] = self._listening(op, s.handlers[op])

    def taken(self) -> list[str]:
        ops = [op for op, _ in self.requests]
        self.requests.clear()
        return ops

    def _listening(self, op: str, stock: Any) -> Any:
        def listen(**request: Any) -> Any:
            self.requests.append((op, request))
            answer = stock(**request)
            return {**answer, "lapses": self.lapses} if op == wire.OBSERVE else answer

        return listen


async def a_pass(link: Any) -> None:
    seen = await link.observe(POLICY)
    assert seen.is_connected, seen.message
    await link.limit(Limits({"a": Limit(runs=2)}, (Profile(),), 1))
    await link.announce((), TOLD)


async def test_the_link_that_governs_renews_the_lease_and_no_other_does(s, agent, link) -> None:
    heard = Wire(s)
    onlooker = connect(s.address)
    await link.observe(POLICY)
    assert [wire.HELLO, wire.CONFIGURE, wire.OBSERVE] == [op for op, _ in heard.requests]
    assert heard.requests[-1][1]["renew"] is True

    heard.requests.clear()
    await onlooker.observe(POLICY)
    await observe_once(s.address)

    assert not any(request.get("renew", False) for _, request in heard.requests)
    assert wire.CONFIGURE not in {op for op, _ in heard.requests}
    await onlooker.close()


async def test_what_a_lease_took_away_is_told_again_in_the_same_pass(s, agent, link) -> None:
    heard = Wire(s)
    await a_pass(link)
    heard.taken()
    await a_pass(link)
    assert [wire.OBSERVE] == heard.taken(), "an agent that knows it all is not told it again"

    heard.lapses = 1
    await a_pass(link)
    assert [wire.OBSERVE, wire.CONFIGURE, wire.LIMIT, wire.ANNOUNCE] == heard.taken()
    await a_pass(link)
    assert [wire.OBSERVE] == heard.taken()


def in_force(agent: Any) -> tuple[Any, ...]:
    """What it does by what the operator has said."""
    states = {row["name"]: row["state"] for row in agent.reliefs.rows()}
    return not agent.limits.is_empty, agent.plans.policy, agent.settings.shuffle_wait_ms, states


async def test_a_scheduler_left_alone_is_stock_until_its_operator_is_back(s, agent, link) -> None:
    await a_pass(link)
    *before, reliefs = in_force(agent)
    assert [True, "etl", 60_000] == before
    assert wire.R_ACTIVE in reliefs.values()

    agent.settings.lease_ms = 200
    agent.lease.renew()

    async def has_lapsed() -> bool:
        await observe_once(s.address)
        return bool(agent.lease.lapses)

    await until(has_lapsed)  # nobody renews it
    *after, states = in_force(agent)
    assert [False, "", 0] == after
    assert wire.R_ACTIVE not in states.values()

    agent.settings.lease_ms = 300_000
    await a_pass(link)
    assert (*before, reliefs) == in_force(agent)


class Last(Watcher):
    """The last pass of a rehearsal."""

    result: PassResult | None = None

    def saw(self, result: PassResult) -> None:
        self.result = result

    def condition(self) -> tuple[bool | None, Reason] | None:
        conditions = self.result.status.conditions if self.result else ()
        found = (c for c in conditions if c.type == SCHEDULER_CONFIGURED)
        return next(((c.status, c.reason) for c in found), None)


@pytest.mark.thorough
async def test_a_rehearsal_starts_with_what_the_policy_says(tmp_path, monkeypatch) -> None:
    """The whole way: variables, Dask's own reading of them, the agent's answer, the condition."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "7")  # the shell's own
    operator = Path(__file__).parents[2] / "operator"
    monkeypatch.setenv("PYTHONPATH", str(operator))  # where only distributed is installed
    failures = "distributed.scheduler.allowed-failures"
    config = {TTL: "10m", failures: 9, "distributed": {"nanny": {"environ": {"A_B": "c"}}}}
    last = Last()
    wanted = policy(config, pickling="Shared", prefixes="Disabled")
    async with Rehearsal(wanted, tmp_path, Machine(), watchers=(last,)) as rehearsal:
        await until(lambda: last.condition() is not None)
        assert (False, Reason.PENDING_RESTART) == last.condition(), "the shell's own counts"
        rehearsal.policy = policy({k: v for k, v in config.items() if k != failures})
        await until(lambda: last.condition() == (True, Reason.RECONCILED))
        async with Client(rehearsal.address, asynchronous=True) as client:
            keys = (TTL, failures, "distributed.nanny.environ.A_B")
            found = [await client.run_on_scheduler(dask.config.get, key) for key in keys]
            variable = await client.run_on_scheduler(os.getenv, "DASK_ADAPTIVE_RELIEF")

        assert ["10m", 7, "c"] == found
        assert "prefixes=Disabled,pickling=Shared" == variable


# Waiting for the next change.


def named(name: str, seen: ObservedScheduler) -> SchedulerWorker:
    return next(w for w in seen.workers if w.name == name)


async def rested(link: Any) -> None:
    """Has read all that there is."""
    await link.observe(POLICY)
    while True:
        try:
            await asyncio.wait_for(link.changed(), 1.0)
        except asyncio.TimeoutError:
            return
        await link.observe(POLICY)


async def test_a_change_is_noticed_and_read_with_one_message(s, agent, workers, link) -> None:
    await rested(link)
    before = await link.observe(POLICY)
    waiting = asyncio.ensure_future(link.changed())
    await asyncio.sleep(0.2)
    await link.observe(POLICY)
    s.handlers[wire.PIN](names=["a"], source=wire.MANUAL, owner="x", ttl_ms=60_000)
    began = time.monotonic()
    await waiting
    took_s = time.monotonic() - began
    asked = heard(s, wire.OBSERVE)
    seen = await link.observe(POLICY)
    await link.observe(POLICY)

    assert took_s < 30.0  # else it is the end of the pin
    assert {"a": ["x"], "b": []} == {w.name: [p.owner for p in w.pins] for w in seen.workers}
    assert named("b", before) is named("b", seen)
    assert 1 == len(asked), "the second time only"


async def test_what_was_heard_before_we_acted_is_asked_again(s, agent, workers, link) -> None:
    await rested(link)
    s.handlers[wire.PIN](names=["a"], source=wire.MANUAL, owner="x", ttl_ms=60_000)
    await link.changed()
    await link.retire(["b"], POLICY, Reason.UNDERUTILIZED)

    assert named("b", await link.observe(POLICY)).retiring


async def test_notes_that_came_with_a_change_are_told_once(s, agent, workers, link) -> None:
    await rested(link)
    agent.notes.add(wire.N_RELIEF_FAILED, "it is off")
    await link.changed()
    await asyncio.sleep(link_module.FRESH_S)

    assert 1 == len((await link.observe(POLICY)).notes)
    assert () == (await link.observe(POLICY)).notes


async def test_what_was_asked_for_otherwise_is_not_mixed(s, agent, workers, link) -> None:
    await rested(link)
    waiting = asyncio.ensure_future(link.changed())
    await asyncio.sleep(0.2)
    metered = await link.observe(POLICY, meters=True)
    s.handlers[wire.PIN](names=["a"], source=wire.MANUAL, owner="x", ttl_ms=60_000)
    await waiting
    again = await link.observe(POLICY, meters=True)

    assert named("a", metered).use.process > 0
    assert named("a", again).use.process > 0


@pytest.mark.parametrize("there", ["an older agent", "no agent", "nobody yet"])
async def test_where_nobody_tells_of_changes_a_look_is_due_now_and_then(
    s, there, monkeypatch
) -> None:
    monkeypatch.setattr(link_module, "POLL_S", 0.3)
    link = connect(s.address, attach=False)
    if there == "an older agent":
        told(s, version=..., since=..., gone=..., now_ms=...)
    if there != "nobody yet":
        assert (there == "an older agent") == (await link.observe(POLICY)).is_connected
    began = time.monotonic()
    await link.changed()
    await link.close()

    assert 0.3 <= time.monotonic() - began < 2.0


async def test_a_scheduler_that_falls_silent_ends_the_wait(s, monkeypatch) -> None:
    monkeypatch.setattr(link_module, "WAIT_S", 0.3)
    install(s)
    link = connect(s.address, timeout_s=1.0)
    await link.observe(POLICY)

    async def silent(**_: Any) -> None:
        await asyncio.sleep(30)

    s.handlers[wire.OBSERVE] = silent
    with within(5.0):  # else 30
        await link.changed()
    assert Reason.SCHEDULER_UNREACHABLE is (await link.observe(POLICY)).problem
    await link.close()


@pytest.mark.parametrize("why", ["it closes", "its agent is taken out"])
async def test_a_scheduler_that_goes_ends_the_wait(why) -> None:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        link = connect(s.address, timeout_s=2.0)
        await rested(link)
        waiting = asyncio.ensure_future(link.changed())
        await asyncio.sleep(0.1)
        began = time.monotonic()
        if why == "its agent is taken out":
            uninstall(s)
            await waiting
            assert (await link.observe(POLICY)).agent
    await waiting
    await link.close()

    assert time.monotonic() - began < 7.0  # else 8
