"""
Names: a worker that leaves keeps its own until another worker comes with it.

A Deployment's next pod comes at once, and calls itself as the one before it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Worker
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import drain, wire
from dask_adaptive_agent.attach import install, uninstall
from support.agent_work import RUNS, ask, leave, retire, slow, until, until_left

TWO = [("127.0.0.1", 1)] * 2
PIN: dict[str, Any] = {"source": wire.MANUAL, "owner": "operator", "ttl_ms": 60_000}
CODE: dict[str, Any] = {"source": wire.CLIENT, "owner": "code", "ttl_ms": 60_000}


async def on(c: Any, name: Any) -> str:
    """The address of the worker that a task for this name runs on."""
    future = c.submit(lambda dask_worker=None: None, workers=[name], pure=False)
    here = c.submit(
        lambda _: __import__("distributed").get_worker().address,
        future,
        workers=[name],
        pure=False,
    )
    return str(await asyncio.wait_for(here, 10))


async def meant(s: Any, name: str) -> list[str]:
    """Addresses of those whom our own messages mean by a name."""
    return [row["address"] for row in (await ask(s, wire.EXPLAIN, names=[name]))["workers"]]


async def pinned(s: Any) -> set[str]:
    """Addresses of the workers that somebody pins."""
    seen = await ask(s, wire.OBSERVE)
    of = dict(zip(seen["introduced"]["slot"], seen["introduced"]["address"]))  # noqa: B905
    return {of[slot] for row in seen["pins"] for slot in row["slots"]}


@gen_cluster(client=True, nthreads=TWO)
async def test_a_worker_that_leaves_is_found_by_its_name(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    busy = c.submit(slow, "busy", 0.2, workers=[a.name])
    waiting = c.submit(slow, "waiting", 0, workers=[a.name])
    await until(lambda: a.state.executing_count)

    assert [wire.DRAINING] == await leave(s, a.name)

    assert (a.address, a.name) == (s.aliases[a.name], s.workers[a.address].name)
    assert a.address == await on(c, a.name)
    assert [a.address] == await meant(s, str(a.name))
    await c.gather([busy, waiting])
    await until_left(s, a.name)
    assert [(wire.DRAINED, "")] == await retire(s, a.name)
    for claim in (PIN, CODE):
        await ask(s, wire.PIN, names=[str(a.name)], **claim)
        assert {a.address} == await pinned(s)
        await ask(s, wire.UNPIN, names=[str(a.name)], source=claim["source"], owner=claim["owner"])
        assert not await pinned(s)
    assert [a.address] == list(await c.retire_workers(names=[a.name]))


@gen_cluster(client=True, nthreads=TWO)
async def test_the_name_means_the_one_that_comes_once_it_is_there(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    busy = c.submit(slow, "busy", 1.0, workers=[a.name])
    bound = c.submit(slow, "bound before", 0, workers=[a.name])
    await until(lambda: a.state.executing_count)
    await leave(s, a.name)
    await ask(s, wire.PIN, names=[str(a.name)], **PIN)

    async with Worker(s.address, name=a.name, nthreads=1) as comer:
        assert (comer.address, comer.name) == (s.aliases[a.name], s.workers[comer.address].name)
        assert comer.address == await on(c, a.name)
        assert [comer.address] == await meant(s, str(a.name))
        assert {a.address} == await pinned(s)  # whom it meant when it was said
        await ask(s, wire.PIN, names=[str(a.name)], **CODE)
        assert {a.address, comer.address} == await pinned(s)
        await ask(s, wire.UNPIN, source=wire.CLIENT, owner="code")
        await ask(s, wire.UNPIN, source=wire.MANUAL, owner="operator")
        (row,) = (await ask(s, wire.OBSERVE))["departures"]
        assert str(a.name) == row["name"]

        await c.gather([busy, bound])
        assert {"busy", "bound before"} <= set(RUNS)
        assert 0 == sum(key.startswith("slow") for key in comer.data)
        await until_left(s, a.address)
        assert [comer.address] == list(await c.retire_workers(names=[a.name]))


@gen_cluster(client=True, nthreads=TWO)
async def test_each_that_leaves_gives_way_in_turn(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    await leave(s, b.address)
    async with Worker(s.address, name=b.name, nthreads=1) as second:
        await leave(s, second.address)
        async with Worker(s.address, name=b.name, nthreads=1) as third:
            assert third.address == s.aliases[b.name]
            assert s.workers.keys() == set(s.aliases.values())
            assert all(ws.address == s.aliases[ws.name] for ws in s.workers.values())
        await second.close()
    await b.close()
    await until(lambda: [a.address] == list(s.workers))
    assert {a.name: a.address} == s.aliases


@gen_cluster(client=True, nthreads=TWO)
async def test_nobody_else_gives_way(c: Any, s: Any, a: Any, b: Any) -> None:
    """Who serves, or may serve again, keeps its name: as in stock, the comer is refused."""
    install(s)
    await leave(s, a.name, ending=False)
    for name in (a.name, b.name):
        with pytest.raises((ValueError, RuntimeError)) as refused:
            await Worker(s.address, name=name, nthreads=1)
        assert "name taken" in f"{refused.value} {refused.value.__cause__}"
    assert {a.name: a.address, b.name: b.address} == s.aliases
    uninstall(s)
    assert s.handlers["register-worker"] == s.add_worker


@gen_cluster(client=True, nthreads=TWO)
async def test_one_that_serves_again_after_all_has_a_name_of_its_own(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    agent = install(s)
    await until_left(s, a.name, left_ms=100)
    async with Worker(s.address, name=a.name, nthreads=1) as comer:
        drain.OVERDUE_S, usual = 0.2, drain.OVERDUE_S
        try:
            await until(lambda: not agent.drains.ongoing)
        finally:
            drain.OVERDUE_S = usual
        await until(lambda: a.status == Status.running)
        assert {a.name: comer.address, f"{a.name} 2": a.address, b.name: b.address} == s.aliases
