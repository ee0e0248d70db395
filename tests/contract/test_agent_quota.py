"""Counting what workers report, and stopping those that come to their number of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from distributed import Worker, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import Agent
from dask_adaptive_agent.attach import install
from dask_adaptive_agent.plugin import AdaptivePlugin
from support.agent_deadlines import Clock
from support.agent_quota import (
    BEFORE,
    fails,
    fails_once,
    is_rescheduled_once,
    limit,
    made,
    metered,
    runs,
    stopped,
)
from support.agent_work import RUNS, ask, leave, retire, until, until_heard, until_left, until_state

TWO = [("127.0.0.1", 1)] * 2
FOUR = [("127.0.0.1", 1)] * 4
#: No memory monitor that resumes a worker which a test has paused.
QUIET = {"distributed.worker.memory.monitor-interval": "1h"}
UNQUEUED = {"distributed.scheduler.worker-saturation": "inf"}


@pytest.fixture(autouse=True)
def _nothing_before() -> Iterator[None]:
    BEFORE.clear()
    yield
    BEFORE.clear()


# Counting


@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 3)
async def test_runs_are_what_workers_report(c: Any, s: Any, *workers: Any) -> None:
    install(s)
    fine = c.map(runs, range(30), delay_s=0.001)
    retried = c.map(fails_once, range(100, 110), retries=1, delay_s=0.001)
    again = c.map(is_rescheduled_once, range(200, 210), delay_s=0.001)
    failed = c.map(fails, range(300, 310))
    await wait(fine + retried + again + failed)

    counted = await metered(s)

    assert dict(made()) == {address: n for address, n in counted.items() if n}
    assert 30 + 20 + 20 + 10 == sum(counted.values())


@gen_cluster(client=True, nthreads=TWO)
async def test_a_run_whose_task_was_cancelled_is_reported_by_nobody(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    reports = []
    for name in ("task-finished", "task-erred", "reschedule"):
        stock = s.stream_handlers[name]
        s.stream_handlers[name] = lambda stock=stock, **msg: [reports.append(msg), stock(**msg)]
    future = c.submit(runs, 1, 0.2, workers=[a.address])
    await until(lambda: a.state.executing_count)
    await future.cancel()
    await until(lambda: not a.state.executing_count)
    await c.submit(runs, 2, 0, workers=[a.address])

    assert {a.address: len(reports), b.address: 0} == await metered(s)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_worker_that_comes_back_starts_at_none(c: Any, s: Any, a: Any, b: Any) -> None:
    agent = install(s)
    await c.gather(c.map(runs, range(6), delay_s=0, workers=[a.address]))
    handler, late = s.stream_handlers["task-finished"], {"stimulus_id": "late", "run_id": 0}
    assert 6 == (await metered(s))[a.address]

    await a.close()
    await until(lambda: a.address not in s.workers)
    handler(key="x", worker=a.address, nbytes=1, type=b"", typename="int", metadata={}, **late)
    assert {b.address} == set(agent.roster.entries)
    async with Worker(s.address, name=a.name, nthreads=1) as again:
        await c.submit(runs, 7, 0, workers=[again.address])

        assert 1 == (await metered(s))[again.address]


@gen_cluster(client=True, nthreads=TWO)
async def test_meters_are_answered_when_asked_for(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    kept = c.submit(runs, 1, workers=[a.address])
    await wait(kept)
    ws = s.workers[a.address]
    ws.metrics["spilled_bytes"] = {"memory": ws.nbytes - 1, "disk": 7}
    ws.metrics["gpu"] = {"utilization": 1, "memory-used": [5, 30]}
    ws.extra["gpu"] = {"memory-total": [10, 40], "name": ["x", "y"]}
    other = s.workers[b.address]
    other.metrics["gpu"] = {"memory-used": None}

    plain = await ask(s, wire.OBSERVE)
    seen = await ask(s, wire.OBSERVE, meters=True)

    assert plain["meters"] is None
    assert {a.address: 1, b.address: 0} == await metered(s, "managed")
    slots = dict(zip(seen["introduced"]["name"], seen["introduced"]["slot"]))  # noqa: B905
    assert [(slots[str(a.name)], 30, 40)] == [tuple(row) for row in seen["meters"]["gpu"]]
    assert {a.address: 0, b.address: 0} == await metered(s, "failures")


@gen_cluster(client=True, nthreads=TWO, config=UNQUEUED)
async def test_a_worker_that_nobody_has_named_runs_no_more_than_the_others(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """One that comes while the operator is away must not run on until it is back."""
    install(s)
    session = (await ask(s, wire.HELLO))["session"]
    said = {"session": session, "profiles": [{"exact": True, "runs": 5}], "others": 0}
    named = {"names": [str(b.name)], "runs": [0], "left_ms": [-1], "profile": [0]}
    answer = await ask(s, wire.LIMIT, stops=2, **named, **said)
    assert "error" not in answer, answer

    await c.gather(c.map(runs, range(40), delay_s=0.001))
    async with Worker(s.address, nthreads=1) as late:
        await until(lambda: s.workers[late.address] in s.running)
        await c.gather(c.map(runs, range(100, 140), delay_s=0.001))

        assert {a.address: wire.S_TASKS, late.address: wire.S_TASKS} == await stopped(s)
        assert {a.address: 5, b.address: 70, late.address: 5} == await metered(s)


def made_runs() -> list[Any]:
    return [address for address, n in made().items() for _ in range(n)]


# Exact limits, under each kind of load


async def burst(c: Any, s: Any, workers: Any) -> list[Any]:
    """Tasks that the scheduler assigns at once, each of its own kind."""
    return [c.submit(runs, i, key=f"kind{i}-{i}") for i in range(60)]


async def queued(c: Any, s: Any, workers: Any) -> list[Any]:
    futures: list[Any] = c.map(runs, range(60))
    return futures


async def dependent(c: Any, s: Any, workers: Any) -> list[Any]:
    roots = c.map(runs, range(12))
    return roots + [c.submit(runs, 100 + i, 0.01, roots[i % 12]) for i in range(48)]


async def stolen(c: Any, s: Any, workers: Any) -> list[Any]:
    """All is with the last worker when the others come."""
    for w in workers[:-1]:
        s.handle_worker_status_change(Status.paused, w.address, "test")
    delay_s = 0.05 * workers[0].state.nthreads
    keys = [f"kind{i}-{i}" for i in range(60)]
    futures: list[Any] = c.map(runs, range(60), [delay_s] * 60, key=keys)  # all at once
    await until(lambda: len(s.workers[workers[-1].address].processing) > 50)
    for w in workers[:-1]:
        s.handle_worker_status_change(Status.running, w.address, "test")
    return futures


async def retried(c: Any, s: Any, workers: Any) -> list[Any]:
    futures: list[Any] = c.map(fails_once, range(30), retries=1)
    return futures


async def rescheduled(c: Any, s: Any, workers: Any) -> list[Any]:
    futures: list[Any] = c.map(is_rescheduled_once, range(30))
    return futures


Load = Callable[[Any, Any, Any], Awaitable[list[Any]]]
#: Runs that a worker is allowed under these loads.
MOST = 5
LOADS: list[Load] = [burst, queued, dependent, stolen, retried, rescheduled]


@pytest.mark.parametrize("config", [{}, UNQUEUED], ids=["queue", "no-queue"])
@pytest.mark.parametrize("nthreads", [1, pytest.param(4, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.__name__)
def test_an_exact_limit_is_never_passed(load: Load, nthreads: int, config: dict[str, Any]) -> None:
    @gen_cluster(client=True, nthreads=[("127.0.0.1", nthreads)] * 4, config=config, timeout=60)
    async def run(c: Any, s: Any, *workers: Any) -> None:
        install(s)
        await ask(s, wire.CONFIGURE, tally=True)
        await limit(s, workers[:2], MOST, exact=True)
        futures = await load(c, s, workers)
        await c.gather(futures)

        counted = await metered(s)
        assert dict(made()) == {address: n for address, n in counted.items() if n}
        assert all(counted[w.address] <= MOST for w in workers[:2]), counted
        assert 60 == sum(counted.values())
        assert 0 == (await ask(s, wire.OBSERVE))["tally"]["interrupted"]
        if load is stolen:  # how much is stolen is a matter of time
            assert all(counted[w.address] for w in workers[:2]), counted
        else:
            assert {w.address: wire.S_TASKS for w in workers[:2]} == await stopped(s)
        if load in (burst, queued):
            assert [MOST, MOST] == [counted[w.address] for w in workers[:2]]

    run()


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.__name__)
def test_an_exact_limit_is_never_passed_by_stock_code(load: Load) -> None:
    """Schedulers of tests validate, others do not: there the queue is fed by upstream's code."""

    @gen_cluster(client=True, nthreads=FOUR, timeout=60)
    async def run(c: Any, s: Any, *workers: Any) -> None:
        s.validate = False
        install(s)
        await limit(s, workers[:2], MOST, exact=True)
        await c.gather(await load(c, s, workers))

        counted = await metered(s)
        assert "stimulus_queue_slots_maybe_opened" not in s.__dict__
        assert all(counted[w.address] <= MOST for w in workers[:2]), counted
        assert 60 == sum(counted.values())

    run()


def _exact(agent: Any, workers: Any, runs: int) -> dict[str, Any]:
    """As the operator says it: also for workers that come before its next pass."""
    return {
        "session": agent.session,
        "names": [str(w.name) for w in workers],
        "runs": [runs] * len(workers),
        "left_ms": [-1] * len(workers),
        "profile": [0] * len(workers),
        "profiles": [{"exact": True, "runs": runs}],
        "others": 0,
    }


@pytest.mark.parametrize("config", [{}, UNQUEUED], ids=["queue", "no-queue"])
def test_exact_holds_though_the_cluster_stands_still(config: dict[str, Any]) -> None:
    """Until others come: whatever `stops` says, between two passes, and though one is pinned."""

    @gen_cluster(client=True, nthreads=FOUR, config=config, timeout=60)
    async def run(c: Any, s: Any, *workers: Any) -> None:
        agent = install(s)
        pin = {"names": [str(workers[0].name)], "source": wire.MANUAL, "owner": "me"}
        await ask(s, wire.PIN, ttl_ms=60_000, **pin)
        answer = await ask(s, wire.LIMIT, stops=1, **_exact(agent, workers, 15))
        assert "error" not in answer, answer
        futures = c.map(runs, range(100), delay_s=0.01)
        await until(lambda: 60 == len(made_runs()))
        await until(lambda: not any(w.state.executing_count for w in workers))

        assert {15} == set(made().values())
        assert not s.running
        assert {w.address for w in workers} == set(await stopped(s))
        async with Worker(s.address, nthreads=2) as e, Worker(s.address, nthreads=2) as f:
            await until(lambda: 90 == len(made_runs()))
            await until(lambda: not any(w.state.executing_count for w in (e, f)))
            assert {15} == set(made().values())
            async with Worker(s.address, nthreads=1) as last:
                await c.gather(futures)
                assert 10 == made()[last.address]

    run()


@gen_cluster(client=True, nthreads=TWO)
async def test_exact_waits_with_what_is_bound_too(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    await limit(s, [a], 2, exact=True)
    bound = c.map(runs, range(4), workers=[a.address])
    await until(lambda: 2 == len(made_runs()))
    await until(lambda: not a.state.executing_count)

    assert [wire.S_TASKS] == list((await stopped(s)).values())
    await ask(s, wire.OBSERVE)
    assert 2 == len(made_runs())
    await limit(s, [])
    await c.gather(bound)


@gen_cluster(client=True, nthreads=TWO, config=UNQUEUED)
async def test_a_task_that_is_moved_away_makes_room_again(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    await limit(s, [a], 4, exact=True)
    futures = c.map(runs, range(10), delay_s=0.3, workers=[a.address])
    await until(lambda: a.state.executing_count)
    assert {a.address: wire.S_TASKS} == await stopped(s)

    for future in futures:
        await future.cancel()
    await until(lambda: s.workers[a.address] in s.running)

    assert {} == await stopped(s)


@pytest.mark.parametrize("ending", [False, True])
def test_exact_holds_for_who_leaves_while_nobody_else_serves(ending: bool) -> None:
    """It is of use, and could stay a while; but not for one more task."""

    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
    async def run(c: Any, s: Any, a: Any) -> None:
        install(s)
        await limit(s, [a], 3, exact=True)
        futures = c.map(runs, range(6), delay_s=0.01, pure=False)
        await until(lambda: len(RUNS) == 3)

        for _ in range(20):
            await leave(s, a.name, ending=ending)
            await asyncio.sleep(0.02)
        assert 3 == len(RUNS)

        async with Worker(s.address, name="b", nthreads=1):
            assert 6 == len(await asyncio.wait_for(c.gather(futures), 20))
        assert 6 == len(RUNS)
        assert 3 == made()[a.address]

    run()


@gen_cluster(client=True, nthreads=TWO)
async def test_exact_holds_for_who_leaves_and_what_is_bound_to_it(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    await limit(s, [a], 3, exact=True)
    first = c.submit(runs, 0, delay_s=0.2, workers=[a.address])
    await until(lambda: a.state.executing_count)
    await leave(s, a.name)
    bound = c.map(runs, range(1, 6), delay_s=0.01, workers=[a.address])

    await until_left(s, a.name)

    assert 3 == len(RUNS)
    await wait(first)
    await c.cancel(bound)


@gen_cluster(client=True, nthreads=FOUR)
async def test_without_an_exact_limit_nothing_of_it_is_in_place(
    c: Any, s: Any, *workers: Any
) -> None:
    agent = install(s)
    stealing = s.extensions["stealing"]
    await limit(s, workers, 5)
    assert not {"_add_to_processing", "stimulus_queue_slots_maybe_opened"} & s.__dict__.keys()

    await limit(s, workers, 5, exact=True)
    # The second one only because the scheduler of a test validates.
    assert {"_add_to_processing", "stimulus_queue_slots_maybe_opened"} <= s.__dict__.keys()
    assert "move_task_request" in stealing.__dict__
    s.plugins["dask-adaptive"].uninstall()

    assert not {"_add_to_processing", "stimulus_queue_slots_maybe_opened"} & s.__dict__.keys()
    assert "move_task_request" not in stealing.__dict__
    assert {} == agent.cordons.ongoing


@gen_cluster(client=True, nthreads=FOUR)
async def test_what_others_take_away_with_theirs_is_put_back(c: Any, s: Any, *workers: Any) -> None:
    install(s)
    await limit(s, workers[:2], 5, exact=True)
    del s._add_to_processing
    await ask(s, wire.OBSERVE)

    await c.gather(c.map(runs, range(40)))

    counted = await metered(s)
    assert [5, 5] == [counted[w.address] for w in workers[:2]]


EXACT, ENDS = {"exact": True}, {"left_ms": 60_000}
BOTH = {**EXACT, **ENDS}


@pytest.mark.parametrize(
    "said", [[EXACT, BOTH, ENDS, BOTH], [ENDS, BOTH, EXACT, ENDS], [BOTH, EXACT, BOTH, ENDS]]
)
def test_exact_limits_and_ends_wrap_the_same_methods(said: list[dict[str, Any]]) -> None:
    """In whatever order they come and go, and nothing of either is left."""

    @gen_cluster(client=True, nthreads=FOUR)
    async def run(c: Any, s: Any, *workers: Any) -> None:
        install(s)
        for one in said:
            most = max((await metered(s)).values()) + 3
            await limit(s, workers[:2], most, **one)
            await c.gather(c.map(runs, range(20), pure=False, delay_s=0.01))
            counted = await metered(s)
            if "exact" in one:
                assert all(counted[w.address] <= most for w in workers[:2]), (one, counted)
        await limit(s, [])
        await ask(s, wire.OBSERVE)

        ours = {"_add_to_processing", "stimulus_queue_slots_maybe_opened", "move_task_request"}
        assert not ours & (s.__dict__.keys() | s.extensions["stealing"].__dict__.keys())

    run()


# Limits that count reports


@pytest.mark.parametrize("config", [{}, UNQUEUED], ids=["queue", "no-queue"])
def test_a_limit_is_passed_by_no_more_than_what_was_assigned(config: dict[str, Any]) -> None:
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 3, config=config)
    async def run(c: Any, s: Any, *workers: Any) -> None:
        agent = install(s)
        a = workers[0]
        had: list[int] = []
        stock = agent.cordons._say

        def noting(entry: Any, why: Any) -> None:
            had.append(entry.runs + len(entry.ws.processing) - 1)  # one of them was just reported
            stock(entry, why)

        agent.cordons._say = noting  # type: ignore[method-assign]
        await limit(s, [a], 6)
        await c.gather(c.map(runs, range(60)))

        counted = await metered(s)
        assert 60 == sum(counted.values())
        assert counted[a.address] <= had[0]
        if not config:
            assert counted[a.address] <= 6 + 3  # ceil(1.1 * 2 threads)
        assert {a.address: wire.S_TASKS} == await stopped(s)

    run()


@gen_cluster(client=True, nthreads=FOUR)
async def test_no_more_are_stopped_than_allowed(c: Any, s: Any, *workers: Any) -> None:
    agent = install(s)
    await limit(s, workers, 3, stops=1)
    most = 0
    futures = c.map(runs, range(60), delay_s=0.01)
    while not all(future.done() for future in futures):
        most = max(most, len(agent.cordons.ongoing), len(s.workers) - len(s.running))
        await asyncio.sleep(0.001)
    await c.gather(futures)

    assert 1 == most
    assert 60 == sum(made().values())
    assert 1 == len(await limit(s, workers, 3, stops=1))
    assert 3 == len(await limit(s, workers, 3, stops=3))
    assert 2 == len(await limit(s, workers, 3, stops=2))
    assert 2 == len(s.running)


@gen_cluster(client=True, nthreads=FOUR)
async def test_who_is_retired_after_a_stop_still_counts_until_the_next_request(
    c: Any, s: Any, *workers: Any
) -> None:
    install(s)
    await limit(s, workers, 2, stops=1)
    futures = c.map(runs, range(30), delay_s=0.01)
    await wait(futures)
    (first,) = await stopped(s)

    await until_state(s, first, wire.DRAINED, busy_ok=True)
    await c.gather(c.map(runs, range(100, 120), delay_s=0.01))
    assert {} == await stopped(s)
    others = [w for w in workers if w.address != first]

    assert 1 == len(await limit(s, others, 2, stops=1))


@gen_cluster(client=True, nthreads=TWO)
async def test_the_limit_of_a_name_waits_for_its_worker(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    await limit(s, ["late"], 2)
    async with Worker(s.address, name="late", nthreads=1) as late:
        await c.gather(c.map(runs, range(3), workers=[late.address], delay_s=0))

        assert {late.address: wire.S_TASKS} == await stopped(s)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_limit_that_is_lifted_brings_a_worker_back(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    await limit(s, [a], 1)
    await c.submit(runs, 1, workers=[a.address])
    await until(lambda: s.workers[a.address] not in s.running)

    assert [] == await limit(s, [], 1)
    assert s.workers[a.address] in s.running
    assert a.address == await c.submit(runs, 2, workers=[a.address])
    assert [str(a.name)] == await limit(s, [a], 2)
    assert [] == await limit(s, [a], 3)


@gen_cluster(client=True, nthreads=TWO)
async def test_nobody_is_stopped_when_nobody_asks(c: Any, s: Any, a: Any, b: Any) -> None:
    clock = Clock()
    AdaptivePlugin(Agent(s, clock)).install()
    await ask(s, wire.CONFIGURE, lease_ms=60_000)
    await limit(s, [a, b], 1)
    await c.gather([c.submit(runs, w.name, workers=[w.address]) for w in (a, b)])
    await until(lambda: not s.running)

    clock.ahead_s = 61
    await until(lambda: len(s.running) == 2, timeout_s=5)
    assert a.address == await c.submit(runs, 3, workers=[a.address])
    assert {} == await stopped(s)  # whoever asks now: the limits are gone
    assert 1 == (await ask(s, wire.OBSERVE))["lapses"]


@gen_cluster(client=True, nthreads=TWO, config=QUIET)
async def test_a_memory_monitor_cannot_bring_a_stopped_worker_back(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    await limit(s, [a], 1)
    await c.submit(runs, 1, workers=[a.address])
    await until(lambda: s.workers[a.address] not in s.running)

    for status in (Status.paused, Status.running):
        a.status = status
        await until_heard(s, a)

    assert s.workers[a.address] not in s.running
    assert {a.address: wire.S_TASKS} == await stopped(s)
    await limit(s, [])
    assert s.workers[a.address] in s.running


@pytest.mark.parametrize("source", [wire.MANUAL, wire.CLIENT])
def test_a_pinned_worker_is_not_stopped(source: str) -> None:
    @gen_cluster(client=True, nthreads=TWO)
    async def run(c: Any, s: Any, a: Any, b: Any) -> None:
        install(s)
        pin = {"source": source, "owner": "me", "ttl_ms": 60_000}
        await ask(s, wire.PIN, names=[str(a.name)], **pin)
        await limit(s, [a], 2)
        await c.gather(c.map(runs, range(4), workers=[a.address]))
        assert {} == await stopped(s)

        await ask(s, wire.UNPIN, source=source, owner="me")
        assert {a.address: wire.S_TASKS} == await stopped(s)
        await ask(s, wire.PIN, names=[str(a.name)], **pin)
        await until(lambda: s.workers[a.address] in s.running)

    run()


@gen_cluster(client=True, nthreads=TWO)
async def test_a_stopped_worker_gets_what_is_bound_to_it_and_nothing_else(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    await limit(s, [a], 1)
    await c.submit(runs, 1, workers=[a.address])
    await until(lambda: s.workers[a.address] not in s.running)

    bound = [c.submit(runs, i, workers=[a.address], pure=False) for i in range(3)]
    free = c.map(runs, range(10, 20))

    assert {a.address} == set(await c.gather(bound))
    assert {b.address} == set(await c.gather(free))


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_the_only_worker_finishes_what_it_has_and_the_next_one_does_the_rest(
    c: Any, s: Any, a: Any
) -> None:
    install(s)
    await limit(s, [a], 3)
    futures = [*c.map(runs, range(8)), c.submit(runs, 99, key="another-1")]
    await until(lambda: made()[a.address] >= 3)
    await asyncio.sleep(0.2)
    assert not all(future.done() for future in futures)

    async with Worker(s.address, name="next", nthreads=1) as after:
        where = set(await c.gather(futures))

        assert {a.address, after.address} == where
        assert 9 == sum(made().values())


# What becomes of one that is stopped


@gen_cluster(client=True, nthreads=FOUR)
async def test_two_over_quota_at_once_are_retired_and_nothing_is_redone(
    c: Any, s: Any, *workers: Any
) -> None:
    install(s)
    await ask(s, wire.CONFIGURE, tally=True)
    await limit(s, workers[:2], 5)
    futures = c.map(runs, range(60), delay_s=0.02)
    await until(lambda: not {s.workers[w.address] for w in workers[:2]} & s.running)
    assert all(len(w.data) for w in workers[:2])

    for w in workers[:2]:
        await until_state(s, w.name, wire.DRAINED, busy_ok=True, reason="TaskQuota")
    assert {} == await stopped(s)
    for w in workers[:2]:
        await w.close()
    await c.gather(futures)

    tally = (await ask(s, wire.OBSERVE))["tally"]
    assert (60, 60, 0, 0) == tuple(
        tally[key] for key in ("tasks", "runs", "repeated", "interrupted")
    )


@gen_cluster(client=True, nthreads=TWO)
async def test_cancelling_stops_a_worker_again_unless_it_has_no_limit(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    await limit(s, [a], 2)
    await c.gather(c.map(runs, range(2), workers=[a.address]))
    await until_state(s, a.name, wire.DRAINED)
    waiting = c.map(runs, range(10, 13), delay_s=0, workers=[a.address])

    await ask(s, wire.CANCEL, names=[str(a.name)])
    assert {a.address: wire.S_TASKS} == await stopped(s)
    assert s.workers[a.address] not in s.running
    assert {a.address} == set(await c.gather(waiting))  # it has been thawed

    await until_state(s, a.name, wire.DRAINED)
    await limit(s, [b])
    await ask(s, wire.CANCEL, names=[str(a.name)])

    assert s.workers[a.address] in s.running
    await until(lambda: a.status == Status.running)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_stopped_worker_departs(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    await limit(s, [a], 2)
    futures = c.map(runs, range(2), workers=[a.address])
    await wait(futures)
    await until(lambda: s.workers[a.address] not in s.running)

    await until_left(s, a.address)
    assert {} == await stopped(s)
    await a.close()

    assert {a.address} == set(await c.gather(futures))
    assert 2 == sum(made().values())


@gen_cluster(client=True, nthreads=TWO)
async def test_a_notice_that_is_not_sure_leaves_a_stopped_worker_stopped(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    await limit(s, [a], 1)
    await c.submit(runs, 1, workers=[a.address])
    await until(lambda: s.workers[a.address] not in s.running)
    await until_left(s, a.address, ending=False)

    await ask(s, wire.CANCEL, names=[a.address])

    assert {a.address: wire.S_TASKS} == await stopped(s)
    assert a.address == await c.submit(runs, 2, workers=[a.address])


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_stopped_worker_is_on_its_way_out(c: Any, s: Any, *workers: Any) -> None:
    agent = install(s)
    a = workers[0]
    await limit(s, [a], 1)
    await c.submit(runs, 1, workers=[a.address])
    await until(lambda: s.workers[a.address] not in s.running)

    assert {a.address} == set(agent.leaving())
    assert a.address not in s.workers_to_close(n=4)
    seen = await ask(s, wire.OBSERVE)
    assert seen["stops"][0]["slot"] not in seen["closable"]
    assert "has made 1 of 1 runs" == seen["stops"][0]["message"]
    assert not seen["notes"]  # ordinary
    (said,) = (await ask(s, wire.EXPLAIN, names=[a.address]))["workers"]
    assert ("has made 1 of 1 runs", 1) == (said["stopped"], said["runs"])
    assert "gets no more tasks: has made 1 of 1 runs" == said["sentence"]


@gen_cluster(client=True, nthreads=TWO)
async def test_a_stopped_worker_that_dies_leaves_nothing(c: Any, s: Any, a: Any, b: Any) -> None:
    agent = install(s)
    await limit(s, [a], 1)
    await c.submit(runs, 1, workers=[a.address])
    await until(lambda: agent.cordons.ongoing)

    await a.close()
    await until(lambda: a.address not in s.workers)

    assert {} == agent.cordons.ongoing
    assert {} == await stopped(s)


@gen_cluster(client=True, nthreads=TWO)
async def test_uninstalled_the_agent_leaves_nobody_stopped(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    await limit(s, [a, b], 1, exact=True)
    await c.gather([c.submit(runs, w.name, workers=[w.address]) for w in (a, b)])
    assert not s.running

    s.plugins["dask-adaptive"].uninstall()

    assert 2 == len(s.running)
    assert 10 == len(await c.gather(c.map(runs, range(10, 20), delay_s=0)))


# Requests


@gen_cluster(client=True, nthreads=TWO)
async def test_pins_of_people_may_be_told_not_to_count(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    for source in (wire.MANUAL, wire.CLIENT):
        await ask(s, wire.PIN, names=[str(a.name)], source=source, owner=source, ttl_ms=60_000)
    assert [(wire.ACTIVE, wire.V_PINNED)] == await retire(s, a.name, over_pins=[wire.MANUAL])

    over = {"over_pins": [wire.MANUAL, wire.CLIENT]}
    assert [(wire.DRAINED, "")] == await retire(s, a.name, **over)
    await asyncio.sleep(0.2)  # and each later look
    assert [(wire.DRAINED, "")] == await retire(s, a.name, **over)

    answer = await ask(s, wire.RETIRE, names=[str(b.name)], over_pins=[wire.SHUFFLE])
    assert wire.E_INVALID == answer["error"]


VALID = {
    "names": ["x"],
    "runs": [1],
    "left_ms": [-1],
    "profile": [0],
    "profiles": [{}],
    "stops": 1,
}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"session": "another"}, "session 'another' has ended"),
        ({"runs": [1, 2]}, "of one length"),
        ({"runs": [-1]}, "runs must be from 0"),
        ({"runs": [True]}, "runs must be a list of whole numbers"),
        ({"runs": "1"}, "runs must be a list of whole numbers"),
        ({"left_ms": [-2]}, "left_ms must be from -1"),
        ({"profile": [1]}, "profile must be from 0 to 0"),
        ({"profiles": [7]}, "profiles must be a list of maps"),
        ({"profiles": [{"patterns": ["x" * 257]}]}, "patterns must have at most 256 characters"),
        ({"profiles": [{"patterns": ["x"] * 33}]}, "patterns must have at most 32 entries, not 33"),
        ({"profiles": [{"patterns": "CUDA"}]}, "patterns must be a list of text"),
        ({"profiles": [{"deviations": "2"}]}, "deviations must be a number"),
        ({"profiles": [{"exact": 1}]}, "exact must be true or false"),
        ({"profiles": [{"fresh_ms": -2}]}, "fresh_ms must be a whole number from -1"),
        ({"stops": None}, "stops must be a whole number"),
        ({"names": [1]}, "names must be a list of text"),
    ],
)
def test_a_request_that_makes_no_sense_changes_nothing(wrong: dict[str, Any], said: str) -> None:
    @gen_cluster(client=True, nthreads=TWO)
    async def run(c: Any, s: Any, a: Any, b: Any) -> None:
        agent = install(s)
        await limit(s, [a], 5, stops=3)

        answer = await ask(s, wire.LIMIT, **{**VALID, "session": agent.session, **wrong})

        assert wire.E_INVALID == answer["error"]
        assert said in answer["message"]
        assert 5 == agent.limits.of(a.address).runs
        assert 3 == agent.limits.stops

    run()
