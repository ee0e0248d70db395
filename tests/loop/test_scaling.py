"""The loop over this machine: real schedulers and workers come and go, and nothing is redone."""

from __future__ import annotations

import time
from typing import Any

from distributed import Event

from dask_adaptive.model.reason import Reason
from dask_adaptive_agent import pinned
from support.stage import Machines, Stage, Start
from support.tasks import held, p2p, slow


async def test_workers_follow_the_load_and_leave_with_tasks_running(stage: Start) -> None:
    s = await stage()
    short = s.client.map(slow, range(18), seconds=0.3, pure=False)
    long = s.client.submit(held, 0, event="go", pure=False)
    await s.connected(3)
    assert 18 == sum(await s.client.gather(short))

    await s.until(lambda: s.status.connected < 3 and s.status.busy == 1, "idle ones left")
    await Event("go", client=s.client).set()
    await long
    del short, long
    await s.gone()

    assert (19, 19, 0) == await s.counts()


async def test_far_more_replicas_than_fit(stage: Start) -> None:
    """Upstream closes busy workers here and never ends: tests/bench/upstream."""
    s = await stage(spec={"maxReplicas": 20}, capacity=3)
    futures = s.client.map(slow, range(60), seconds=0.2, pure=False)
    await s.connected(3)
    assert {"Unschedulable": 17} == s.status.pending_reasons
    began = time.monotonic()
    assert 60 == sum(await s.client.gather(futures))

    took = time.monotonic() - began
    assert took < 30  # 60 tasks of 0.2 s on three workers are 4 s; upstream never ends
    del futures
    await s.gone()
    assert (60, 60, 0) == await s.counts()
    assert not any(e.reason is Reason.ACTION_FAILED for e in s.events)


def shuffled_sum(s: Stage) -> Any:
    """Begin a P2P shuffle of 24 partitions that take 0.3 s each; a future of its outcome's sum."""
    import pandas as pd

    def part(i: int) -> pd.DataFrame:
        time.sleep(0.3)
        return pd.DataFrame({"x": range(1000), "k": [v % 97 for v in range(1000)]})

    return s.client.compute(p2p(part, 24, 6)["x"].sum())


async def test_a_shuffle_runs_once_under_a_forced_fall(stage: Start) -> None:
    s = await stage(workers=3)
    total = shuffled_sum(s)
    await s.until(lambda: bool(s.last and s.last.observed.scheduler.shuffles), "it runs")
    await s.change(minReplicas=0, maxReplicas=1)  # the most that a policy can push
    await s.until(
        lambda: ("shuffle", 3) in [(h.source, h.count) for h in s.status.held_by],
        "its workers are pinned",
    )

    assert 24 * sum(range(1000)) == await total
    del total
    await s.gone()
    tally = await s.final_tally()
    assert (1, 1, 0) == (tally.shuffles, tally.max_shuffle_run, tally.redone)


async def test_without_an_agent_only_the_minimum_is_kept(stage: Start) -> None:
    s = await stage(spec={"minReplicas": 2}, inject=False, attach=False)
    futures = s.client.map(slow, range(20), seconds=0.3, pure=False)
    await s.until(lambda: len(s.names()) == 2, "as many as minReplicas")
    await s.client.gather(futures)
    for _ in range(6):
        await s.fresh_pass()

    assert (2, Reason.INJECTION_REFUSED) == (len(s.names()), s.status.reason)
    injected = next(c for c in s.status.conditions if c.type == "Injected")
    assert (False, Reason.INJECTION_REFUSED) == (injected.status, injected.reason)


async def test_a_node_that_goes_costs_no_work(stage: Start) -> None:
    """Busy workers with the only copies of results: replaced first, then drained and deleted."""
    machines = Machines()
    s = await stage(workers=2, spec={"maxReplicas": 2}, wrap_ports=machines.wrap)
    kept = await s.work(12, 0.1)
    running = s.client.map(slow, range(4), seconds=2, pure=False)
    await s.until(lambda: s.status.busy == 2, "both work")
    old = s.names()
    machines.going = set(old)

    await s.until(lambda: not old & s.names() and s.status.connected == 2, "two others serve")
    await s.until(lambda: s.status.replicas == 2, "settled")
    assert s.peak > 2  # the replacements were asked for before anybody left
    assert {"NodeGoing", "Drained"} <= s.reasons()
    assert 12 == sum(await s.client.gather(kept))
    assert 4 == sum(await s.client.gather(running))
    assert (16, 16, 0) == await s.counts()


async def test_a_pin_from_code_is_shown_and_holds_until_it_is_given_up(stage: Start) -> None:
    s = await stage(workers=3, spec={"pins": {"client": {"maxDuration": "1h"}}})
    keep = sorted(s.names())[0]
    async with pinned([keep], ttl="30s", reason="looking at it", client=s.client):
        await s.change(minReplicas=0)
        await s.until(lambda: s.names() == {keep}, "all others leave")
        (held,) = s.status.held_by
        assert ("client", "looking at it", (keep,), 1) == (
            held.source, held.reason, held.workers, held.count,
        )  # fmt: skip
        assert 3500 < held.left_s <= 3600  # not the 30 s of a lease, which is renewed
    await s.until(lambda: s.status.held_by == () and not s.names(), "nothing is pinned for ever")
