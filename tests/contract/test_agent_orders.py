"""Calls that name workers are obeyed, and it is told which pins they broke."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Nanny
from distributed.core import rpc
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install
from support.agent_cluster import with_agent
from support.agent_work import pin, until

TWO = [("127.0.0.1", 1)] * 2
CALLS = ("retire_workers", "restart_workers", "restart", "broadcast")


def notes(agent: Any) -> list[tuple[str, list[str]]]:
    return [(note["kind"], note["names"]) for note in agent.notes.since(0)]


BROKEN = (wire.N_PINS_OVERRIDDEN, ["0"])


@pytest.mark.parametrize("how", ["address", "name", "http"])
@gen_cluster(client=True, nthreads=TWO)
async def test_retiring_named_workers_is_obeyed_and_told(c, s, a, b, how) -> None:
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
    assert "0 (manual operator (test) for" in message
    assert ("127.0.0.1" in message) == (how != "http")
    assert 0 == len(agent.pins.leases)


@pytest.mark.parametrize("whose", ["without pins", "our own", "gone"])
@gen_cluster(client=True, nthreads=TWO)
async def test_calls_are_silent(c, s, a, b, whose) -> None:
    agent = install(s)
    await pin(s, b if whose == "without pins" else a)

    if whose == "our own":
        await s.retire_workers(workers=[a.address], stimulus_id="dask-adaptive-test")
    elif whose == "without pins":
        await c.retire_workers(workers=[a.address])
    else:
        await c.retire_workers(workers=["tcp://127.0.0.1:1"])

    assert (a.address in s.workers) is (whose == "gone")
    assert [] == notes(agent)


@gen_cluster(client=True, nthreads=TWO)
async def test_retiring_without_names_honours_pins(c, s, a, b) -> None:
    agent = install(s)
    await pin(s, a)

    assert [b.address] == list(await c.retire_workers(n=2))
    assert {} == await c.retire_workers(n=1)

    assert [a.address] == list(s.workers)
    assert [] == notes(agent)


@pytest.mark.parametrize("named", [True, False])
@gen_cluster(client=True, nthreads=TWO, Worker=Nanny, timeout=90)
async def test_restarting_is_obeyed_and_told_once(c, s, a, b, named) -> None:
    """Contract: `Client.restart_workers` goes through a call that we wrap, on every release."""
    agent = install(s)
    await pin(s, a)

    await (c.restart_workers([s.aliases[a.name]]) if named else c.restart())

    assert [BROKEN] == notes(agent)
    await until(lambda: s.aliases.get(a.name) in s.workers and 2 == len(s.workers))
    assert 0 == len(agent.pins.leases)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_call_is_obeyed_although_it_cannot_be_told(c, s, a, b) -> None:
    agent = install(s)
    agent.pins.holders = None  # type: ignore[assignment, method-assign]

    await c.retire_workers(workers=[a.address])

    assert a.address not in s.workers


@pytest.mark.parametrize("how", ["workers", "names", "first"])
@with_agent()
async def test_workers_may_be_named_by_what_can_be_read_once(c, s, a, b, how) -> None:
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
async def test_others_may_wrap_it_and_it_is_obeyed(c, s, a, b, how) -> None:
    agent = install(s)
    await pin(s, a)
    s.handlers["retire_workers"] = wrapped(s.handlers["retire_workers"])[how]

    retired = await c.retire_workers(workers=[a.address])

    assert [a.address] == list(retired)
    assert [BROKEN] == notes(agent)
    assert "at tcp://127.0.0.1" in agent.notes.since(0)[0]["message"]


@with_agent()
async def test_others_may_wrap_what_clients_ask_first(c, s, a, b) -> None:
    ours = s.handlers["identity"]

    async def theirs(**kwargs: Any) -> Any:
        return ours(**kwargs)

    s.handlers["identity"] = theirs

    async with rpc(s.address) as link:
        assert s.id == (await link.identity())["id"]
