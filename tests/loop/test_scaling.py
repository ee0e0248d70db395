"""The loop over this machine: real schedulers and workers come and go, and nothing is redone."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest

from dask_adaptive.model.reason import Reason
from support.stage import Stage
from support.tasks import slow

Start = Callable[..., Awaitable[Stage]]


async def test_workers_follow_the_load_and_leave_with_tasks_running(stage: Start) -> None:
    s = await stage()
    short = s.client.map(slow, range(18), seconds=0.3, pure=False)
    long = s.client.submit(slow, 0, seconds=6, pure=False)
    await s.until(lambda: s.status.connected == 3, "scaled up")
    assert 18 == sum(await s.client.gather(short))

    await s.until(lambda: s.status.connected < 3 and s.status.busy == 1, "idle ones left")
    assert 1 == await long
    del short, long
    await s.until(lambda: not s.names(), "scaled to zero")

    tally = await s.final_tally()
    assert (19, 19, 0) == (tally.tasks, tally.runs, tally.redone)


async def test_the_only_copies_of_results_survive_the_fall(stage: Start) -> None:
    s = await stage(spec={"minReplicas": 1})
    kept = s.client.map(slow, range(30), seconds=0.2, pure=False)
    await s.until(lambda: s.status.connected == 3, "scaled up")
    await s.client.gather(kept)
    await s.until(lambda: len(s.names()) == 1, "down to the minimum")

    assert 30 == sum(await s.client.gather(kept))
    tally = await s.final_tally()
    assert (30, 30, 0) == (tally.tasks, tally.runs, tally.redone)


async def test_far_more_replicas_than_fit(stage: Start) -> None:
    """Upstream closes busy workers here and never ends (facts: max 30 where 6 fit)."""
    s = await stage(spec={"maxReplicas": 20}, capacity=3)
    futures = s.client.map(slow, range(60), seconds=0.2, pure=False)
    await s.until(lambda: s.status.connected == 3, "as many as fit")
    assert (("Unschedulable", 17),) == s.status.pending_reasons
    began = time.monotonic()
    assert 60 == sum(await s.client.gather(futures))

    took = time.monotonic() - began
    assert took < 30  # 60 tasks of 0.2 s on three workers are 4 s; upstream never ends
    del futures
    await s.until(lambda: not s.names(), "all are gone")
    tally = await s.final_tally()
    assert (60, 60, 0) == (tally.tasks, tally.runs, tally.redone)
    assert not any(e.reason is Reason.ACTION_FAILED for e in s.events)


async def test_a_shuffle_runs_once_under_a_forced_fall(stage: Start) -> None:
    import dask
    import dask.dataframe as dd
    import pandas as pd

    s = await stage(spec={"minReplicas": 3})
    await s.until(lambda: s.status.connected == 3, "three workers")

    def part(i: int) -> pd.DataFrame:
        time.sleep(0.3)
        return pd.DataFrame({"x": range(1000), "k": [v % 97 for v in range(1000)]})

    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        meta = pd.DataFrame({"x": pd.Series(dtype="int64"), "k": pd.Series(dtype="int64")})
        frame = dd.from_map(part, range(24), meta=meta).shuffle("k", npartitions=6)
        total = s.client.compute(frame["x"].sum())
    await s.until(lambda: bool(s.last and s.last.observed.scheduler.shuffles), "it runs")
    await s.change(minReplicas=0, maxReplicas=1)  # the most that a policy can push
    await s.until(lambda: ("shuffle", 3) in s.status.pins, "its workers are pinned")

    assert 24 * sum(range(1000)) == await total
    del total
    await s.until(lambda: not s.names(), "then they leave")
    tally = await s.final_tally()
    assert (1, 1, 0) == (tally.shuffles, tally.max_shuffle_run, tally.redone)


async def test_a_pinned_worker_is_the_last_to_stay(stage: Start) -> None:
    s = await stage(spec={"minReplicas": 3})
    await s.until(lambda: s.status.connected == 3, "three workers")
    keep = sorted(s.names())[0]
    s.rehearsal.platform.annotations.set_pin(keep, "10m", "why not")
    await s.change(minReplicas=0)

    await s.until(lambda: s.names() == {keep}, "all others leave")
    row = next(r for r in s.status.workers if r.name == keep)
    assert (Reason.PINNED, "pinned by annotation (why not)") == (row.reason, row.message)

    s.rehearsal.platform.annotations.set_pin(keep, None)
    await s.until(lambda: not s.names(), "unpinned, it leaves")
    assert {"PinRequested", "PinRemoved"} <= s.reasons()


async def test_a_malformed_pin_is_a_pin(stage: Start) -> None:
    s = await stage(spec={"minReplicas": 2})
    await s.until(lambda: s.status.connected == 2, "two workers")
    keep = sorted(s.names())[0]
    s.rehearsal.platform.annotations.set_pin(keep, "for a while")
    await s.change(minReplicas=0)

    await s.until(lambda: s.names() == {keep}, "the other leaves")
    invalid = [e for e in s.events if e.reason is Reason.INVALID_PIN]
    assert [keep] == [e.worker for e in invalid]
    assert "a duration such as 4h" in invalid[0].message


async def test_advise_says_and_does_nothing(stage: Start) -> None:
    s = await stage(spec={"mode": "Advise", "minReplicas": 2})
    await s.until(lambda: any(e.would for e in s.events), "it says what it would do")

    assert set() == s.names()
    assert 0 == s.status.replicas


async def test_paused_returns_and_keeps_workers(stage: Start) -> None:
    s = await stage(spec={"minReplicas": 2})
    await s.until(lambda: s.status.connected == 2, "two workers")
    await s.change(mode="Paused", minReplicas=0)
    for _ in range(6):
        await s.fresh_pass()
    assert 2 == len(s.names())

    await s.change(mode="Auto")
    await s.until(lambda: not s.names(), "resumed, they leave")


@pytest.mark.parametrize("inject", [True, False], ids=["preloaded", "attached-live"])
async def test_the_agent_gets_in(stage: Start, inject: bool) -> None:
    s = await stage(spec={"minReplicas": 1}, inject=inject)
    await s.until(lambda: s.status.connected == 1, "one worker")

    assert s.status.agent
    assert {c.type: c.status for c in s.status.conditions}["Injected"]


async def test_without_an_agent_stock_rpc_serves_and_keeps_the_busy(stage: Start) -> None:
    s = await stage(inject=False, attach=False)
    futures = s.client.map(slow, range(20), seconds=0.3, pure=False)
    await s.until(lambda: s.status.connected == 3, "scaled up")
    keep = s.client.submit(slow, 0, seconds=5, pure=False)
    await s.client.gather(futures)
    del futures
    await s.until(lambda: s.status.connected < 3 and s.status.busy == 1, "idle ones leave")

    assert 1 == await keep
    injected = next(c for c in s.status.conditions if c.type == "Injected")
    assert (False, Reason.INJECTION_REFUSED) == (injected.status, injected.reason)
    del keep
    await s.until(lambda: not s.names(), "scaled to zero")
