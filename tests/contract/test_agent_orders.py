"""Calls that name workers are obeyed, and it is told which pins they broke."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Client, Nanny, Scheduler, Worker
from distributed.core import rpc
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install, uninstall
from support.agent_work import ask, until

TWO = [("127.0.0.1", 1)] * 2
CALLS = ("retire_workers", "restart_workers", "restart", "broadcast")


async def pin(s: Any, *workers: Any) -> None:
    names = [str(w.name) for w in workers]
    request = {"source": wire.MANUAL, "owner": "operator", "reason": "debugging", "ttl_ms": 60_000}
    await ask(s, wire.PIN, names=names, **request)


def notes(agent: Any) -> list[tuple[str, list[str]]]:
    return [(note["kind"], note["names"]) for note in agent.notes.since(0)]


BROKEN = (wire.N_PINS_OVERRIDDEN, ["0"])


@pytest.mark.parametrize("how", ["address", "name", "http"])
@gen_cluster(client=True, nthreads=TWO)
async def test_retiring_named_workers_is_obeyed_and_told(
    c: Any, s: Any, a: Any, b: Any, how: str
) -> None:
    agent = install(s)
    await pin(s, a)

    if how == "address":
        await c.retire_workers(workers=[a.address])
    elif how == "name":
        await c.retire_workers(names=[a.name])
    else:  # as RetireWorkersHandler of distributed/http/scheduler/api.py calls it
        await s.retire_workers(workers=[a.address])

    assert a.address not in s.workers
    assert [BROKEN] == notes(agent)
    message = agent.notes.since(0)[0]["message"]
    assert "0 (manual operator (debugging) for" in message
    assert ("127.0.0.1" in message) == (how != "http")
    assert 0 == len(agent.pins)


@gen_cluster(client=True, nthreads=TWO)
async def test_nothing_is_told_of_workers_without_pins(c: Any, s: Any, a: Any, b: Any) -> None:
    agent = install(s)
    await pin(s, b)

    await c.retire_workers(workers=[a.address, "tcp://127.0.0.1:1"])

    assert a.address not in s.workers
    assert [] == notes(agent)


@gen_cluster(client=True, nthreads=TWO)
async def test_retiring_without_names_honours_pins(c: Any, s: Any, a: Any, b: Any) -> None:
    agent = install(s)
    await pin(s, a)

    assert [b.address] == list(await c.retire_workers(n=2))
    assert {} == await c.retire_workers(n=1)

    assert [a.address] == list(s.workers)
    assert [] == notes(agent)


@gen_cluster(nthreads=TWO)
async def test_our_own_calls_are_silent(s: Any, a: Any, b: Any) -> None:
    agent = install(s)
    await pin(s, a)

    await s.retire_workers(workers=[a.address], stimulus_id="dask-adaptive-test")

    assert a.address not in s.workers
    assert [] == notes(agent)


@gen_cluster(client=True, nthreads=TWO, Worker=Nanny, timeout=90)
async def test_restarting_named_workers_is_obeyed_and_told(c: Any, s: Any, a: Any, b: Any) -> None:
    """Contract: `Client.restart_workers` goes through a call that we wrap, on every release."""
    agent = install(s)
    await pin(s, a)
    before = s.aliases[a.name]

    await c.restart_workers([before])

    assert [BROKEN] == notes(agent)
    await until(lambda: s.aliases.get(a.name) in s.workers)
    assert 0 == len(agent.pins)


@gen_cluster(client=True, nthreads=TWO, Worker=Nanny, timeout=90)
async def test_restarting_everything_is_obeyed_and_told_once(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    agent = install(s)
    await pin(s, a)

    await c.restart()

    assert [BROKEN] == notes(agent)
    assert 2 == len(s.workers)
    assert 0 == len(agent.pins)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_call_is_obeyed_although_it_cannot_be_told(c: Any, s: Any, a: Any, b: Any) -> None:
    agent = install(s)
    agent.pinned_by = None  # type: ignore[assignment, method-assign]

    await c.retire_workers(workers=[a.address])

    assert a.address not in s.workers


@gen_cluster(nthreads=TWO)
async def test_a_workers_own_lifetime_waits_until_it_may_go(s: Any, a: Any, b: Any) -> None:
    """Contract: `Worker.close_gracefully` retires itself with a stimulus_id that tells it is it."""
    agent = install(s)
    asked: list[str] = []
    may_go = asyncio.Event()

    async def lifetime(address: str) -> None:
        asked.append(address)
        await may_go.wait()

    agent.drains.lifetime = lifetime  # type: ignore[method-assign]
    await pin(s, a)
    closing = asyncio.ensure_future(a.close_gracefully())
    await until(lambda: asked)

    assert [a.address] == asked
    assert a.address in s.workers
    may_go.set()
    await closing
    await until(lambda: a.address not in s.workers)
    assert [] == notes(agent)
    assert 0 == len(agent.pins)


async def test_the_lifetime_of_a_pinned_worker_waits_for_its_pin() -> None:
    """The real thing, end to end in one process."""
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s, Worker(s.address) as a:
        agent = install(s)
        async with Client(s.address, asynchronous=True), Worker(s.address, name="b") as b:
            await pin(s, b)
            closing = asyncio.ensure_future(b.close_gracefully())
            await until(lambda: b.address in agent.drains.ongoing)
            assert [a.address] == s.workers_to_close(n=2)
            seen = await ask(s, wire.OBSERVE)
            (row,) = seen["departures"]
            assert not seen["retirements"]
            slots = {ws.address: agent.roster.entries[ws.address].slot for ws in s.workers.values()}
            assert ([slots[a.address]], slots[b.address]) == (list(seen["closable"]), row["slot"])
            assert (wire.DRAINING, "b", -1) == (row["state"], row["name"], row["left_ms"])
            assert not closing.done()

            await ask(s, wire.UNPIN, source=wire.MANUAL, owner="operator")

            await closing
            await until(lambda: b.address not in s.workers)
            assert [] == notes(agent)


def places(s: Any) -> dict[str, Any]:
    own = {f"own {name}": s.__dict__.get(name) for name in CALLS}
    return {**own, **{name: s.handlers.get(name) for name in CALLS}}


@gen_cluster(nthreads=[])
async def test_calls_are_put_back(s: Any) -> None:
    before = places(s)
    agent = install(s)
    wrapped = {name for name, call in places(s).items() if call != before[name]}
    assert {"retire_workers", "own retire_workers"} <= wrapped
    assert agent.has_feature("orders")

    uninstall(s)

    assert before == places(s)


@gen_cluster(nthreads=[])
async def test_what_others_have_wrapped_since_stays(s: Any) -> None:
    agent = install(s)
    ours = s.handlers["retire_workers"]

    async def theirs(**kwargs: Any) -> Any:
        return await ours(**kwargs)

    s.handlers["retire_workers"] = theirs
    assert not agent.has_feature("orders")

    uninstall(s)

    assert theirs is s.handlers["retire_workers"]


@pytest.mark.parametrize("how", ["workers", "names", "first"])
@gen_cluster(client=True, nthreads=TWO)
async def test_workers_may_be_named_by_what_can_be_read_once(
    c: Any, s: Any, a: Any, b: Any, how: str
) -> None:
    install(s)
    if how == "workers":
        retired = await s.retire_workers(workers=(address for address in [a.address]))
    elif how == "names":
        retired = await s.retire_workers(names=(name for name in [a.name]))
    else:
        retired = await s.retire_workers(iter([a.address]))

    assert [a.address] == list(retired)
    assert [b.address] == list(s.workers)


def wrapped(stock: Any) -> dict[str, Callable[..., Any]]:
    """Ways in which other people's code may lie over a handler."""

    async def plain(**kwargs: Any) -> Any:
        return await stock(**kwargs)

    async def named(workers: Any = None, **kwargs: Any) -> Any:
        return await stock(workers, **kwargs)

    both = {"plain": plain, "named": named}
    return both | {f"{name} like it": functools.wraps(stock)(f) for name, f in both.items()}


@pytest.mark.parametrize("how", wrapped(print))
@gen_cluster(client=True, nthreads=TWO)
async def test_others_may_wrap_it_and_it_is_obeyed(
    c: Any, s: Any, a: Any, b: Any, how: str
) -> None:
    agent = install(s)
    await pin(s, a)
    s.handlers["retire_workers"] = wrapped(s.handlers["retire_workers"])[how]

    retired = await c.retire_workers(workers=[a.address])

    assert [a.address] == list(retired)
    assert [BROKEN] == notes(agent)
    assert "at tcp://127.0.0.1" in agent.notes.since(0)[0]["message"]


@gen_cluster(client=True, nthreads=TWO)
async def test_others_may_wrap_what_clients_ask_first(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    ours = s.handlers["identity"]

    async def theirs(**kwargs: Any) -> Any:
        return ours(**kwargs)

    s.handlers["identity"] = theirs

    async with rpc(s.address) as link:
        assert s.id == (await link.identity())["id"]
