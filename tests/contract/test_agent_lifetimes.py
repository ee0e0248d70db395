"""Workers report their own `--lifetime`, whatever their image holds; the scheduler heeds it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from distributed import LocalCluster, Worker, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent.loading.attach import install, uninstall
from dask_adaptive_agent.quotas.deadlines import LOOK_S
from dask_adaptive_agent.worker_side import lifetime
from support.agent_cluster import with_agent
from support.agent_deadlines import meters
from support.agent_work import slow, until

ONE = [("127.0.0.1", 1)]
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
@gen_cluster(client=True, nthreads=ONE, config=CONFIG)
async def test_what_it_would_not_finish_is_not_given_to_it(c, s, a) -> None:
    """With nobody but the worker to say so: no operator has sent a limit."""
    agent = install(s)
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
@gen_cluster(client=True, nthreads=ONE, config=CONFIG)
async def test_a_memory_monitor_brings_no_such_worker_back(c, s, a) -> None:
    """No operator has said anything, so nothing else has told the agent to hear of pauses."""
    agent = install(s)
    await c.submit(slow, 0, 0)
    async with Worker(s.address, name="w", nthreads=1, lifetime="300 s") as w:
        ws = s.workers[w.address]
        await until(lambda: agent.cordons.deadlines.have_ends)
        s.task_prefixes["slow"].duration_average = 1e6
        running = c.submit(slow, "hold", 3, workers=[a.address])
        await until(lambda: ws.status == Status.closing_gracefully)

        for status in (Status.paused, Status.running):
            w.status = status
            await asyncio.sleep(0.1)  # it says so at once
            assert Status.closing_gracefully == ws.status
        futures = c.map(slow, range(1, 5), delay_s=0)
        await wait([*futures, running])
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
        assert lifetime._ends_at(w, loop) is None
        w.lifetime = None
        assert lifetime._ends_at(w, loop) is None


@with_agent(1)
async def test_what_is_no_lifetime_is_none(c, s, a) -> None:
    ws = s.workers[a.address]
    for nonsense in (7, {}, {"left_s": "soon"}, {"left_s": math.nan}, None):
        ws.metrics = {**ws.metrics, lifetime.METRIC: nonsense}
        assert math.inf == lifetime.left_s(ws)


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
