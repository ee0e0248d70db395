"""What was run more than once is counted, by the cause and in the tally, and nothing else is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Worker, wait

from dask_adaptive_agent import wire
from support.agent_cluster import with_agent
from support.agent_work import (
    MAY_END,
    RUNS,
    ask,
    count_runs,
    held,
    holding,
    leave,
    retire,
    running,
    slow,
    tally,
    until,
    until_state,
)

NOTHING = {wire.LOST: 0, wire.FORCED: 0, wire.ENDED: 0}


async def redone(s: Any) -> dict[str, int]:
    counts: dict[str, int] = (await ask(s, wire.OBSERVE))["redone"]
    return counts


#: Any worker may compute it again.
ANYWHERE = {"allow_other_workers": True, "pure": False}


@with_agent()
async def test_a_worker_that_is_lost_with_a_task_and_results(c, s, a, b) -> None:
    count_runs(s)
    results = await holding(c, a, 3, **ANYWHERE)
    assert (3, 3, 0, 0, 0) == tally(s, "tasks", "runs", "repeated", "interrupted", "erred")
    on_a = len(s.workers[a.address].has_what)
    task = await running(c, a, "task", **ANYWHERE)

    await s.remove_worker(a.address, stimulus_id="test", close=False)
    MAY_END.set()
    await c.gather([*results, task])

    assert {**NOTHING, wire.LOST: on_a + 1} == await redone(s)
    assert on_a
    assert 4 + 1 + on_a == len(RUNS)
    assert (4, 4 + on_a, on_a, 1) == tally(s, "tasks", "runs", "repeated", "interrupted")


@with_agent()
async def test_results_that_are_elsewhere_or_not_wanted_are_no_loss(c, s, a, b) -> None:
    results = await holding(c, a, 1, **ANYWHERE)
    await c.replicate(results)

    await a.close()
    await until(lambda: a.address not in s.workers)

    assert NOTHING == await redone(s)
    assert [0] == RUNS


@with_agent()
async def test_a_result_that_only_a_task_waits_for_is_a_loss(c, s, a, b) -> None:
    (first,) = await holding(c, a, 1, **ANYWHERE)
    other = c.submit(held, 2, workers=[b.address])
    then = c.submit(slow, 3, 0, first, other, workers=[b.address])
    await until(lambda: then.key in s.tasks and b.state.executing_count)
    first.release()
    await until(lambda: not s.tasks[first.key].who_wants)

    await s.remove_worker(a.address, stimulus_id="test", close=False)
    MAY_END.set()
    await then

    assert {**NOTHING, wire.LOST: 1} == await redone(s)
    assert [0, 0, 2, 3] == sorted(RUNS)


@with_agent()
async def test_a_retirement_that_is_forced(c, s, a, b) -> None:
    task = await running(c, a, "task", **ANYWHERE)
    how = {"busy_ok": True, "deadline_ms": 100, "on_timeout": "Force"}
    await retire(s, a.name, **how)
    await until_state(s, a.name, wire.DRAINED, **how)

    await s.remove_worker(a.address, stimulus_id="test", close=False)
    MAY_END.set()
    await task

    assert {**NOTHING, wire.FORCED: 1} == await redone(s)


@pytest.mark.long
@with_agent()
async def test_a_departure_whose_time_runs_out(c, s, a, b) -> None:
    task = await running(c, a, "task", **ANYWHERE)

    await leave(s, a.name, left_ms=500)
    await until(lambda: a.address not in s.workers)

    assert {**NOTHING, wire.ENDED: 1} == await redone(s)
    MAY_END.set()
    await task


@with_agent()
async def test_a_worker_that_is_drained_loses_nothing(c, s, a, b) -> None:
    results = await holding(c, a, 3, **ANYWHERE)
    await retire(s, a.name)
    await until_state(s, a.name, wire.DRAINED)

    await a.close()
    await until(lambda: a.address not in s.workers)
    await c.gather(results)

    assert NOTHING == await redone(s)
    assert 3 == len(RUNS)


@with_agent(1)
async def test_a_worker_that_says_goodbye_is_counted_once(c, s, a) -> None:
    """Through `unregister`, and once more when its connection breaks."""
    async with Worker(s.address, nthreads=1) as w:
        (result,) = await holding(c, w, 1, **ANYWHERE)
        on_w = len(s.workers[w.address].has_what)
    await until(lambda: len(s.workers) == 1)
    await result

    assert {**NOTHING, wire.LOST: on_w} == await redone(s)


@pytest.mark.long
@with_agent()
async def test_a_scheduler_that_closes_counts_nothing(c, s, a, b, agent) -> None:
    tasks = c.map(slow, range(2), delay_s=0.3)
    await until(lambda: a.state.executing_count and b.state.executing_count)

    await s.close()
    await asyncio.gather(a.close(), b.close())

    assert agent.drains.redone == NOTHING
    del tasks


def fail(i: int) -> None:
    raise ValueError(i)


@with_agent()
async def test_an_erred_run_is_not_redone_work(c, s, a, b) -> None:
    count_runs(s)

    await wait(c.submit(fail, 1, retries=2))

    assert (0, 0, 3, 0) == tally(s, "tasks", "runs", "erred", "repeated")


@with_agent()
async def test_a_key_that_was_forgotten_is_new_again(c, s, a, b) -> None:
    count_runs(s)
    future = c.submit(slow, 1, 0, key="mine")
    await future
    future.release()
    await until(lambda: not s.tasks)

    await c.submit(slow, 2, 0, key="mine")

    assert (2, 2, 0) == tally(s, "tasks", "runs", "repeated")
