"""Workers that somebody else retires, restarts or closes, also while we drain them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Nanny, Worker, WorkerPlugin, wait
from distributed.core import Status, rpc
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install, uninstall
from dask_adaptive_agent.drain import drain
from dask_adaptive_agent.worker_side import lifetime
from support.agent_cluster import with_agent, with_lifetimes
from support.agent_quota import cordoned, limit
from support.agent_work import (
    MAY_END,
    RUNS,
    ask,
    count_runs,
    holding,
    leave,
    nobody_fetches_from,
    pin,
    retire,
    running,
    slow,
    tally,
    until,
    until_heard,
    until_left,
    until_state,
)

BUSY = {"busy_ok": True}
NEVER_PAUSES = {"distributed.worker.memory.pause": False}
#: Processes that start on a busy machine: `gen_cluster` gives up after 15 s.
NANNIES: dict[str, Any] = {"Worker": Nanny, "worker_kwargs": {"death_timeout": 60}}


async def serves(c, s, worker) -> None:
    """In the scheduler and in its own process: a task that only this worker may run is run."""
    await until(lambda: s.workers[worker.address] in s.running)
    await until(lambda: worker.status == Status.running)
    bound = c.submit(slow, "bound", 0, workers=[worker.address], pure=False)
    assert await asyncio.wait_for(bound, 10)


@pytest.mark.parametrize("cancelled", ["before", "during", "after"])
@with_agent()
async def test_a_call_without_recipients_keeps_nobody_out(c, s, a, b, cancelled) -> None:
    """Upstream restores the status that it has found, which was ours."""
    others = await holding(c, b, 4)
    results = c.map(slow, range(10, 14), delay_s=0, workers=[a.address])
    await wait(results)
    task = await running(c, a, "running", allow_other_workers=True)
    await retire(s, a.name, **BUSY)
    if cancelled == "before":
        await ask(s, wire.CANCEL, names=[str(a.name)])

    call = c.retire_workers([a.address, b.address])
    if cancelled == "during":
        refused, _ = await asyncio.gather(call, ask(s, wire.CANCEL, names=[str(a.name)]))
    else:
        refused = await call
    assert not refused
    if cancelled == "after":
        await ask(s, wire.CANCEL, names=[str(a.name)])

    MAY_END.set()
    await serves(c, s, a)
    await serves(c, s, b)
    await c.gather([*results, *others, task])
    assert 1 == RUNS.count("running")


@pytest.mark.parametrize("options", [{}, {"close_workers": False, "remove": False}])
@with_agent()
async def test_a_users_own_retirement_takes_a_worker_over(c, s, a, b, agent, options) -> None:
    results = await holding(c, a, 4)
    await until_state(s, a.name, wire.DRAINED)

    assert [a.address] == list(await c.retire_workers([a.address], **options))

    assert not agent.service.out_of_service()
    if options:  # it stays, out of service, as its user has said; and we may go on with it
        assert Status.closing_gracefully == s.workers[a.address].status
        await until_state(s, a.name, wire.DRAINED)
        await ask(s, wire.CANCEL, names=[str(a.name)])
        await asyncio.sleep(0.05)
        assert s.workers[a.address] not in s.running
    else:
        await until(lambda: a.address not in s.workers)
    await c.gather(results)
    assert 4 == len(RUNS)


@with_agent(3)
async def test_while_somebody_retires_a_worker_no_drain_of_it_begins(c, s, a, b, d, agent) -> None:
    _results = await holding(c, a, 4)
    may_fetch = nobody_fetches_from(a)
    call = asyncio.ensure_future(c.retire_workers([a.address], close_workers=False, remove=False))
    await until(lambda: s.workers[a.address] not in s.running)

    assert [(wire.DRAINING, "")] == await retire(s, a.name)
    assert not agent.drains.ongoing

    may_fetch.set()
    assert [a.address] == list(await call)
    await until_state(s, a.name, wire.DRAINED)


@with_agent()
async def test_a_call_without_recipients_changes_nothing_for_one_that_ends(c, s, a, b) -> None:
    """Its bound tasks still run: the call has told its process that it closes."""
    others = await holding(c, b, 4)
    results = c.map(slow, range(10, 14), delay_s=0, workers=[a.address])
    await wait(results)
    may_fetch = nobody_fetches_from(a)
    running = c.submit(slow, "running", 0.3, workers=[a.address])
    bound = [c.submit(slow, i, 0, workers=[a.address], pure=False) for i in range(3)]
    await until(lambda: a.state.executing_count)
    await leave(s, a.name)

    assert not await c.retire_workers([a.address, b.address])

    await asyncio.wait_for(wait([running, *bound]), 10)
    await serves(c, s, b)
    may_fetch.set()
    await until_left(s, a.name)
    await c.gather([running, *bound, *results, *others])
    assert 1 == RUNS.count("running")


@with_agent()
async def test_a_cordoned_worker_serves_again_after_a_call_without_recipients(
    c, s, a, b, agent
) -> None:
    others = await holding(c, b, 4)
    await limit(s, [a], 3)
    some = [c.submit(slow, i, 0, workers=[a.address], pure=False) for i in range(3)]
    await wait(some)
    await until(lambda: agent.cordons.ongoing)

    assert not await c.retire_workers([a.address, b.address])
    await limit(s, [])

    await serves(c, s, a)
    await serves(c, s, b)
    await c.gather([*some, *others])


@with_agent()
async def test_two_calls_at_once_leave_nobody_out(c, s, a, b) -> None:
    some = [c.submit(slow, i, 0, workers=[w.address]) for i, w in enumerate((a, b))]
    await wait(some)
    await retire(s, a.name)

    calls = [c.retire_workers([a.address, b.address]) for _ in range(2)]
    assert [{}, {}] == [dict(one) for one in await asyncio.gather(*calls)]

    await serves(c, s, a)
    await serves(c, s, b)
    await c.gather(some)


@pytest.mark.long
@with_lifetimes(config=NEVER_PAUSES)
async def test_a_drain_that_begins_and_ends_beside_a_call_keeps_nobody_out(
    c, s, a, b, agent
) -> None:
    """Its gate finds the status that the call has set: that is not what the worker had before."""
    results = await holding(c, a, 4)
    may_fetch = nobody_fetches_from(a)
    call = asyncio.ensure_future(c.retire_workers([a.address]))
    await until(lambda: s.workers[a.address] not in s.running)
    ending = asyncio.ensure_future(agent.drains.lifetime(a.address))
    await until(lambda: agent.drains.ongoing)
    ending.cancel()
    await until(lambda: not agent.drains.ongoing)

    b.status = Status.paused  # nobody is left who could take its data
    assert not await call
    b.status = Status.running
    may_fetch.set()

    await serves(c, s, a)
    await c.gather(results)


@pytest.mark.long
@with_agent(config=NEVER_PAUSES)
async def test_a_call_right_after_another_keeps_nobody_out(c, s, a, b) -> None:
    """The second finds, and gives back, what the first has set: with stock Dask for ever."""
    await retire(s, b.name)
    await ask(s, wire.CANCEL, names=[str(b.name)])
    results = await holding(c, a, 4)
    may_fetch = nobody_fetches_from(a)
    b.status = Status.paused  # nobody could take its data
    await until(lambda: s.workers[b.address] not in s.running)
    assert not await s.retire_workers([a.address])
    s.handle_worker_status_change(Status.running, s.workers[b.address], "test")
    call = asyncio.ensure_future(s.retire_workers([a.address]))
    await asyncio.sleep(0.3)  # both have heard from each other
    assert s.workers[a.address] not in s.running

    s.handle_worker_status_change(Status.paused, s.workers[b.address], "test")
    assert not await call
    b.status = Status.running
    may_fetch.set()

    await serves(c, s, a)
    await c.gather(results)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, config=NEVER_PAUSES)
async def test_a_quota_that_ends_while_a_call_waits_keeps_nobody_out(c, s, a, b) -> None:
    """In old releases all calls wait for one lock: meanwhile the worker still serves."""
    stock, turn = s.retire_workers, asyncio.Event()

    async def in_turn(*args: Any, **kwargs: Any) -> Any:
        await turn.wait()
        return await stock(*args, **kwargs)

    s.retire_workers = in_turn
    install(s)
    results = await holding(c, a, 4)
    call = asyncio.ensure_future(s.retire_workers([a.address]))
    await asyncio.sleep(0)
    await limit(s, [a.name], runs=1)
    b.status = Status.paused  # nobody could take its data
    await until(lambda: s.workers[b.address] not in s.running)
    turn.set()
    assert not await call
    b.status = Status.running
    await limit(s, [a.name], runs=1)
    assert {a.address} == (await cordoned(s)).keys()
    await limit(s, [])

    await serves(c, s, a)
    await c.gather(results)


@with_agent()
async def test_a_worker_that_is_back_and_at_its_quota_at_once_gets_no_task(c, s, a, b) -> None:
    """It confirms that it serves again when it has been cordoned once more."""
    await c.submit(slow, 0, 0, workers=[a.address])
    await until_state(s, a.name, wire.DRAINED, **BUSY)
    await until(lambda: a.status == Status.closing_gracefully)
    session = (await ask(s, wire.HELLO))["session"]
    one = {"names": [str(a.name)], "runs": [1], "left_ms": [-1], "profile": [0]}

    await s.handlers[wire.CANCEL](names=[str(a.name)], protocol=wire.PROTOCOL)
    s.handlers[wire.LIMIT](**one, session=session, profiles=[{}], stops=1, protocol=wire.PROTOCOL)
    assert [a.address] == [*s.plugins["dask-adaptive"].cordons.ongoing]
    await until(lambda: a.status == Status.running)
    await until_heard(s, a)

    assert s.workers[a.address] not in s.running
    futures = c.map(slow, range(1, 5), delay_s=0)
    await wait(futures)
    assert {b.address} == {ws.address for f in futures for ws in s.tasks[f.key].who_has}


@pytest.mark.thorough
@with_agent(timeout=120, **NANNIES)
async def test_restarts_of_workers_that_drain(c, s, a, b, agent) -> None:
    await c.gather(c.map(slow, range(4), delay_s=0))
    await retire(s, a.worker_address, **BUSY)
    await leave(s, b.worker_address)

    await c.restart_workers([a.worker_address])
    await until(lambda: len(s.running) >= 1)
    await c.restart()

    await until(lambda: len(s.running) == 2)
    assert not agent.service.out_of_service()
    assert 8 == len(await c.gather(c.map(slow, range(8), delay_s=0, pure=False)))


@with_agent()
async def test_a_worker_that_is_closed_while_it_drains(c, s, a, b, agent) -> None:
    results = c.map(slow, range(4), delay_s=0, workers=[a.address], allow_other_workers=True)
    await wait(results)
    await retire(s, a.name, **BUSY)

    await asyncio.gather(a.close(), ask(s, wire.CANCEL, names=[a.address]))

    await until(lambda: a.address not in s.workers)
    assert not agent.service.out_of_service()
    assert [("gone", "")] == await retire(s, a.name)
    await c.gather(results)


class ClosesSlowly(WorkerPlugin):
    """A worker says that it closes before its plugins are taken down, and goes after that."""

    async def teardown(self, worker: Any) -> None:
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("meanwhile", ["is called back", "a bound task comes"])
@with_agent(config=NEVER_PAUSES)
async def test_a_worker_that_says_that_it_closes_gets_nothing_more(c, s, a, b, meanwhile) -> None:
    count_runs(s)
    await a.plugin_add(plugin=ClosesSlowly(), name="slow")
    await until_state(s, a.name, wire.DRAINED)
    await until(lambda: a.status == Status.closing_gracefully)

    closing = asyncio.ensure_future(a.close())
    if meanwhile == "is called back":
        while a.status != Status.closing:
            await asyncio.sleep(0)
        await ask(s, wire.CANCEL, names=[str(a.name)])
    await asyncio.sleep(0.2)
    options: dict[str, Any] = {"pure": False}
    if meanwhile == "a bound task comes":
        b.status = Status.paused
        await until(lambda: not s.running)
        options.update(workers=[a.address], allow_other_workers=True)
    futures = c.map(slow, range(8), delay_s=0, **options)
    await closing
    b.status = Status.running

    if meanwhile == "is called back":
        await c.gather(futures)
    await until(lambda: a.address not in s.workers)
    assert (0,) == tally(s, "interrupted")


@with_agent(timeout=60)
async def test_a_lifetime_that_passes_during_a_drain_is_not_forgotten(c, s, a, b) -> None:
    """`Worker.close_gracefully` waits for ever when somebody else has frozen the worker."""
    async with Worker(s.address, name="w", nthreads=1, lifetime="1 s") as w:
        await until_state(s, "w", wire.DRAINED)
        await until(lambda: w.status == Status.closing_gracefully)
        await until(lambda: _is_over(s.workers[w.address]))

        await ask(s, wire.CANCEL, names=["w"])

        await until(lambda: w.address not in s.workers)
        await asyncio.wait_for(w.finished(), 20)


@pytest.mark.long
@pytest.mark.parametrize("when", ["drained", "waits"])
@with_lifetimes(timeout=60)
async def test_a_lifetime_over_when_the_agent_goes_is_not_forgotten(c, s, a, b, when) -> None:
    """Nor where the worker has said so, and waits for a task."""
    async with Worker(s.address, name="w", nthreads=1, lifetime="2 s") as w:
        await until(lambda: s.workers[w.address] in s.running)
        if when == "drained":
            await until_state(s, "w", wire.DRAINED)
            await until(lambda: w.status == Status.closing_gracefully)
        else:
            task = c.submit(slow, 1, 3.0, workers=["w"], allow_other_workers=True)
            await until(lambda: w.state.executing_count)
        await until(lambda: _is_over(s.workers[w.address]))

        uninstall(s)

        await until(lambda: w.address not in s.workers)
        await asyncio.wait_for(w.finished(), 20)
        if when == "waits":
            await task
    assert 2 == len(s.running)


def _is_over(ws: Any) -> bool:
    return lifetime.left_s(ws) <= 0


@with_lifetimes(timeout=60)
async def test_a_lifetime_whose_connection_is_cut_ends_the_worker(
    c, s, a, b, agent, monkeypatch
) -> None:
    monkeypatch.setattr(drain, "OVERDUE_S", 0.3)
    task = await running(c, a, "running")
    closing = asyncio.ensure_future(a.close_gracefully())
    await until(lambda: agent.drains.ongoing)

    for comms in a.rpc.occupied.values():
        for comm in list(comms):
            comm.abort()
    await asyncio.wait([closing])
    assert closing.exception() is not None

    MAY_END.set()
    await task
    await until(lambda: a.address not in s.workers)
    await asyncio.wait_for(a.finished(), 20)


def notes(agent: Any) -> list[tuple[str, list[str]]]:
    return [(note["kind"], note["names"]) for note in agent.notes.since(0)]


BROKEN = (wire.N_PINS_OVERRIDDEN, ["0"])


@pytest.mark.parametrize("how", ["address", "name", "http"])
@with_agent()
async def test_retiring_named_workers_is_obeyed_and_told(c, s, a, b, agent, how) -> None:
    await pin(s, a)

    if how == "address":
        await c.retire_workers(workers=[a.address])
    elif how == "name":
        await c.retire_workers(names=[a.name])
    else:  # as RetireWorkersHandler of distributed/http/scheduler/api.py calls it
        await s.retire_workers(workers=[a.address])

    assert a.address not in s.workers
    assert [BROKEN] == notes(agent)
    assert "0 (manual operator (test) for" in agent.notes.since(0)[0]["message"]
    assert 0 == len(agent.pins.leases.every())


@pytest.mark.parametrize("whose", ["without pins", "our own", "gone"])
@with_agent()
async def test_calls_are_silent(c, s, a, b, agent, whose) -> None:
    await pin(s, b if whose == "without pins" else a)

    if whose == "our own":
        await s.retire_workers(workers=[a.address], stimulus_id="dask-adaptive-test")
    elif whose == "without pins":
        await c.retire_workers(workers=[a.address])
    else:
        await c.retire_workers(workers=["tcp://127.0.0.1:1"])

    assert (a.address in s.workers) is (whose == "gone")
    assert [] == notes(agent)


@with_agent()
async def test_retiring_without_names_honours_pins(c, s, a, b, agent) -> None:
    await pin(s, a)

    assert [b.address] == list(await c.retire_workers(n=2))
    assert {} == await c.retire_workers(n=1)

    assert [a.address] == list(s.workers)
    assert [] == notes(agent)


@pytest.mark.long
@with_agent(timeout=120, **NANNIES)
async def test_restarting_is_obeyed_and_told_once(c, s, a, b, agent) -> None:
    await pin(s, a)

    await c.restart()

    assert [BROKEN] == notes(agent)
    await until(lambda: s.aliases.get(a.name) in s.workers and 2 == len(s.workers))
    assert 0 == len(agent.pins.leases.every())


@with_agent()
async def test_a_call_is_obeyed_although_it_cannot_be_told(c, s, a, b, agent) -> None:
    agent.pins.holders = None  # type: ignore[assignment, method-assign]

    await c.retire_workers(workers=[a.address])

    assert a.address not in s.workers


@pytest.mark.parametrize("how", ["workers", "names", "first"])
@with_agent()
async def test_workers_may_be_named_by_what_can_be_read_once(c, s, a, b, how) -> None:
    if how == "workers":
        retired = await s.retire_workers(workers=(address for address in [a.address]))
    elif how == "names":
        retired = await s.retire_workers(names=(name for name in [a.name]))
    else:
        retired = await s.retire_workers(iter([a.address]))

    assert [a.address] == list(retired)
    assert [b.address] == list(s.workers)


def wrapped(stock: Any) -> dict[str, Callable[..., Any]]:
    """Ways in which other people's code may lie over a handler."""

    async def plain(**kwargs: Any) -> Any:
        return await stock(**kwargs)

    async def named(workers: Any = None, **kwargs: Any) -> Any:
        return await stock(workers, **kwargs)

    both = {"plain": plain, "named": named}
    return both | {f"{name} like it": functools.wraps(stock)(f) for name, f in both.items()}


@pytest.mark.parametrize("how", wrapped(print))
@with_agent()
async def test_others_may_wrap_it_and_it_is_obeyed(c, s, a, b, agent, how) -> None:
    await pin(s, a)
    s.handlers["retire_workers"] = wrapped(s.handlers["retire_workers"])[how]

    retired = await c.retire_workers(workers=[a.address])

    assert [a.address] == list(retired)
    assert [BROKEN] == notes(agent)


@with_agent()
async def test_others_may_wrap_what_clients_ask_first(c, s, a, b) -> None:
    ours = s.handlers["identity"]

    async def theirs(**kwargs: Any) -> Any:
        return ours(**kwargs)

    s.handlers["identity"] = theirs

    async with rpc(s.address) as link:
        assert s.id == (await link.identity())["id"]
