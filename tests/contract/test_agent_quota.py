"""Counting what workers report, and cordons on those that come to their number of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import pytest
from distributed import Worker, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install
from support.agent_cluster import with_agent, with_lifetimes
from support.agent_quota import (
    cordoned,
    fails,
    fails_once,
    is_rescheduled_once,
    limit,
    made,
    metered,
    runs,
)
from support.agent_work import (
    MAY_END,
    RUNS,
    ask,
    count_runs,
    held,
    leave,
    pin,
    retire,
    tally,
    unpin,
    until,
    until_left,
    until_state,
)

UNQUEUED = {"distributed.scheduler.worker-saturation": "inf"}


# Counting


@with_agent(3, threads=2)
async def test_runs_are_what_workers_report(c, s, *workers) -> None:
    fine = c.map(runs, range(30), delay_s=0.001)
    retried = c.map(fails_once, range(100, 110), retries=1, delay_s=0.001)
    again = c.map(is_rescheduled_once, range(200, 210), delay_s=0.001)
    failed = c.map(fails, range(300, 310))
    await wait(fine + retried + again + failed)

    counted = await metered(s)

    assert dict(made()) == {address: n for address, n in counted.items() if n}
    assert 30 + 20 + 20 + 10 == sum(counted.values())


@with_agent()
async def test_a_run_whose_task_was_cancelled_is_reported_by_nobody(c, s, a, b) -> None:
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


@with_agent()
async def test_a_worker_that_comes_back_starts_at_none(c, s, a, b, agent) -> None:
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


@with_agent()
async def test_meters_are_answered_when_asked_for(c, s, a, b) -> None:
    kept = c.submit(runs, 1, workers=[a.address])
    await wait(kept)
    ws = s.workers[a.address]
    ws.metrics["spilled_bytes"] = {"memory": ws.nbytes - 1, "disk": 7}

    plain = await ask(s, wire.OBSERVE)

    assert plain["meters"] is None
    assert {a.address: 1, b.address: 0} == await metered(s, "managed")
    assert {a.address: 0, b.address: 0} == await metered(s, "failures")


@with_agent(config=UNQUEUED)
async def test_a_worker_that_nobody_has_named_runs_no_more_than_the_others(c, s, a, b) -> None:
    """One that comes while the operator is away must not run on until it is back."""
    await limit(s, [b], stops=2, exact=True, others={"exact": True, "runs": 5})

    await c.gather(c.map(runs, range(40), delay_s=0.001))
    async with Worker(s.address, nthreads=1) as late:
        await until(lambda: s.workers[late.address] in s.running)
        await c.gather(c.map(runs, range(100, 140), delay_s=0.001))

        assert {a.address: wire.S_TASKS, late.address: wire.S_TASKS} == await cordoned(s)
        assert {a.address: 5, b.address: 70, late.address: 5} == await metered(s)


async def cordoned_at_one_run(c, s, worker) -> None:
    await limit(s, [worker], 1)
    await c.submit(runs, 1, workers=[worker.address])
    await until(lambda: s.workers[worker.address] not in s.running)


# Exact limits, under each kind of load


async def burst(c: Any, s: Any, workers: Any) -> list[Any]:
    """Tasks that the scheduler assigns at once, each of its own kind."""
    return [c.submit(runs, i, key=f"kind{i}-{i}") for i in range(60)]


async def queued(c: Any, s: Any, workers: Any) -> list[Any]:
    return list(c.map(runs, range(60)))


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
    return list(c.map(fails_once, range(30), retries=1))


async def rescheduled(c: Any, s: Any, workers: Any) -> list[Any]:
    return list(c.map(is_rescheduled_once, range(30)))


Load = Callable[[Any, Any, Any], Awaitable[list[Any]]]
#: Runs that a worker is allowed under these loads.
MOST = 5
LOADS: list[Load] = [burst, queued, dependent, stolen, retried, rescheduled]


@pytest.mark.long
@pytest.mark.parametrize("how", ["queue", "no-queue"])
@pytest.mark.parametrize("nthreads", [1, pytest.param(4, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.__name__)
def test_an_exact_limit_is_never_passed(load: Load, nthreads: int, how: str) -> None:
    config = UNQUEUED if how == "no-queue" else {}

    @gen_cluster(client=True, nthreads=[("127.0.0.1", nthreads)] * 4, config=config, timeout=60)
    async def run(c, s, *workers) -> None:
        # As users run it. Upstream's code that feeds the queue asserts that each task it offers
        # begins, and a worker that leaves service in the middle takes its slots with it.
        s.validate = False
        install(s)
        count_runs(s)
        await limit(s, workers[:2], MOST, exact=True)
        await c.gather(await load(c, s, workers))

        counted = await metered(s)
        assert dict(made()) == {address: n for address, n in counted.items() if n}
        assert all(counted[w.address] <= MOST for w in workers[:2]), counted
        assert 60 == sum(counted.values())
        assert (0,) == tally(s, "interrupted")
        if load is stolen:  # how much is stolen is a matter of time
            assert all(counted[w.address] for w in workers[:2]), counted
        else:
            assert {w.address: wire.S_TASKS for w in workers[:2]} == await cordoned(s)
        if load in (burst, queued):
            assert [MOST, MOST] == [counted[w.address] for w in workers[:2]]

    run()


@pytest.mark.parametrize("saturation", [1.1, inf], ids=["queue", "no-queue"])
@with_agent(4, timeout=60)
async def test_exact_holds_though_the_cluster_stands_still(c, s, *workers, saturation) -> None:
    """Until others come: whatever `stops` says, between two passes, and though one is pinned."""
    s.WORKER_SATURATION = saturation
    await pin(s, workers[0])
    await limit(s, workers, 15, stops=1, exact=True, others={"exact": True, "runs": 15})
    futures = c.map(runs, range(100), delay_s=0.01)
    await until(lambda: 60 == len(RUNS))
    await until(lambda: not any(w.state.executing_count for w in workers))

    assert {15} == set(made().values())
    assert not s.running
    assert {w.address for w in workers} == set(await cordoned(s))
    async with Worker(s.address, nthreads=2) as e, Worker(s.address, nthreads=2) as f:
        await until(lambda: 90 == len(RUNS))
        await until(lambda: not any(w.state.executing_count for w in (e, f)))
        assert {15} == set(made().values())
        async with Worker(s.address, nthreads=1) as last:
            await c.gather(futures)
            assert 10 == made()[last.address]


@with_agent(1)
async def test_a_worker_that_is_filled_up_as_it_comes_back_is_cordoned_at_once(
    c, s, a, agent
) -> None:
    """The scheduler assigns what waits in the very call that opens the gate."""
    await limit(s, [a], 1, exact=True)
    futures = c.map(runs, range(3), workers=[a.address])
    await until(lambda: made() == {a.address: 1} and len(s.unrunnable) == 2)
    await until(lambda: not s.workers[a.address].processing)

    await limit(s, [a], 2, exact=True)

    assert [a.address] == [*agent.cordons.ongoing]
    await until(lambda: made()[a.address] == 2)
    await asyncio.sleep(0.1)
    assert {a.address: 2} == made()
    assert 2 == sum(future.done() for future in futures)


@with_agent()
async def test_exact_waits_with_what_is_bound_too(c, s, a, b) -> None:
    await limit(s, [a], 2, exact=True)
    bound = c.map(runs, range(4), workers=[a.address])
    await until(lambda: 2 == len(RUNS))
    await until(lambda: not a.state.executing_count)

    assert [wire.S_TASKS] == list((await cordoned(s)).values())
    await ask(s, wire.OBSERVE)
    assert 2 == len(RUNS)
    await limit(s, [])
    await c.gather(bound)


@with_agent(config=UNQUEUED)
async def test_a_task_that_is_moved_away_makes_room_again(c, s, a, b) -> None:
    await limit(s, [a], 4, exact=True)
    futures = c.map(runs, range(10), delay_s=0.3, workers=[a.address])
    await until(lambda: a.state.executing_count)
    assert {a.address: wire.S_TASKS} == await cordoned(s)

    for future in futures:
        await future.cancel()
    await until(lambda: s.workers[a.address] in s.running)

    assert {} == await cordoned(s)


@pytest.mark.parametrize("is_lifetime", [False, True])
@with_lifetimes(1)
async def test_exact_holds_for_who_leaves_while_nobody_else_serves(
    c, s, a, agent, is_lifetime
) -> None:
    """It is of use, and could stay a while; but not for one more task."""
    await limit(s, [a], 3, exact=True)
    futures = c.map(runs, range(6), delay_s=0.01, pure=False)
    await until(lambda: len(RUNS) == 3)

    if is_lifetime:
        ending = asyncio.ensure_future(agent.drains.lifetime(a.address))
    else:
        await leave(s, a.name)
    await asyncio.sleep(0.4)
    assert 3 == len(RUNS)

    async with Worker(s.address, name="b", nthreads=1):
        assert 6 == len(await asyncio.wait_for(c.gather(futures), 20))
        if is_lifetime:
            await ending
    assert 6 == len(RUNS)
    assert 3 == made()[a.address]


@with_agent()
async def test_exact_holds_for_who_leaves_and_what_is_bound_to_it(c, s, a, b) -> None:
    await limit(s, [a], 3, exact=True)
    first = c.submit(held, 0, workers=[a.address])
    await until(lambda: a.state.executing_count)
    await leave(s, a.name)
    bound = c.map(runs, range(1, 6), delay_s=0.01, workers=[a.address])
    MAY_END.set()

    await until_left(s, a.name)

    assert 3 == len(RUNS)
    await wait(first)
    await c.cancel(bound)


@pytest.mark.parametrize("way", ["called back", "an objection", "it stays"])
@with_lifetimes(config=UNQUEUED)
async def test_exact_holds_for_who_comes_back_to_tasks_that_wait(c, s, a, b, agent, way) -> None:
    """The scheduler assigns them at the instant at which a gate opens."""
    await limit(s, [a], 3, exact=True)
    kept = c.submit(runs, 0, delay_s=0, workers=[a.address], allow_other_workers=True)
    await wait(kept)
    ending = None
    if way != "it stays":
        await until_state(s, a.name, wire.DRAINED)
    s.handle_worker_status_change(Status.paused, b.address, "test")
    if way == "it stays":
        ending = asyncio.ensure_future(agent.drains.lifetime(a.address))
        await until(lambda: agent.drains.ongoing)
    tasks = c.map(runs, range(1, 11), delay_s=0.05)
    if way != "it stays":
        await until(lambda: s.unrunnable)
        await (pin(s, a) if way == "an objection" else ask(s, wire.CANCEL, names=[str(a.name)]))
    await until(lambda: len(RUNS) >= 3)
    await asyncio.sleep(0.3)

    assert {a.address: 3} == made()
    s.handle_worker_status_change(Status.running, b.address, "test")
    await c.gather([kept, *tasks])
    assert {a.address: 3, b.address: 8} == made()
    if ending is not None:
        await ending


@with_agent(4)
async def test_without_an_exact_limit_nothing_of_it_is_in_place(c, s, *workers, agent) -> None:
    stealing = s.extensions["stealing"]
    await limit(s, workers, 5)
    assert "_add_to_processing" not in s.__dict__

    await limit(s, workers, 5, exact=True)
    assert "_add_to_processing" in s.__dict__
    assert "move_task_request" in stealing.__dict__
    s.plugins["dask-adaptive"].uninstall()

    assert "_add_to_processing" not in s.__dict__
    assert "move_task_request" not in stealing.__dict__
    assert {} == agent.cordons.ongoing


@with_agent(4)
async def test_what_others_take_away_with_theirs_is_put_back(c, s, *workers) -> None:
    await limit(s, workers[:2], 5, exact=True)
    del s._add_to_processing
    await ask(s, wire.OBSERVE)

    await c.gather(c.map(runs, range(40)))

    counted = await metered(s)
    assert [5, 5] == [counted[w.address] for w in workers[:2]]


# Limits that count reports


@pytest.mark.parametrize("saturation", [1.1, inf], ids=["queue", "no-queue"])
@with_agent(3, threads=2)
async def test_a_limit_is_passed_by_no_more_than_what_was_assigned(
    c, s, *workers, saturation, agent
) -> None:
    s.WORKER_SATURATION = saturation
    a = workers[0]
    had: list[int] = []
    stock = agent.cordons._report

    def noting(entry: Any, why: Any) -> None:
        had.append(entry.runs + len(entry.ws.processing) - 1)  # one of them was just reported
        stock(entry, why)

    agent.cordons._report = noting  # type: ignore[method-assign]
    await limit(s, [a], 6)
    await c.gather(c.map(runs, range(60)))

    counted = await metered(s)
    assert 60 == sum(counted.values())
    assert counted[a.address] <= had[0]
    if saturation < inf:
        assert counted[a.address] <= 6 + 3  # ceil(1.1 * 2 threads)
    assert {a.address: wire.S_TASKS} == await cordoned(s)


@with_agent(4)
async def test_no_more_are_cordoned_than_allowed(c, s, *workers, agent) -> None:
    await limit(s, workers, 3, stops=1)
    most = 0
    futures = c.map(runs, range(60), delay_s=0.01)
    while not all(future.done() for future in futures):
        most = max(most, len(agent.cordons.ongoing), len(s.workers) - len(s.running))
        await asyncio.sleep(0.001)
    await c.gather(futures)

    assert 1 == most
    assert 60 == sum(made().values())
    for stops in (1, 3, 2):
        await limit(s, workers, 3, stops=stops)
        assert stops == len(await cordoned(s))
    assert 2 == len(s.running)


@with_agent(4)
async def test_the_stops_of_one_group_are_not_for_another(c, s, *workers) -> None:
    await limit(s, workers, 2, stops=3, groups={"cpu": 1, "gpu": 2})
    await c.gather(c.map(runs, range(40), delay_s=0.01))
    assert {w.address for w in workers[1::2]} < set(await cordoned(s))
    assert 3 == len(await cordoned(s))

    await limit(s, workers, 2, stops=3, groups={"cpu": 0, "gpu": 1})
    (only,) = await cordoned(s)
    assert only in {w.address for w in workers[1::2]}


@pytest.mark.parametrize("timeout_s", [None, 1.0])
@with_agent(nthreads=[("127.0.0.1", 1, {"resources": {"GPU": 1}}), ("127.0.0.1", 1)])
async def test_a_quota_that_is_not_exact_stops_no_resource(c, s, a, b, timeout_s) -> None:
    """Tasks waited for the only worker that has it, or ended as `NoValidWorkerError`."""
    await limit(s, [a, b], 2)
    s.no_workers_timeout = timeout_s
    futures = c.map(runs, range(12), resources={"GPU": 1})

    assert {a.address} == set(await c.gather(futures))
    assert {a.address: wire.S_TASKS} == await cordoned(s)


@with_agent(4)
async def test_one_retired_after_a_cordon_counts_until_the_next_request(c, s, *workers) -> None:
    await limit(s, workers, 2, stops=1)
    futures = c.map(runs, range(30), delay_s=0.01)
    await wait(futures)
    (first,) = await cordoned(s)

    await until_state(s, first, wire.DRAINED, busy_ok=True)
    await c.gather(c.map(runs, range(100, 120), delay_s=0.01))
    assert {} == await cordoned(s)
    others = [w for w in workers if w.address != first]

    await limit(s, others, 2, stops=1)

    assert 1 == len(await cordoned(s))


@with_agent()
async def test_the_limit_of_a_name_waits_for_its_worker(c, s, a, b) -> None:
    await limit(s, ["late"], 2)
    async with Worker(s.address, name="late", nthreads=1) as late:
        await c.gather(c.map(runs, range(3), workers=[late.address], delay_s=0))

        assert {late.address: wire.S_TASKS} == await cordoned(s)


@with_agent()
async def test_a_limit_that_is_lifted_brings_a_worker_back(c, s, a, b) -> None:
    await cordoned_at_one_run(c, s, a)

    await limit(s, [], 1)
    assert {} == await cordoned(s)
    assert s.workers[a.address] in s.running
    assert a.address == await c.submit(runs, 2, workers=[a.address])
    await limit(s, [a], 2)
    assert {a.address} == (await cordoned(s)).keys()
    await limit(s, [a], 3)
    assert {} == await cordoned(s)


@pytest.mark.parametrize("source", [wire.MANUAL, wire.CLIENT])
@with_agent()
async def test_a_pinned_worker_is_not_cordoned(c, s, a, b, source) -> None:
    await pin(s, a, source=source)
    await limit(s, [a], 2)
    await c.gather(c.map(runs, range(4), workers=[a.address]))
    assert {} == await cordoned(s)

    await unpin(s, source)
    assert {a.address: wire.S_TASKS} == await cordoned(s)
    await pin(s, a, source=source)
    await until(lambda: s.workers[a.address] in s.running)


@with_agent()
async def test_a_cordoned_worker_gets_what_is_bound_to_it_and_nothing_else(c, s, a, b) -> None:
    await cordoned_at_one_run(c, s, a)

    bound = [c.submit(runs, i, workers=[a.address], pure=False) for i in range(3)]
    free = c.map(runs, range(10, 20))

    assert {a.address} == set(await c.gather(bound))
    assert {b.address} == set(await c.gather(free))


@with_agent(1)
async def test_the_only_worker_finishes_what_it_has_and_the_next_one_does_the_rest(c, s, a) -> None:
    await limit(s, [a], 3)
    futures = [*c.map(runs, range(8)), c.submit(runs, 99, key="another-1")]
    await until(lambda: made()[a.address] >= 3)
    await asyncio.sleep(0.2)
    assert not all(future.done() for future in futures)

    async with Worker(s.address, name="next", nthreads=1) as after:
        where = set(await c.gather(futures))

        assert {a.address, after.address} == where
        assert 9 == sum(made().values())


# What becomes of one that is cordoned


@with_agent(4)
async def test_two_over_quota_at_once_are_retired_and_nothing_is_redone(c, s, *workers) -> None:
    count_runs(s)
    await limit(s, workers[:2], 5)
    futures = c.map(runs, range(60), delay_s=0.02)
    await until(lambda: not {s.workers[w.address] for w in workers[:2]} & s.running)
    assert all(len(w.data) for w in workers[:2])

    for w in workers[:2]:
        await until_state(s, w.name, wire.DRAINED, busy_ok=True, reason="TaskQuota")
    assert {} == await cordoned(s)
    for w in workers[:2]:
        await w.close()
    await c.gather(futures)

    assert (60, 60, 0, 0) == tally(s, "tasks", "runs", "repeated", "interrupted")


@with_agent()
async def test_cancelling_cordons_a_worker_again_unless_it_has_no_limit(c, s, a, b) -> None:
    await limit(s, [a], 2)
    await c.gather(c.map(runs, range(2), workers=[a.address]))
    await until_state(s, a.name, wire.DRAINED)
    waiting = c.map(runs, range(10, 13), delay_s=0, workers=[a.address])

    await ask(s, wire.CANCEL, names=[str(a.name)])
    assert {a.address: wire.S_TASKS} == await cordoned(s)
    assert s.workers[a.address] not in s.running
    assert {a.address} == set(await c.gather(waiting))  # it has been thawed

    await until_state(s, a.name, wire.DRAINED)
    await limit(s, [b])
    await ask(s, wire.CANCEL, names=[str(a.name)])

    assert s.workers[a.address] in s.running
    await until(lambda: a.status == Status.running)


@with_agent(4)
async def test_a_cordoned_worker_is_on_its_way_out(c, s, *workers, agent) -> None:
    a = workers[0]
    await cordoned_at_one_run(c, s, a)

    assert {a.address} == set(agent.service.out_of_service())
    assert a.address not in s.workers_to_close(n=4)
    seen = await ask(s, wire.OBSERVE)
    assert seen["stops"][0]["slot"] not in seen["closable"]
    assert "1 of 1 task" in seen["stops"][0]["message"]
    assert not seen["notes"]  # ordinary


# Requests


@with_agent()
async def test_pins_of_people_may_be_told_not_to_count(c, s, a, b) -> None:
    for source in (wire.MANUAL, wire.CLIENT):
        await pin(s, a, source=source)
    assert [(wire.ACTIVE, wire.V_PINNED)] == await retire(s, a.name, over_pins=[wire.MANUAL])

    over = {"over_pins": [wire.MANUAL, wire.CLIENT]}
    assert [(wire.DRAINED, "")] == await retire(s, a.name, **over)
    await asyncio.sleep(0.2)  # and each later look
    assert [(wire.DRAINED, "")] == await retire(s, a.name, **over)

    answer = await ask(s, wire.RETIRE, names=[str(b.name)], over_pins=[wire.SHUFFLE])
    assert wire.E_INVALID == answer["error"]


@with_agent()
async def test_a_request_of_another_session_changes_nothing(c, s, a, b) -> None:
    await limit(s, [a], 5)
    await c.gather(c.map(runs, range(4), workers=[a.address]))

    answer = await ask(s, wire.LIMIT, session="another")
    assert wire.E_INVALID == answer["error"]
    assert "session 'another' has ended" in answer["message"]

    assert {} == await cordoned(s)
    await c.submit(runs, 5, workers=[a.address])
    assert {a.address: wire.S_TASKS} == await cordoned(s)
