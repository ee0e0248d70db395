"""Workers whose quota has run out are replaced, and no task notices: with real processes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dask_adaptive.loop.ports import EventType
from dask_adaptive.loop.status import ABLE_TO_SCALE
from dask_adaptive.model.observed import ManualPin
from dask_adaptive.model.reason import Reason
from support.stage import Stage, Start
from support.tasks import break_process, fragile, leak, where

#: All workers may be out of service at once: the quota is what a test is about, not the budget.
ANY: dict[str, Any] = {"budgets": [{"workers": "100%"}]}


def fixed(workers: int, **recycle: Any) -> dict[str, Any]:
    """A policy that never scales."""
    return {
        "minReplicas": workers, "maxReplicas": workers, "idleTimeout": "60s", "disruption": ANY,
        "recycle": recycle,
    }  # fmt: skip


async def gathered(s: Stage, futures: Any, *, within_s: float = 120.0) -> Any:
    """Results; a hang or a loop that breaks is a failure."""
    waiting = asyncio.ensure_future(s.client.gather(futures))
    began = time.monotonic()
    while not waiting.done():
        s.rehearsal.raise_if_broken()
        assert time.monotonic() - began < within_s, f"last seen {s.status}"
        await asyncio.sleep(0.05)
    return await waiting


async def ran(s: Stage, tasks: int, seconds: float = 0.2, *, within_s: float = 120.0) -> Any:
    """Run so many tasks, and look that none is lost; their futures, which hold the results."""
    futures = s.client.map(where, range(tasks), seconds=seconds, pure=False)
    results = await gathered(s, futures, within_s=within_s)
    assert list(range(tasks)) == [i for i, _ in results]
    return futures


async def runs_in(s: Stage, futures: Any) -> Counter[Any]:
    """How many of them each process has run."""
    return Counter(process for _, process in await s.client.gather(futures))


async def test_an_exact_quota_holds_though_all_workers_come_to_it_at_once(stage: Start) -> None:
    """On 0.1.0: up to 40 runs in a process, 13 of 15 processes over their quota of 15."""
    spec = fixed(4, tasks={"max": 15, "exact": True})
    spec["disruption"] = {}  # the default: a quarter of the workers may be missing
    s = await stage(4, spec)
    kept = await ran(s, 140, within_s=400.0)
    runs = await runs_in(s, kept)

    assert 15 == max(runs.values())
    assert 140 / 15 <= len(runs)
    assert len(runs) - 8 <= s.recycled()["TaskQuota"] <= len(runs)
    assert (140, 140, 0) == await s.counts()
    assert "TaskQuota" in s.reasons()


async def test_a_leak_is_ended_before_the_nanny_does(stage: Start, tmp_path: Path) -> None:
    """
    With a nanny that would kill the worker at 95 % of its 800 MB: after some 27 tasks.

    As slow as a replacement takes to start on a busy machine: both workers leak, and one of two
    stays until the other's is there.
    """
    memory = {"soft": "35%", "for": "1s", "hard": "50%"}
    s = await stage(2, fixed(2, memory=memory), memory_limit="800MB", nanny=True)
    names = set[str]()  # of workers that were ever connected
    futures = s.client.map(leak, range(60), size=25_000_000, seconds=0.5, pure=False)
    results = asyncio.ensure_future(gathered(s, futures))
    while not results.done():
        names |= {w.name for w in s.last.observed.scheduler.workers} if s.last else set()
        await asyncio.sleep(0.1)

    assert list(range(60)) == await results
    assert 2 <= sum(s.recycled().get(word, 0) for word in ("MemorySoft", "MemoryHard"))
    logs = [(tmp_path / f"{name}.log").read_text(errors="replace") for name in names]
    assert all("distributed.nanny" in log for log in logs), "there was a nanny"
    assert not any("exceeded 95% memory budget" in log for log in logs)
    assert (60, 60, 0) == await s.counts()


async def test_a_worker_on_which_everything_fails_is_replaced_and_no_task_is_lost(
    stage: Start,
) -> None:
    s = await stage(2, fixed(2, failures={"patterns": ["*CUDA error*"]}))
    workers = (await s.client.scheduler.identity())["workers"]
    victim = sorted(workers)[0]
    name = str(workers[victim]["name"])
    await s.client.run(break_process, workers=[victim])
    futures = s.client.map(fragile, range(40), seconds=0.1, pure=False, retries=3)
    results = await gathered(s, futures)
    await s.until(lambda: name not in s.names() and s.status.connected == 2, "it is replaced")

    assert list(range(40)) == [i for i, _ in results]
    assert {"Failures": 1} == s.recycled()
    tally = await s.final_tally()
    # Stopped before the retry is given out: only what ran there already may have failed there.
    assert 1 <= tally.erred <= 2
    assert 0 == tally.redone
    assert any("CUDA error" in e.message for e in s.events if e.reason is Reason.FAILURES)


async def test_long_tasks_and_a_walltime(stage: Start) -> None:
    """
    Long tasks under a walltime, in seconds; a worker takes some of them to start.

    Both workers end at the same instant, so both need a replacement at once: one after the other,
    each draining for as long as a task takes, the second one would be too late.
    """
    lifetime = {"minTaskDuration": "3s", "margin": "5s"}
    s = await stage(2, fixed(2, lifetime=lifetime, strategy={"maxSurge": 2}))
    old, end = s.names(), time.time() + 14
    for name in old:
        s.rehearsal.platform.annotate(name, ends_at=end)
    running = asyncio.ensure_future(ran(s, 8, 3.0))
    await s.until(lambda: not old & s.names(), "both are replaced")

    assert time.time() < end
    _kept = await running
    assert (8, 8, 0) == await s.counts()
    assert {"Lifetime": 2} == s.recycled()


@pytest.mark.parametrize("capacity", [3, 2], ids=["room-for-one-more", "no-room"])
async def test_an_exact_quota_of_seconds_stops_nothing_for_long(
    stage: Start, capacity: int
) -> None:
    """
    Workers at their quota take the results of those that leave.

    A replacement is at its quota before it could take any; where none comes, it is said, and the
    workers are replaced one after the other in their places.
    """
    strategy = {"readyTimeout": "2s"}
    spec = fixed(2, tasks={"max": 5, "exact": True}, maxPerHour=100, strategy=strategy)
    s = await stage(2, spec, capacity=capacity)
    running = asyncio.ensure_future(ran(s, 30, within_s=300.0))
    if capacity == 2:
        await s.until(lambda: "2 of 2 workers" in s.message(ABLE_TO_SCALE), "it is told")

    assert 5 == max((await runs_in(s, await running)).values())
    assert s.peak <= 3
    assert (30, 30, 0) == await s.counts()


async def test_old_workers_go_on_where_no_replacement_comes(stage: Start) -> None:
    """The machine has room for two: like a bad image, or a quota of the namespace."""
    strategy = {"readyTimeout": "2s"}
    s = await stage(2, fixed(2, tasks={"max": 4}, strategy=strategy), capacity=2)
    before = s.names()
    _kept = await ran(s, 40)
    await s.until(lambda: "RecycleAborted" in s.reasons(), "it is told")

    assert before <= s.names()
    aborted = [e for e in s.events if e.reason is Reason.RECYCLE_ABORTED]
    assert all(e.type is EventType.WARNING and "Unschedulable" in e.message for e in aborted)
    assert {} == s.recycled()
    await s.until(lambda: s.names() == before and s.status.replicas == 2, "nothing is left pending")
    assert (40, 40, 0) == await s.counts()


async def test_a_person_has_one_worker_replaced_and_a_pin_keeps_another(stage: Start) -> None:
    s = await stage(3, fixed(3))
    asked, held, other = sorted(s.names())
    kept = await s.work(12, 0.05)
    s.rehearsal.platform.annotate(held, manual_pin=ManualPin(time.time() + 600, ""))
    await s.until(
        lambda: ("manual", 1) in [(h.source, h.count) for h in s.status.held_by], "it is pinned"
    )
    for name in (asked, held):
        s.rehearsal.platform.annotate(name, recycle_request="by annotation")

    await s.until(lambda: asked not in s.names() and s.status.connected == 3, "it is replaced")
    for _ in range(3):
        await s.fresh_pass()
    assert {held, other} <= s.names()
    assert {"RecycleRequested": 1} == s.recycled()
    s.rehearsal.platform.annotate(held, manual_pin=None)
    await s.until(lambda: held not in s.names() and s.status.connected == 3, "then the other")
    await s.check(kept)
    await s.until(lambda: not s.replacing, "and no more")
    assert {"RecycleRequested": 2} == s.recycled()
