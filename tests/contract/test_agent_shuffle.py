"""P2P shuffles pin their workers while they run: retiring one would restart the shuffle."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import dask
import pytest
from distributed import Worker
from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import uninstall
from support.agent_cluster import with_agent
from support.agent_work import (
    BLOCKS,
    RUNS,
    ask,
    count_runs,
    rechunked,
    retire,
    slow_block,
    tally,
    until,
    until_left,
    until_state,
)

da = pytest.importorskip("dask.array")


@with_agent(4)
async def test_a_participant_is_refused_and_the_shuffle_runs_once(c, s, a, *rest, agent) -> None:
    count_runs(s)
    future = rechunked(c)
    await until(agent.shuffles.running)

    assert [(wire.ACTIVE, wire.V_PINNED)] == await retire(s, a.name, busy_ok=True)
    assert [] == s.workers_to_close(n=2)
    seen = await ask(s, wire.OBSERVE)
    assert 6400 == await future

    (pin,) = (row for row in seen["pins"] if row["source"] == wire.SHUFFLE)
    (shuffle,) = seen["shuffles"]
    assert (4, 4, pin["owner"]) == (len(pin["slots"]), shuffle["workers"], shuffle["id"])
    assert 3_590_000 < pin["left_ms"] <= 3_600_000
    keys = ("shuffles", "max_shuffle_run", "repeated", "interrupted")
    assert (1, 1, 0, 0) == tally(s, *keys)
    tasks, runs = tally(s, "tasks", "runs")
    assert tasks == runs
    # Each block may run once more on an empty array where dask infers what map_blocks returns.
    assert 2 * BLOCKS == len([shape for shape in RUNS if 80 in shape])


@with_agent(4)
async def test_a_new_shuffle_does_not_choose_workers_that_leave(c, s, a, b, *rest, agent) -> None:
    """Retired or about to end: neither is held back, and the shuffle runs once."""
    await until_state(s, a.name, wire.DRAINED)
    await until_left(s, b.address)
    future = rechunked(c)
    await until(agent.shuffles.running)
    participants = set(agent.shuffles.running()[0].participants)

    assert {w.address for w in rest} == participants
    assert [(wire.DRAINED, "")] == await retire(s, a.name)
    assert 6400 == await future
    assert Status.closing_gracefully == s.workers[a.address].status
    assert 2 * BLOCKS == len([shape for shape in RUNS if 80 in shape])


@pytest.mark.parametrize("leaving", ["everybody", "nobody knows"])
@with_agent(4)
async def test_a_new_shuffle_chooses_as_upstream_if_there_are_no_others(
    c, s, *workers, agent, leaving
) -> None:
    """The task that begins it runs on a worker that leaves; it could not begin elsewhere."""
    future = rechunked(c)
    await until(lambda: any(ws.processing for ws in s.workers.values()))
    agent.service.out_of_service = lambda: set(s.workers) if leaving == "everybody" else 1 / 0
    await until(agent.shuffles.running)
    del agent.service.out_of_service

    assert 4 == len(agent.shuffles.running()[0].participants)
    assert 6400 == await future


@with_agent(4)
async def test_a_worker_that_joins_a_running_shuffle_is_pinned_at_once(
    c, s, *workers, agent
) -> None:
    """Contract: participants only grow while a run goes on, and `run_id` is another for each."""
    future = rechunked(c)
    await until(agent.shuffles.running)
    (before,) = agent.shuffles.running()
    seen = set(before.participants)
    assert [] == s.workers_to_close(n=4)
    state = next(iter(agent.shuffles._states().values()))
    assert before.run_id == state.run_id
    async with Worker(s.address, nthreads=1) as late:
        assert [late.address] == s.workers_to_close(n=5)

        plugin = s.extensions["shuffle"]
        join = getattr(plugin, "_get", None) or plugin.get
        join(before.id, late.address)

        assert [] == s.workers_to_close(n=5)
        (now,) = agent.shuffles.running()
        assert (seen | {late.address}, before.run_id) == (set(now.participants), now.run_id)
        assert [(wire.ACTIVE, wire.V_PINNED)] == await retire(s, late.address)
        assert 6400 == await future
        await until(lambda: not agent.shuffles.running())
        assert_nothing_is_left(agent)


def assert_nothing_is_left(agent: Any) -> None:
    assert not agent.shuffles.running()
    assert not agent.shuffles.pinned()
    assert not agent.shuffles._known
    assert set(agent.scheduler.workers) == set(agent.scheduler.workers_to_close(n=9))


async def finish(s: Any, future: Any, a: Any) -> None:
    assert 6400 == await future
    future.release()


async def let_go(s: Any, future: Any, a: Any) -> None:
    future.release()


async def lose_a_worker(s: Any, future: Any, a: Any) -> None:
    await a.close()
    with contextlib.suppress(RuntimeError):  # before 2023.8 a shuffle was not restarted
        await future


async def detach(s: Any, future: Any, a: Any) -> None:
    uninstall(s)


ENDS: dict[str, Any] = {
    "it is finished": finish,
    "it is cancelled": lambda s, future, a: future.cancel(),
    "its futures are released": let_go,
    "a worker is lost": lose_a_worker,
    "the agent goes": detach,
}


@pytest.mark.long
@pytest.mark.parametrize("end", ENDS)
@with_agent(4)
async def test_a_shuffle_leaves_nothing_when(c, s, a, *rest, agent, end) -> None:
    count_runs(s)
    future = rechunked(c)
    await until(agent.shuffles.pinned)

    await ENDS[end](s, future, a)

    if end == "the agent goes":
        await future
    else:
        await until(lambda: not agent.shuffles.pinned())
        assert_nothing_is_left(agent)


SEEN = threading.Event()


def broken_block(block: Any) -> Any:
    if block.size:
        assert SEEN.wait(20)
        raise ValueError("by intent")
    return block


@pytest.mark.parametrize("is_input", [True, False])
@with_agent(4)
async def test_a_shuffle_with_an_erred_task_leaves_nothing(c, s, *workers, agent, is_input) -> None:
    """Although its futures are still there: before 2023.10 upstream keeps it until they go."""
    # Small chunks, because inputs up to this size are merged into one, and all would wait for all.
    settings = {"optimization.fuse.active": False, "array.chunk-size": "2 kiB"}
    with dask.config.set(settings):
        blocks = da.ones((80, 80), chunks=(4, 80)).map_blocks(slow_block, dtype=float)
        if is_input:
            late = da.ones((4, 80), chunks=(4, 80)).map_blocks(broken_block, dtype=float)
            blocks = da.concatenate([blocks, late])
        outputs = blocks.rechunk((80, 4), method="p2p")
        outputs = outputs.map_blocks(slow_block if is_input else broken_block, dtype=float)
        SEEN.clear()
        future = c.compute(outputs.sum())
    await until(agent.shuffles.pinned)
    SEEN.set()
    with pytest.raises(ValueError, match="by intent"):
        await future

    await until(lambda: not agent.shuffles.pinned())
    assert_nothing_is_left(agent)


@with_agent(4)
async def test_a_shuffle_pins_for_a_limited_time_and_that_is_told_once(
    c, s, a, *rest, agent
) -> None:
    future = rechunked(c)
    await until(agent.shuffles.pinned)
    (run,) = agent.shuffles.running()
    await ask(s, wire.CONFIGURE, shuffle_timeout_ms=1)

    for _ in range(3):
        seen = await ask(s, wire.OBSERVE)
        assert not seen["pins"]
        assert 1 == len(seen["shuffles"])
        assert {wire.SHUFFLE: 1} == seen["pins_expired"]
        (note,) = seen["notes"]
        assert wire.N_PIN_EXPIRED == note["kind"]
        assert run.id in note["message"]
        assert {str(w.name) for w in (a, *rest)} == set(note["names"])
    assert [] == agent.pins.holders(s.workers[a.address])
    assert 4 == len(s.workers_to_close(n=4))

    await ask(s, wire.CONFIGURE, shuffle_timeout_ms=3_600_000)
    assert [] == s.workers_to_close(n=4)
    assert 6400 == await future


@with_agent(4)
async def test_shuffle_pins_can_be_off(c, s, a, *rest, agent) -> None:
    await ask(s, wire.CONFIGURE, shuffle_pins=False)
    future = rechunked(c)
    await until(agent.shuffles.running)

    assert not (await ask(s, wire.OBSERVE))["pins"]
    await future


@pytest.mark.thorough
@with_agent(4)
async def test_a_participant_that_dies_is_seen_in_the_tally(c, s, a, *rest, agent) -> None:
    count_runs(s)
    future = rechunked(c)
    await until(agent.shuffles.running)
    await ask(s, wire.OBSERVE)
    interrupted = len(s.workers[a.address].processing)

    await a.close()
    with contextlib.suppress(RuntimeError):  # before 2023.8 a shuffle was not restarted
        await future

    shuffles, run, *again = tally(s, "shuffles", "max_shuffle_run", "repeated", "interrupted")
    assert 1 == shuffles
    assert future.status == "error" or (2 <= run and any(again))
    assert interrupted <= 4
