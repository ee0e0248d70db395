"""Pins over the wire: who may claim what, who honours it, and what ends them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from distributed import Client, Worker

from dask_adaptive_agent import wire
from dask_adaptive_agent.pins.leases import SPENT_S
from support.agent_cluster import StillClock, with_agent
from support.agent_quota import cordoned, limit
from support.agent_work import ask, leave, retire, slow, until, until_left

OWNER = {"source": wire.CLIENT, "owner": "notebook"}


async def claim(s: Any, *names: Any, ttl_ms: int = 60_000, **request: Any) -> Any:
    return await ask(
        s, wire.PIN, **{**OWNER, "names": [str(n) for n in names], "ttl_ms": ttl_ms, **request}
    )


async def pins(s: Any, source: str = wire.CLIENT) -> list[Any]:
    return [row for row in (await ask(s, wire.OBSERVE))["pins"] if row["source"] == source]


@with_agent(client=False)
async def test_code_pins_workers_by_name_or_address(s, a, b) -> None:
    answer = await claim(s, a.name, b.address, reason="looks at it")

    assert [["0", 60_000], [b.address, 60_000]] == [list(one) for one in answer["pinned"]]
    (row,) = await pins(s)
    assert ("notebook", "looks at it", [0, 1]) == (row["owner"], row["reason"], list(row["slots"]))
    assert 0 <= row["for_ms"] < 5_000
    assert 55_000 < row["left_ms"] <= 60_000
    assert 4 * 3_600_000 - 5_000 < row["latest_ms"] <= 4 * 3_600_000
    assert [(wire.ACTIVE, wire.V_PINNED)] * 2 == await retire(s, a.name, b.name)
    assert [] == s.workers_to_close(n=2) == s.workers_to_close()

    await ask(s, wire.UNPIN, **OWNER, names=[a.address])
    assert [a.address] == s.workers_to_close(n=2)
    await ask(s, wire.UNPIN, **OWNER)
    assert not await pins(s)


@with_agent(client=False)
async def test_the_policy_limits_what_code_may_pin(s, a, b, agent) -> None:
    await ask(s, wire.CONFIGURE, client_max_ms=50_000, manual_max_ms=10_000)

    answer = await claim(s, a.name)
    assert wire.E_REFUSED == answer["error"]
    assert "60 s is longer" in answer["message"]
    assert "spec.pins.client.maxDuration" in answer["message"]
    assert 0 == len(agent.pins.leases.every())
    assert 50_000 == (await claim(s, a.name, ttl_ms=50_000))["pinned"][0][1]

    await ask(s, wire.CONFIGURE, client_pins=False)
    answer = await claim(s, b.name, ttl_ms=1_000)
    assert wire.E_REFUSED == answer["error"]
    assert "spec.pins.client.enabled" in answer["message"]
    assert 1 == len(agent.pins.leases.every())


@with_agent(client=False, clock=StillClock)
async def test_renewals_end_with_the_policys_limit_and_that_is_told_once(s, a, b, clock) -> None:
    await ask(s, wire.CONFIGURE, client_max_ms=100_000)
    for _ in range(4):
        assert "error" not in await claim(s, a.name, ttl_ms=30_000)
        clock.now += 24
    (row,) = await pins(s)
    assert (96_000, 4_000) == (row["for_ms"], row["latest_ms"])

    answer = await claim(s, a.name, ttl_ms=30_000)
    assert 4_000 == answer["pinned"][0][1]
    clock.now += 5
    assert not await pins(s)
    for _ in range(3):
        answer = await claim(s, a.name, ttl_ms=30_000, reason="looks at it")
        assert wire.E_REFUSED == answer["error"]
        assert "100 s" in answer["message"]
        assert "spec.pins.client.maxDuration" in answer["message"]
        clock.now += 20

    seen = await ask(s, wire.OBSERVE)
    assert not seen["pins"]
    assert {wire.CLIENT: 1} == seen["pins_expired"]
    (note,) = seen["notes"]
    assert (wire.N_PIN_EXPIRED, ["0"]) == (note["kind"], list(note["names"]))
    assert "looks at it" in note["message"]
    assert (1, 60_000) == (note["number"], note["age_ms"])
    session = {"session": seen["session"], "heard": 1}
    assert not (await ask(s, wire.OBSERVE, **session))["notes"]
    assert 1 == len((await ask(s, wire.OBSERVE, session="another", heard=1))["notes"])
    assert "error" not in await claim(s, a.name, owner="somebody else")
    for later_s in (SPENT_S - 21, SPENT_S - 1, SPENT_S - 1):  # whoever insists is refused on and on
        clock.now += later_s
        assert wire.E_REFUSED == (await claim(s, a.name, ttl_ms=30_000))["error"]
    clock.now += SPENT_S
    assert "error" not in await claim(s, a.name, ttl_ms=30_000)
    assert 1 == len((await ask(s, wire.OBSERVE))["notes"])


@with_agent(client=False, clock=StillClock)
async def test_who_gives_up_may_begin_anew_and_a_lower_limit_counts_at_once(s, a, b, clock) -> None:
    await ask(s, wire.CONFIGURE, client_max_ms=100_000)
    await claim(s, a.name, b.name, ttl_ms=90_000)
    await claim(s, a.name, ttl_ms=50_000)  # replaces, and does not prolong
    clock.now += 40
    await ask(s, wire.CONFIGURE, client_max_ms=30_000)
    assert wire.E_REFUSED == (await claim(s, a.name, ttl_ms=20_000))["error"]
    assert {10_000, 50_000} == {row["left_ms"] for row in await pins(s)}

    await ask(s, wire.UNPIN, **OWNER, names=[a.address, a.address, "nobody"])
    assert [50_000] == [row["left_ms"] for row in await pins(s)]
    await ask(s, wire.UNPIN, **OWNER)
    assert not await pins(s)
    assert 20_000 == (await claim(s, a.name, ttl_ms=20_000))["pinned"][0][1]


@with_agent(client=False)
async def test_the_pins_of_a_client_that_leaves_are_cut(s, a, b, agent) -> None:
    """Contract: `remove_client` is told of every client, by its id."""
    async with Client(s.address, asynchronous=True) as stays:
        async with Client(s.address, asynchronous=True) as c:
            await claim(s, a.name, client=c.id, ttl_ms=3_600_000)
            await claim(s, b.name, owner="nobody's", ttl_ms=3_600_000)
            await claim(s, b.name, owner="another's", client=stays.id, ttl_ms=3_600_000)
            assert {3_600} == {round(row["left_ms"] / 1000) for row in await pins(s)}
        await until(lambda: c.id not in s.clients)

        left_s = {row["owner"]: round(row["left_ms"] / 1000) for row in await pins(s)}
        assert {"notebook": 60, "nobody's": 3_600, "another's": 3_600} == left_s

    await claim(s, a.name, client=c.id, ttl_ms=3_600_000)  # it is back
    assert 3_600 == round(agent.pins.leases.of(a.address)[0].until - agent.clock())


@with_agent(1, client=False)
async def test_pins_end_with_their_worker(s, a, agent) -> None:
    async with Worker(s.address, name="w") as w:
        await claim(s, "w")
        for name in ("w", w.address):
            await claim(s, name, source=wire.MANUAL, owner=f"operator, {name}")
        assert 3 == len(agent.pins.leases.every())
    await until(lambda: w.address not in s.workers)

    assert 0 == len(agent.pins.leases.every())
    async with Worker(s.address, name="w") as w:
        assert [] == agent.pins.holders(s.workers[w.address])
        assert w.address in s.workers_to_close(n=2)


@with_agent(client=False)
async def test_a_replacement_by_the_same_name_does_not_take_over_pins(s, a, b, agent) -> None:
    """The pod's end is known; its replacement joins under its name while it drains."""
    old = await Worker(s.address, name="w")
    await claim(s, "w", source=wire.MANUAL, owner="operator")
    assert [wire.DRAINING] == await leave(s, "w")
    assert ["manual operator for 60 s more"] == agent.pins.holders(s.workers[old.address])

    new = await Worker(s.address, name="w")

    assert [] == agent.pins.holders(s.workers[new.address])
    assert 1 == len(agent.pins.holders(s.workers[old.address]))
    assert new.address in s.workers_to_close(n=3)
    await claim(s, "w", source=wire.MANUAL, owner="somebody else")
    assert 1 == len(agent.pins.holders(s.workers[new.address]))
    assert 1 == len(agent.pins.holders(s.workers[old.address]))

    await ask(s, wire.UNPIN, source=wire.MANUAL, owner="operator")
    await until_left(s, old.address)
    await old.close()
    await until(lambda: old.address not in s.workers)
    assert 1 == len(agent.pins.holders(s.workers[new.address]))
    await new.close()
    await until(lambda: new.address not in s.workers)
    assert 0 == len(agent.pins.leases.every())


@with_agent(client=False, clock=StillClock)
async def test_manual_pins_are_cut_to_the_cap_and_counted_when_they_end(
    s, a, b, agent, clock
) -> None:
    await ask(s, wire.CONFIGURE, manual_max_ms=10_000)

    answer = await claim(s, "not there yet", a.name, source=wire.MANUAL)

    assert {10_000} == {ms for _, ms in answer["pinned"]}
    (row,) = await pins(s, wire.MANUAL)
    assert (10_000, 10_000) == (row["left_ms"], row["latest_ms"])
    slot_of = {address: entry.slot for address, entry in agent.roster.entries.items()}
    assert [slot_of[a.address]] == list(row["slots"])
    assert [slot_of[b.address]] == list((await ask(s, wire.OBSERVE))["closable"])
    clock.now += 10
    seen = await ask(s, wire.OBSERVE)
    assert not seen["pins"]
    assert {wire.MANUAL: 2} == seen["pins_expired"]


async def names_them(c: Any, *workers: Any, **how: Any) -> list[Any]:
    """For tasks whose turn does not come; one for each worker."""
    never = c.submit(slow, 0, resources={"none": 1}, key="never")
    return [c.submit(slow, never, workers=[w.address], pure=False, **how) for w in workers]


async def asks_for_them(c: Any, *workers: Any, whole: bool = False) -> list[Any]:
    futures = [await c.scatter(object(), workers=[w.address]) for w in workers]
    await (c.has_what() if whole else c.who_has(futures))
    return futures


@pytest.mark.parametrize(
    "know",
    [asks_for_them, partial(asks_for_them, whole=True), names_them],
    ids=["who_has", "has_what", "workers="],
)
@with_agent(3)
async def test_a_worker_that_code_knows_stays_while_anybody_wants_what_it_asked_for(
    c, s, a, b, d, agent, know
) -> None:
    await ask(s, wire.CONFIGURE, client_pins=True)
    one, other = await know(c, a, b)
    await until(lambda: {one.key, other.key} <= s.tasks.keys())

    assert all(4 * 3_600_000 - 60_000 < row["left_ms"] <= 4 * 3_600_000 for row in await pins(s))
    assert [1, 1, 0] == [len(agent.pins.holders(s.workers[w.address])) for w in (a, b, d)]
    assert [(wire.ACTIVE, wire.V_PINNED)] * 2 == await retire(s, a.name, b.name, busy_ok=True)
    assert {a.address, b.address}.isdisjoint(s.workers_to_close(n=3))

    for future, left in ((one, [0, 1]), (other, [0, 0])):
        await c.cancel(future)
        await until(lambda future=future: future.key not in s.tasks)  # type: ignore[misc]
        await ask(s, wire.OBSERVE)
        assert left == [len(agent.pins.holders(s.workers[w.address])) for w in (a, b)]
    assert {a.address, b.address} <= set(s.workers_to_close(n=3))


@pytest.mark.parametrize(
    ("settings", "know"),
    [
        ({}, asks_for_them),
        ({"client_pins": False}, asks_for_them),
        ({"client_pins": False}, names_them),
        ({"client_pins": True}, partial(names_them, allow_other_workers=True)),
    ],
    ids=["no-policy", "turned-off", "named-and-turned-off", "loosely"],
)
@with_agent()
async def test_what_code_knows_holds_no_worker(c, s, a, b, settings, know) -> None:
    if settings:
        await ask(s, wire.CONFIGURE, **settings)
    futures = await know(c, a)
    await until(lambda: futures[0].key in s.tasks)
    assert not await pins(s)


@with_agent()
async def test_a_worker_that_code_knows_is_cordoned_at_its_quota(c, s, a, b) -> None:
    await ask(s, wire.CONFIGURE, client_pins=True)
    await limit(s, [a], 1)
    futures = [c.submit(slow, i, 0, workers=[a.address]) for i in range(3)]
    await c.gather(futures)
    assert [a.address] == list(await cordoned(s))


@with_agent(clock=StillClock)
async def test_what_is_asked_again_prolongs_nothing(c, s, a, b, clock, agent) -> None:
    await ask(s, wire.CONFIGURE, client_max_ms=100_000)
    futures = await asks_for_them(c, a)
    for left_ms in (100_000, 40_000):
        (row,) = await pins(s)
        assert left_ms == row["left_ms"]
        await c.who_has(futures)
        clock.now += 60
        await ask(s, wire.OBSERVE, renew=True)
    assert not await pins(s)

    futures += await asks_for_them(c, a)
    assert 1 == len(await pins(s))
    await ask(s, wire.CONFIGURE, client_pins=False)
    assert not await pins(s)
    assert {} == agent.known._keys
