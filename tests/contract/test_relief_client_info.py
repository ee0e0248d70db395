"""Clients of workers ask the scheduler hardly ever, those of people as often as they like."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, get_client, worker_client
from distributed.utils_test import gen_cluster, inc

from dask_adaptive_agent.loading.attach import install, uninstall
from dask_adaptive_agent.relief import client_info
from dask_adaptive_agent.relief.client_info import PREFIX, QUIET_S
from support.agent_work import until

HEEDED = pytest.mark.skipif(
    not client_info.has_slim_polls(), reason="no scheduler tells clients an interval here"
)
QUIET_MS = QUIET_S * 1000
POLL, HEARTBEAT = "scheduler-info", "heartbeat"
#: A heartbeat every 50 ms where there would be one every 5 s.
LIVELY = {"distributed.client.heartbeat": "50ms"}
ONE = [("127.0.0.1", 1)]


def interval_ms(client: Any, name: str = POLL) -> float:
    return float(client._periodic_callbacks[name].callback_time)


@asynccontextmanager
async def person(s: Any, **config: str) -> AsyncIterator[Any]:
    """A client that is nobody's default: tasks in this process make a worker's client."""
    settings = {f"distributed.client.{key.replace('_', '-')}": v for key, v in config.items()}
    with dask.config.set(settings):
        client = Client(s.address, asynchronous=True, set_as_default=False)
    async with client:
        yield client


def begets() -> str:
    """A task that uses its worker's client."""
    client = get_client()
    assert 2 == client.submit(inc, 1).result()
    return str(client.id)


def borrows() -> str:
    with worker_client() as client:
        assert 3 == client.submit(inc, 2).result()
        return str(client.id)


@HEEDED
@pytest.mark.parametrize("task", [begets, borrows])
@gen_cluster(nthreads=[("127.0.0.1", 2)], config=LIVELY)
async def test_clients_of_workers_are_quiet(s: Any, a: Any, task: Any) -> None:
    agent = install(s)
    async with person(s) as c:
        assert (await c.submit(task)).startswith(PREFIX)
        await until(lambda: interval_ms(a._client, HEARTBEAT) == QUIET_MS)

    assert QUIET_MS == interval_ms(a._client)
    assert 1 == agent.reliefs.get("clientInfo").counts()["adjusted"]


@HEEDED
@gen_cluster(nthreads=ONE)
async def test_a_person_keeps_the_intervals_that_were_configured(s: Any, a: Any) -> None:
    agent = install(s)
    async with person(s, scheduler_info_interval="3600s", heartbeat="50ms") as c:
        relief = agent.reliefs.get("clientInfo")
        before = s.clients[c.id].last_seen
        await until(lambda: relief.counts()["heartbeats"] >= 4)

        assert (3_600_000, 50) == (interval_ms(c), interval_ms(c, HEARTBEAT))
        assert s.clients[c.id].last_seen > before
        assert 0 == relief.counts()["adjusted"]

        uninstall(s)  # what upstream does
        await until(lambda: interval_ms(c) == 5_000)


@HEEDED
@gen_cluster(nthreads=[("127.0.0.1", 2)])
async def test_many_people_are_slowed_down_as_upstream_does(
    s: Any, a: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_info, "FEW", 10)
    agent = install(s)
    async with AsyncExitStack() as stack:
        people = [await stack.enter_async_context(person(s, heartbeat="50ms")) for _ in range(10)]
        await people[0].submit(begets)  # the worker's own client does not count
        relief = agent.reliefs.get("clientInfo")
        await until(lambda: relief.counts()["heartbeats"] >= 30)
        assert {2_000} == {interval_ms(c) for c in people}

        last = await stack.enter_async_context(person(s, heartbeat="50ms"))
        # heartbeat_interval(11) * 10
        await until(lambda: {10_000} == {interval_ms(c) for c in [last, *people]}, 10)


@HEEDED
@gen_cluster(nthreads=ONE)
async def test_clients_that_were_there_before_follow_upstreams_rule(s: Any, a: Any) -> None:
    async with person(s, heartbeat="200ms") as c:
        install(s)
        await until(lambda: interval_ms(c) == 5_000)


@HEEDED
async def test_over_websockets_heartbeats_go_on_as_upstream_has_them() -> None:
    with dask.config.set(LIVELY):
        async with Scheduler(protocol="ws://", port=0, dashboard=False, host="127.0.0.1") as s:
            agent = install(s)
            async with Client(
                s.address, asynchronous=True, set_as_default=False, name="worker"
            ) as c:
                assert c.id.startswith(PREFIX)
                await until(lambda: interval_ms(c, HEARTBEAT) == 5_000)

            assert 0 == agent.reliefs.get("clientInfo").counts()["adjusted"]


async def test_the_variable_for_pods_of_workers_is_one_that_clients_read() -> None:
    key = "distributed.client.scheduler-info-interval"
    variables = {"DASK_DISTRIBUTED__CLIENT__SCHEDULER_INFO_INTERVAL": "600s"}
    value = dask.config.get(key, config=dask.config.collect_env(variables))
    async with (
        Scheduler(port=0, dashboard=False) as s,
        person(s, scheduler_info_interval=value) as c,
    ):
        assert QUIET_MS == interval_ms(c)
