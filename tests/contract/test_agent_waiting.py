"""Threads that take no task, and clients that need workers without one: on each release."""

from __future__ import annotations

import asyncio
import struct
import threading
from inspect import signature
from typing import Any

import pytest
from distributed import Worker, wait
from distributed.comm import connect
from distributed.core import Status

from dask_adaptive_agent import wire
from support.agent_cluster import StillClock, with_agent
from support.agent_work import ask, until

GO = threading.Event()

#: Nobody else moves tasks, or lets a paused worker go on.
STILL = {
    "distributed.scheduler.work-stealing-interval": "1h",
    "distributed.worker.memory.monitor-interval": "1h",
}


def hold(_: Any) -> None:
    GO.wait(30)


async def seen(scheduler: Any) -> Any:
    return await ask(scheduler, wire.OBSERVE, renew=True)


@pytest.mark.parametrize("governed", [True, False])
@pytest.mark.parametrize("how", ["cancelled", "paused"])
@with_agent(2, config=STILL)
async def test_what_waits_for_stuck_threads_moves(c, s, a, b, agent, clock, how, governed) -> None:
    GO.clear()
    long = c.submit(hold, 0, workers=[a.address])
    await until(lambda: a.state.executing_count)
    if how == "cancelled":
        await c.cancel([long])
        await until(lambda: not s.tasks)
    tasks = c.map(str, range(4), workers=[a.address], allow_other_workers=True)
    bound = c.submit(str, 9, workers=[a.address])
    await until(lambda: len(a.state.tasks) == 6)
    a.status = Status.paused if how == "paused" else a.status
    await until(lambda: s.workers[a.address].metrics["task_counts"].get("cancelled") or
                s.workers[a.address].status == Status.paused)  # fmt: skip

    # It may be but for a moment.
    assert not (await ask(s, wire.OBSERVE))["stuck"]
    clock.ahead_s += 3
    stuck = (await ask(s, wire.OBSERVE, renew=governed))["stuck"]
    assert [1] == [row["threads"] for row in stuck]
    if governed:
        await wait(tasks, timeout=20)
    else:
        await asyncio.sleep(0.3)
        assert not any(f.done() for f in tasks)
    assert not bound.done()

    GO.set()
    a.status = Status.running
    await wait([*tasks, bound], timeout=20)
    clock.ahead_s += 3
    await until(lambda: not s.workers[a.address].metrics["task_counts"].get("cancelled"))
    assert not (await ask(s, wire.OBSERVE))["stuck"]


@pytest.mark.parametrize("governed", [True, False])
@with_agent(1, threads=4, config=STILL, worker_kwargs={"resources": {"R": 1}})
async def test_what_waits_for_a_resource_moves_where_it_is_free(c, s, a, agent, governed) -> None:
    GO.clear()
    tasks = c.map(hold, range(3), resources={"R": 1})
    await until(lambda: len(a.state.tasks) == 3)
    async with Worker(s.address, resources={"R": 1}) as b, Worker(s.address, resources={"S": 1}):
        await ask(s, wire.OBSERVE, renew=governed)
        await until(lambda: b.state.tasks) if governed else await asyncio.sleep(0.5)
        assert bool(b.state.executing_count) is governed
        GO.set()
        await wait(tasks, timeout=20)


async def wanted(scheduler: Any) -> list[int]:
    return [row["workers"] for row in (await ask(scheduler, wire.OBSERVE))["wants"]]


@pytest.mark.parametrize("direct", [True, False])
@with_agent(0)
async def test_who_uploads_to_nobody_wants_a_worker(c, s, agent, direct) -> None:
    await seen(s)
    upload = asyncio.ensure_future(c.scatter({"x": 1}, direct=direct))
    await until(agent.clients.rows)

    assert [1] == await wanted(s)
    async with Worker(s.address):
        await upload
        assert [] == await wanted(s)


@with_agent(0)
async def test_who_waits_for_workers_wants_twice_as_many(c, s, agent, clock) -> None:
    await seen(s)
    for _ in range(30):  # who only looks
        clock.ahead_s += 0.5
        await c.scheduler.identity()
        assert [] == await wanted(s)
    waiting = asyncio.ensure_future(c.wait_for_workers(3))
    await until(agent.clients.rows)
    assert [1] == await wanted(s)
    work = c.submit(str, 1)  # it says itself how many workers it needs
    await until(lambda: s.tasks)
    assert [] == await wanted(s)
    await c.cancel([work])
    await until(agent.clients.rows)
    async with Worker(s.address), Worker(s.address):
        await until(lambda: [4] == [row["workers"] for row in agent.clients.rows()])
        async with Worker(s.address):
            await waiting
            await until(lambda: not agent.clients.rows())


@with_agent(1, clock=StillClock)
async def test_who_looks_at_the_workers_all_the_time_is_not_believed_for_ever(
    c, s, a, agent, clock
) -> None:
    await seen(s)
    believed = 0
    for _ in range(1200):
        clock.now += 0.3
        await c._update_scheduler_info()
        believed += bool(agent.clients.rows())
    asks_for_all = "n_workers" not in signature(s.identity).parameters
    assert bool(believed) is asks_for_all
    assert [] == await wanted(s)

    clock.now += 11
    waiting = asyncio.ensure_future(c.wait_for_workers(2))
    while not agent.clients.rows():
        clock.now += 0.01
        await asyncio.sleep(0.01)
    async with Worker(s.address):
        await waiting


async def half_a_message(c: Any, s: Any, **_: Any) -> Any:
    comm = await connect(s.address)
    await comm.stream.write(struct.pack("<Q", 50_000_000))
    return comm.abort


async def an_upload(c: Any, s: Any, a: Any, direct: bool) -> Any:
    may_come, stock = asyncio.Event(), a.handlers["update_data"]

    async def slow(**request: Any) -> Any:
        await may_come.wait()
        return stock(**request)

    a.handlers["update_data"] = slow
    s.upload = asyncio.ensure_future(c.scatter({"x": 1}, direct=direct))
    return may_come.set


@pytest.mark.parametrize(
    ("send", "how"),
    [(half_a_message, {}), (an_upload, {"direct": True}), (an_upload, {"direct": False})],
)
@with_agent(1)
async def test_a_worker_that_is_sent_data_is_not_idle(c, s, a, agent, clock, send, how) -> None:
    await seen(s)
    clock.ahead_s += 60
    before = await seen(s)
    end = await send(c=c, s=s, a=a, **how)
    await until(lambda: agent.clients.look() or agent.clients.is_sending)
    meanwhile = await seen(s)
    refused = await ask(s, wire.RETIRE, names=[str(a.name)])
    clock.ahead_s += 60
    end()
    await until(lambda: agent.clients.look() or not agent.clients.is_sending)
    after = await seen(s)

    assert [[0], []] == [list(found["closable"]) for found in (before, meanwhile)]
    assert before["workers"]["idle_ms"][0] > 50_000
    assert all(found["workers"]["idle_ms"][0] < 5_000 for found in (meanwhile, after))
    assert [wire.V_BUSY] == [outcome["veto"] for outcome in refused["outcomes"]]


async def a_call(c: Any, s: Any) -> None:
    await c.scheduler.ncores_running(workers=None)


@pytest.mark.parametrize(("send", "after_s"), [(a_call, 121), (half_a_message, 3601)])
@with_agent(1)
async def test_whoever_stops_in_an_upload_is_not_waited_for(
    c, s, a, agent, clock, send, after_s
) -> None:
    await seen(s)
    kept = await send(c=c, s=s)  # else it is closed
    await until(lambda: agent.clients.look() or agent.clients.is_sending)
    assert not (await seen(s))["closable"]

    clock.ahead_s += after_s

    assert (await seen(s))["closable"], kept
