"""The tally counts what was run more than once, and nothing else."""

from __future__ import annotations

from typing import Any

from distributed import wait
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install
from support.agent_cluster import with_agent
from support.agent_work import RUNS, ask, running, slow, until

TWO = [("127.0.0.1", 1)] * 2


async def tally(s: Any, *keys: str) -> tuple[int, ...]:
    counted = (await ask(s, wire.OBSERVE))["tally"]
    assert set(wire.TallyPart.__annotations__) == set(counted)
    return tuple(counted[key] for key in keys)


async def counting(s) -> None:
    install(s)
    await ask(s, wire.CONFIGURE, tally=True)


def fail(i: int) -> None:
    raise ValueError(i)


@gen_cluster(client=True, nthreads=TWO)
async def test_each_run_is_counted_once(c, s, a, b) -> None:
    await counting(s)

    await c.gather(c.map(slow, range(7), delay_s=0))

    assert (7, 7, 0, 0, 0) == await tally(s, "tasks", "runs", "repeated", "interrupted", "erred")


@gen_cluster(client=True, nthreads=TWO)
async def test_results_lost_and_computed_again_are_repeated(c, s, a, b) -> None:
    await counting(s)
    futures = c.map(slow, range(5), delay_s=0, workers=[a.address], allow_other_workers=True)
    await wait(futures)
    on_a = len(s.workers[a.address].has_what)

    await a.close()
    await c.gather(futures)

    assert 5 + on_a == len(RUNS)
    assert (5, 5 + on_a, on_a) == await tally(s, "tasks", "runs", "repeated")
    assert on_a


@gen_cluster(client=True, nthreads=TWO)
async def test_a_task_taken_from_a_worker_that_left_is_interrupted(c, s, a, b) -> None:
    await counting(s)
    future = await running(c, a, 1, 0.5, allow_other_workers=True)

    await s.remove_worker(a.address, stimulus_id="test", close=False)
    await future

    assert (1, 1, 0, 1) == await tally(s, "tasks", "runs", "repeated", "interrupted")


@gen_cluster(client=True, nthreads=TWO)
async def test_an_erred_run_is_not_redone_work(c, s, a, b) -> None:
    await counting(s)

    await wait(c.submit(fail, 1, retries=2))

    assert (0, 0, 3, 0) == await tally(s, "tasks", "runs", "erred", "repeated")


@gen_cluster(client=True, nthreads=TWO)
async def test_a_key_that_was_forgotten_is_new_again(c, s, a, b) -> None:
    await counting(s)
    future = c.submit(slow, 1, 0, key="mine")
    await future
    future.release()
    await until(lambda: not s.tasks)

    await c.submit(slow, 2, 0, key="mine")

    assert (2, 2, 0) == await tally(s, "tasks", "runs", "repeated")


@with_agent()
async def test_the_tally_can_be_turned_off(c, s, a, b) -> None:
    before = dict(s.handlers), dict(s.stream_handlers), dict(s.plugins)
    await ask(s, wire.CONFIGURE, tally=True)

    await ask(s, wire.CONFIGURE, tally=False)

    assert before == (dict(s.handlers), dict(s.stream_handlers), dict(s.plugins))
    assert (await ask(s, wire.OBSERVE))["tally"] is None
