"""What an operator has said holds as long as its leader's passes come, and no longer."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install
from support.agent_deadlines import Clock
from support.agent_quota import cordoned, limit, runs
from support.agent_work import ask, retire, until

TWO = [("127.0.0.1", 1)] * 2


def states(answer: dict[str, Any]) -> set[str]:
    return {row["state"] for row in answer["relief"]}


async def everything(c, s, a, b) -> None:
    """All that an operator may say: a worker cordoned at an exact limit, another one drains."""
    await ask(s, wire.CONFIGURE, shuffle_wait_ms=30_000, relief={})
    await ask(s, wire.ANNOUNCE, arriving=[(2, 10_000)], policy="p")
    await c.submit(runs, 1, 0, workers=[a.address])
    await limit(s, [a], 1, exact=True)
    await retire(s, b.name)
    await ask(s, wire.PIN, names=["x"], source=wire.MANUAL, owner="me", ttl_ms=3_600_000)
    assert not s.running


@pytest.mark.parametrize("who", ["nobody", "somebody who just looks"])
@gen_cluster(client=True, nthreads=TWO)
async def test_without_the_leader_a_scheduler_is_stock_within_five_minutes(c, s, a, b, who) -> None:
    agent = install(s, clock := Clock())
    await everything(c, s, a, b)
    for _ in range(4):
        clock.ahead_s += 74
        if who != "nobody":
            await ask(s, wire.OBSERVE, meters=True)
            await ask(s, wire.CONFIGURE, tally=False)
    assert not s.running
    assert agent.plans.policy
    assert 0 == agent.lease.lapses

    clock.ahead_s += 5
    await until(lambda: 2 == len(s.running))

    seen = await ask(s, wire.OBSERVE)
    assert 1 == seen["lapses"]
    assert not seen["stops"]
    assert not seen["retirements"]
    assert states(seen) <= {wire.R_DISABLED, wire.R_NOT_NEEDED}
    assert 0 == agent.settings.shuffle_wait_ms
    assert not agent.plans.policy
    assert "_add_to_processing" not in s.__dict__
    assert [("x",)] == [tuple(names) for names in agent.pins.leases.claims().values()]
    await wait(c.map(runs, range(20), delay_s=0))


@gen_cluster(client=True, nthreads=TWO)
async def test_the_leaders_passes_keep_it(c, s, a, b) -> None:
    install(s, clock := Clock())
    await everything(c, s, a, b)
    for _ in range(10):
        clock.ahead_s += 200
        seen = await ask(s, wire.OBSERVE, renew=True)
        assert (0, 1, 1) == (seen["lapses"], len(seen["stops"]), len(seen["retirements"]))


@gen_cluster(client=True, nthreads=TWO)
async def test_in_real_time_without_a_message(c, s, a, b) -> None:
    agent = install(s)
    await ask(s, wire.CONFIGURE, lease_ms=1500, relief={})
    await everything(c, s, a, b)

    await until(lambda: agent.lease.lapses, timeout_s=5)
    await until(lambda: 2 == len(s.running), timeout_s=3)
    assert {} == await cordoned(s)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_scheduler_that_nobody_has_told_anything_keeps_its_reliefs(c, s, a, b) -> None:
    agent = install(s, clock := Clock())
    before = states(await ask(s, wire.OBSERVE))
    clock.ahead_s += 1e6
    await ask(s, wire.CONFIGURE, tally=True)

    assert (before, 0) == (states(seen := await ask(s, wire.OBSERVE)), seen["lapses"])
    assert agent.lease.lapses == 0
