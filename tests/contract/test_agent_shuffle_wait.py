"""A P2P shuffle waits for workers that are on their way, and never for anything else."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import dask
import pytest
from distributed import Worker
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import shuffle_wait, wire
from dask_adaptive_agent.attach import install, uninstall
from dask_adaptive_agent.patching import SHUFFLE_RPC
from dask_adaptive_agent.shuffle_wait import ShuffleWait
from dask_adaptive_agent.upcoming import upcoming
from support.agent_work import RUNS, ask, leave, slow_block, until

da = pytest.importorskip("dask.array")

ONE = [("127.0.0.1", 1)]
BLOCKS = 20
#: Tasks of which nothing is known are taken to be so long that any wait of these tests pays.
LONG = {"distributed.scheduler.unknown-task-duration": "100s"}


def rechunked(c: Any, value: int = 1, plus: int = 0) -> Any:
    """
    A P2P rechunk with slow blocks on both sides; a future of its sum: 6400 times `value`.

    The shuffle is the same whatever is to be added to its sum.
    """
    # Small chunks, because inputs up to this size are merged into one, and all would wait for all.
    with dask.config.set({"optimization.fuse.active": False, "array.chunk-size": "2 kiB"}):
        x = da.full((80, 80), value, chunks=(4, 80)).map_blocks(slow_block, dtype=float)
        y = x.rechunk((80, 4), method="p2p").map_blocks(slow_block, dtype=float)
        return c.compute(y.sum() + plus)


async def announce(s: Any, workers: int = 3, in_s: float = 2.0, **request: Any) -> None:
    arriving = [(workers, int(in_s * 1000))] if workers else []
    answer = await ask(s, wire.ANNOUNCE, arriving=arriving, policy="p", **request)
    assert "error" not in answer


@contextlib.asynccontextmanager
async def arrived(s: Any, workers: int = 3, nthreads: int = 1) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        new = [Worker(s.address, nthreads=nthreads) for _ in range(workers)]
        await asyncio.gather(*map(stack.enter_async_context, new))
        yield


@contextlib.asynccontextmanager
async def always_soon(s: Any) -> AsyncIterator[None]:
    """An operator whose workers never come."""

    async def announcing() -> None:
        while True:
            await announce(s, in_s=0.1)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(announcing())
    yield
    task.cancel()


def outputs(agent: Any) -> Counter[str]:
    """How many outputs of the one shuffle that runs each worker was given."""
    (state,) = agent.shuffles._states().values()
    worker_for = getattr(state, "worker_for", None) or state.run_spec.worker_for
    return Counter(worker_for.values())


def begins_with(agent: Any, workers: int) -> Callable[[], bool]:
    return lambda: bool(agent.shuffles.running()) and workers == len(outputs(agent))


def told(agent: Any) -> list[str]:
    notes = agent.notes.since(0)
    assert {wire.N_SHUFFLE_WAITED} >= {note["kind"] for note in notes}
    return [note["message"] for note in notes]


@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_outputs_go_to_workers_that_were_on_their_way(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    RUNS.clear()
    await ask(s, wire.CONFIGURE, tally=True)
    await announce(s)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)
    await asyncio.sleep(1)
    assert not agent.shuffles.running()
    (row,) = upcoming(agent)
    async with arrived(s):
        await until(begins_with(agent, 4))
        given = outputs(agent)
        assert 6400 == await future

        assert (True, BLOCKS, BLOCKS) == (row["waiting"], row["outputs"], sum(given.values()))
        assert 0 < row["inputs"] <= BLOCKS
        assert 900 < row["for_ms"]
        assert set(s.workers) == set(given)
        (message,) = told(agent)
        assert "3 workers came, its outputs go to 4" in message
        tally = (await ask(s, wire.OBSERVE))["tally"]
        assert (1, 1, 0) == tuple(tally[k] for k in ("shuffles", "max_shuffle_run", "repeated"))
        assert 2 * BLOCKS == len([shape for shape in RUNS if 80 in shape])
        # The wait is no part of what tasks are taken to last.
        assert 0.8 > max(prefix.duration_average for prefix in s.task_prefixes.values())
        assert not upcoming(agent)


@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_with_nobody_on_the_way_it_begins_at_once(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    waits = watched(agent.shuffle_wait)

    assert 6400 == await rechunked(c)

    assert not waits
    assert not told(agent)


def watched(waiting: ShuffleWait) -> list[str]:
    """The shuffles that begin to wait from now on."""
    seen: list[str] = []

    class Seen(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            seen.append(key)
            super().__setitem__(key, value)

    waiting.ongoing = Seen()
    return seen


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_waiting_can_be_off(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    waits = watched(agent.shuffle_wait)
    await ask(s, wire.CONFIGURE, shuffle_wait_ms=0)
    await announce(s)

    assert 6400 == await rechunked(c)

    assert not waits


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_it_waits_no_longer_than_it_may(
    c: Any, s: Any, a: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine announces late, and is not to be taken for workers that are overdue.
    monkeypatch.setattr(shuffle_wait, "OVERDUE_S", 0.1)
    agent = install(s)
    waits = watched(agent.shuffle_wait)
    await ask(s, wire.CONFIGURE, shuffle_wait_ms=2200)

    await announce(s)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)
    async with always_soon(s):
        assert 6400 == await future

    assert 1 == len(waits)
    (message,) = told(agent)
    assert "0 workers came, its outputs go to 1" in message
    assert "as long as it may" in message
    assert not agent.shuffle_wait.ongoing
    assert agent.shuffle_wait._timer is None


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_who_comes_too_late_is_not_waited_for(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    waits = watched(agent.shuffle_wait)
    await announce(s, in_s=3600)

    assert 6400 == await rechunked(c)

    assert not waits


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_it_begins_when_nobody_is_on_the_way_any_more(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    await announce(s, in_s=20)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)

    await announce(s, workers=0)

    assert 6400 == await future
    assert not agent.shuffle_wait.ongoing


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_some_that_came_are_enough_when_the_others_are_given_up(
    c: Any, s: Any, a: Any
) -> None:
    agent = install(s)
    await announce(s, in_s=8)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)
    async with arrived(s, workers=2):
        await asyncio.sleep(0.5)
        assert agent.shuffle_wait.ongoing

        await announce(s, workers=0)

        await until(begins_with(agent, 3))
        assert 6400 == await future


@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_uninstalled_while_a_shuffle_waits_it_goes_on(c: Any, s: Any, a: Any) -> None:
    stock = s.handlers[SHUFFLE_RPC.name]
    agent = install(s)
    await announce(s, in_s=20)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)
    assert stock is not s.handlers[SHUFFLE_RPC.name]

    uninstall(s)

    assert stock is s.handlers[SHUFFLE_RPC.name]
    assert 6400 == await future
    assert not agent.shuffle_wait.ongoing
    assert agent.shuffle_wait._timer is None


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_cancelled_while_it_waits_and_asked_for_again(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    await announce(s, in_s=20)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)

    await future.cancel()
    await until(lambda: not agent.shuffle_wait.ongoing)
    assert not upcoming(agent)
    assert not told(agent)
    await announce(s, workers=0)

    assert 6400 == await rechunked(c)
    assert not agent.shuffle_wait._spent or len(agent.shuffle_wait._spent) == 1


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_cancelled_and_asked_for_again_within_the_wait(c: Any, s: Any, a: Any) -> None:
    """The same keys: the task that waits is wanted again before it has heard that it was not."""
    agent = install(s)
    await announce(s, in_s=20)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)

    await future.cancel()
    again = rechunked(c, plus=1)
    await asyncio.sleep(0.5)
    await announce(s, workers=0)

    assert 6401 == await again


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_a_client_that_leaves_ends_the_wait(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    await announce(s, in_s=20)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)

    await c.close()

    await until(lambda: not agent.shuffle_wait.ongoing)
    assert not upcoming(agent)
    del future


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE, clean_kwargs={"threads": False})
async def test_a_scheduler_that_closes_is_not_held(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    await announce(s, in_s=20)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)

    await asyncio.wait_for(s.close(), 10)

    assert not agent.shuffle_wait.ongoing
    del future


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE * 2)
async def test_a_worker_that_dies_while_it_waits_does_not_take_part(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    agent = install(s)
    await announce(s, in_s=20)
    future = rechunked(c)

    def held() -> set[str]:
        return {w for wait in agent.shuffle_wait.ongoing.values() for w in wait.calls.values()}

    await until(lambda: {a.address, b.address} == held())
    await a.close()
    await asyncio.sleep(0.5)
    assert agent.shuffle_wait.ongoing
    await announce(s, workers=0)
    await until(agent.shuffles.running)

    assert {b.address} == set(agent.shuffles.running()[0].participants)
    assert 6400 == await future


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE * 2)
async def test_a_worker_that_is_about_to_end_is_not_held(c: Any, s: Any, a: Any, b: Any) -> None:
    agent = install(s)
    await announce(s, in_s=20)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)
    (wait,) = agent.shuffle_wait.ongoing.values()

    await leave(s, s.workers[next(iter(wait.calls.values()))].name)

    await until(lambda: not agent.shuffle_wait.ongoing)
    assert 6400 == await future


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=[("127.0.0.1", 2 * BLOCKS)])
async def test_two_shuffles_wait_at_once_and_other_work_goes_on(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    await announce(s, in_s=8)
    futures = [rechunked(c), rechunked(c, 2)]
    await until(lambda: 2 == len(agent.shuffle_wait.ongoing))
    assert 2 == len(upcoming(agent))
    # All threads wait: whoever comes needs nothing of them.
    async with arrived(s, 1, nthreads=2 * BLOCKS):
        assert 3 == await c.submit(lambda: 3, pure=False)
        async with arrived(s, 2, nthreads=2 * BLOCKS):
            await until(lambda: 2 == len(agent.shuffles.running()))
            for state in agent.shuffles._states().values():
                given = getattr(state, "worker_for", None) or state.run_spec.worker_for
                assert set(s.workers) == set(given.values())
            assert [6400, 12800] == await c.gather(futures)


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE * 2)
async def test_a_shuffle_that_begins_again_does_not_wait_again_for_longer_in_all(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    agent = install(s)
    await ask(s, wire.CONFIGURE, shuffle_wait_ms=1500)
    async with always_soon(s):
        await asyncio.sleep(0.1)
        future = rechunked(c)
        await until(agent.shuffles.running)
        assert 1 == len(told(agent))

        await a.close()
        with contextlib.suppress(RuntimeError):  # before 2023.8 a shuffle was not restarted
            assert 6400 == await future

    # It may have waited for what was left, which is less than is told.
    assert 1 == len(told(agent))


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_a_shuffle_the_operator_has_not_seen_waits_until_it_has_answered(
    c: Any, s: Any, a: Any
) -> None:
    """Its first input is often ready before the operator has looked at all."""
    agent = install(s)
    await announce(s, workers=0, can_grow=3, grow_ms=2000)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)

    await ask(s, wire.OBSERVE, demand=True)
    await announce(s, workers=3, can_grow=0)
    await asyncio.sleep(0.5)
    assert agent.shuffle_wait.ongoing
    async with arrived(s):
        await until(begins_with(agent, 4))
        assert 6400 == await future


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_it_does_not_wait_for_an_operator_that_may_not_grow(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    waits = watched(agent.shuffle_wait)
    await announce(s, workers=0, can_grow=0)

    assert 6400 == await rechunked(c)

    assert not waits


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_it_does_not_wait_for_an_operator_that_has_seen_it_and_does_nothing(
    c: Any, s: Any, a: Any
) -> None:
    agent = install(s)
    await announce(s, workers=0, can_grow=3, grow_ms=2000)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)

    await ask(s, wire.OBSERVE, demand=True)

    assert 6400 == await future
    assert "no more are on their way" in told(agent)[0]


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_an_error_of_ours_lets_a_shuffle_begin(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    await announce(s)
    agent.shuffle_wait._why_not = lambda *_: 1 / 0  # type: ignore[method-assign]

    assert 6400 == await rechunked(c)


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_an_error_of_ours_while_it_waits_lets_a_shuffle_begin(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    await announce(s, in_s=20)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)

    agent.shuffle_wait._why_not = lambda *_: 1 / 0  # type: ignore[method-assign]

    assert 6400 == await future


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_a_barrier_that_may_run_on_certain_workers_only_does_not_wait(
    c: Any, s: Any, a: Any
) -> None:
    agent = install(s)
    waits = watched(agent.shuffle_wait)
    await announce(s)
    with dask.annotate(workers=[a.address]):
        with dask.config.set({"optimization.fuse.active": False}):
            x = da.ones((80, 80), chunks=(4, 80)).rechunk((80, 4), method="p2p")
        graph = x.__dask_graph__()
        future = c.compute(x.sum(), optimize_graph=False, workers=[a.address])

    assert graph
    assert 6400 == await future
    assert not waits


@pytest.mark.thorough
@gen_cluster(client=True, config=LONG, nthreads=ONE)
async def test_of_a_join_the_second_shuffle_goes_where_the_first_has_gone(
    c: Any, s: Any, a: Any
) -> None:
    """Contract: it has to (`_calculate_worker_for`), so it does not wait for anybody."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of two implementations of it
            import dask.dataframe as dd
        import pandas as pd
        import pyarrow
    except ImportError as error:
        pytest.skip(str(error))
    assert pyarrow
    agent = install(s)
    left = pd.DataFrame({"k": range(100), "l": range(100)})
    right = pd.DataFrame({"k": range(100), "r": range(100)})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        joined = dd.from_pandas(left, npartitions=6).merge(
            dd.from_pandas(right, npartitions=7), on="k", how="inner"
        )
        held = dict(s.handlers)
        gate = asyncio.Event()
        stock, seen = held[SHUFFLE_RPC.name], []

        async def one_by_one(**request: Any) -> Any:
            if seen and not gate.is_set() and request_id(request) not in seen:
                await gate.wait()
            seen.append(request_id(request))
            answer = stock(**request)
            return await answer if asyncio.iscoroutine(answer) else answer

        s.handlers[SHUFFLE_RPC.name] = one_by_one
        future = c.compute(joined.l.sum())
        await until(agent.shuffles.running)
        waits = watched(agent.shuffle_wait)
        await announce(s)
        gate.set()

        assert sum(range(100)) == await future
        assert not waits


def request_id(request: dict[str, Any]) -> str:
    from dask_adaptive_agent.shuffle_wait import _shuffle_of

    return _shuffle_of(request)
