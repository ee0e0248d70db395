"""Polls of `identity` and heartbeats of clients cost little, and say what upstream says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, Worker, get_client, worker_client
from distributed.core import Status, rpc
from distributed.protocol import dumps, loads
from distributed.protocol.serialize import Serialized
from distributed.utils_test import gen_cluster, inc

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import Agent, install, uninstall
from dask_adaptive_agent.relief.before_2026_7 import (
    MAX_AGE_S,
    POPULAR,
    PREFIX,
    QUIET_S,
    IdentityRelief,
)
from dask_adaptive_agent.relief.registry import is_needed
from support.agent_cluster import StillClock, with_agent
from support.agent_fakes import clear_workers, fake_worker
from support.agent_work import ask, until
from support.fire import nothing_breaks

pytestmark = pytest.mark.skipif(not is_needed("identity"), reason="no poll asks for workers here")
SLIM = pytest.mark.skipif(not is_needed("clientInfo"), reason="all identities are whole here")


class Applied:
    """The relief at work in `s`, on a clock that stands still."""

    def __init__(self, s: Any) -> None:
        self.clock = StillClock()
        self.gave_up: list[str] = []
        agent: Any = Agent(s, self.clock)
        agent.reliefs.give_up = lambda _, sentence: self._give_up(sentence)
        self.relief = IdentityRelief(agent.reliefs)
        self.relief.install()

    def _give_up(self, sentence: str) -> None:
        self.gave_up.append(sentence)
        self.relief.uninstall()

    def __getitem__(self, name: str) -> int:
        return self.relief.counts()[name]


def fresh(s: Any) -> str:
    """What upstream would answer, as a client reads it; tells 1 from 1.0 and () from []."""
    return repr(loads(dumps(s.identity())))


def still(*workers: Worker) -> None:
    for worker in workers:
        worker.periodic_callbacks["heartbeat"].stop()


@gen_cluster(nthreads=[("127.0.0.1", 1)] * 2)
async def test_answers_are_equal_in_values_types_and_order(s, a, b) -> None:
    still(a, b)
    for i in range(50):
        fake_worker(s, i).metrics = {"memory": i, "nested": {"a": (1, 2.5, None, "é", b"\0", True)}}
    applied = Applied(s)
    try:
        async with rpc(s.address) as link:
            for _ in range(3):
                for _ in range(POPULAR + 1):  # the frames of the next round are compressed
                    assert fresh(s) == repr(await link.identity())
                applied.clock.now += MAX_AGE_S
        assert (3, 3 * (POPULAR + 1), 0) == (applied["made"], applied["asked"], applied["stock"])
    finally:
        for address in [address for address in s.workers if address.startswith("tcp://10.")]:
            s.running.discard(s.workers.pop(address))


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_who_joins_leaves_or_changes_is_in_the_next_answer(c, s, a, b) -> None:
    applied = Applied(s)  # its clock stands still: nothing is old
    async with rpc(s.address) as link:

        async def workers() -> dict[str, Any]:
            return dict((await link.identity())["workers"])

        assert {a.address, b.address} == set(await workers())

        async with Worker(s.address, name="new") as new:
            seen = await workers()
            assert (3, "new") == (len(seen), seen[new.address]["name"])
            await asyncio.wait_for(c.wait_for_workers(3), 5)

            await s.remove_worker(new.address, stimulus_id="test")
            assert new.address not in await workers()

        s.handle_worker_status_change("paused", a.address, stimulus_id="test")
        assert "paused" == (await workers())[a.address]["status"]
        s.workers[a.address].status = Status.closing_gracefully  # by whatever way it changes
        assert "closing_gracefully" == (await workers())[a.address]["status"]
        s.handle_worker_status_change("running", a.address, stimulus_id="test")
        assert "running" == (await workers())[a.address]["status"]

        await b.set_resources(GPU=2)
        assert {"GPU": 2} == (await workers())[b.address]["resources"]

    assert 0 == applied["stock"]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_wait_for_workers_sees_them_at_once(c, s, a, b) -> None:
    applied = Applied(s)
    await c._wait_for_workers(2)

    waiting = asyncio.create_task(c._wait_for_workers(3))
    await until(lambda: applied["asked"] > 2)
    async with Worker(s.address, name="new"):
        await asyncio.wait_for(waiting, 5)
        assert 3 == len(c.scheduler_info()["workers"])

    assert applied["made"] <= 4


@with_agent(1)
async def test_polls_are_answered_while_it_comes_and_goes(c, s, a, agent) -> None:
    """Servers ask a handler once, if at all, whether it wants the connection."""
    await ask(s, wire.OBSERVE, renew=True)  # something else of ours stays over this handler
    for choice in (wire.DISABLED, wire.AUTO, wire.DISABLED, wire.AUTO):
        s.handlers[wire.CONFIGURE](relief={"identity": choice})
        for _ in range(3):
            assert {a.address} == set((await c.scheduler.identity())["workers"])

    assert 3 == agent.reliefs.get("identity").counts()["asked"]


@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_a_worker_that_returns_at_its_address_is_a_new_one(s, a) -> None:
    Applied(s)
    fake_worker(s, 1).metrics = {"life": 1}
    async with rpc(s.address) as link:
        first = await link.identity()
        s.running.discard(s.workers.pop("tcp://10.0.0.1:40001"))
        fake_worker(s, 1).metrics = {"life": 2}
        second = await link.identity()
    s.running.discard(s.workers.pop("tcp://10.0.0.1:40001"))

    lives = [info["workers"]["tcp://10.0.0.1:40001"]["metrics"]["life"] for info in (first, second)]
    assert [1, 2] == lives


@gen_cluster(nthreads=[])
async def test_metrics_get_no_older_than_promised(s) -> None:
    applied = Applied(s)
    ws = fake_worker(s, 1)
    async with rpc(s.address) as link:

        async def memory() -> Any:
            return (await link.identity())["workers"][ws.address]["metrics"]["memory"]

        await memory()
        ws.metrics = {"memory": 7}
        kept = await memory()
        applied.clock.now += MAX_AGE_S
        assert (200_000_001, 7) == (kept, await memory())
    clear_workers(s)


@gen_cluster(nthreads=[])
async def test_concurrent_polls_share_one_answer(s) -> None:
    applied = Applied(s)
    for i in range(100):
        fake_worker(s, i)

    async def poll() -> Any:
        async with rpc(s.address) as link:
            return repr(await link.identity())

    answers = await asyncio.gather(*[poll() for _ in range(20)])

    assert {fresh(s)} == set(answers)
    assert (1, 20) == (applied["made"], applied["asked"])
    clear_workers(s)


@gen_cluster(nthreads=[])
async def test_peers_that_need_it_get_what_upstream_sends(s) -> None:
    applied = Applied(s)
    async with rpc(s.address, deserializers=["dask", "pickle"]) as link:
        assert fresh(s) == repr(await link.identity())
    assert (0, 1) == (applied["asked"], applied["stock"])

    async with rpc(s.address, deserialize=False) as link:
        passed_on = await link.identity()
    assert isinstance(passed_on, Serialized)
    assert fresh(s) == repr(loads(dumps(passed_on)))
    assert isinstance(s.identity(), dict)


async def test_clients_in_the_process_get_objects_as_they_are() -> None:
    async with Scheduler(protocol="inproc://", dashboard=False) as s:
        applied = Applied(s)
        async with Worker(s.address), Client(s.address, asynchronous=True) as c:
            await c._wait_for_workers(1)
            assert 1 == len(c.scheduler_info()["workers"])
            assert type(c.scheduler_info()["workers"]) is dict

        assert 0 == applied["asked"] < applied["stock"]


async def test_over_websockets_too() -> None:
    async with Scheduler(protocol="ws://", port=0, dashboard=False, host="127.0.0.1") as s:
        applied = Applied(s)
        async with rpc(s.address) as link:
            assert fresh(s) == repr(await link.identity())
        assert (1, 0) == (applied["asked"], applied["stock"])


@SLIM
@gen_cluster(nthreads=[("127.0.0.1", 1)] * 2)
async def test_slim_polls_are_upstreams(s, a, b) -> None:
    applied = Applied(s)
    async with rpc(s.address) as link:
        for n in (0, 1, 5):
            assert min(n, 2) == len((await link.identity(n_workers=n))["workers"])
        assert (0, 3) == (applied["asked"], applied["stock"])

        assert 2 == len((await link.identity(n_workers=-1))["workers"])
        assert 2 == len((await link.identity())["workers"])
        assert (2, 3) == (applied["asked"], applied["stock"])


@gen_cluster(nthreads=[])
async def test_arguments_that_upstream_refuses_are_refused_as_before(s) -> None:
    async def asked() -> str:
        async with rpc(s.address) as link:
            with pytest.raises(TypeError) as refused:
                await link.identity(colour="red")
        return str(refused.value)

    before = await asked()
    Applied(s)

    assert before == await asked()


@gen_cluster(nthreads=[])
async def test_what_cannot_be_kept_is_left_to_upstream(s) -> None:
    applied = Applied(s)
    fake_worker(s, 1).metrics = {"memory": 1, "seen": {"a", "b"}}  # upstream knows to send sets
    async with rpc(s.address) as link:
        for _ in range(2):
            info = await link.identity()
            assert {"a", "b"} == info["workers"]["tcp://10.0.0.1:40001"]["metrics"]["seen"]

    assert 1 == len(applied.gave_up)
    assert s.handlers["identity"] == s.identity
    clear_workers(s)


QUIET_MS = QUIET_S * 1000
POLL, HEARTBEAT = "scheduler-info", "heartbeat"
#: A heartbeat every 50 ms where there would be one every 5 s.
LIVELY = {"distributed.client.heartbeat": "50ms"}


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


@SLIM
@pytest.mark.parametrize("task", [begets, borrows])
@with_agent(1, threads=2, client=False, config=LIVELY)
async def test_clients_of_workers_are_quiet(s, a, agent, task) -> None:
    async with person(s) as c:
        assert (await c.submit(task)).startswith(PREFIX)
        await until(lambda: interval_ms(a._client, HEARTBEAT) == QUIET_MS)

    assert QUIET_MS == interval_ms(a._client)
    assert 1 == agent.reliefs.get("clientInfo").counts()["adjusted"]


@SLIM
@with_agent(0, client=False, config=LIVELY)
async def test_after_the_agent_all_polls_are_upstreams_again(s, agent) -> None:
    settings = {"asynchronous": True, "set_as_default": False, "name": "worker"}
    async with Client(s.address, **settings) as gone, Client(s.address, **settings) as c:
        await until(lambda: {QUIET_MS} == {interval_ms(one) for one in (gone, c)})

        s.client_comms[gone.id].comm.abort()  # nobody has noticed yet
        with nothing_breaks(lambda _: False):
            uninstall(s)

        await until(lambda: interval_ms(c) == 5_000)


@SLIM
@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_people_are_answered_as_by_upstream(s, a) -> None:
    async with person(s, heartbeat="50ms") as before, AsyncExitStack() as stack:
        agent = install(s)
        people = [await stack.enter_async_context(person(s, heartbeat="50ms")) for _ in range(4)]
        await until(lambda: {5_000} == {interval_ms(c) for c in (before, *people)}, 10)
        assert {"heartbeats": 0, "adjusted": 0} == agent.reliefs.get("clientInfo").counts()


@SLIM
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
