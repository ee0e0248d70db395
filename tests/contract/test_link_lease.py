"""Only the link of the leader's pass configures and renews; what lapsed is told again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Scheduler

from dask_adaptive.loop.ports import Told
from dask_adaptive.model.policy import ClusterRef, Policy
from dask_adaptive.model.recycle import Limit, Limits, Profile
from dask_adaptive.scheduler.link import connect
from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install
from support.agent_work import observe_once

POLICY = Policy(ClusterRef("t"), 3)
LIMITS = Limits({"a": Limit(runs=2)}, (Profile(),), 1)
TOLD = Told("etl", "5 wanted")


@pytest.fixture
async def s() -> AsyncIterator[Any]:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        scheduler.adaptive_agent = install(scheduler)
        yield scheduler


class Wire:
    """All requests that reach a scheduler, and how often its agent says that its lease ended."""

    def __init__(self, s: Any) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.lapses = 0
        for op in wire.HANDLERS:
            s.handlers[op] = self._listening(op, s.handlers[op])

    def taken(self) -> list[str]:
        ops = [op for op, _ in self.requests]
        self.requests.clear()
        return ops

    def _listening(self, op: str, stock: Any) -> Any:
        def listen(**request: Any) -> Any:
            self.requests.append((op, request))
            answer = stock(**request)
            return {**answer, "lapses": self.lapses} if op == wire.OBSERVE else answer

        return listen


async def a_pass(link: Any) -> None:
    seen = await link.observe(POLICY)
    assert seen.is_connected, seen.message
    await link.limit(LIMITS)
    await link.announce((), TOLD)


async def test_the_link_that_governs_renews_the_lease_and_no_other_does(s: Any) -> None:
    heard = Wire(s)
    governing = connect(s.address, governs=True)
    onlooker, counting = connect(s.address), connect(s.address, tally=True)
    await governing.observe(POLICY)
    assert [wire.HELLO, wire.CONFIGURE, wire.OBSERVE] == [op for op, _ in heard.requests]
    assert heard.requests[-1][1]["renew"] is True

    heard.requests.clear()
    await onlooker.observe(POLICY)
    await observe_once(s.address)
    await counting.observe(POLICY)

    assert not any(request.get("renew", False) for _, request in heard.requests)
    configured = [request for op, request in heard.requests if op == wire.CONFIGURE]
    assert [{"tally": True}] == [
        {key: value for key, value in request.items() if key != "protocol"}
        for request in configured
    ]
    for link in (governing, onlooker, counting):
        await link.close()


async def test_what_a_lease_took_away_is_told_again_in_the_same_pass(s: Any) -> None:
    heard = Wire(s)
    link = connect(s.address, governs=True)
    await a_pass(link)
    heard.taken()
    await a_pass(link)
    assert [wire.OBSERVE] == heard.taken(), "an agent that knows it all is not told it again"

    heard.lapses = 1
    await a_pass(link)
    assert [wire.OBSERVE, wire.CONFIGURE, wire.LIMIT, wire.ANNOUNCE] == heard.taken()
    await a_pass(link)
    assert [wire.OBSERVE] == heard.taken()
    await link.close()


async def test_a_scheduler_left_alone_is_stock_until_its_operator_is_back(s: Any) -> None:
    agent = s.adaptive_agent
    link = connect(s.address, governs=True)
    await a_pass(link)
    told = {row["name"]: row["state"] for row in agent.reliefs.rows()}
    assert (False, "etl", 60_000) == (
        agent.limits.is_empty, agent.plans.policy, agent.settings.shuffle_wait_ms,
    )  # fmt: skip
    assert wire.R_ACTIVE in told.values()

    agent.settings.lease_ms = 200
    agent.lease.renew()
    began = time.monotonic()
    while not agent.lease.lapses:
        assert time.monotonic() - began < 20, "nobody renews it, and it holds"
        await asyncio.sleep(0.05)
        await observe_once(s.address)
    assert agent.limits.is_empty
    assert ("", 0) == (agent.plans.policy, agent.settings.shuffle_wait_ms)
    assert wire.R_ACTIVE not in [row["state"] for row in agent.reliefs.rows()]

    agent.settings.lease_ms = 300_000
    await a_pass(link)
    assert told == {row["name"]: row["state"] for row in agent.reliefs.rows()}
    assert (False, "etl", 60_000) == (
        agent.limits.is_empty, agent.plans.policy, agent.settings.shuffle_wait_ms,
    )  # fmt: skip
    await link.close()
