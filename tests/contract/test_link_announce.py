"""What the operator announces to a real scheduler's agent, and how often."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Scheduler, Worker

from dask_adaptive.loop.ports import LinkError, Told
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import Policy
from dask_adaptive.scheduler.link import Link, connect
from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install, uninstall

POLICY = Policy("t", 3)
TOLD = Told("etl", "5 wanted", (("w1", "stays"),), ((1.5, "g", "LoadIncreased", "8 tasks"),))
COMING = (Arriving(2, 100.0),)


@pytest.fixture
async def s() -> AsyncIterator[Any]:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        yield scheduler


@pytest.fixture
async def link(s: Any) -> AsyncIterator[Link]:
    made = connect(s.address, timeout_s=2.0, governs=True)
    yield made
    await made.close()


def heard(s: Any) -> list[dict[str, Any]]:
    """Announcements that reach the scheduler from now on."""
    requests: list[dict[str, Any]] = []
    handler = s.handlers[wire.ANNOUNCE]

    def listen(**request: Any) -> Any:
        requests.append(request)
        return handler(**request)

    s.handlers[wire.ANNOUNCE] = listen
    return requests


async def test_the_agent_knows_what_is_on_its_way(s: Any, link: Link) -> None:
    agent = install(s)
    await link.observe(POLICY)

    await link.announce(COMING, TOLD)

    (row,) = agent.announced.arriving
    assert (2, pytest.approx(100, abs=5)) == row
    assert ("etl", "5 wanted", {"w1": "stays"}) == (
        agent.announced.policy, agent.announced.message, agent.announced.workers,
    )  # fmt: skip
    assert [(1.5, "g", "LoadIncreased", "8 tasks")] == agent.announced.decisions


async def test_a_worker_that_joins_is_not_on_its_way_any_more(s: Any, link: Link) -> None:
    agent = install(s)
    await link.announce(COMING, TOLD)

    async with Worker(s.address, nthreads=1, memory_limit=0, dashboard=False):
        assert [1] == [workers for workers, _ in agent.announced.arriving]


async def test_what_has_not_changed_is_not_sent(s: Any, link: Link) -> None:
    install(s)
    requests = heard(s)

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

    assert "etl" == agent.announced.policy


async def test_another_agent_is_told_all(s: Any, link: Link) -> None:
    install(s)
    await link.observe(POLICY)
    await link.announce((), TOLD)
    uninstall(s)
    agent = install(s)
    await link.observe(POLICY)

    await link.announce((), TOLD)

    assert "etl" == agent.announced.policy


async def test_an_agent_too_old_for_it_is_left_alone(s: Any, link: Link) -> None:
    install(s)
    del s.handlers[wire.ANNOUNCE]
    await link.announce(COMING, TOLD)
    requests: list[Any] = []
    s.handlers[wire.ANNOUNCE] = lambda **request: requests.append(request)

    await link.announce((), Told("etl", "other"))

    assert [] == requests


async def test_stock_rpc_has_nobody_to_tell(s: Any) -> None:
    link = connect(s.address, timeout_s=2.0, attach=False)
    await link.announce(COMING, TOLD)
    await link.close()


async def test_nonsense_is_refused(s: Any, link: Link) -> None:
    agent = install(s)

    answer = s.handlers[wire.ANNOUNCE](arriving=[("many", 1)])

    assert wire.E_INVALID == answer["error"]
    assert [] == agent.announced.arriving
