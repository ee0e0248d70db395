"""`want` as users write it, against real schedulers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from distributed import Client
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import PinRefused, PinUnavailable, want, wire
from dask_adaptive_agent.pins.leases import CLIENT_AWAY_S
from support.agent_cluster import StillClock, with_agent
from support.agent_pins import Sync, told
from support.agent_work import ask, until

pytestmark = pytest.mark.thorough


async def wants(scheduler: Any) -> list[tuple[int, str]]:
    """(workers, group) of each floor that the agent knows."""
    rows = (await ask(scheduler, wire.OBSERVE))["wants"]
    return [(row["workers"], row["group"]) for row in rows]


async def until_none(scheduler: Any) -> None:
    async def are_none() -> bool:
        return not await wants(scheduler)

    await until(are_none)


def seen(cluster: Sync) -> list[tuple[int, str]]:
    found: Any = cluster.client.sync(wants, cluster.scheduler.address)
    return list(found)


def test_a_call_holds_for_its_time(shared: Sync) -> None:
    wish = want(7, ttl="10m")

    assert [(7, "")] == seen(shared)
    assert 590 < wish.left_s <= 600
    wish.cancel()
    shared.client.sync(until_none, shared.scheduler.address)


def test_a_block_gives_up_at_its_end(shared: Sync) -> None:
    with want(5, group="etl-gpu") as wish:
        assert [(5, "etl-gpu")] == seen(shared)
        with want(9, ttl=timedelta(minutes=1)):
            assert [(9, ""), (5, "etl-gpu")] == seen(shared)
        assert wish.left_s > 0
    assert [] == seen(shared)


def test_a_block_is_renewed(shared: Sync) -> None:
    with want(5, ttl=3):

        async def longer() -> None:
            for _ in range(5):
                await asyncio.sleep(1)
                assert [(5, "")] == await wants(shared.scheduler.address)

        shared.client.sync(longer)
    assert [] == seen(shared)


def test_a_call_is_not_renewed(shared: Sync) -> None:
    want(5, ttl=3)
    assert [(5, "")] == seen(shared)

    shared.client.sync(until_none, shared.scheduler.address)


@with_agent(1)
async def test_async_code_awaits_it(c, s, a) -> None:
    wish = await want(3, client=c)
    assert [(3, "")] == await wants(s)
    async with want(4, client=c):
        assert [(4, ""), (3, "")] == await wants(s)
    assert [(3, "")] == await wants(s)
    wish.cancel()
    await until_none(s)


@with_agent(1)
async def test_it_is_heard_without_await_too(c, s, a) -> None:
    wish = want(3, client=c)
    for _ in range(100):
        if await wants(s) == [(3, "")]:
            break
        await asyncio.sleep(0.02)
    assert wish.left_s > 0
    with pytest.raises(RuntimeError, match="async with want"), wish:
        pass


def test_a_task_may_want_workers(shared: Sync) -> None:
    def task() -> int:
        want(6, ttl=60)
        return 1

    assert 1 == shared.client.submit(task, pure=False).result(20)
    assert [(6, "")] == seen(shared)


@with_agent(1)
async def test_it_ends_soon_after_its_client_has_left(c, s, a) -> None:
    async with Client(s.address, asynchronous=True) as other:
        await want(8, ttl="2h", client=other)
        await want(2, ttl="2h", client=c)
    await until(lambda: len(s.clients.keys() - {"fire-and-forget"}) == 1)

    rows = (await ask(s, wire.OBSERVE))["wants"]

    assert [8, 2] == [row["workers"] for row in rows]
    assert rows[0]["left_ms"] <= CLIENT_AWAY_S * 1000
    assert rows[1]["left_ms"] > 7_000_000


@with_agent(1)
async def test_the_policy_bounds_it(c, s, a) -> None:
    await ask(s, wire.CONFIGURE, client_max_ms=60_000)
    with pytest.raises(PinRefused, match=r"spec\.pins\.client\.maxDuration"):
        await want(2, ttl="2m", client=c)
    await ask(s, wire.CONFIGURE, client_pins=False)
    with pytest.raises(PinRefused, match=r"spec\.pins\.client\.enabled"):
        await want(2, ttl="30s", client=c)

    assert [] == await wants(s)


@gen_cluster(nthreads=[("127.0.0.1", 1)], client=True)
async def test_without_an_agent_it_says_what_to_do(c, s, a) -> None:
    with pytest.raises(PinUnavailable, match=r"want\(required=False\)"):
        await want(2, client=c)
    with told() as records:
        async with want(2, client=c, required=False) as wish:
            assert 0.0 == wish.left_s
    assert 1 == len(records)


@pytest.mark.parametrize(
    ("workers", "ttl"), [(0, "1m"), (-1, "1m"), (True, "1m"), ("3", "1m"), (3, "soon"), (3, 0.2)]
)
def test_nonsense_is_refused_at_once(workers: Any, ttl: Any) -> None:
    with pytest.raises(ValueError, match=r"workers=|ttl="):
        want(workers, ttl=ttl)


@with_agent(1, client=False)
async def test_the_wire_replaces_gives_up_and_refuses_nonsense(s, a) -> None:
    async def asked(**request: Any) -> list[int]:
        await ask(s, wire.WANT, **request)
        return [workers for workers, _ in await wants(s)]

    one = {"owner": "x", "ttl_ms": 60_000}
    assert [3] == await asked(workers=3, **one)
    assert [5] == await asked(workers=5, **one)
    assert [5, 1] == await asked(workers=1, group="g", **one)
    assert [1] == await asked(workers=0, owner="x")
    for request in ({"workers": 3}, {"workers": -1, **one}, {"workers": 2, "owner": "x"}):
        assert wire.E_INVALID == (await ask(s, wire.WANT, **request))["error"]


@with_agent(1, client=False, clock=StillClock)
async def test_it_lasts_no_longer_than_the_policy_allows(s, a, clock) -> None:
    await ask(s, wire.CONFIGURE, client_max_ms=60_000)
    request = {"workers": 3, "owner": "x", "ttl_ms": 40_000}
    left = []
    for clock.now in (0.0, 30.0, 50.0):
        await ask(s, wire.WANT, **request)
        left.append((await ask(s, wire.OBSERVE))["wants"][0]["left_ms"])
    assert [40_000, 30_000, 10_000] == left
    for clock.now in (60.0, 65.0):
        assert [] == await wants(s)
        answer = await ask(s, wire.WANT, **request)
        assert (wire.E_REFUSED, True) == (answer["error"], "for 60 s" in answer["message"])
    assert "error" not in await ask(s, wire.WANT, **{**request, "owner": "y"})
