"""What has to be done again because a worker is gone is counted, by the cause of its end."""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import Worker, wait
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install, uninstall
from support.agent_work import RUNS, ask, leave, retire, slow, until, until_state

TWO = [("127.0.0.1", 1)] * 2
NOTHING = {wire.LOST: 0, wire.FORCED: 0, wire.ENDED: 0}


async def redone(s: Any) -> dict[str, int]:
    counts: dict[str, int] = (await ask(s, wire.OBSERVE))["redone"]
    return counts


def anywhere(worker: Any) -> dict[str, Any]:
    return {"workers": [worker.address], "allow_other_workers": True, "pure": False}


@gen_cluster(client=True, nthreads=TWO)
async def test_a_worker_that_is_lost_with_a_task_and_results(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    results = c.map(slow, range(3), delay_s=0, **anywhere(a))
    await wait(results)
    on_a = len(s.workers[a.address].has_what)
    running = c.submit(slow, "task", 0.5, **anywhere(a))
    await until(lambda: a.state.executing_count)

    await s.remove_worker(a.address, stimulus_id="test", close=False)
    await c.gather([*results, running])

    assert {**NOTHING, wire.LOST: on_a + 1} == await redone(s)
    assert on_a


@gen_cluster(client=True, nthreads=TWO)
async def test_results_that_are_elsewhere_or_not_wanted_are_no_loss(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    result = c.submit(slow, 1, 0, **anywhere(a))
    await wait(result)
    await c.replicate([result])

    await a.close()
    await until(lambda: a.address not in s.workers)

    assert NOTHING == await redone(s)
    assert [1] == RUNS


@gen_cluster(client=True, nthreads=TWO)
async def test_a_result_that_only_a_task_waits_for_is_a_loss(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    first = c.submit(slow, 1, 0, **anywhere(a))
    await wait(first)
    other = c.submit(slow, 2, 0.6, workers=[b.address])
    then = c.submit(slow, 3, 0, first, other, workers=[b.address])
    await until(lambda: then.key in s.tasks and b.state.executing_count)
    first.release()
    await until(lambda: not s.tasks[first.key].who_wants)

    await s.remove_worker(a.address, stimulus_id="test", close=False)
    await then

    assert {**NOTHING, wire.LOST: 1} == await redone(s)
    assert [1, 1, 2, 3] == sorted(RUNS)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_retirement_that_is_forced(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    running = c.submit(slow, "task", 1.0, **anywhere(a))
    await until(lambda: a.state.executing_count)
    how = {"busy_ok": True, "deadline_ms": 100, "on_timeout": "Force"}
    await retire(s, a.name, **how)
    await until_state(s, a.name, wire.DRAINED, **how)

    await s.remove_worker(a.address, stimulus_id="test", close=False)
    await running

    assert {**NOTHING, wire.FORCED: 1} == await redone(s)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_departure_whose_time_runs_out(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    running = c.submit(slow, "task", 3.0, **anywhere(a))
    await until(lambda: a.state.executing_count)

    await leave(s, a.name, left_ms=500)
    await until(lambda: a.address not in s.workers)

    assert {**NOTHING, wire.ENDED: 1} == await redone(s)
    running.release()


@gen_cluster(client=True, nthreads=TWO)
async def test_a_worker_that_is_drained_loses_nothing(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    results = c.map(slow, range(3), delay_s=0, **anywhere(a))
    await wait(results)
    await retire(s, a.name)
    await until_state(s, a.name, wire.DRAINED)

    await a.close()
    await until(lambda: a.address not in s.workers)
    await c.gather(results)

    assert NOTHING == await redone(s)
    assert 3 == len(RUNS)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_worker_that_says_goodbye_is_counted_once(c: Any, s: Any, a: Any) -> None:
    """Through `unregister`, and once more when its connection breaks."""
    install(s)
    async with Worker(s.address, nthreads=1) as w:
        result = c.submit(slow, 1, 0, **anywhere(w))
        await wait(result)
        on_w = len(s.workers[w.address].has_what)
    await until(lambda: len(s.workers) == 1)
    await result

    assert {**NOTHING, wire.LOST: on_w} == await redone(s)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_scheduler_that_closes_counts_nothing(c: Any, s: Any, a: Any, b: Any) -> None:
    agent = install(s)
    running = c.map(slow, range(2), delay_s=0.3)
    await until(lambda: a.state.executing_count and b.state.executing_count)

    await s.close()
    await asyncio.gather(a.close(), b.close())

    assert agent.redone.counts == NOTHING
    del running


@gen_cluster(client=True, nthreads=TWO)
async def test_it_is_taken_out(c: Any, s: Any, a: Any, b: Any) -> None:
    before = s.handlers["unregister"]
    install(s)
    assert "remove_worker" in s.__dict__

    uninstall(s)

    assert "remove_worker" not in s.__dict__
    assert before == s.handlers["unregister"]
