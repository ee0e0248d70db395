"""Looking at a scheduler that somebody else governs, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.model.reason import Reason
from dask_adaptive.scheduler.look import Lookout
from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install, uninstall
from support.tasks import slow


@pytest.fixture
async def s() -> AsyncIterator[Any]:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        yield scheduler


@pytest.fixture
async def there(s: Any) -> AsyncIterator[Lookout]:
    made = Lookout(s.address, timeout_s=2.0)
    yield made
    await made.close()


async def test_it_neither_attaches_nor_configures(s: Any, there: Lookout) -> None:
    assert Reason.AGENT_MISSING is (await there.look()).problem
    assert wire.OBSERVE not in s.handlers
    with pytest.raises(LinkError, match="explains nothing"):
        await there.explain()

    agent = install(s)
    before = agent.settings
    assert (await there.look()).is_connected
    assert agent.settings is before


async def test_demand_and_explanations(s: Any, there: Lookout) -> None:
    install(s)
    async with (
        Worker(s.address, nthreads=1, name="w1"),
        Client(s.address, asynchronous=True) as client,
    ):
        futures = client.map(slow, range(5), seconds=0.3, pure=False)
        while not s.running or not s.tasks:
            await asyncio.sleep(0.01)
        seen = await there.look(demand=True)
        (row,) = await there.explain()

        assert 5 == sum(p.unfinished for p in seen.demand.prefixes)
        assert ("w1", True) == (row["name"], "task" in row["sentence"])
        assert row["n_processing"]
        assert (await there.look()).demand is None, "not asked for"
        await client.gather(futures)
        assert [] == await there.explain(["nobody"])


async def test_a_scheduler_that_goes_and_comes_is_said_hello_again(s: Any, there: Lookout) -> None:
    install(s)
    first = await there.look()
    uninstall(s)
    assert (await there.look()).problem is not None
    install(s)
    again = await there.look()

    assert first.session != again.session
    assert again.is_connected
