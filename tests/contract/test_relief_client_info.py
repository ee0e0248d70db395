"""Clients of workers ask the scheduler hardly ever, those of people as often as they like."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import dask
import pytest
from distributed import Client, Nanny, Scheduler, Worker, get_client, worker_client
from distributed.utils_test import gen_cluster, inc

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install, uninstall
from dask_adaptive_agent.relief import client_info
from dask_adaptive_agent.relief.client_info import NAME, PREFIX, QUIET_S, VALUE, VARIABLE
from support.agent_work import until

HEEDED = pytest.mark.skipif(
    not client_info.has_slim_polls(), reason="no scheduler tells clients an interval here"
)
QUIET_MS = QUIET_S * 1000
POLL, HEARTBEAT = "scheduler-info", "heartbeat"
#: A poll every 0.2 s where there would be one every 2 s.
FAST = {"distributed.client.scheduler-info-interval": "200ms"}
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


class Polls:
    """Counts who calls identity, from now on."""

    def __init__(self, s: Any) -> None:
        self.count = 0
        self._handlers, self._stock = s.handlers, s.handlers["identity"]
        s.handlers["identity"] = self.counted

    def counted(self, **request: Any) -> Any:
        self.count += 1
        return self._stock(**request)

    def stop(self) -> int:
        self._handlers["identity"] = self._stock
        return self.count


async def polls_of_a_worker(s: Any, task: Any) -> int:
    """How often a worker's client asks in a second, in which there would be five polls."""
    async with person(s) as c:
        c._periodic_callbacks[POLL].stop()
        client_id = await c.submit(task, pure=False)
        assert client_id.startswith(PREFIX)
        polls = Polls(s)
        await asyncio.sleep(1.0)
        return polls.stop()


@pytest.mark.parametrize("task", [begets, borrows])
@gen_cluster(nthreads=[("127.0.0.1", 2)], config=FAST)
async def test_clients_of_workers_do_not_poll(s: Any, a: Any, task: Any) -> None:
    install(s)
    await until(lambda: NAME in a.plugins)

    assert 0 == await polls_of_a_worker(s, task)
    assert QUIET_MS == interval_ms(a._client)


@gen_cluster(nthreads=[("127.0.0.1", 2)], config=FAST)
async def test_clients_of_workers_that_are_there_already_stop_and_begin_again(
    s: Any, a: Any
) -> None:
    assert await polls_of_a_worker(s, begets) >= 3

    agent = install(s)
    await until(lambda: interval_ms(a._client) == QUIET_MS)
    assert 1 == agent.reliefs.get("clientInfo").counts()["worker_clients"]

    uninstall(s)
    polls = Polls(s)
    await until(lambda: interval_ms(a._client) == 200)
    await until(lambda: polls.count >= 2)
    assert NAME not in a.plugins
    assert "_get_client" not in a.__dict__
    assert NAME not in s.worker_plugins


@gen_cluster(nthreads=[], config=FAST)
async def test_workers_to_come_are_told_too(s: Any) -> None:
    install(s)
    async with Worker(s.address, nthreads=2) as worker:
        assert NAME in worker.plugins
        uninstall(s)
        install(s)
        uninstall(s)
        await until(lambda: NAME not in worker.plugins)
    async with Worker(s.address, nthreads=2) as worker:
        assert NAME not in worker.plugins


@gen_cluster(
    nthreads=[("127.0.0.1", 2)], config={"distributed.client.scheduler-info-interval": "3600s"}
)
async def test_a_worker_whose_own_interval_is_longer_keeps_it(s: Any, a: Any) -> None:
    install(s)
    await until(lambda: NAME in a.plugins)
    async with person(s) as c:
        await c.submit(begets)

    assert 3_600_000 == interval_ms(a._client)


@pytest.mark.thorough
@gen_cluster(nthreads=[])
async def test_a_worker_in_a_process_of_its_own_is_quiet(s: Any) -> None:
    install(s)
    async with Nanny(s.address, nthreads=2), person(s) as c:
        await c.submit(begets)
        seen = await c.run(
            lambda dask_worker: dask_worker._client._periodic_callbacks[POLL].callback_time
        )

    assert [QUIET_MS] == list(seen.values())


@gen_cluster(nthreads=[])
async def test_a_worker_that_lacks_this_package_can_read_the_plugin(s: Any) -> None:
    install(s)
    code = (
        "import sys, pickle; sys.modules['dask_adaptive_agent'] = None;"
        "print(pickle.loads(sys.stdin.buffer.read()).name)"
    )
    reader = subprocess.run(
        [sys.executable, "-I", "-c", code], input=s.worker_plugins[NAME], capture_output=True
    )

    assert NAME == reader.stdout.decode().strip()


@HEEDED
@gen_cluster(nthreads=[("127.0.0.1", 2)], config=LIVELY)
async def test_heartbeats_leave_clients_of_workers_quiet(s: Any, a: Any) -> None:
    agent = install(s)
    await until(lambda: NAME in a.plugins)
    async with person(s) as c:
        await c.submit(begets)
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


@gen_cluster(nthreads=ONE)
async def test_it_is_applied_on_every_release(s: Any, a: Any) -> None:
    stock = s.stream_handlers["heartbeat-client"]
    agent = install(s)
    state = {row["name"]: row["state"] for row in agent.reliefs.rows()}["clientInfo"]

    assert wire.R_ACTIVE == state
    assert client_info.has_slim_polls() == (s.stream_handlers["heartbeat-client"] != stock)

    uninstall(s)
    assert s.stream_handlers["heartbeat-client"] == stock


@HEEDED
@gen_cluster(nthreads=ONE)
async def test_somebody_elses_answer_to_heartbeats_is_left_alone(s: Any, a: Any) -> None:
    def theirs(client: str) -> None:
        s.clients[client].last_seen = 1.0

    s.stream_handlers["heartbeat-client"] = theirs
    agent = install(s)

    assert s.stream_handlers["heartbeat-client"] is theirs
    assert wire.R_FAILED == {r["name"]: r["state"] for r in agent.reliefs.rows()}["clientInfo"]
    assert NAME not in s.worker_plugins


async def test_the_variable_for_pods_of_workers_is_one_that_clients_read() -> None:
    key = "distributed.client.scheduler-info-interval"
    value = dask.config.get(key, config=dask.config.collect_env({VARIABLE: VALUE}))
    async with (
        Scheduler(port=0, dashboard=False) as s,
        person(s, scheduler_info_interval=value) as c,
    ):
        assert QUIET_MS == interval_ms(c)
