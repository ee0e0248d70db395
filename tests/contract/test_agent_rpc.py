"""The wire, through the scheduler's own port, and how long what was said there holds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from distributed import Worker, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import __version__, wire
from dask_adaptive_agent.agent import install, uninstall
from support.agent_cluster import StillClock, with_agent
from support.agent_quota import limit, runs
from support.agent_work import ask, retire, slow, until

TWO = [("127.0.0.1", 2)] * 2


@with_agent(threads=2, client=False)
async def test_hello_answers_whatever_the_protocol(s, a, b, agent) -> None:
    answer = await ask(s, wire.HELLO, protocol=99)

    assert set(wire.HelloAnswer.__annotations__) == set(answer)
    expected = (wire.PROTOCOL, __version__, agent.session)
    assert expected == tuple(answer[key] for key in ("protocol", "agent", "session"))
    assert all(agent.features[name] for name in ("counting", "orders", "removals"))


@with_agent(threads=2, client=False)
async def test_another_protocol_is_refused(s, a, b, agent) -> None:
    for message in agent.handlers():
        if message != wire.HELLO:
            answer = await ask(s, message, protocol=99)
            assert wire.E_PROTOCOL == answer["error"]


PIN = {"names": ["a"], "source": "manual", "owner": "o"}
MALFORMED: dict[str, list[dict[str, Any]]] = {
    wire.RETIRE: [
        {"names": "abc"}, {"names": [1]}, {}, {"names": [], "deadline_ms": -1},
        {"names": [], "on_timeout": "Maybe"}, {"names": [], "busy_ok": "yes"},
    ],
    wire.CANCEL: [{"names": None}],
    wire.PIN: [
        {**PIN, "ttl_ms": -5}, PIN, {**PIN, "source": "shuffle", "ttl_ms": 5},
        {"names": ["a"], "source": "manual", "ttl_ms": 5},
    ],
    wire.UNPIN: [{"names": 3, "source": "manual", "owner": "o"}],
    wire.CONFIGURE: [
        {"lease_ms": 0}, {"shuffle_wait_ms": -1}, {"on_lifetime": "Never"}, {"lifetime_ms": 0},
    ],
    wire.ANNOUNCE: [
        {"arriving": 5}, {"arriving": "ab"}, {"arriving": [5]}, {"arriving": [(1,)]},
        {"arriving": [(1, 2, 3)]}, {"arriving": [("1", 2)]}, {"arriving": [(1, 2.5)]},
        {"arriving": [(True, 2)]}, {"arriving": [(-1, 2)]}, {"arriving": [(1, -2)]},
        {"arriving": [(1, 10**18)]}, {"can_grow": -1}, {"grow_ms": "soon"}, {"policy": 1},
        {"message": None}, {"workers": {"a": "b"}}, {"workers": [("a", 1)]},
        {"decisions": [(1, "g", "r")]}, {"decisions": [("1", "g", "r", "m")]},
    ],
    wire.OBSERVE: [{"known": -1}, {"known": True}, {"target_duration_ms": 0}],
}  # fmt: skip


@with_agent(threads=2, client=False)
async def test_malformed_requests_are_refused_and_change_nothing(s, a, b, agent) -> None:
    before = dataclasses.asdict(agent.settings)
    await ask(s, wire.ANNOUNCE, policy="etl")
    for message, requests in MALFORMED.items():
        for request in requests:
            answer = await ask(s, message, **request)
            assert wire.E_INVALID == answer.get("error"), (message, request)
    assert (before, "etl") == (dataclasses.asdict(agent.settings), agent.plans.policy)
    assert not agent.pins.leases.names()
    assert not agent.drains.ongoing


@with_agent(threads=2, client=False)
async def test_unknown_keys_are_ignored(s, a, b) -> None:
    seen = await ask(s, wire.OBSERVE, invented_later=[1])
    assert 2 == len(seen["workers"]["slot"])


@with_agent(threads=2, client=False)
async def test_an_unexpected_failure_is_an_answer(s, a, b, agent) -> None:
    agent.roster.sync = None  # type: ignore[assignment, method-assign]

    answer = await ask(s, wire.OBSERVE)

    assert wire.E_INTERNAL == answer["error"]


@with_agent(threads=2, client=False)
async def test_configure_keeps_what_is_not_named(s, a, b, agent) -> None:
    await ask(s, wire.CONFIGURE, lease_ms=7_000)

    assert {"protocol": wire.PROTOCOL} == await ask(s, wire.CONFIGURE, shuffle_pins=False)

    assert {
        "shuffle_pins": False,
        "shuffle_timeout_ms": 3_600_000,
        "manual_max_ms": 86_400_000,
        "client_pins": True,
        "client_max_ms": 14_400_000,
        "lease_ms": 7_000,
        "on_lifetime": wire.LIFETIME_STOCK,
        "lifetime_ms": 900_000,
        "shuffle_wait_ms": 60_000,
        "relief": {},
        "config": {},
    } == dataclasses.asdict(agent.settings)


@with_agent(threads=2)
async def test_a_snapshot_has_all_that_the_wire_promises(c, s, a, b) -> None:
    await wait(c.map(slow, range(3), delay_s=0, workers=[a.address]))
    futures = c.map(slow, range(3), delay_s=0, workers=[a.address])
    await wait(futures)

    seen = await ask(s, wire.OBSERVE)

    assert set(wire.Snapshot.__annotations__) == set(seen)
    assert set(wire.Columns.__annotations__) == set(seen["workers"])
    assert set(wire.Introduction.__annotations__) == set(seen["introduced"])
    assert set(wire.Totals.__annotations__) == set(seen["totals"])
    assert [0, 1] == list(seen["workers"]["slot"])
    assert [0, 0] == list(seen["workers"]["status"])
    at = list(seen["introduced"]["name"]).index(str(a.name))
    nbytes = s.workers[a.address].nbytes
    assert 0 < nbytes == seen["workers"]["sole_bytes"][at] == seen["totals"]["memory"]
    assert 0 == seen["workers"]["sole_bytes"][1 - at]
    assert 0 < seen["workers"]["memory"][at]
    assert (0, 0, 0) == tuple(seen["totals"][k] for k in ("processing", "queued", "unrunnable"))


@with_agent(threads=2, clock=StillClock)
async def test_idle_time_counts_from_the_last_task(c, s, a, b, clock) -> None:
    clock.now += 60
    await c.submit(slow, 1, 0, workers=[a.address])
    clock.now += 30

    seen = await ask(s, wire.OBSERVE)

    idle = dict(zip(seen["introduced"]["name"], seen["workers"]["idle_ms"]))
    assert {str(a.name): 30_000, str(b.name): 90_000} == idle


@with_agent(threads=2, clock=StillClock)
async def test_workers_are_introduced_once_a_session(c, s, a, b, clock) -> None:
    first = await ask(s, wire.OBSERVE)
    again = await ask(s, wire.OBSERVE, session=first["session"], known=first["known"])
    stranger = await ask(s, wire.OBSERVE, session="another", known=first["known"])
    async with Worker(s.address, name="late", nthreads=1):
        clock.now += 7
        joined = await ask(s, wire.OBSERVE, session=first["session"], known=first["known"])
    await until(lambda: len(s.workers) == 2)
    async with Worker(s.address, name="later", nthreads=1):
        later = await ask(s, wire.OBSERVE, session=first["session"], known=first["known"])

    assert 2 == first["known"] == len(first["introduced"]["slot"])
    assert [-1, -1] == list(first["introduced"]["joined_ms"])  # before the agent
    assert [7000] == list(joined["introduced"]["joined_ms"])
    assert not again["introduced"]["slot"]
    assert [0, 1] == list(stranger["introduced"]["slot"])
    assert ([2], ["late"]) == (
        list(joined["introduced"]["slot"]),
        list(joined["introduced"]["name"]),
    )
    assert [0, 1, 3] == list(later["workers"]["slot"])
    assert ["later"] == list(later["introduced"]["name"])


@with_agent(4)
async def test_target_and_closable_leave_draining_workers_out(c, s, a, *rest) -> None:
    before = await ask(s, wire.OBSERVE)
    await retire(s, a.name)
    after = await ask(s, wire.OBSERVE)

    assert (0, 4) == (before["target"], len(before["closable"]))
    assert (0, 3) == (after["target"], len(after["closable"]))
    assert 2 in after["workers"]["status"]


@with_agent(threads=2)
async def test_target_is_the_schedulers_own(c, s, a, b) -> None:
    futures = c.map(slow, range(30), delay_s=0.05)
    await until(lambda: s.total_occupancy > 1)

    seen = s.handlers[wire.OBSERVE](target_duration_ms=100)

    assert s.adaptive_target("100 ms") == seen["target"]
    assert s.adaptive_target() == s.handlers[wire.OBSERVE]()["target"]
    assert 2 < seen["target"]
    await wait(futures)


@with_agent(threads=2, client=False)
async def test_a_broken_hook_never_stops_the_scheduler(s, a, b, agent) -> None:
    agent.expect("workers_to_close")
    agent.pins.leases = agent.roster = agent.drains = None  # type: ignore[assignment]

    assert [] == s.workers_to_close(n=1)
    async with Worker(s.address, nthreads=1):
        assert 3 == len(s.workers)
    await until(lambda: len(s.workers) == 2)


@gen_cluster(nthreads=TWO)
async def test_an_agent_of_another_version_is_replaced(s, a, b) -> None:
    stock = s.stream_handlers["task-finished"]
    old = install(s)
    s.plugins["dask-adaptive"].version = "0.0.1"

    new = install(s)

    assert old.session != new.session == (await ask(s, wire.HELLO))["session"]
    uninstall(s)
    assert stock == s.stream_handlers["task-finished"], "nothing of the old agent"


def states(answer: dict[str, Any]) -> set[str]:
    return {row["state"] for row in answer["relief"]}


async def everything(c, s, a, b) -> None:
    """All that an operator may say: a worker is cordoned at an exact limit, another one drains."""
    await ask(s, wire.CONFIGURE, shuffle_wait_ms=30_000, relief={})
    await ask(s, wire.ANNOUNCE, arriving=[(2, 10_000)], policy="p")
    await c.submit(runs, 1, 0, workers=[a.address])
    await limit(s, [a], 1, exact=True)
    await retire(s, b.name)
    await ask(s, wire.PIN, names=["x"], source=wire.MANUAL, owner="me", ttl_ms=3_600_000)
    assert not s.running


@pytest.mark.parametrize("who", ["nobody", "somebody who just looks"])
@with_agent()
async def test_without_the_leader_a_scheduler_is_stock_within_five_minutes(
    c, s, a, b, agent, clock, who
) -> None:
    await everything(c, s, a, b)
    for _ in range(4):
        clock.ahead_s += 74
        if who != "nobody":
            await ask(s, wire.OBSERVE, meters=True)
            await ask(s, wire.CONFIGURE)
    assert not s.running
    assert agent.plans.policy
    assert 0 == agent.lease.lapses

    clock.ahead_s += 5
    await until(lambda: 2 == len(s.running))

    seen = await ask(s, wire.OBSERVE)
    assert 1 == seen["lapses"]
    assert not seen["stops"]
    assert not seen["retirements"]
    await until(lambda: {Status.running} == {w.status for w in (a, b)})
    assert states(seen) <= {wire.R_DISABLED, wire.R_NOT_NEEDED}
    assert 0 == agent.settings.shuffle_wait_ms
    assert not agent.plans.policy
    assert "_add_to_processing" not in s.__dict__
    assert [("x",)] == [tuple(names) for names in agent.pins.leases.granted().values()]
    await wait(c.map(runs, range(20), delay_s=0))


@with_agent()
async def test_the_leaders_passes_keep_it(c, s, a, b, clock) -> None:
    await everything(c, s, a, b)
    for _ in range(10):
        clock.ahead_s += 200
        seen = await ask(s, wire.OBSERVE, renew=True)
        assert (0, 1, 1) == (seen["lapses"], len(seen["stops"]), len(seen["retirements"]))


@with_agent(3)
async def test_a_scheduler_that_nobody_has_told_anything_keeps_its_reliefs(
    c, s, a, b, d, agent, clock
) -> None:
    before = states(await ask(s, wire.OBSERVE))
    clock.ahead_s += 1e6
    await ask(s, wire.CONFIGURE)

    assert (before, 0) == (states(seen := await ask(s, wire.OBSERVE)), seen["lapses"])
    assert agent.lease.lapses == 0
