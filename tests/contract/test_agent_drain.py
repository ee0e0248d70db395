"""What draining a worker does on real schedulers and workers: no work is redone."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from distributed import Worker, secede, wait
from distributed.core import Status

from dask_adaptive_agent import wire
from support.agent_cluster import with_agent
from support.agent_quota import cordoned, limit
from support.agent_work import (
    MAY_END,
    RUNS,
    Counter,
    ask,
    held,
    holding,
    leave,
    pin,
    retire,
    running,
    slow,
    until,
    until_heard,
    until_left,
    until_state,
)
from support.fire import nothing_breaks

BUSY = {"busy_ok": True, "reason": "test"}
#: No memory monitor that resumes a worker which a test has paused.
QUIET = {"distributed.worker.memory.monitor-interval": "1h"}
#: How a drain begins: on request, or because the process is about to end.
both_ways = pytest.mark.parametrize("way", ["retire", "leave"])


async def begin(s: Any, worker: Any, way: str) -> str:
    """The state of the worker."""
    if way == "retire":
        ((state, _),) = await retire(s, worker.name, **BUSY)
    else:
        (state,) = await leave(s, worker.name)
    return state


async def until_drained(s: Any, worker: Any, way: str) -> None:
    if way == "retire":
        await until_state(s, worker.name, wire.DRAINED, **BUSY)
    else:
        await until_left(s, worker.name)


@both_ways
@with_agent(3)
async def test_draining_a_busy_worker_redoes_nothing(c, s, a, b, d, agent, way) -> None:
    futures = c.map(slow, range(60), delay_s=0.05)
    await until(lambda: len(RUNS) > 12)

    await until_drained(s, a, way)
    await a.close()
    await c.gather(futures)

    assert 60 == len(RUNS)
    assert not agent.drains.ongoing
    if way == "leave":
        (note,) = agent.notes.since(0)
        assert wire.N_WORKER_LEFT == note["kind"]
        assert "handed over" in note["message"]


@pytest.mark.long
@both_ways
@with_agent(config={"distributed.scheduler.worker-saturation": "inf"})
async def test_tasks_not_started_are_moved_and_new_ones_never_come(c, s, a, b, way) -> None:
    futures = c.map(held, range(20))
    await until(lambda: len(s.workers[a.address].processing) >= 8 and a.state.executing_count)

    assert wire.DRAINING == await begin(s, a, way)
    await until(lambda: len(s.workers[a.address].processing) <= 1)
    MAY_END.set()
    more = c.map(slow, range(20, 30), delay_s=0)
    await until_drained(s, a, way)
    await c.gather([*futures, *more])

    assert 30 == len(RUNS)
    assert 3 >= a.state.executed_count


@both_ways
@with_agent()
async def test_what_only_this_worker_may_run_runs_here(c, s, a, b, way) -> None:
    """Such are the outputs of shuffles: without it they would be unrunnable for ever."""
    before = [c.submit(held, i, workers=[a.address], pure=False) for i in range(3)]
    await until(lambda: len(s.workers[a.address].processing) == 3)
    await begin(s, a, way)

    bound = [c.submit(slow, i, 0.01, workers=[a.address], pure=False) for i in range(5)]
    free = c.map(slow, range(10, 15), delay_s=0.01)
    MAY_END.set()
    await c.gather([*before, *bound, *free])

    assert (8, 5) == (a.state.executed_count, b.state.executed_count)
    await until_drained(s, a, way)
    assert not s.unrunnable
    if way == "retire":  # one that may come back takes what comes later, too
        await c.submit(slow, "late", 0.01, workers=[a.address])
        await until_drained(s, a, way)


@both_ways
@with_agent()
async def test_a_long_running_task_is_waited_for(c, s, a, b, way) -> None:
    def seceding() -> None:
        secede()
        held("seceded")

    future = c.submit(seceding, workers=[a.address])
    await until(lambda: s.workers[a.address].long_running)

    assert wire.DRAINING == await begin(s, a, way)
    MAY_END.set()
    await until_drained(s, a, way)

    assert future.done()
    assert ["seceded"] == RUNS


@pytest.mark.parametrize("way", ["retire", "leave", "cordon"])
@with_agent(config=QUIET)
async def test_a_memory_monitor_cannot_bring_a_worker_back(c, s, a, b, way) -> None:
    await c.submit(slow, 0, 0, workers=[a.address])
    future = await running(c, a, 1)
    await (limit(s, [a], 1) if way == "cordon" else begin(s, a, way))

    for status in (Status.paused, Status.running):
        a.status = status
        await until_heard(s, a)

    assert Status.closing_gracefully == s.workers[a.address].status
    MAY_END.set()
    await future


@with_agent(3, config=QUIET)
async def test_the_next_to_leave_does_not_rely_on_one_that_is_drained(c, s, a, b, d) -> None:
    """The process of a drained worker may end at any moment, also in the next one's first look."""
    futures = await holding(c, a, 8)
    s.handle_worker_status_change(Status.paused, d.address, "test")  # so all goes to b
    await until_state(s, a.name, wire.DRAINED)
    s.handle_worker_status_change(Status.running, d.address, "test")
    assert 8 == len(s.workers[b.address].has_what)

    await retire(s, b.name)  # and now, before anything else, the first one ends
    await asyncio.gather(a.close(), until_state(s, b.name, wire.DRAINED))
    await b.close()

    assert 8 == len(await c.gather(futures))
    assert 8 == len(RUNS)


@both_ways
@pytest.mark.parametrize("message", ["request_acquire_replicas", "request_remove_replicas"])
@with_agent(3)
async def test_a_connection_breaks_as_it_is_used(c, s, a, b, d, way, message) -> None:
    """To send to a worker that has gone raises, until the scheduler has noticed."""
    futures = await holding(c, a, 8)
    stock = getattr(s, message)

    def send_to_one_that_has_gone(address: str, keys: Any, **request: Any) -> None:
        setattr(s, message, stock)
        s.stream_comms[address].comm.abort()
        stock(address, keys, **request)

    setattr(s, message, send_to_one_that_has_gone)
    with nothing_breaks(lambda _: False):
        await begin(s, a, way)
        await until(lambda: len(s.workers) == 2)
        if a.address in s.workers:
            await until_drained(s, a, way)
    await a.close()
    await c.gather(futures)

    assert stock == getattr(s, message)
    assert 8 == len(RUNS)


@with_agent(config=QUIET)
async def test_who_had_a_copy_that_was_taken_back_needs_it_again(c, s, a, b, agent) -> None:
    """Its last holder dies as it comes, and all that its recipient says of it is heard late."""
    future = c.submit(slow, 0, 0, key="result")
    await wait(future)
    a, b = (a, b) if "result" in a.data else (b, a)
    ws, copy = s.workers[b.address], s.tasks["result"]
    agent.expect_leaving()
    heard = {op: s.stream_handlers[op] for op in ("add-keys", "release-worker-data")}
    late: dict[str, list[Any]] = {op: [] for op in heard}
    for op in heard:
        s.stream_handlers[op] = lambda op=op, **message: late[op].append(message)
    await retire(s, a.name, **BUSY)
    await until(lambda: late["add-keys"])
    b.status = Status.paused
    await until(lambda: ws.status == Status.paused)
    s.stream_handlers["add-keys"] = heard["add-keys"]
    await a.close()
    async with Worker(s.address, nthreads=1) as d:
        await until(lambda: copy.who_has == {s.workers[d.address]})
        b.status = Status.running
        await until(lambda: late["release-worker-data"] and ws.status == Status.running)
        heard["add-keys"](**late["add-keys"][0])
        after = c.submit(slow, future, workers=[b.address])
        await until(lambda: ws.processing)
        heard["release-worker-data"](**late["release-worker-data"][0])

        s.validate_state()
        await after


@with_agent()
async def test_an_idle_empty_worker_is_drained_at_once(c, s, a, b) -> None:

    assert [(wire.DRAINED, "")] == await retire(s, a.name)

    await until(lambda: a.status == Status.closing_gracefully)
    assert Status.closing_gracefully == s.workers[a.address].status
    await c.gather(c.map(slow, range(10), delay_s=0))
    assert not s.workers[a.address].has_what


@with_agent(3)
async def test_what_waits_for_somebody_else_is_looked_at_once_for_all(
    c, s, a, b, d, monkeypatch
) -> None:
    """Retiring 60 workers took 1.2 s beside 20,000 tasks that only an absent one may run."""
    await holding(c, d, 1)
    elsewhere = c.map(slow, range(300), workers=["tcp://10.9.9.9:1"])
    await until(lambda: len(s.unrunnable) == 300)
    asked: list[Any] = []
    monkeypatch.setattr(s, "valid_workers", asked.append)

    await limit(s, [d], 1)
    await until_drained(s, a, "retire")
    await until_drained(s, b, "leave")
    await ask(s, wire.OBSERVE)

    assert [] == asked
    del elsewhere


@pytest.mark.parametrize("call_s", [0, 0.4])
@with_agent(4, timeout=60)
async def test_calls_of_clients_go_on_while_workers_are_deleted(c, s, *workers, call_s) -> None:
    results = await holding(c, workers[0], 4)
    for worker in workers:  # else it may close in the middle of a call that began as it was removed
        worker.periodic_callbacks["heartbeat"].stop()

    async def calls() -> None:
        while len(s.workers) > 1:
            assert {1} == set((await c.run(called, call_s)).values())

    calling = asyncio.ensure_future(calls())
    for worker in workers[:-1]:
        await until_state(s, worker.name, wire.DRAINED, ends=wire.NAMES)
        assert worker.address not in s.workers
        await worker.close()
    await calling
    await c.gather(results)
    assert 4 == len(RUNS)


async def called(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return 1


@with_agent()
async def test_processes_of_a_pod_are_removed_together(c, s, a, b) -> None:
    async with Worker(s.address, name="x-0"), Worker(s.address, name="x-1", nthreads=1) as busy:
        task = await running(c, busy, 1)
        assert [(wire.ACTIVE, wire.V_BUSY)] == await retire(s, "x", ends=wire.NAMES)
        assert 4 == len(s.workers)
        MAY_END.set()
        await task
        await until_state(s, "x", wire.DRAINED, ends=wire.PROCESSES)
        assert {a.address, b.address} == set(s.workers)


@with_agent()
async def test_a_busy_worker_is_refused_unless_asked_for(c, s, a, b) -> None:
    future = await running(c, a, 1)

    assert [(wire.ACTIVE, wire.V_BUSY)] == await retire(s, a.name)
    assert [(wire.DRAINING, "")] == await retire(s, a.name, **BUSY)
    MAY_END.set()
    await future
    await until_state(s, a.name, wire.DRAINED)
    assert [1] == RUNS


@with_agent(
    nthreads=[("127.0.0.1", 1, {"resources": {"GPU": 9}})] * 2 + [("127.0.0.1", 1)],
    config={"distributed.scheduler.worker-saturation": "inf"},
)
async def test_moved_tasks_go_only_where_they_may_run(c, s, a, b, plain) -> None:
    futures = c.map(slow, range(8), delay_s=0.1, resources={"GPU": 1})
    await until(lambda: s.workers[a.address].processing)

    await until_state(s, a.name, wire.DRAINED, **BUSY)
    await c.gather(futures)

    assert 8 == len(RUNS)
    assert 0 == plain.state.executed_count


@with_agent(1)
async def test_the_last_worker_stays_while_it_is_of_use(c, s, a) -> None:
    future = c.submit(slow, 1, 0.2)
    await until(lambda: a.state.executing_count)
    busy = await retire(s, a.name, **BUSY)
    await future
    full = await retire(s, a.name)
    future.release()
    await until(lambda: not s.workers[a.address].has_what)
    empty = await retire(s, a.name)

    assert [(wire.ACTIVE, wire.V_NO_RECIPIENT)] == busy == full
    assert [(wire.DRAINED, "")] == empty


@pytest.mark.parametrize("is_cordoned", [False, True])
@with_agent()
async def test_two_retirements_do_not_rely_on_each_other(c, s, a, b, is_cordoned) -> None:
    if is_cordoned:
        futures = await _cordoned(c, s, a, b, runs=2)
    else:
        futures = await holding(c, a, 4)
        await c.replicate(futures, n=2)
        await until(lambda: len(s.workers[b.address].has_what) == 4)

    first, second = await retire(s, a.name, b.name)

    assert wire.ACTIVE not in first
    assert (wire.ACTIVE, wire.V_NO_RECIPIENT) == second
    await until_state(s, a.name, wire.DRAINED)
    assert [(wire.ACTIVE, wire.V_NO_RECIPIENT)] == await retire(s, b.name)
    assert is_cordoned == (b.address in await cordoned(s)), "as it was"
    await a.close()
    await c.gather(futures)
    assert 4 == len(RUNS)


@with_agent(3)
async def test_copies_on_two_leaving_workers_are_moved_to_the_third(c, s, a, b, third) -> None:
    futures = await holding(c, a, 4)
    await c.replicate(futures, workers=[a.address, b.address])
    await until(lambda: len(s.workers[b.address].has_what) == 4)

    await retire(s, a.name, b.name)
    await until_state(s, a.name, wire.DRAINED)
    await until_state(s, b.name, wire.DRAINED)

    assert 4 == len(s.workers[third.address].has_what)


@with_agent(config=QUIET)
async def test_no_recipient_while_moving_brings_it_back(c, s, a, b) -> None:
    """The other worker pauses after the retirement has begun."""
    future = await running(c, a, 1)
    await retire(s, a.name, **BUSY)

    b.status = Status.paused
    outcome = await until_state(s, a.name, wire.ACTIVE)

    assert wire.V_NO_RECIPIENT == outcome["veto"]
    await until(lambda: a.status == Status.running)
    assert s.workers[a.address] in s.running
    MAY_END.set()
    await future
    assert [1] == RUNS


@with_agent(config=QUIET)
async def test_an_objection_that_ended_a_drain_is_none_once_it_stands_no_more(
    c, s, a, b, agent
) -> None:
    """A worker whose process was about to end was refused for one of long ago, and lost all."""
    future = await running(c, a, 1)
    await retire(s, a.name, **BUSY)
    b.status = Status.paused
    await until(lambda: not agent.drains.ongoing)  # nobody has asked why
    b.status = Status.running
    await until(lambda: s.workers[b.address] in s.running)

    assert [(wire.DRAINING, "")] == await retire(s, a.name, **BUSY)
    MAY_END.set()
    await until_state(s, a.name, wire.DRAINED)
    await future
    assert [1] == RUNS


@with_agent()
async def test_cancel_brings_a_worker_back(c, s, a, b) -> None:
    _results = await holding(c, a, 4)
    await until_state(s, a.name, wire.DRAINED)
    await until(lambda: a.status == Status.closing_gracefully)

    answer = await ask(s, wire.CANCEL, names=[str(a.name), "nobody"])

    assert [wire.ACTIVE, "gone"] == [one["state"] for one in answer["outcomes"]]
    await until(lambda: a.status == Status.running)
    assert Status.running == s.workers[a.address].status
    assert not (await ask(s, wire.OBSERVE))["retirements"]
    assert await c.submit(slow, "again", 0, workers=[a.address])


@with_agent(config=QUIET)
async def test_cancel_leaves_a_paused_worker_paused(c, s, a, b) -> None:
    a.status = Status.paused
    await until(lambda: s.workers[a.address].status == Status.paused)
    await retire(s, a.name)
    await until(lambda: a.status == Status.closing_gracefully)

    await ask(s, wire.CANCEL, names=[str(a.name)])

    assert Status.paused == s.workers[a.address].status
    await until(lambda: a.status == Status.paused)
    await asyncio.sleep(0.1)
    assert Status.paused == s.workers[a.address].status


@pytest.mark.parametrize("on_timeout", ["Abort", "Force"])
@with_agent()
async def test_deadline(c, s, a, b, on_timeout) -> None:
    kept = c.submit(slow, "kept", 0, workers=[a.address])
    await kept
    future = await running(c, a, "long")

    await retire(s, a.name, deadline_ms=150, on_timeout=on_timeout, **BUSY)
    if on_timeout == "Abort":
        outcome = await until_state(s, a.name, wire.ACTIVE)
        assert wire.V_TIMEOUT == outcome["veto"]
        assert Status.running == s.workers[a.address].status
    else:
        await until_state(s, a.name, wire.DRAINED)
        (row,) = (await ask(s, wire.OBSERVE))["retirements"]
        assert wire.DRAINED == row["state"]
        assert s.workers[a.address].processing
        assert kept.key in {getattr(k, "key", k) for k in s.workers[b.address].has_what}
    MAY_END.set()
    await future


@with_agent()
async def test_retiring_twice_is_the_same_retirement(c, s, a, b) -> None:
    future = await running(c, a, 1)

    first = await retire(s, a.name, deadline_ms=60_000, **BUSY)
    second = await retire(s, a.name, deadline_ms=1, reason="another")

    assert [(wire.DRAINING, "")] == first == second
    (row,) = (await ask(s, wire.OBSERVE))["retirements"]
    assert "test" == row["reason"]
    assert 50_000 < row["left_ms"]
    MAY_END.set()
    await future


@with_agent()
async def test_a_worker_with_actors_is_refused(c, s, a, b) -> None:
    actor = await c.submit(Counter, actor=True, workers=[a.address])

    assert [(wire.ACTIVE, wire.V_ACTORS)] == await retire(s, a.name)
    assert 1 == len((await ask(s, wire.OBSERVE))["actors"])
    assert 1 == await actor.one()


@with_agent()
async def test_a_pinned_worker_is_refused(c, s, a, b) -> None:
    await pin(s, a)

    answer = await ask(s, wire.RETIRE, names=[str(a.name)])

    assert [
        {
            "name": str(a.name),
            "state": wire.ACTIVE,
            "veto": wire.V_PINNED,
            "message": "pinned by manual operator (test) for 60 s more",
        }
    ] == list(answer["outcomes"])
    assert [b.address] == s.workers_to_close(n=2)


@with_agent()
async def test_a_worker_pinned_while_drained_comes_back(c, s, a, b) -> None:
    await retire(s, a.name)

    await pin(s, a, source=wire.CLIENT)

    await until(lambda: s.workers[a.address].status == Status.running)
    assert [(wire.ACTIVE, wire.V_PINNED)] == await retire(s, a.name)


@with_agent()
async def test_new_results_on_a_drained_worker_are_moved_first(c, s, a, b) -> None:
    await retire(s, a.name)
    # As a client that scatters directly does; the scheduler itself asks workers in service only.
    a.update_data({"x": b"data"})
    s.update_data(who_has={"x": [a.address]}, nbytes={"x": 4}, client=c.id)
    await until(lambda: len(s.workers[a.address].has_what) == 1)

    assert [(wire.DRAINING, "")] == await retire(s, a.name)
    await until_state(s, a.name, wire.DRAINED)
    assert "x" in b.data


@with_agent(0)
async def test_of_workers_that_share_the_text_of_a_name_the_least_advanced_answers(c, s) -> None:
    workers = [await Worker(s.address, name=name, nthreads=1) for name in (7, "7", "other")]
    try:
        number = workers[0]
        await until(lambda: 3 == len(s.running))
        future = await running(c, number, 1)

        assert [(wire.ACTIVE, wire.V_BUSY)] == await retire(s, "7")
        assert [(wire.DRAINING, "")] == await retire(s, "7", **BUSY)
        MAY_END.set()
        await until_state(s, "7", wire.DRAINED)
        assert 2 == len((await ask(s, wire.OBSERVE))["retirements"])
        await future
    finally:
        # As gen_cluster does: to wait for idle threads hangs now and then (Worker.close).
        await asyncio.gather(*(w.close(executor_wait=False) for w in workers))


# Where all others are cordoned


async def _cordoned(c: Any, s: Any, *workers: Any, runs: int = 4) -> list[Any]:
    """Results that a client holds, of workers that have all come to an exact quota."""
    futures = []
    for w in workers:
        futures += [c.submit(slow, i, 0, workers=[w.address], pure=False) for i in range(runs)]
    await wait(futures)
    await limit(s, workers, runs, exact=True)
    await until(lambda: not s.running)
    assert {w.address for w in workers} == set(await cordoned(s))
    return futures


def _held(s: Any, w: Any) -> set[Any]:
    return {ts.key for ts in s.workers[w.address].has_what}


@with_agent(3)
async def test_where_all_are_cordoned_they_take_copies_of_each_other(c, s, a, b, d) -> None:
    """On 0.1.0 the first one was refused: nobody could take its results."""
    futures = await _cordoned(c, s, a, b, d)

    await until_state(s, a.name, wire.DRAINED)
    assert {f.key for f in futures} == _held(s, b) | _held(s, d)
    assert not _held(s, a)
    assert {b.address, d.address} == set(await cordoned(s))
    await a.close()

    async with Worker(s.address, nthreads=1) as new:
        await until(lambda: s.workers[new.address] in s.running)
        had = _held(s, b)
        await until_state(s, b.name, wire.DRAINED)
        assert had <= _held(s, new), "one in service comes first"
        await b.close()

        assert 12 == len(await c.gather(futures))
        assert 12 == len(RUNS)


@with_agent()
async def test_a_cordoned_worker_whose_process_ends_hands_its_results_over(c, s, a, b) -> None:
    futures = await _cordoned(c, s, a, b)

    await until_left(s, a.name)
    await a.close()
    assert [wire.DRAINING] == await leave(s, b.name)  # nobody is left
    async with Worker(s.address, nthreads=1):
        await until_left(s, b.name)
        await b.close()

        assert 8 == len(await c.gather(futures))
        assert 8 == len(RUNS)


@with_agent(config=QUIET)
async def test_a_cordoned_worker_that_is_paused_takes_nothing(c, s, a, b, agent) -> None:
    futures = await _cordoned(c, s, a, b)
    b.status = Status.paused
    await until(lambda: agent.service.gate_of(b.address).reported == Status.paused)

    assert [(wire.ACTIVE, wire.V_NO_RECIPIENT)] == await retire(s, a.name)
    b.status = Status.running
    await until_state(s, a.name, wire.DRAINED)
    assert {f.key for f in futures} == _held(s, b)


class SlowToSend:
    def __reduce__(self) -> Any:
        time.sleep(0.05)
        return SlowToSend, ()


#: One result a message; and the memory manager runs when the test says so.
STAGED = {
    "distributed.worker.transfer.message-bytes-limit": 1,
    "distributed.scheduler.active-memory-manager.start": False,
}


@with_agent(config=STAGED)
async def test_one_that_comes_to_its_quota_still_takes_what_it_was_asked_to(c, s, a, b) -> None:
    futures = [c.submit(SlowToSend, workers=[a.address], pure=False) for _ in range(10)]
    await wait(futures)
    assert [(wire.DRAINING, "")] == await retire(s, a.name)
    futures.append(c.submit(int))
    await wait(futures)
    await limit(s, [b], 1, exact=True)
    assert [b.address] == list(await cordoned(s))

    await until_state(s, a.name, wire.DRAINED)
    assert {future.key for future in futures} == _held(s, b)


@with_agent(config=STAGED)
async def test_the_memory_manager_does_not_take_back_what_a_cordoned_one_fetched(
    c, s, a, b, agent
) -> None:
    """Of two workers out of service `ReduceReplicas` drops the copy of the fuller one."""
    futures = [c.submit(SlowToSend, workers=[a.address], pure=False) for _ in range(20)]
    futures.append(c.submit(int, workers=[b.address]))
    await wait(futures)
    await limit(s, [a, b], 1, exact=True)
    await until(lambda: not s.running)
    manager, fuller = s.extensions["amm"], {s.workers[b.address]}
    stock = manager._find_dropper
    manager._find_dropper = lambda ts, _, dropped: stock(ts, fuller, dropped)

    while await retire(s, a.name) != [(wire.DRAINED, "")]:
        agent.drains.review()  # a look, and nothing arrives between it and the manager's
        manager.run_once()
        await asyncio.sleep(0.3)

    assert {future.key for future in futures} == _held(s, b)
