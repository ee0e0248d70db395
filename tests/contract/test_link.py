"""The operator's side of the wire, against a real scheduler that behaves or does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Client, Worker
from distributed.core import rpc
from distributed.protocol import to_serialize

from dask_adaptive.loop.ports import LinkError, Told
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import ClusterRef, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.link import Link, ReadOnlyLink, connect
from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install, uninstall
from support.agent_work import heard, observe_once
from support.tasks import slow

POLICY = Policy(ClusterRef("t"), 3)
TOLD = Told("etl", "5 wanted", (("w1", "stays"),), ((1.5, "g", "LoadIncreased", "8 tasks"),))
COMING = (Arriving(2, 100.0),)


async def test_a_scheduler_without_the_agent_gets_it(s: Any, link: Link) -> None:
    seen = await link.observe(POLICY)

    assert seen.is_connected
    assert seen.agent
    assert wire.OBSERVE in s.handlers


async def test_an_agent_that_is_gone_is_put_back(s: Any, link: Link) -> None:
    await link.observe(POLICY)
    uninstall(s)

    assert (await link.observe(POLICY)).agent


async def test_another_protocol_is_a_problem_with_a_remedy(s: Any, link: Link) -> None:
    install(s)
    s.handlers[wire.HELLO] = lambda **_: {"protocol": 99}

    seen = await link.observe(POLICY)

    assert Reason.PROTOCOL_MISMATCH is seen.problem
    assert "speaks protocol 99" in seen.message
    assert "upgrade the older side" in seen.message


@pytest.mark.parametrize("nonsense", [{}, {"session": "x"}, [1], "text", 7])
async def test_a_senseless_snapshot_is_no_snapshot(s: Any, link: Link, nonsense: Any) -> None:
    install(s)
    await link.observe(POLICY)
    s.handlers[wire.OBSERVE] = lambda **_: nonsense

    seen = await link.observe(POLICY)

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem
    assert () == seen.workers


async def test_a_scheduler_that_is_not_there() -> None:
    link = connect("tcp://127.0.0.1:9", timeout_s=0.5)
    seen = await link.observe(POLICY)
    await link.close()

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem
    assert "tcp://127.0.0.1:9" in seen.message


async def test_what_does_not_speak_dask_is_not_waited_for() -> None:
    async def silent(reader: Any, writer: Any) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = connect(f"tcp://127.0.0.1:{port}", timeout_s=0.5)
    seen = await asyncio.wait_for(link.observe(POLICY), 5)
    await link.close()
    server.close()

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem


class Trap:
    """Runs code where it is unpickled."""

    sprung = False

    def __reduce__(self) -> Any:
        return _spring, ()


def _spring() -> None:
    Trap.sprung = True


async def test_nothing_that_a_scheduler_sends_is_unpickled(s: Any) -> None:
    """A scheduler runs other people's code; it must not be able to run it in the operator."""
    s.handlers["trap"] = lambda: {"status": "OK", "result": to_serialize(Trap())}
    trusting, careful = rpc(s.address), SchedulerCalls(s.address, timeout_s=2.0)

    await trusting.trap()
    assert Trap.sprung
    Trap.sprung = False
    answer = await careful.call("trap")

    assert "OK" == answer["status"]
    assert not Trap.sprung
    await trusting.close_rpc()
    await careful.close()


async def test_the_error_of_a_handler_arrives_as_text(s: Any) -> None:
    def raises() -> None:
        raise ZeroDivisionError("of all things")

    s.handlers["fails"] = raises
    calls = SchedulerCalls(s.address, timeout_s=2.0)

    with pytest.raises(LinkError, match=r"fails failed on .*of all things"):
        await calls.call("fails")
    await calls.close()


async def test_the_agent_knows_what_is_on_its_way(s: Any, link: Link) -> None:
    agent = install(s)
    await link.observe(POLICY)

    await link.announce(COMING, TOLD)

    (row,) = agent.plans.arriving
    assert (2, pytest.approx(100, abs=5)) == row
    assert ("etl", "5 wanted", {"w1": "stays"}) == (
        agent.plans.policy, agent.plans.message, agent.plans.workers,
    )  # fmt: skip
    assert [(1.5, "g", "LoadIncreased", "8 tasks")] == agent.plans.decisions


async def test_a_worker_that_joins_is_not_on_its_way_any_more(s: Any, link: Link) -> None:
    agent = install(s)
    await link.announce(COMING, TOLD)

    async with Worker(s.address, nthreads=1, memory_limit=0, dashboard=False):
        assert [1] == [workers for workers, _ in agent.plans.arriving]


async def test_what_has_not_changed_is_not_sent(s: Any, link: Link) -> None:
    install(s)
    requests = heard(s, wire.ANNOUNCE)

    await link.announce((), Told())
    assert [] == requests
    for _ in range(3):
        await link.announce((), TOLD)

    assert 1 == len(requests)


async def test_what_was_not_heard_is_said_again(s: Any, link: Link) -> None:
    agent = install(s)
    stock = s.handlers[wire.ANNOUNCE]

    def fail(**_: Any) -> Any:
        raise OSError("broken")

    s.handlers[wire.ANNOUNCE] = fail
    with pytest.raises(LinkError, match="broken"):
        await link.announce((), TOLD)
    s.handlers[wire.ANNOUNCE] = stock

    await link.announce((), TOLD)

    assert "etl" == agent.plans.policy


@pytest.fixture
async def there(s: Any) -> AsyncIterator[ReadOnlyLink]:
    made = ReadOnlyLink(s.address, timeout_s=2.0)
    yield made
    await made.close()


async def test_it_neither_attaches_nor_configures(s: Any, there: ReadOnlyLink) -> None:
    assert Reason.AGENT_MISSING is (await there.observe()).problem
    assert wire.OBSERVE not in s.handlers
    with pytest.raises(LinkError, match="no readable explanation"):
        await there.explain()

    agent = install(s)
    before = agent.settings.answer()
    assert (await there.observe()).is_connected
    assert before == agent.settings.answer()


async def test_demand_and_explanations(s: Any, there: ReadOnlyLink) -> None:
    install(s)
    async with (
        Worker(s.address, nthreads=1, name="w1"),
        Client(s.address, asynchronous=True) as client,
    ):
        futures = client.map(slow, range(5), seconds=0.3, pure=False)
        while not s.running or not s.tasks:
            await asyncio.sleep(0.01)
        seen = await there.observe(demand=True)
        (row,) = await there.explain()

        assert 5 == sum(p.unfinished for p in seen.demand.prefixes)
        assert ("w1", True) == (row["name"], "task" in row["sentence"])
        assert row["n_processing"]
        assert (await there.observe()).demand is None, "not asked for"
        await client.gather(futures)
        assert [] == await there.explain(["nobody"])
        (worker,) = (await observe_once(s.address)).workers
        assert 5 == worker.use.runs, "meters are asked for"


async def test_a_scheduler_that_goes_and_comes_is_said_hello_again(
    s: Any, there: ReadOnlyLink
) -> None:
    install(s)
    first = await there.observe()
    uninstall(s)
    assert (await there.observe()).problem is not None
    install(s)
    again = await there.observe()

    assert first.session != again.session
    assert again.is_connected
