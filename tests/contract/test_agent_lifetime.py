"""A worker's own `--lifetime`: reported, heeded where tasks are assigned, and drained for."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from distributed import LocalCluster, Worker, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install, uninstall
from dask_adaptive_agent.quotas.deadlines import LOOK_S
from dask_adaptive_agent.worker_side import lifetime
from support.agent_cluster import with_agent, with_lifetimes
from support.agent_quota import limit, limit_ends, meters
from support.agent_work import (
    MAY_END,
    RUNS,
    ask,
    held,
    holding,
    leave,
    nobody_fetches_from,
    pin,
    retire,
    running,
    slow,
    unpin,
    until,
)


@with_lifetimes(1)
async def test_a_worker_at_the_end_of_its_lifetime_loses_nothing(c, s, other, agent) -> None:
    """Through the worker's own request: `Worker.close_gracefully`, which asks to be retired."""
    async with Worker(s.address, name="w", nthreads=1, lifetime="2 s") as w:
        where = {"workers": [w.address], "allow_other_workers": True, "pure": False}
        results = [c.submit(slow, i, 0, **where) for i in range(6)]
        await wait(results)
        task = c.submit(held, "task", **where)

        await until(lambda: agent.drains.ongoing)
        MAY_END.set()
        await until(lambda: w.address not in s.workers)
        await c.gather([*results, task])

    assert 7 == len(RUNS)
    assert not agent.drains.ongoing
    assert [wire.N_WORKER_LEFT] == [row["kind"] for row in agent.notes.since(0)]


@pytest.mark.parametrize(
    "says", [wire.LIFETIME_STOCK, wire.LIFETIME_DRAIN, "the operator", "a pod"]
)
@with_agent(0)
async def test_who_dies_after_its_announced_end_charges_no_task(c, s, says) -> None:
    """Four in a row are killed by their walltime: stock code has closed them before."""
    lifetime = "300 ms" if says in (wire.LIFETIME_STOCK, wire.LIFETIME_DRAIN) else None
    if lifetime is not None:
        await ask(s, wire.CONFIGURE, on_lifetime=says)
    future = c.submit(slow, 1, 1.5)
    for _ in range(4):
        async with Worker(s.address, name="w", nthreads=1, lifetime=lifetime) as w:
            await until(lambda w=w: s.workers[w.address].processing or lifetime)
            if says == "the operator":
                await limit_ends(s, {"w": 0.3})
            elif says == "a pod":
                await leave(s, w.name)
            await asyncio.sleep(0.4)
            if w.address in s.workers:
                s.stream_comms[w.address].comm.abort()
            await until(lambda: not s.workers)
        assert 0 == s.tasks[future.key].suspicious
    async with Worker(s.address, nthreads=1):
        await future


@with_lifetimes()
async def test_it_waits_for_tasks_and_pins_and_moves_data(c, s, a, b, agent) -> None:
    """Contract: `Worker.close_gracefully` retires itself with a stimulus_id that names it."""
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


@with_lifetimes(1)
async def test_the_only_worker_stays_as_long_as_it_is_of_use(c, s, a, agent) -> None:
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
@with_lifetimes()
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


@with_agent()
async def test_without_a_policy_it_goes_at_once(c, s, a, b, agent) -> None:
    await pin(s, a)

    await asyncio.wait_for(a.close_gracefully(), 5)

    assert a.address not in s.workers
    assert [] == agent.notes.since(0)  # by its owner's decision, not by a call


@with_agent()
async def test_by_stock_code_a_cordoned_worker_does_not_come_back(c, s, a, b, agent) -> None:
    """Its limit is lifted while its data moves: it would get tasks that it does not start."""
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


@with_lifetimes(1)
async def test_the_only_worker_goes_when_it_is_of_no_use(c, s, a, agent) -> None:
    await asyncio.wait_for(agent.drains.lifetime(a.address), 5)
    await agent.drains.lifetime("tcp://127.0.0.1:1")  # no such worker


@pytest.mark.parametrize("is_retired", [False, True])
@with_lifetimes()
async def test_cancelled_it_is_back_in_service(c, s, a, b, agent, is_retired) -> None:
    future = await running(c, a, 1)
    if is_retired:
        await retire(s, a.name, busy_ok=True)
    ending = asyncio.ensure_future(agent.drains.lifetime(a.address))
    await until(lambda: agent.service.terminating())
    assert Status.closing_gracefully == s.workers[a.address].status

    ending.cancel()
    await asyncio.wait([ending])

    assert ending.cancelled()
    assert {} == agent.drains.ongoing
    assert s.workers[a.address] in s.running
    MAY_END.set()
    await future


@pytest.mark.long
@with_lifetimes()
async def test_the_end_of_its_pod_goes_before(c, s, a, b, agent) -> None:
    future = await running(c, a, 1, allow_other_workers=True)
    ending = asyncio.ensure_future(agent.drains.lifetime(a.address))
    await until(lambda: agent.drains.ongoing)

    await leave(s, a.name, left_ms=2000)
    (row,) = (await ask(s, wire.OBSERVE))["departures"]
    assert 0 < row["left_ms"] <= 2000
    await asyncio.wait_for(ending, 20)

    assert a.address not in s.workers
    assert [wire.N_TASKS_GIVEN_BACK] == [row["kind"] for row in agent.notes.since(0)]
    MAY_END.set()
    await future


CONFIG = {"distributed.worker.heartbeat": "50ms"}


@with_agent(1, config=CONFIG)
async def test_a_worker_that_joins_reports_when_it_ends(c, s, a) -> None:
    async with Worker(
        s.address, name="w", nthreads=1, lifetime="80 s", lifetime_stagger="20 s"
    ) as w:
        await until(lambda: lifetime.METRIC in s.workers[w.address].metrics)

        told = (await meters(s))["lifetimes"]
        assert {"w"} == set(told)  # nothing of the worker that has none
        assert w.lifetime - 10 < told["w"] <= w.lifetime
        assert math.inf == lifetime.left_s(s.workers[a.address])
        assert lifetime.METRIC not in a.metrics


@gen_cluster(client=True, nthreads=[], config=CONFIG)
async def test_a_worker_that_runs_already_reports_too(c, s) -> None:
    async with Worker(s.address, name="w", nthreads=1, lifetime="100 s") as w:
        await c.submit(slow, 1, 0.2)
        install(s)
        await until(lambda: lifetime.METRIC in s.workers[w.address].metrics)
        left_s = lifetime.left_s(s.workers[w.address])
        assert 80 < left_s < 99.9  # since it began, not since it was asked

        uninstall(s)
        await until(lambda: lifetime.METRIC not in w.metrics)


@pytest.mark.long
@with_lifetimes(1, config=CONFIG)
async def test_what_it_would_not_finish_is_not_given_to_it(c, s, a, agent) -> None:
    """With nobody but the worker to say so: no operator has sent a limit."""
    await c.submit(slow, 0, 0)
    async with Worker(s.address, name="w", nthreads=1, lifetime="300 s") as w:
        await until(lambda: lifetime.METRIC in s.workers[w.address].metrics)
        await until(lambda: agent.cordons.deadlines.have_ends)
        s.task_prefixes["slow"].duration_average = 1e6
        await asyncio.sleep(LOOK_S + 0.1)  # that it is long is seen in the next look

        futures = c.map(slow, range(1, 10), delay_s=0)
        await wait(futures)

        assert {a.address} == {ws.address for f in futures for ws in s.tasks[f.key].who_has}


@pytest.mark.long
@with_lifetimes(1, config=CONFIG)
async def test_a_memory_monitor_brings_no_such_worker_back(c, s, a, agent) -> None:
    """No operator has said anything, so nothing else has told the agent to hear of pauses."""
    await c.submit(slow, 0, 0)
    async with Worker(s.address, name="w", nthreads=1, lifetime="300 s") as w:
        ws = s.workers[w.address]
        await until(lambda: agent.cordons.deadlines.have_ends)
        s.task_prefixes["slow"].duration_average = 1e6
        keys = ["slow-101", "slow-102"]  # one waits
        running = c.map(held, keys, key=keys, workers=[a.address])
        await until(lambda: ws.status == Status.closing_gracefully)

        for status in (Status.paused, Status.running):
            w.status = status
            await asyncio.sleep(0.1)  # it says so at once
            assert Status.closing_gracefully == ws.status
        futures = c.map(slow, range(1, 5), delay_s=0)
        MAY_END.set()
        await wait([*futures, *running])
        assert {a.address} == {one.address for f in futures for one in s.tasks[f.key].who_has}


@gen_cluster(client=True, nthreads=[], config=CONFIG)
async def test_a_loop_that_hides_its_timers(c, s) -> None:
    """Then the start of the process counts: too early, or, where that says nothing, unknown."""

    class Loop:
        def time(self) -> float:
            return 100.0

    loop: Any = Loop()
    async with Worker(s.address, nthreads=1, lifetime="1 d") as w:
        ends_at = lifetime._ends_at(w, loop)
        assert ends_at is not None
        assert 100 < ends_at <= 100 + 86400
        w.lifetime = 1e-3  # the process is older than that
        assert math.inf == lifetime._ends_at(w, loop)
        w.lifetime = None
        assert math.inf == lifetime._ends_at(w, loop)


@pytest.mark.thorough
def test_workers_in_processes_of_their_own() -> None:
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0", lifetime="200 s",
    ) as cluster, cluster.get_client() as client:  # fmt: skip

        def attach(dask_scheduler: Any) -> None:
            install(dask_scheduler)

        def left(dask_scheduler: Any) -> list[float]:
            return [lifetime.left_s(ws) for ws in dask_scheduler.workers.values()]

        client.run_on_scheduler(attach)
        while math.isinf((known := client.run_on_scheduler(left))[0]):
            pass
        assert 150 < known[0] < 200
