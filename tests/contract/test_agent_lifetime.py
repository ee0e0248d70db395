"""A worker's own `--lifetime`: stock redoes what runs; here it waits, whatever the release."""

from __future__ import annotations

import asyncio

import pytest
from distributed import Worker, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install
from support.agent_cluster import with_agent
from support.agent_quota import limit
from support.agent_work import (
    RUNS,
    ask,
    holding,
    leave,
    nobody_fetches_from,
    pin,
    running,
    slow,
    unpin,
    until,
)

TWO = [("127.0.0.1", 1)] * 2


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_worker_at_the_end_of_its_lifetime_loses_nothing(c, s, other) -> None:
    """Through the worker's own request: `Worker.close_gracefully`, which asks to be retired."""
    agent = install(s)
    async with Worker(s.address, name="w", nthreads=1, lifetime="500 ms") as w:
        where = {"workers": [w.address], "allow_other_workers": True, "pure": False}
        results = [c.submit(slow, i, 0, **where) for i in range(6)]
        await wait(results)
        task = c.submit(slow, "task", 1.5, **where)

        await until(lambda: agent.drains.ongoing)
        await until(lambda: w.address not in s.workers)
        await c.gather([*results, task])

    assert 7 == len(RUNS)
    assert not agent.drains.ongoing
    assert [wire.N_WORKER_LEFT] == [row["kind"] for row in agent.notes.since(0)]


@gen_cluster(client=True, nthreads=TWO)
async def test_it_waits_for_tasks_and_pins_and_moves_data(c, s, a, b) -> None:
    """Contract: `Worker.close_gracefully` retires itself with a stimulus_id that names it."""
    agent = install(s)
    await pin(s, a)
    results = await holding(c, a, 4)
    closing = asyncio.ensure_future(a.close_gracefully())
    await until(lambda: {f.key for f in results} <= {str(k) for k in b.data})

    seen = await ask(s, wire.OBSERVE)
    (row,) = seen["departures"]
    assert (-1, wire.DRAINING) == (row["left_ms"], row["state"])
    assert "manual operator" in row["message"]
    assert not seen["retirements"]
    assert row["slot"] not in seen["closable"]
    assert a.name in s.aliases  # nobody takes its name
    assert not closing.done()
    await unpin(s)
    await closing

    await until(lambda: a.address not in s.workers)
    assert [wire.N_WORKER_LEFT] == [row["kind"] for row in agent.notes.since(0)]
    assert 4 == len(RUNS)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_the_only_worker_stays_as_long_as_it_is_of_use(c, s, a) -> None:
    agent = install(s)
    results = c.map(slow, range(4), delay_s=0)
    await wait(results)
    ending = asyncio.ensure_future(agent.drains.lifetime(a.address))
    await until(lambda: agent.drains.ongoing)

    await c.gather(c.map(slow, range(10, 14), delay_s=0))  # it goes on to work
    assert Status.running == s.workers[a.address].status
    assert [] == s.workers_to_close(n=1)
    assert not ending.done()
    async with Worker(s.address, nthreads=1) as b:
        await ending
        await a.close()
        await c.gather(results)
        assert {f.key for f in results} <= {str(k) for k in b.data}
    assert 8 == len(RUNS)


@pytest.mark.long
@with_agent()
async def test_a_pin_and_a_long_task_hold_it_no_longer_than_was_said(c, s, a, b) -> None:
    await ask(s, wire.CONFIGURE, lifetime_ms=300)
    await pin(s, a)
    where = {"workers": [a.address], "allow_other_workers": True}
    results = c.map(slow, range(4), delay_s=0, **where)
    await wait(results)
    task = c.submit(slow, "long", 1.5, **where)
    await until(lambda: a.state.executing_count)

    await asyncio.wait_for(a.close_gracefully(), 10)

    assert a.address not in s.workers
    assert not task.done()
    await c.gather([*results, task])
    assert 4 + 2 == len(RUNS)  # as in stock: what runs is run again, no result is lost


@gen_cluster(client=True, nthreads=TWO)
async def test_stock_goes_at_once(c, s, a, b) -> None:
    agent = install(s)
    await ask(s, wire.CONFIGURE, on_lifetime=wire.LIFETIME_STOCK)
    await pin(s, a)

    await asyncio.wait_for(a.close_gracefully(), 5)

    assert a.address not in s.workers
    assert [] == agent.notes.since(0)  # by its owner's decision, not by a call


@gen_cluster(client=True, nthreads=TWO)
async def test_by_stock_code_a_cordoned_worker_does_not_come_back(c, s, a, b) -> None:
    """Its limit is lifted while its data moves: it would get tasks that it does not start."""
    agent = install(s)
    await ask(s, wire.CONFIGURE, on_lifetime=wire.LIFETIME_STOCK)
    await wait(c.submit(slow, 1, 0, workers=[a.address]))
    data = c.submit(slow, 2, 0, workers=[a.address])
    await wait(data)
    await limit(s, [a], 1)
    assert {a.address} == set(agent.cordons.ongoing)
    may_fetch = nobody_fetches_from(a)
    closing = asyncio.ensure_future(a.close_gracefully())
    await until(lambda: a.status == Status.closing_gracefully)
    await asyncio.sleep(0.1)  # it confirms that

    await limit(s, [], 0)
    futures = c.map(slow, range(10, 20), delay_s=0)
    await asyncio.wait_for(wait(futures), 10)

    assert Status.closing_gracefully == s.workers[a.address].status
    may_fetch.set()
    await closing
    await data


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_the_only_worker_goes_when_it_is_of_no_use(c, s, a) -> None:
    agent = install(s)

    await asyncio.wait_for(agent.drains.lifetime(a.address), 5)
    await agent.drains.lifetime("tcp://127.0.0.1:1")  # no such worker


@gen_cluster(client=True, nthreads=TWO)
async def test_cancelled_it_is_back_in_service(c, s, a, b) -> None:
    agent = install(s)
    future = await running(c, a, 1, 0.4)
    ending = asyncio.ensure_future(agent.drains.lifetime(a.address))
    await until(lambda: s.workers[a.address].status == Status.closing_gracefully)

    ending.cancel()
    await asyncio.wait([ending])

    assert ending.cancelled()
    assert {} == agent.drains.ongoing
    assert s.workers[a.address] in s.running
    await future


@pytest.mark.long
@gen_cluster(client=True, nthreads=TWO)
async def test_the_end_of_its_pod_goes_before(c, s, a, b) -> None:
    agent = install(s)
    future = await running(c, a, 1, 4, allow_other_workers=True)
    ending = asyncio.ensure_future(agent.drains.lifetime(a.address))
    await until(lambda: agent.drains.ongoing)

    await leave(s, a.name, left_ms=800)
    await asyncio.wait_for(ending, 5)

    assert a.address not in s.workers
    assert [wire.N_TASKS_GIVEN_BACK] == [row["kind"] for row in agent.notes.since(0)]
    future.release()
