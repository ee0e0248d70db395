"""Results that can't be copied, everywhere or somewhere; their copies fail, and no task does."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from distributed import wait

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.drain.drain import rename
from dask_adaptive_agent.patching import Patches
from support.agent_cluster import with_agent
from support.agent_quota import cordoned, limit, metered
from support.agent_work import RUNS, ask, holding, leave, retire, until, until_state

#: Logs of workers are full of tracebacks of failed copies.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def lock(*_: Any) -> Any:
    RUNS.append("lock")
    return threading.Lock()


def use(i: int, *_: Any) -> int:
    RUNS.append(i)
    time.sleep(0.1)
    return i


def fails_for(holder: Any, *recipients: Any) -> list[str]:
    """Who fetches from a worker from now on; these get an error, as if they lacked a class."""
    fetched: list[str] = []
    stock, lacking = holder.handlers["get_data"], {one.address for one in recipients}

    async def get_data(comm: Any, **request: Any) -> Any:
        fetched.append(request["who"])
        if request["who"] in lacking:
            raise ImportError("no such class")
        return await stock(comm, **request)

    holder.handlers["get_data"] = get_data
    return fetched


@with_agent(3)
async def test_one_result_that_cant_be_copied_costs_no_other_and_keeps_its_worker(
    c, s, a, b, d
) -> None:
    await limit(s, [a, b, d], failures=5)
    futures = await holding(c, a, 60)
    held = c.submit(lock, workers=[a.address])
    await wait(held)

    await until_state(s, a.name, wire.DRAINING)
    outcome = await until_state(s, a.name, wire.ACTIVE)

    assert wire.V_UNCOPYABLE == outcome["veto"]
    assert outcome["message"].startswith("holds lock-")
    assert s.workers[a.address] in s.running
    assert 60 == len(b.data) + len(d.data)
    assert {0} == set((await metered(s, "failures")).values())
    assert {} == await cordoned(s)
    assert [(wire.ACTIVE, wire.V_UNCOPYABLE)] == await retire(s, a.name)
    assert not {ts.state for w in (b, d) for ts in w.state.tasks.values()} - {"memory"}

    held.release()
    await until_state(s, a.name, wire.DRAINED)
    await a.close()
    await c.gather(futures)
    assert 61 == len(RUNS)


@with_agent(3)
async def test_before_a_certain_end_all_but_what_cant_be_copied_is_handed_over(
    c, s, a, b, d, agent
) -> None:
    futures = await holding(c, a, 20)
    held = c.submit(lock, workers=[a.address], allow_other_workers=True)
    await wait(held)

    await leave(s, a.name, left_ms=3_000)
    await until(lambda: 20 == len(b.data) + len(d.data))
    await until(lambda: "can't be copied" in agent.drains.ongoing[a.address].message)
    await until(lambda: 2 == RUNS.count("lock"))

    await c.gather(futures)
    assert 22 == len(RUNS)


@with_agent(4, config={"distributed.scheduler.work-stealing": False})
async def test_tasks_come_home_to_what_cant_be_copied(c, s, *workers) -> None:
    """On another worker they would wait for ever, as in stock."""
    await ask(s, wire.CONFIGURE, client_pins=True)
    await limit(s, workers, failures=1)
    held = [
        c.submit(lock, i, workers=[w.address], allow_other_workers=True)
        for i, w in enumerate(workers)
    ]
    await wait(held)
    away = [
        c.submit(use, i, held[i], workers=[workers[i - 1].address], allow_other_workers=True)
        for i in range(4)
    ]

    assert [0, 1, 2, 3] == await c.gather(away)
    assert {1} == {w.state.executed_count - 1 for w in workers}
    assert {0} == set((await metered(s, "failures")).values())
    assert {2} == set((await metered(s, "runs")).values())
    assert {} == await cordoned(s)

    homes = [s.tasks[future.key].worker_restrictions for future in away]
    assert [{w.address} for w in workers] == homes
    await workers[0].close()  # what was there runs elsewhere, and is used there
    assert 0 == await away[0]
    assert {workers[0].address} != s.tasks[away[0].key].worker_restrictions


@pytest.mark.parametrize("to_b", [True, False], ids=["twin", "twin-lacks-it"])
@with_agent(5)
async def test_workers_of_the_same_group_are_asked_first_and_nobody_twice(
    c, s, a, b, *others, to_b
) -> None:
    for worker, name in zip((a, b, *others), ("gpu-1", "gpu-2", "cpu-1", "cpu-2", "cpu-3")):
        rename(s, s.workers[worker.address], name)
    fetched = fails_for(a, *(others if to_b else (b, *others[1:])))
    futures = await holding(c, a, 3)
    more = c.submit(bytes, 10_000, workers=[b.address])  # the others have more room
    await wait(more)

    await leave(s, "gpu-1", left_ms=30_000)
    await until(lambda: 4 == sum(len(w.data) for w in (b, *others)))

    if to_b:
        assert {b.address} == set(fetched)
    else:  # all at once, and then each on its own
        assert b.address == fetched[0]
        assert all(fetched[1:].count(w.address) <= 2 * 3 for w in (b, *others))
    await a.close()
    await c.gather(futures)
    assert 3 == len(RUNS)


@with_agent(2)
async def test_upstream_reports_a_failed_copy_as_a_failed_task(c, s, a, b) -> None:
    """`GatherDepFailureEvent`: of all results that were fetched together."""
    reports: list[Any] = []
    Patches(s).listen(patching.TASK_ERRED, lambda msg: reports.append((msg["worker"], msg["key"])))
    futures = [*await holding(c, a, 2), c.submit(lock, workers=[a.address])]
    await wait(futures)
    s.request_acquire_replicas(b.address, [one.key for one in futures], stimulus_id="test")

    await until(lambda: {(b.address, one.key) for one in futures} == set(reports))
    assert {"memory"} == {s.tasks[one.key].state for one in futures}
