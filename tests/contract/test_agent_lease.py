"""What an operator has said holds as long as its leader's passes come, and no longer."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

from dask_adaptive.model.policy import Policy
from dask_adaptive.model.recycle import Limit, Limits, Profile
from dask_adaptive.scheduler.link import connect
from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import Agent
from dask_adaptive_agent.attach import install
from dask_adaptive_agent.plugin import AdaptivePlugin
from support.agent_deadlines import Clock
from support.agent_quota import limit, runs, stopped
from support.agent_work import ask, retire, until

TWO = [("127.0.0.1", 1)] * 2


def states(answer: dict[str, Any]) -> set[str]:
    return {row["state"] for row in answer["relief"]}


async def everything(c: Any, s: Any, a: Any, b: Any) -> None:
    """All that an operator may say: a worker stopped at an exact limit, another one drains."""
    await ask(s, wire.CONFIGURE, shuffle_wait_ms=30_000, relief={})
    await ask(s, wire.ANNOUNCE, arriving=[(2, 10_000)], policy="p")
    await c.submit(runs, 1, 0, workers=[a.address])
    await limit(s, [a], 1, exact=True)
    await retire(s, b.name)
    await ask(s, wire.PIN, names=["x"], source=wire.MANUAL, owner="me", ttl_ms=3_600_000)
    assert not s.running


@pytest.mark.parametrize("who", ["nobody", "somebody who just looks"])
def test_without_the_leader_a_scheduler_is_stock_within_five_minutes(who: str) -> None:
    @gen_cluster(client=True, nthreads=TWO)
    async def run(c: Any, s: Any, a: Any, b: Any) -> None:
        clock = Clock()
        agent = Agent(s, clock)
        AdaptivePlugin(agent).install()
        await everything(c, s, a, b)
        for _ in range(4):
            clock.ahead_s += 74
            if who != "nobody":
                await ask(s, wire.OBSERVE, meters=True)
                await ask(s, wire.CONFIGURE, tally=False)
        assert not s.running
        assert agent.announced.policy
        assert 0 == agent.lapses

        clock.ahead_s += 5
        await until(lambda: 2 == len(s.running))

        seen = await ask(s, wire.OBSERVE)
        assert 1 == seen["lapses"]
        assert not seen["stops"]
        assert not seen["retirements"]
        assert states(seen) <= {wire.R_DISABLED, wire.R_NOT_NEEDED}
        assert 0 == agent.settings.shuffle_wait_ms
        assert not agent.announced.policy
        assert "_add_to_processing" not in s.__dict__
        assert [("x",)] == [tuple(names) for names in agent.pins.claims().values()]
        await wait(c.map(runs, range(20), delay_s=0))

    run()


@gen_cluster(client=True, nthreads=TWO)
async def test_the_leaders_passes_keep_it(c: Any, s: Any, a: Any, b: Any) -> None:
    clock = Clock()
    agent = Agent(s, clock)
    AdaptivePlugin(agent).install()
    await everything(c, s, a, b)
    for _ in range(10):
        clock.ahead_s += 200
        seen = await ask(s, wire.OBSERVE, renew=True)
        assert (0, 1, 1) == (seen["lapses"], len(seen["stops"]), len(seen["retirements"]))


@gen_cluster(client=True, nthreads=TWO)
async def test_in_real_time_without_a_message(c: Any, s: Any, a: Any, b: Any) -> None:
    agent = install(s)
    await ask(s, wire.CONFIGURE, lease_ms=1500, relief={})
    await everything(c, s, a, b)

    await until(lambda: agent.lapses, timeout_s=5)
    await until(lambda: 2 == len(s.running), timeout_s=3)
    assert {} == await stopped(s)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_scheduler_that_nobody_has_told_anything_keeps_its_reliefs(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    clock = Clock()
    agent = Agent(s, clock)
    AdaptivePlugin(agent).install()
    before = states(await ask(s, wire.OBSERVE))
    clock.ahead_s += 1e6
    await ask(s, wire.CONFIGURE, tally=True)

    assert (before, 0) == (states(seen := await ask(s, wire.OBSERVE)), seen["lapses"])
    assert agent.lapses == 0


@gen_cluster(client=True, nthreads=TWO)
async def test_an_operator_that_comes_back_says_it_all_again(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    clock = Clock()
    agent = Agent(s, clock)
    AdaptivePlugin(agent).install()
    link = connect(s.address, governs=True)
    limits = Limits({str(a.name): Limit(runs=7)}, (Profile(),), 1)
    before = states(await _pass(link, limits, s))
    clock.ahead_s += 400
    await until(lambda: agent.lapses)
    assert agent.limits.is_empty

    assert before == states(await _pass(link, limits, s))
    assert 7 == agent.limits.of(a.address).runs
    assert 0 < agent.settings.shuffle_wait_ms
    await link.close()


async def _pass(link: Any, limits: Limits, s: Any) -> dict[str, Any]:
    assert (await link.observe(Policy("t", 3))).is_connected
    await link.limit(limits)
    return await ask(s, wire.OBSERVE)
