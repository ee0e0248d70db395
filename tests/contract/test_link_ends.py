"""Ends of workers and notes, as they reach the operator: with the agent, an older one, and none."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
from distributed import Worker

from dask_adaptive.loop.ports import LinkError, Told
from dask_adaptive.model.observed import Note, SchedulerWorker
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import ClientPins, ClusterRef, Pins, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import UNUSED, Limit, Limits, Profile
from dask_adaptive.scheduler.link import Link, connect
from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install
from support.agent_work import until

POLICY = Policy(ClusterRef("t"), 3)
POD_ENDING = Reason.POD_ENDING


@pytest.fixture
async def workers(s: Any) -> AsyncIterator[list[Any]]:
    async with Worker(s.address, name="a", nthreads=1) as a, Worker(s.address, name="b") as b:
        await until(lambda: 2 == len(s.running))
        yield [a, b]


async def seen(link: Link, address: str) -> SchedulerWorker:
    return next(w for w in (await link.observe(POLICY)).workers if w.address == address)


def without(row: Any, *keys: str) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in keys}


def slow(x: Any, seconds: float = 0.5) -> Any:
    time.sleep(seconds)
    return x


@pytest.mark.long
async def test_a_worker_that_leaves_is_seen_as_departing_under_its_own_name(
    s: Any, client: Any, workers: list[Any], link: Link
) -> None:
    address = workers[0].address
    task = client.submit(slow, 1, 2.0, workers=["a"])
    await until(lambda: bool(s.workers[address].processing))
    before = await seen(link, address)

    answers = await link.leave([address], left_s=60.0, reason=POD_ENDING)
    after = await seen(link, address)
    async with Worker(s.address, name="a") as replacement:
        among_others = await seen(link, address)
        new = await seen(link, replacement.address)

    assert ["draining"] == [a.state for a in answers]
    assert "" == before.terminating
    assert ("a", True) == (after.name, bool(after.terminating))
    assert 50 < after.terminates_in_s <= 60
    assert ("a", True) == (among_others.name, bool(among_others.terminating))
    assert ("a", "") == (new.name, new.terminating)
    assert 1 == await task


async def test_workers_that_are_not_there_are_gone(s: Any, link: Link) -> None:
    answers = await link.leave(["tcp://127.0.0.1:9"], left_s=1.0, reason=POD_ENDING)

    assert ["gone"] == [a.state for a in answers]


async def test_notes_are_read_once_however_often_the_link_is_opened(s: Any, link: Link) -> None:
    agent = install(s)
    agent.notes.add(wire.N_PINS_OVERRIDDEN, "retire_workers broke a pin", ["a"])
    first = await link.observe(POLICY)
    agent.notes.add(wire.N_WORKER_LEFT, "left", ["b"])
    second = await link.observe(POLICY)
    observe, s.handlers[wire.OBSERVE] = s.handlers[wire.OBSERVE], lambda **_: "nonsense"
    lost = await link.observe(POLICY)
    s.handlers[wire.OBSERVE] = observe
    agent.notes.add(wire.N_WORKER_LEFT, "left too", [])
    third = await link.observe(POLICY)

    assert not lost.is_connected
    assert [
        (Note(1, Reason.PINS_OVERRIDDEN, "retire_workers broke a pin", ("a",)),),
        (Note(2, Reason.WORKER_LEFT, "left", ("b",)),),
        (Note(3, Reason.WORKER_LEFT, "left too"),),
    ] == [first.notes, second.notes, third.notes]


async def test_a_new_operator_does_not_repeat_what_is_old_news(s: Any, link: Link) -> None:
    agent = install(s)
    now = agent.clock()
    with mock.patch.object(agent.notes, "_clock", return_value=now - 61):
        agent.notes.add(wire.N_WORKER_LEFT, "old")
    agent.notes.add(wire.N_WORKER_LEFT, "fresh")
    agent.notes.add("FromTheFuture", "unknown")

    assert ["fresh"] == [n.message for n in (await link.observe(POLICY)).notes]
    assert () == (await link.observe(POLICY)).notes


async def test_an_older_agent_of_the_same_protocol_is_served(
    s: Any, workers: list[Any], link: Link
) -> None:
    install(s)
    observe = s.handlers[wire.OBSERVE]

    def older(**request: Any) -> Any:
        answer = observe(**request)
        pins = [without(pin, "latest_ms", "for_ms") for pin in answer["pins"]]
        return {**without(answer, "notes", "departures", "pins_expired"), "pins": pins}

    s.handlers[wire.OBSERVE] = older
    await link.pin(["a"], ttl_s=60.0, note="")
    observed = await link.observe(POLICY)

    assert observed.is_connected
    (pin,) = next(w.pins for w in observed.workers if w.name == "a")
    assert (pin.left_s, 0.0) == (pin.latest_s, pin.for_s)


async def test_what_the_policy_says_of_pins_reaches_the_agent(s: Any, link: Link) -> None:
    agent = install(s)
    policy = Policy(ClusterRef("t"), 3, pins=Pins(client=ClientPins(False, 90.0)))
    await link.observe(policy)

    assert (False, 90_000) == (agent.settings.client_pins, agent.settings.client_max_ms)


async def test_a_refusal_is_an_error_in_the_agents_own_words(s: Any, link: Link) -> None:
    await link.observe(POLICY)
    said = {"error": wire.E_REFUSED, "message": "the policy allows 4h", "protocol": wire.PROTOCOL}
    s.handlers[wire.PIN] = lambda **_: said

    with pytest.raises(LinkError, match=r"^the policy allows 4h$"):
        await link.pin(["a"], ttl_s=1.0, note="")


@pytest.mark.long
async def test_a_busy_worker_is_retired_only_if_that_is_said(
    s: Any, client: Any, workers: list[Any], link: Link
) -> None:
    task = client.submit(slow, 1, 3.0, workers=["a"], allow_other_workers=True)
    await until(lambda: bool(s.workers[workers[0].address].processing))

    refused = await link.retire(["a"], POLICY, Reason.UNDERUTILIZED)
    begun = await link.retire(["a"], POLICY, Reason.NODE_GOING, busy_ok=True)

    assert [("active", Reason.BUSY)] == [(r.state, r.veto) for r in refused]
    assert ["draining"] == [r.state for r in begun]
    assert 1 == await task


async def test_without_the_agent_nobody_leaves_and_nobody_is_told(
    s: Any, workers: list[Any]
) -> None:
    link = connect(s.address, timeout_s=5.0, attach=False)
    seen = await link.observe(POLICY, meters=True)
    await link.limit(Limits({"a": Limit(runs=2)}, (Profile(exact=True),), stops=1))
    await link.announce((Arriving(2, 100.0),), Told("etl"))
    await link.pin(["a"], ttl_s=60.0, note="")
    await link.unpin(["a"])
    answers = [
        *await link.retire(["a"], POLICY, Reason.NODE_GOING, busy_ok=True),
        *await link.leave(["a"], left_s=60.0, reason=POD_ENDING),
        *await link.cancel(["a"]),
    ]
    await link.close()

    assert Reason.INJECTION_REFUSED is seen.degraded
    assert all(w.use is UNUSED for w in seen.workers)
    assert [("active", Reason.AGENT_MISSING)] * 3 == [(r.state, r.veto) for r in answers]
    assert {"running"} == {ws.status.name for ws in s.workers.values()}
