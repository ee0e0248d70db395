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

from dask_adaptive_agent import wire
from dask_adaptive_agent.drain import drain
from dask_adaptive_agent.loading.attach import install, uninstall
from support.agent_cluster import with_agent
from support.agent_work import (
    RUNS,
    ask,
    by_slot,
    leave,
    pin,
    retire,
    slow,
    unpin,
    until,
    until_left,
)

TWO = [("127.0.0.1", 1)] * 2


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
    of = by_slot(seen, "address")
    return {of[slot] for row in seen["pins"] for slot in row["slots"]}


@with_agent()
async def test_a_worker_that_leaves_is_found_by_its_name(c, s, a, b) -> None:
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
    for source in (wire.MANUAL, wire.CLIENT):
        await pin(s, a, source=source)
        assert {a.address} == await pinned(s)
        await unpin(s, source)
        assert not await pinned(s)
    assert [a.address] == list(await c.retire_workers(names=[a.name]))


@with_agent()
async def test_the_name_means_the_one_that_comes_once_it_is_there(c, s, a, b) -> None:
    busy = c.submit(slow, "busy", 1.0, workers=[a.name])
    bound = c.submit(slow, "bound before", 0, workers=[a.name])
    await until(lambda: a.state.executing_count)
    await leave(s, a.name)
    await pin(s, a)

    async with Worker(s.address, name=a.name, nthreads=1) as comer:
        assert (comer.address, comer.name) == (s.aliases[a.name], s.workers[comer.address].name)
        assert comer.address == await on(c, a.name)
        assert [comer.address] == await meant(s, str(a.name))
        assert {a.address} == await pinned(s)  # whom it meant when it was said
        await pin(s, a, source=wire.CLIENT)
        assert {a.address, comer.address} == await pinned(s)
        await unpin(s, wire.CLIENT)
        await unpin(s)
        (row,) = (await ask(s, wire.OBSERVE))["departures"]
        assert str(a.name) == row["name"]

        await c.gather([busy, bound])
        assert {"busy", "bound before"} <= set(RUNS)
        assert 0 == sum(key.startswith("slow") for key in comer.data)
        await until_left(s, a.address)
        assert [comer.address] == list(await c.retire_workers(names=[a.name]))


@with_agent()
async def test_each_that_leaves_gives_way_in_turn(c, s, a, b) -> None:
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


@with_agent()
async def test_nobody_else_gives_way(c, s, a, b) -> None:
    """Who serves, or may serve again, keeps its name: as in stock, the comer is refused."""
    await leave(s, a.name, ending=False)
    for name in (a.name, b.name):
        with pytest.raises((ValueError, RuntimeError)) as refused:
            await Worker(s.address, name=name, nthreads=1)
        assert "name taken" in f"{refused.value} {refused.value.__cause__}"
    assert {a.name: a.address, b.name: b.address} == s.aliases
    uninstall(s)
    assert s.handlers["register-worker"] == s.add_worker


@gen_cluster(client=True, nthreads=TWO)
async def test_one_that_serves_again_after_all_has_its_name_or_another(
    c, s, a, b, monkeypatch
) -> None:
    """Whoever said that it was sure to end was wrong; another may have come with its name."""
    agent = install(s)
    before = dict(s.aliases)
    for is_alone in (True, False):
        monkeypatch.setattr(drain, "OVERDUE_S", 60.0)
        await until_left(s, a.name, left_ms=100)
        if is_alone:
            monkeypatch.setattr(drain, "OVERDUE_S", 0.2)
            await until(lambda: s.workers[a.address] in s.running)
            assert before == s.aliases
            assert await c.submit(slow, "again", 0, workers=[a.address])
    async with Worker(s.address, name=a.name, nthreads=1) as comer:
        monkeypatch.setattr(drain, "OVERDUE_S", 0.2)
        await until(lambda: not agent.drains.ongoing)
        await until(lambda: a.status == Status.running)
        assert {a.name: comer.address, f"{a.name} 2": a.address, b.name: b.address} == s.aliases
