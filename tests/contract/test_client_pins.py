"""`pinned` as users write it, against real schedulers and workers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Event, Scheduler, Worker

from dask_adaptive_agent import PinUnavailable, pinned, wire
from dask_adaptive_agent.agent import install, uninstall
from support import pin_tasks
from support.agent_cluster import with_agent
from support.agent_pins import TOLD_BY, Sync, named_worker, pins, sync_cluster, told, until_pins
from support.agent_work import ask, heard, ran, retire, until

pytestmark = pytest.mark.thorough


def every(cluster: Any, reason: str = "") -> list[tuple[str, str, list[str]]]:
    names = sorted(str(ws.name) for ws in cluster.workers.values())
    return [(wire.CLIENT, reason, names)]


# In notebooks and scripts


def test_all_workers_are_held_until_the_block_ends(shared: Sync) -> None:
    with pinned(reason="why") as pin:
        assert shared.addresses == sorted(pin.workers)
        assert 1790 < pin.left_s <= 1800
        assert every(shared.scheduler, "why") == shared.pins()
        assert [] == shared.client.sync(shared.client.scheduler.workers_to_close, n=2)
    assert [] == shared.pins()
    assert 0 == pin.left_s


def test_some_workers_by_name_and_by_address(shared: Sync) -> None:
    for one in (shared.names[0], shared.addresses[0]):
        with pinned([one], ttl=60):
            assert 1 == len(shared.pins()[0][2])
        with pinned(one, client=shared.client):
            assert 1 == len(shared.pins()[0][2])
    assert [] == shared.pins()


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_block_that_fails_gives_up_its_claim(shared: Sync, failure: Any) -> None:
    def block() -> None:
        with pinned():
            assert shared.pins()
            raise failure

    with pytest.raises(failure):
        block()
    assert [] == shared.pins()


def test_claims_are_counted_not_shared(shared: Sync) -> None:
    again = pinned(reason="again")
    with pinned(shared.names[0], reason="other"):
        with again as outer:
            with again as inner:
                assert outer is not inner
                assert 3 == len(shared.pins())
            assert ["again", "other"] == sorted(reason for _, reason, _ in shared.pins())
        assert 1 == len(shared.pins())
    assert [] == shared.pins()


def test_threads_hold_at_the_same_time(shared: Sync) -> None:
    together, seen = threading.Barrier(8), []

    def work(pinning: pinned) -> None:
        for _ in range(3):
            with pinning:
                together.wait(20)
                seen.append(len(shared.pins()))
                together.wait(20)
            together.wait(20)

    threads = [threading.Thread(target=work, args=(pinned(),)) for _ in range(4)]
    one_object = pinned()
    threads += [threading.Thread(target=work, args=(one_object,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [8] * 24 == seen
    assert [] == shared.pins()


def test_a_decorated_function_holds_in_each_call(shared: Sync) -> None:
    @pinned(reason="decorated")
    def work(x: int) -> int:
        assert every(shared.scheduler, "decorated") == shared.pins()
        return x + 1

    assert [1, 2] == [work(0), work(1)]
    assert [] == shared.pins()


def test_async_code_beside_a_client_of_another_thread(shared: Sync) -> None:
    """As in a notebook with `await`: its loop is not the client's."""

    async def cell() -> None:
        async with pinned(reason="cell"):
            assert every(shared.scheduler, "cell") == await asyncio.to_thread(shared.pins)
        with pinned(reason="blocking"):  # fine here: this thread is not the client's
            assert every(shared.scheduler, "blocking") == await asyncio.to_thread(shared.pins)

    asyncio.run(cell())
    assert [] == shared.pins()


def test_a_worker_that_is_not_there_is_an_error(shared: Sync) -> None:
    with pytest.raises(ValueError, match="nobody"), pinned([shared.names[0], "nobody"]):
        pass
    assert [] == shared.pins()


def test_ctrl_c_while_the_claim_is_on_its_way_leaves_nothing(shared: Sync) -> None:
    """The scheduler takes its time, the user does not: what is granted later is given up."""
    stock = shared.scheduler.handlers[wire.PIN]
    order: list[str] = []
    may_go = threading.Event()

    async def late(**request: Any) -> Any:
        # Once more if it is lost: Python swallows what interrupts a finalizer, or a callback.
        for n in itertools.count():
            if may_go.is_set():
                break
            if n % 500 == 0:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.sleep(0.01)
        order.append("pin")
        return stock(**request)

    unpin = shared.scheduler.handlers[wire.UNPIN]

    def noted(**request: Any) -> Any:
        order.append("unpin")
        return unpin(**request)

    shared.scheduler.handlers.update({wire.PIN: late, wire.UNPIN: noted})
    # What ran in this process before may have left a handler of its own, or none.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), pinned():
            pass
        may_go.set()
        shared.client.sync(until, lambda: order == ["pin", "unpin"])
    finally:
        signal.signal(signal.SIGINT, before)
        shared.scheduler.handlers.update({wire.PIN: stock, wire.UNPIN: unpin})
    assert [] == shared.pins()


def test_no_client_and_no_task() -> None:
    ended = ran("from dask_adaptive_agent import pinned\nwith pinned(): pass")
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("dask_adaptive_agent.client.client_lease.PinUnavailable: no Dask cl")


def test_a_scheduler_without_an_agent(caplog: Any) -> None:
    with sync_cluster(with_agent=False):
        with pytest.raises(PinUnavailable, match="install the operator"), pinned():
            pass
        with pinned(required=False) as pin:
            assert ((), 0) == (pin.workers, pin.left_s)
    assert ["Continuing without a pin"] == [
        r.getMessage().partition(":")[0] for r in caplog.records if r.name == TOLD_BY
    ]


def test_a_client_that_is_closed_in_the_block() -> None:
    with sync_cluster() as cluster, Client(cluster.cluster) as client:
        with pinned(client=client):
            client.close()
        with pytest.raises(PinUnavailable), pinned(client=client):
            pass


@pytest.mark.parametrize(
    ("ttl", "expected_s"),
    [
        ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("1h 30m", 5400),
        ("0.1d", 8640), ("1500ms", 1.5), (60, 60), (1.5, 1.5), (timedelta(minutes=2), 120),
    ],
)  # fmt: skip
def test_durations(shared: Sync, ttl: Any, expected_s: float) -> None:
    shared.ask(wire.CONFIGURE, client_max_ms=7 * 24 * 3_600_000)
    with pinned(ttl=ttl) as pin:
        assert expected_s - 1 < pin.left_s <= expected_s


@pytest.mark.parametrize("ttl", ["", "soon", "30", "5 parsecs", None, float("nan"), True, "-1m"])
def test_what_is_no_duration_is_told_how_to_write_one(ttl: Any) -> None:
    with pytest.raises(ValueError, match="write one like"):
        pinned(ttl=ttl)


@pytest.mark.parametrize("ttl", [0.5, "500ms", 0, -3, timedelta(milliseconds=1)])
def test_a_lease_that_is_too_short_is_told_what_is_long_enough(ttl: Any) -> None:
    with pytest.raises(ValueError, match="1 s or more"):
        pinned(ttl=ttl)


# In async code


@with_agent(threads=2)
async def test_async_code_holds_too(c, s, a, b) -> None:
    async with pinned(reason="async") as pin:
        assert sorted(s.workers) == sorted(pin.workers)
        assert every(s, "async") == await pins(s)
        assert [("active", wire.V_PINNED)] == await retire(s, a.name)
        assert [] == s.workers_to_close(n=2)
    assert [] == await pins(s)

    @pinned([str(a.name)], reason="decorated")
    async def work() -> list[Any]:
        return await pins(s)

    assert [(wire.CLIENT, "decorated", [str(a.name)])] == await work()
    assert [] == await pins(s)


@with_agent(threads=2)
async def test_a_thread_does_not_wait_for_itself(c, s, a, b) -> None:
    with pytest.raises(RuntimeError, match="async with pinned"), pinned():
        pass


@with_agent(threads=2)
async def test_a_cancelled_claim_leaves_nothing(c, s, a, b) -> None:
    arrived, may_go, stock = asyncio.Event(), asyncio.Event(), s.handlers[wire.PIN]

    async def late(**request: Any) -> Any:
        arrived.set()
        await may_go.wait()
        return stock(**request)

    s.handlers[wire.PIN] = late

    async def user() -> None:
        async with pinned():
            pass

    task = asyncio.create_task(user())
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    unpinned = asyncio.Event()
    stock_unpin = s.handlers[wire.UNPIN]
    s.handlers[wire.UNPIN] = lambda **request: (unpinned.set(), stock_unpin(**request))[1]
    may_go.set()

    await asyncio.wait_for(unpinned.wait(), 20)
    assert [] == await pins(s)


@with_agent(threads=2)
async def test_an_exit_stack_of_another_task(c, s, a, b) -> None:
    """As in fixtures, whose two halves run in different tasks."""
    pinning = pinned()
    await asyncio.create_task(pinning.__aenter__())
    assert every(s) == await pins(s)

    await asyncio.create_task(pinning.__aexit__(None, None, None))
    assert [] == await pins(s)


# In tasks


@pytest.mark.parametrize("leave_pool", [False, True])
def test_a_task_holds_the_worker_that_it_runs_on(shared: Sync, leave_pool: bool) -> None:
    client = shared.client
    event = Event(f"go-{leave_pool}", client=client)
    future = client.submit(
        pin_tasks.hold_until, event.name, "in a task", leave_pool=leave_pool,
        workers=shared.addresses[:1], pure=False,
    )  # fmt: skip
    name = str(shared.scheduler.workers[shared.addresses[0]].name)
    shared.until_pins([(wire.CLIENT, "in a task", [name])])
    event.set()

    assert (shared.addresses[0],) == tuple(future.result())
    assert [] == shared.pins()


def test_an_async_task_holds_its_worker(shared: Sync, tmp_path: Path) -> None:
    file = tmp_path / "go"
    future = shared.client.submit(
        pin_tasks.hold_until_async, str(file), "async", workers=shared.addresses[:1], pure=False
    )
    name = str(shared.scheduler.workers[shared.addresses[0]].name)
    shared.until_pins([(wire.CLIENT, "async", [name])])
    file.touch()

    assert (shared.addresses[0],) == tuple(future.result())
    assert [] == shared.pins()


# As time goes by


@with_agent(threads=2)
async def test_a_lease_outlives_its_ttl_while_its_owner_lives(c, s, a, b) -> None:
    claims = heard(s, wire.PIN)

    async with pinned(ttl=1):
        await until(lambda: len(claims) >= 7)  # two seconds and more
        assert every(s) == await pins(s)
    count = len(claims)
    assert [] == await pins(s)
    async with pinned(ttl=1):
        await until(lambda: len(claims) == count + 3)
    assert [] == await pins(s)


@with_agent(threads=2)
async def test_a_renewal_that_is_refused_is_told_once(c, s, a, b) -> None:
    await ask(s, wire.CONFIGURE, client_max_ms=1500)
    with told() as records:
        async with pinned(ttl=1) as pin:
            await until(lambda: records)
            await until(lambda: not pin.left_s)
            assert [] == await pins(s)
    (record,) = records
    assert logging.WARNING == record.levelno
    assert "although they are pinned" in record.getMessage()


@with_agent(5)
async def test_the_rest_of_those_that_were_named_is_held(c, s, *workers) -> None:
    """The agent refuses a claim in which a name has no worker; it answers halves of it."""
    async with pinned([str(w.name) for w in workers], ttl=1, reason="rest") as pin:
        await asyncio.gather(workers[1].close(), workers[4].close())
        await until(lambda: len(s.workers) == 3)
        here = [str(w.name) for w in (workers[0], workers[2], workers[3])]
        await until(lambda: here == list(pin.workers))
        assert 0 < pin.left_s <= 1


@with_agent(threads=2)
async def test_an_agent_that_goes_and_comes_back(c, s, a, b) -> None:
    with told() as records:
        async with pinned(ttl=1):
            uninstall(s)
            await until(lambda: records)
            install(s)
            await until_pins(s, every(s))
    assert 1 == len(records)
    assert [] == await pins(s)


async def test_a_restarted_scheduler_is_told_again() -> None:
    first = await Scheduler(port=0, dashboard=False, host="127.0.0.1")
    install(first)
    port = first.port
    worker = await named_worker(first, "phoenix")
    async with (
        Client(first.address, asynchronous=True) as client,
        pinned(["phoenix"], ttl=1, reason="restart", client=client),
    ):
        await worker.close()
        await first.close()
        async with Scheduler(port=port, dashboard=False, host="127.0.0.1") as second:
            install(second)
            async with Worker(second.address, name="phoenix", nthreads=1):
                await until_pins(second, [(wire.CLIENT, "restart", ["phoenix"])])
