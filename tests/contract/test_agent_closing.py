"""Our fast `closable` says what the installed release's `workers_to_close()` says."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Scheduler

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install
from dask_adaptive_agent.closing import HAS_HOOK, closable
from support.agent_fakes import clear_workers, fake_worker, give_task


@pytest.fixture
async def s() -> AsyncIterator[Any]:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        yield scheduler
        clear_workers(scheduler)


def fill(s: Any, agent: Any, dice: random.Random) -> None:
    clear_workers(s)
    share_busy = dice.choice([0, 0.3, 1.0])
    for i in range(dice.choice([0, 1, 2, 5, 17, 60])):
        ws = fake_worker(s, i, memory_limit=dice.choice([0, 100, 200, 1000]))
        ws.nbytes = dice.choice([0, 0, 10, 50, dice.randrange(400)])
        if dice.random() < share_busy:
            ts = give_task(s, ws)
            if dice.random() < 0.1:
                ws.long_running.add(ts)
    agent.pins.unpin(source=wire.MANUAL, owner="dice")
    pinned = [str(ws.name) for ws in s.workers.values() if dice.random() < 0.1]
    agent.pins.pin(pinned, source=wire.MANUAL, owner="dice", reason="", ttl_s=60)


async def test_closable_is_what_workers_to_close_offers(s: Any) -> None:
    agent = install(s)
    dice = random.Random(1)
    offered = 0
    for _ in range(300):
        fill(s, agent, dice)
        expected = s.workers_to_close()
        assert expected == [ws.address for ws in closable(s, agent.free)]
        offered += len(expected)
    assert 500 < offered


async def test_the_memory_of_a_pinned_worker_counts(s: Any) -> None:
    """Upstream would keep the free worker for data that the pinned one has room for."""
    agent = install(s)
    pinned, free = (fake_worker(s, i, memory_limit=1000) for i in range(2))
    free.nbytes = 10
    agent.pins.pin([str(pinned.name)], source=wire.MANUAL, owner="x", reason="", ttl_s=60)

    assert [] == closable(s, agent.free)
    assert [free] == agent.offered(agent.roster.sync())


async def test_workers_to_close_never_offers_a_pinned_worker(s: Any) -> None:
    """Whatever its arguments, on releases with the plugin hook and on those that we wrap."""
    agent = install(s)
    dice = random.Random(2)
    for _ in range(100):
        fill(s, agent, dice)
        held = {ws.address for ws in s.workers.values() if str(ws.name) in agent.pins.names()}
        held |= {ws.address for ws in s.workers.values() if ws.long_running}
        for request in ({}, {"n": 1}, {"n": 100}, {"target": 1}, {"n": 3, "minimum": 2}):
            offered = s.handlers["workers_to_close"](**request)
            assert not held & set(offered)
            assert len(offered) <= request.get("n", len(s.workers))
            assert len(offered) == len(set(offered))
        if len(s.workers) > len(held):
            assert s.workers_to_close(n=1)
        names = s.workers_to_close(n=1, attribute="name")
        assert names == [s.workers[a].name for a in s.workers_to_close(n=1)]
    assert HAS_HOOK != ("workers_to_close" in s.__dict__)
