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

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import uninstall
from dask_adaptive_agent.patching import SHUFFLE_RPC
from dask_adaptive_agent.shuffle import delay
from dask_adaptive_agent.shuffle.delay import ShuffleDelay
from support.agent_cluster import with_agent
from support.agent_work import BLOCKS, RUNS, ask, count_runs, leave, rechunked, tally, until

da = pytest.importorskip("dask.array")

#: Tasks of which nothing is known are taken to be so long that any wait of these tests pays.
LONG = {"distributed.scheduler.unknown-task-duration": "100s"}
ON_ONE = with_agent(1, config=LONG)


def agent_of(s: Any) -> Any:
    return s.plugins["dask-adaptive"]


async def announce(s: Any, workers: int = 3, in_s: float = 2.0, **request: Any) -> None:
    arriving = [(workers, int(in_s * 1000))] if workers else []
    answer = await ask(s, wire.ANNOUNCE, arriving=arriving, policy="p", **request)
    assert "error" not in answer


async def waiting(c: Any, s: Any, **announced: Any) -> Any:
    """The future of a shuffle that waits."""
    await announce(s, **{"in_s": 20, **announced})
    future = rechunked(c)
    await until(lambda: agent_of(s).shuffle_wait.ongoing)
    return future


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


def seconds_reported(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each run of a task lasts that workers report from now on."""
    reported: list[float] = []
    stock = Worker.batched_send

    def batched_send(worker: Worker, msg: dict[str, Any]) -> None:
        for one in msg.get("startstops") or ():
            if one["action"] == "compute":
                reported.append(one["stop"] - one["start"])
        stock(worker, msg)

    monkeypatch.setattr(Worker, "batched_send", batched_send)
    return reported


@pytest.mark.long
@ON_ONE
async def test_outputs_go_to_workers_that_were_on_their_way(c, s, a, agent, monkeypatch) -> None:
    reported = seconds_reported(monkeypatch)
    RUNS.clear()
    count_runs(s)
    await announce(s, in_s=4)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)
    await asyncio.sleep(3)
    assert not agent.shuffles.running()
    (row,) = agent.barriers.rows()
    async with arrived(s):
        await until(begins_with(agent, 4))
        given = outputs(agent)
        assert 6400 == await future

        assert (BLOCKS, BLOCKS) == (row["outputs"], sum(given.values()))
        assert 0 < row["inputs"] <= BLOCKS
        assert set(s.workers) == set(given)
        (message,) = told(agent)
        assert "3 workers came, its outputs" in message
        assert (1, 1, 0) == tally(s, "shuffles", "max_shuffle_run", "repeated")
        assert 2 * BLOCKS == len([shape for shape in RUNS if 80 in shape])
        # The wait is a part of what the worker has said, and not of what tasks are taken to last.
        # Both clocks agree to a few tenths of a second.
        counted = [prefix.all_durations["compute"] for prefix in s.task_prefixes.values()]
        assert 2 < sum(reported) - sum(counted) < 20
        assert not agent.barriers.rows()


def watched(delay: ShuffleDelay) -> list[str]:
    """The shuffles that begin to wait from now on."""
    seen: list[str] = []

    class Seen(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            seen.append(key)
            super().__setitem__(key, value)

    delay.ongoing = Seen()
    return seen


async def fail(s: Any, c: Any) -> None:
    agent_of(s).shuffle_wait._why_not = lambda *_: 1 / 0


AT_ONCE: dict[str, Any] = {
    "nobody is on the way": None,
    "it is off": lambda s, c: both(ask(s, wire.CONFIGURE, shuffle_wait_ms=0), announce(s)),
    "they come too late": lambda s, c: announce(s, in_s=3600),
    "the operator may not grow": lambda s, c: announce(s, workers=0, can_grow=0),
    "an error of ours": lambda s, c: both(announce(s), fail(s, c)),
}


async def both(*calls: Any) -> None:
    for call in calls:
        await call


def cases(table: dict[str, Any]) -> list[Any]:
    """The first one is quick to ask; the others are many of one kind."""
    first, *others = table
    return [first, *(pytest.param(name, marks=pytest.mark.thorough) for name in others)]


@pytest.mark.long
@pytest.mark.parametrize("why", cases(AT_ONCE))
@ON_ONE
async def test_it_begins_at_once_where(c, s, a, agent, why) -> None:
    waits = watched(agent.shuffle_wait)
    if AT_ONCE[why] is not None:
        await AT_ONCE[why](s, c)

    assert 6400 == await rechunked(c)

    assert not waits
    assert not told(agent)


async def detach(s: Any, c: Any) -> None:
    before = s.handlers[SHUFFLE_RPC.name]
    uninstall(s)
    assert before is not s.handlers[SHUFFLE_RPC.name]


ENDS: dict[str, tuple[Any, bool]] = {
    "the agent goes": (detach, True),
    "nobody is on the way any more": (lambda s, c: announce(s, workers=0), True),
    "an error of ours": (fail, True),
    "the client leaves": (lambda s, c: c.close(), False),
    "the scheduler closes": (lambda s, c: asyncio.wait_for(s.close(), 10), False),
}


@pytest.mark.long
@pytest.mark.parametrize("how", cases(ENDS))
@with_agent(1, config=LONG, clean_kwargs={"threads": False})
async def test_the_wait_ends_when(c, s, a, agent, how) -> None:
    future = await waiting(c, s)
    end, is_wanted = ENDS[how]

    await end(s, c)

    await until(lambda: not agent.shuffle_wait.ongoing)
    if is_wanted:
        assert 6400 == await future
    else:
        assert not agent.barriers.rows()
    assert agent.shuffle_wait._timer is None


@pytest.mark.thorough
@ON_ONE
async def test_it_waits_no_longer_than_it_may(c, s, a, agent, monkeypatch) -> None:
    # A busy machine announces late, and is not to be taken for workers that are overdue.
    monkeypatch.setattr(delay, "OVERDUE_S", 0.1)
    waits = watched(agent.shuffle_wait)
    await ask(s, wire.CONFIGURE, shuffle_wait_ms=2200)

    await announce(s)
    future = rechunked(c)
    await until(lambda: agent.shuffle_wait.ongoing)
    async with always_soon(s):
        assert 6400 == await future

    assert 1 == len(waits)
    (message,) = told(agent)
    assert "0 workers came" in message
    assert "outputs go to 1" in message
    assert not agent.shuffle_wait.ongoing
    assert agent.shuffle_wait._timer is None


@pytest.mark.thorough
@ON_ONE
async def test_some_that_came_are_enough_when_the_others_are_given_up(c, s, a, agent) -> None:
    future = await waiting(c, s, in_s=8)
    async with arrived(s, workers=2):
        await asyncio.sleep(0.5)
        assert agent.shuffle_wait.ongoing

        await announce(s, workers=0)

        await until(begins_with(agent, 3))
        assert 6400 == await future


@pytest.mark.thorough
@ON_ONE
async def test_cancelled_while_it_waits_and_asked_for_again(c, s, a, agent) -> None:
    future = await waiting(c, s)

    await future.cancel()
    await until(lambda: not agent.shuffle_wait.ongoing)
    assert not agent.barriers.rows()
    assert not told(agent)
    await announce(s, workers=0)

    assert 6400 == await rechunked(c)


@pytest.mark.thorough
@ON_ONE
async def test_cancelled_and_asked_for_again_within_the_wait(c, s, a) -> None:
    """The same keys: the task that waits is wanted again before it has heard that it was not."""
    future = await waiting(c, s)

    await future.cancel()
    again = rechunked(c, plus=1)
    await asyncio.sleep(0.5)
    await announce(s, workers=0)

    assert 6401 == await again


@pytest.mark.thorough
@with_agent(config=LONG)
async def test_a_worker_that_dies_while_it_waits_does_not_take_part(c, s, a, b, agent) -> None:
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
@with_agent(config=LONG)
async def test_a_worker_that_is_about_to_end_is_not_held(c, s, a, b, agent) -> None:
    future = await waiting(c, s)
    (wait,) = agent.shuffle_wait.ongoing.values()

    await leave(s, s.workers[next(iter(wait.calls.values()))].name)

    await until(lambda: not agent.shuffle_wait.ongoing)
    assert 6400 == await future


@pytest.mark.thorough
@with_agent(1, threads=40, config=LONG)
async def test_two_shuffles_wait_at_once_and_other_work_goes_on(c, s, a, agent) -> None:
    await announce(s, in_s=8)
    futures = [rechunked(c), rechunked(c, 2)]
    await until(lambda: 2 == len(agent.shuffle_wait.ongoing))
    assert 2 == len(agent.barriers.rows())
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
@with_agent(config=LONG)
async def test_a_shuffle_that_begins_again_does_not_wait_again_for_longer_in_all(
    c, s, a, b, agent, monkeypatch
) -> None:
    monkeypatch.setattr(delay, "OVERDUE_S", 0.1)  # as above
    await ask(s, wire.CONFIGURE, shuffle_wait_ms=1500)
    async with always_soon(s):
        await until(lambda: agent.plans.arriving)
        future = rechunked(c)
        await until(agent.shuffles.running)
        assert 1 == len(told(agent))

        await a.close()
        with contextlib.suppress(RuntimeError):  # before 2023.8 a shuffle was not restarted
            assert 6400 == await future

    # It may have waited for what was left, which is less than is told.
    assert 1 == len(told(agent))


@pytest.mark.thorough
@ON_ONE
async def test_a_shuffle_the_operator_has_not_seen_waits_until_it_has_answered(
    c, s, a, agent
) -> None:
    """Its first input is often ready before the operator has looked at all."""
    future = await waiting(c, s, workers=0, can_grow=3, grow_ms=2000)

    await ask(s, wire.OBSERVE, demand=True)
    await announce(s, workers=3, can_grow=0)
    await asyncio.sleep(0.5)
    assert agent.shuffle_wait.ongoing
    async with arrived(s):
        await until(begins_with(agent, 4))
        assert 6400 == await future


@pytest.mark.thorough
@ON_ONE
async def test_it_does_not_wait_for_an_operator_that_has_seen_it_and_does_nothing(
    c, s, a, agent
) -> None:
    future = await waiting(c, s, workers=0, can_grow=3, grow_ms=2000)

    await ask(s, wire.OBSERVE, demand=True)

    assert 6400 == await future
    assert "expected" in told(agent)[0]


@pytest.mark.thorough
@ON_ONE
async def test_a_barrier_that_may_run_on_certain_workers_only_does_not_wait(c, s, a, agent) -> None:
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
@ON_ONE
async def test_of_a_join_the_second_shuffle_goes_where_the_first_has_gone(c, s, a, agent) -> None:
    """Contract: it has to (`_calculate_worker_for`), so it does not wait for anybody."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some releases warn of what the next will do
            import dask.dataframe as dd
        import pandas as pd
        import pyarrow
    except ImportError as error:
        pytest.skip(str(error))
    assert pyarrow
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
    from dask_adaptive_agent.shuffle.delay import _shuffle_of

    return _shuffle_of(request)
