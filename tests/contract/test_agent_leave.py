"""What the end of a worker's process does on real schedulers and workers: no work is redone."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from distributed import Worker, wait
from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import uninstall
from dask_adaptive_agent.drain import drain
from dask_adaptive_agent.service import data_copier
from support.agent_cluster import with_agent
from support.agent_work import (
    MAY_END,
    RUNS,
    Counter,
    ask,
    by_slot,
    count_runs,
    held,
    holding,
    leave,
    nobody_fetches_from,
    pin,
    rechunked,
    retire,
    running,
    slow,
    tally,
    unpin,
    until,
    until_left,
)
from support.tables import table


def kept(key: Any, worker: Any) -> bool:
    return str(key) in {str(k) for k in worker.data}


def notes(agent: Any) -> list[tuple[str, str]]:
    return [(row["kind"], row["message"]) for row in agent.notes.since(0)]


@with_agent()
async def test_data_goes_first_while_tasks_still_run(c, s, a, b) -> None:
    results = await holding(c, a, 8)
    task = await running(c, a, "running")

    assert [wire.DRAINING] == await leave(s, a.name)
    await until(lambda: all(kept(f.key, b) for f in results))

    assert a.state.executing_count
    assert Status.running == a.status  # the worker itself is not told yet
    MAY_END.set()
    await until_left(s, a.name)
    assert kept(task.key, b)  # and so does what comes later
    await a.close()
    await c.gather([*results, task])
    assert 9 == len(RUNS)


@with_agent()
async def test_a_pin_is_waited_for_and_a_drained_worker_stays_drained(c, s, a, b) -> None:
    await pin(s, a)
    assert [wire.DRAINING] == await leave(s, a.name)
    await asyncio.sleep(0.3)
    (row,) = (await ask(s, wire.LEAVE, names=[str(a.name)]))["outcomes"]
    assert wire.DRAINING == row["state"]
    assert "manual operator (test)" in row["message"]

    await unpin(s)
    await until_left(s, a.name)
    await pin(s, a, a.address)
    await asyncio.sleep(0.2)

    assert [wire.DRAINED] == await leave(s, a.name)
    assert Status.closing_gracefully == s.workers[a.address].status


@pytest.mark.long
@with_agent()
async def test_when_time_runs_out_data_goes_first_and_the_task_is_given_back(
    c, s, a, b, agent
) -> None:
    count_runs(s)
    results = await holding(c, a, 8)
    long = await running(c, a, "long", key="long", allow_other_workers=True)

    await leave(s, a.name, left_ms=3000)
    await until(lambda: a.address not in s.workers)

    assert 0 == s.tasks["long"].suspicious
    assert all(kept(f.key, b) for f in results)
    assert {s.workers[b.address]} == {s.tasks["long"].processing_on}
    ((kind, message),) = notes(agent)
    assert wire.N_TASKS_GIVEN_BACK == kind
    assert "1 task given back: long" in message
    assert "could not be moved" not in message
    assert (0, 1) == tally(s, "repeated", "interrupted")
    assert ["gone"] == await leave(s, a.name)
    MAY_END.set()
    await long


@pytest.mark.long
@pytest.mark.parametrize("end", ["is killed", "its time is up", "is released", "asks others"])
@with_agent(
    3,
    config={
        "distributed.worker.memory.pause": False,
        "distributed.scheduler.active-memory-manager.start": False,
    },
)
async def test_recipients_survive_that_copies_are_computed_again(
    c, s, a, b, d, end, monkeypatch
) -> None:
    """Upstream's workers close when they are told to compute what they have yet to fetch."""
    if end == "asks others":
        monkeypatch.setattr(data_copier, "PATIENCE_S", 0.1)
    base = c.submit(slow, "base", 0, workers=[d.address])
    either = [a.address, b.address]
    first = c.submit(slow, "first", 0, workers=[a.address])
    await wait([base, first])
    d.status = Status.paused  # b alone is asked for copies
    await until(lambda: s.workers[d.address] not in s.running)
    late = c.submit(lambda _: held("late"), base, workers=[a.address], key="late")
    await until(lambda: a.state.executing_count)
    for future in (first, late):
        s.tasks[future.key].worker_restrictions = set(either)
    nobody_fetches_from(a)
    MAY_END.set()

    await leave(s, a.name, left_ms=2_000 if end == "its time is up" else 60_000)
    await until(lambda: late.key in b.state.tasks and b.state.tasks[late.key].state == "fetch")
    if end == "is released":
        late.release()
        await until(lambda: late.key not in s.tasks)
        late = c.submit(slow, "late", 0, base, workers=[b.address], key="late")
        assert b"x" * 1000 == await asyncio.wait_for(late, 20)
    if end == "asks others":
        d.status = Status.running
        await until(lambda: late.key in d.state.tasks)
    if end != "its time is up":
        await s.remove_worker(a.address, stimulus_id="killed")
    await until(lambda: a.address not in s.workers)

    assert [b"x" * 1000] * 2 == await asyncio.wait_for(c.gather([first, late]), 20)
    assert Status.running == b.status


@with_agent(1)
async def test_a_replacement_takes_the_data_and_the_name(c, s, a) -> None:
    """The Deployment's next pod comes at once, and calls itself as the one before it."""
    results = c.map(slow, range(8), delay_s=0)
    await wait(results)

    assert [wire.DRAINING] == await leave(s, a.name)
    assert a.address == s.aliases[a.name]
    async with Worker(s.address, name=a.name, nthreads=1) as replacement:
        assert replacement.address == s.aliases[a.name]
        await until_left(s, a.name)  # by name: the old one, never the new one
        assert Status.running == s.workers[replacement.address].status
        await a.close()

        await c.gather(results)
        assert 8 == len(RUNS)
        assert {a.name: replacement.address} == s.aliases


@with_agent(1)
async def test_what_nobody_could_take_is_told(c, s, a, agent) -> None:
    results = c.map(slow, range(8), delay_s=0)
    await wait(results)

    await leave(s, a.name, left_ms=800)
    await until(lambda: a.address not in s.workers)

    ((kind, message),) = notes(agent)
    assert wire.N_TASKS_GIVEN_BACK == kind
    assert "8 results (8 kB)" in message
    assert {} == s.aliases


@with_agent()
async def test_a_worker_without_work_leaves_without_a_word(c, s, a, b, agent) -> None:
    assert [wire.DRAINED] == await leave(s, a.name)
    await until(lambda: a.status == Status.closing_gracefully)
    await a.close()
    await until(lambda: a.address not in s.workers)

    assert [] == notes(agent)
    assert [b.name] == list(s.aliases)


@table(
    "said_s, counts_s",
    the_earliest=((60, 30, 90), 30),
    assumed=((None,), 25),
    known_before_assumed=((None, 90, None), 90),
)
@with_agent()
async def test_of_several_deadlines(c, s, a, b, said_s, counts_s) -> None:
    future = await running(c, a, 1)

    for left_s in said_s:
        left = {} if left_s is None else {"left_ms": left_s * 1000}
        await ask(s, wire.LEAVE, names=[str(a.name)], reason="spot", **left)

    (row,) = (await ask(s, wire.OBSERVE))["departures"]
    assert counts_s * 1000 - 5_000 < row["left_ms"] <= counts_s * 1000
    assert "1 task" in row["message"]
    assert ("spot", str(a.name), wire.DRAINING) == (row["reason"], row["name"], row["state"])
    MAY_END.set()
    await future


@with_agent()
async def test_a_retirement_is_taken_over(c, s, a, b, agent) -> None:
    assert [(wire.DRAINED, "")] == await retire(s, a.name)

    assert [wire.DRAINED] == await leave(s, a.name)

    assert not (await ask(s, wire.OBSERVE))["retirements"]
    assert Status.closing_gracefully == s.workers[a.address].status
    assert [(wire.DRAINED, "")] == await retire(s, a.address)
    answer = await ask(s, wire.CANCEL, names=[a.address])
    assert wire.DRAINED == answer["outcomes"][0]["state"]
    assert [a.address] == list(agent.drains.ongoing)


@with_agent(0)
async def test_whom_a_name_means(c, s) -> None:
    async with (
        Worker(s.address, name="x-0", nthreads=1) as first,
        Worker(s.address, name="x-1", nthreads=1) as second,
        Worker(s.address, name="x-1a", nthreads=1) as stranger,
        Worker(s.address, name="xx-1", nthreads=1) as other,
        Worker(s.address, name=7, nthreads=1) as seven,
    ):
        await until(lambda: 5 == len(s.running))

        async def asked(**request: Any) -> set[tuple[str, str]]:
            answer = await ask(s, wire.LEAVE, **request)
            return {(one["name"], one["state"]) for one in answer["outcomes"]}

        drained = wire.DRAINED
        assert {("nobody", "gone")} == await asked(names=["nobody"])
        for _ in range(2):  # also when one of them departs already
            await asked(names=["x-0"])
            both = {(first.address, drained), (second.address, drained)}
            assert both == await asked(names=["x"])
        assert {(seven.address, drained)} == await asked(names=["7"])
        for worker in (stranger, other):
            assert Status.running == s.workers[worker.address].status


@pytest.mark.parametrize("name", ["late", "late-1"])
@with_agent(1)
async def test_who_was_called_off_and_joins_all_the_same_gets_no_task(c, s, a, agent, name) -> None:
    """Its Deployment is being deleted; if that fails, the operator calls it back."""
    async with Worker(s.address, name="late-0", nthreads=1) as idle:
        assert [(wire.DRAINED, "")] == await retire(s, "late", ends=wire.NAMES)
        assert {a.address} == set(s.workers)
        await idle.close()
    tasks = c.map(slow, range(20), delay_s=0.02)
    async with Worker(s.address, name=name, nthreads=4) as late:
        await c.gather(tasks)
        assert not late.data
        assert [wire.DRAINED] == [one.state for one in agent.drains.retirements().values()]
        await ask(s, wire.CANCEL, names=[name])
        await c.submit(slow, 20, workers=[name])


@with_agent()
async def test_copies_made_meanwhile_are_not_dropped_again(c, s, a, b) -> None:
    """By `ReduceReplicas` of the active memory manager, while a task on the worker needs them."""
    results = await holding(c, a, 4)
    task = c.submit(lambda parts: held("task"), results, workers=[a.address])
    await until(lambda: a.state.executing_count)
    await leave(s, a.name)
    await until(lambda: all(kept(f.key, b) for f in results))

    for _ in range(5):
        s.extensions["amm"].run_once()
        await asyncio.sleep(0.05)
    assert all(kept(f.key, b) for f in results)

    MAY_END.set()
    await until_left(s, a.name)
    for _ in range(3):
        s.extensions["amm"].run_once()
    await a.close()
    await c.gather([*results, task])
    assert 5 == len(RUNS)


@with_agent(3)
async def test_who_was_asked_for_copies_and_cannot_is_replaced_by_another(c, s, a, b, d) -> None:
    """The recipient leaves as well, after it has been asked."""
    results = await holding(c, a, 8)

    await asyncio.gather(leave(s, a.name), leave(s, b.name))
    await asyncio.gather(until_left(s, a.name), until_left(s, b.name))

    assert all(kept(f.key, d) for f in results)
    await asyncio.gather(a.close(), b.close())
    await c.gather(results)
    assert 8 == len(RUNS)


@with_agent()
async def test_actors_are_waited_for(c, s, a, b) -> None:
    actor = await c.submit(Counter, actor=True, workers=[a.address])
    assert [wire.DRAINING] == await leave(s, a.name)
    assert 1 == await actor.one()

    del actor
    gc.collect()  # a cycle holds it, which Python 3.14 finds late
    await until_left(s, a.name)


@with_agent()
async def test_taking_the_agent_out_brings_workers_back_by_their_names(c, s, a, b) -> None:
    before = dict(s.aliases)
    future = await running(c, a, 1)
    await leave(s, a.name)
    async with Worker(s.address, name=a.name, nthreads=1) as replacement:
        assert replacement.address == s.aliases[a.name]
    await until(lambda: replacement.address not in s.workers)
    assert before != s.aliases

    s.plugins["dask-adaptive"].uninstall()

    assert before == s.aliases
    assert s.workers[a.address] in s.running
    MAY_END.set()
    await future


@pytest.mark.parametrize("shape", ["fast", "slow"])
@with_agent(3, timeout=90)
async def test_a_shuffle_ends_before_its_participant_leaves(c, s, a, b, d, agent, shape) -> None:
    pytest.importorskip("dask.array")
    count_runs(s)
    future = rechunked(c, blocks=20 if shape == "slow" else 4)
    await until(agent.shuffles.running)

    await leave(s, a.name)
    done, drained = asyncio.ensure_future(wait(future)), until_left(s, a.name, timeout_s=60)
    await asyncio.gather(done, drained)
    await a.close()

    assert 6400 == await future
    keys = ("shuffles", "max_shuffle_run", "repeated", "interrupted")
    assert (1, 1, 0, 0) == tally(s, *keys)
    assert 0 < a.state.executed_count


async def on(c: Any, name: Any) -> str:
    """The address of the worker that a task for this name runs on."""
    future = c.submit(lambda dask_worker=None: None, workers=[name], pure=False)
    here = c.submit(
        lambda _: __import__("distributed").get_worker().address, future, workers=[name], pure=False
    )
    return str(await asyncio.wait_for(here, 10))


def meant(s: Any, name: str) -> list[str]:
    """Addresses of those whom our own messages mean by a name."""
    (workers,) = s.plugins["dask-adaptive"].roster.named([name])
    return [ws.address for ws in workers]


async def pinned(s: Any) -> set[str]:
    """Addresses of the workers that somebody pins."""
    seen = await ask(s, wire.OBSERVE)
    of = by_slot(seen, "address")
    return {of[slot] for row in seen["pins"] for slot in row["slots"]}


@with_agent()
async def test_a_worker_that_leaves_is_found_by_its_name(c, s, a, b) -> None:
    busy = c.submit(slow, "busy", 0.2, workers=[a.name])
    waiting = c.submit(slow, "waiting", 0, workers=[a.name])
    await until(lambda: a.state.executing_count)

    assert [wire.DRAINING] == await leave(s, a.name)

    assert (a.address, a.name) == (s.aliases[a.name], s.workers[a.address].name)
    assert a.address == await on(c, a.name)
    assert [a.address] == meant(s, str(a.name))
    await c.gather([busy, waiting])
    await until_left(s, a.name)
    assert [(wire.DRAINED, "")] == await retire(s, a.name)
    for source in (wire.MANUAL, wire.CLIENT):
        await pin(s, a, source=source)
        assert {a.address} == await pinned(s)
        await unpin(s, source)
        assert not await pinned(s)
    assert [a.address] == list(await c.retire_workers(names=[a.name]))


@with_agent()
async def test_the_name_means_the_one_that_comes_once_it_is_there(c, s, a, b) -> None:
    busy = c.submit(slow, "busy", 1.0, workers=[a.name])
    bound = c.submit(slow, "bound before", 0, workers=[a.name])
    await until(lambda: a.state.executing_count)
    await leave(s, a.name)
    await pin(s, a)

    async with Worker(s.address, name=a.name, nthreads=1) as comer:
        assert (comer.address, comer.name) == (s.aliases[a.name], s.workers[comer.address].name)
        assert comer.address == await on(c, a.name)
        assert [comer.address] == meant(s, str(a.name))
        assert {a.address} == await pinned(s)  # whom it meant when it was said
        await pin(s, a, source=wire.CLIENT)
        assert {a.address, comer.address} == await pinned(s)
        await unpin(s, wire.CLIENT)
        await unpin(s)
        (row,) = (await ask(s, wire.OBSERVE))["departures"]
        assert str(a.name) == row["name"]

        await c.gather([busy, bound])
        assert {"busy", "bound before"} <= set(RUNS)
        assert 0 == sum(key.startswith("slow") for key in comer.data)
        await until_left(s, a.address)
        assert [comer.address] == list(await c.retire_workers(names=[a.name]))


@with_agent()
async def test_each_that_leaves_gives_way_in_turn(c, s, a, b) -> None:
    await leave(s, b.address)
    async with Worker(s.address, name=b.name, nthreads=1) as second:
        await leave(s, second.address)
        async with Worker(s.address, name=b.name, nthreads=1) as third:
            assert third.address == s.aliases[b.name]
            assert s.workers.keys() == set(s.aliases.values())
            assert all(ws.address == s.aliases[ws.name] for ws in s.workers.values())
        await second.close()
    await b.close()
    await until(lambda: [a.address] == list(s.workers))
    assert {a.name: a.address} == s.aliases


@with_agent()
async def test_nobody_else_gives_way(c, s, a, b) -> None:
    """Who serves, or may serve again, keeps its name: as in stock, the comer is refused."""
    await leave(s, "nobody")
    await retire(s, a.name)
    for name in (a.name, b.name):
        with pytest.raises((ValueError, RuntimeError)) as refused:
            await Worker(s.address, name=name, nthreads=1)
        assert "name taken" in f"{refused.value} {refused.value.__cause__}"
    assert {a.name: a.address, b.name: b.address} == s.aliases
    uninstall(s)
    assert s.handlers["register-worker"] == s.add_worker


@with_agent()
async def test_one_that_serves_again_after_all_has_its_name_or_another(
    c, s, a, b, agent, monkeypatch
) -> None:
    """Whoever said that it was sure to end was wrong; another may have come with its name."""
    before = dict(s.aliases)
    for is_alone in (True, False):
        monkeypatch.setattr(drain, "OVERDUE_S", 60.0)
        await until_left(s, a.name, left_ms=100)
        if is_alone:
            monkeypatch.setattr(drain, "OVERDUE_S", 0.2)
            await until(lambda: s.workers[a.address] in s.running)
            assert before == s.aliases
            assert await c.submit(slow, "again", 0, workers=[a.address])
    async with Worker(s.address, name=a.name, nthreads=1) as comer:
        monkeypatch.setattr(drain, "OVERDUE_S", 0.2)
        await until(lambda: not agent.drains.ongoing)
        await until(lambda: a.status == Status.running)
        assert {a.name: comer.address, f"{a.name} 2": a.address, b.name: b.address} == s.aliases
