"""P2P shuffles pin their workers while they run: retiring one would restart the shuffle."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import dask
import pytest
from distributed import Worker
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install, uninstall
from support.agent_work import RUNS, ask, retire, slow_block, until, until_left, until_state

da = pytest.importorskip("dask.array")

FOUR = [("127.0.0.1", 1)] * 4
BLOCKS = 20


def rechunked(c: Any) -> Any:
    """A P2P rechunk with slow blocks on both sides; a future of its sum."""
    with dask.config.set({"optimization.fuse.active": False}):
        x = da.ones((80, 80), chunks=(4, 80)).map_blocks(slow_block, dtype=float)
        y = x.rechunk((80, 4), method="p2p").map_blocks(slow_block, dtype=float)
        return c.compute(y.sum())


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_participant_is_refused_and_the_shuffle_runs_once(
    c: Any, s: Any, a: Any, *rest: Any
) -> None:
    agent = install(s)
    await ask(s, wire.CONFIGURE, tally=True)
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
    tally = (await ask(s, wire.OBSERVE))["tally"]
    assert (1, 1, 0, 0) == tuple(
        tally[k] for k in ("shuffles", "max_shuffle_run", "repeated", "interrupted")
    )
    assert tally["runs"] == tally["tasks"]
    # Each block may run once more on an empty array where dask infers what map_blocks returns.
    assert 2 * BLOCKS == len([shape for shape in RUNS if 80 in shape])


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_new_shuffle_does_not_choose_workers_that_leave(
    c: Any, s: Any, a: Any, b: Any, *rest: Any
) -> None:
    """Retired or about to end: neither is held back, and the shuffle runs once."""
    agent = install(s)
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


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_new_shuffle_chooses_leaving_workers_if_there_are_no_others(
    c: Any, s: Any, *workers: Any
) -> None:
    """The task that begins it runs on one of them; it could not begin elsewhere."""
    agent = install(s)
    future = rechunked(c)
    await until(lambda: any(ws.processing for ws in s.workers.values()))
    before = agent.placement.leaving
    agent.placement.leaving = lambda: set(s.workers)
    await until(agent.shuffles.running)
    agent.placement.leaving = before

    assert 4 == len(agent.shuffles.running()[0].participants)
    assert 6400 == await future


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_new_shuffle_chooses_as_upstream_when_we_cannot_tell(
    c: Any, s: Any, *workers: Any
) -> None:
    agent = install(s)
    agent.placement.leaving = lambda: 1 / 0  # type: ignore[assignment, return-value]
    future = rechunked(c)
    await until(agent.shuffles.running)

    assert 4 == len(agent.shuffles.running()[0].participants)
    assert 6400 == await future


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_worker_that_joins_a_running_shuffle_is_pinned_at_once(
    c: Any, s: Any, *workers: Any
) -> None:
    """Contract: participants only grow while a run goes on, and `run_id` is another for each."""
    agent = install(s)
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
@gen_cluster(client=True, nthreads=FOUR)
async def test_a_shuffle_leaves_nothing_when(c: Any, s: Any, a: Any, *rest: Any, end: str) -> None:
    agent = install(s)
    await ask(s, wire.CONFIGURE, tally=True)
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
@gen_cluster(client=True, nthreads=FOUR)
async def test_a_shuffle_with_an_erred_task_leaves_nothing(
    c: Any, s: Any, *workers: Any, is_input: bool
) -> None:
    """Although its futures are still there: before 2023.10 upstream keeps it until they go."""
    agent = install(s)
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


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_shuffle_pins_for_a_limited_time_and_that_is_told_once(
    c: Any, s: Any, a: Any, *rest: Any
) -> None:
    agent = install(s)
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
        assert wire.N_SHUFFLE_PIN_EXPIRED == note["kind"]
        assert run.id in note["message"]
        assert {str(w.name) for w in (a, *rest)} == set(note["names"])
    assert [] == agent.pins.holders(s.workers[a.address])
    assert 4 == len(s.workers_to_close(n=4))

    await ask(s, wire.CONFIGURE, shuffle_timeout_ms=3_600_000)
    assert [] == s.workers_to_close(n=4)
    assert 6400 == await future


@gen_cluster(client=True, nthreads=FOUR)
async def test_shuffle_pins_can_be_off(c: Any, s: Any, a: Any, *rest: Any) -> None:
    agent = install(s)
    await ask(s, wire.CONFIGURE, shuffle_pins=False)
    future = rechunked(c)
    await until(agent.shuffles.running)

    assert not (await ask(s, wire.OBSERVE))["pins"]
    await future


@pytest.mark.thorough
@gen_cluster(client=True, nthreads=FOUR)
async def test_a_participant_that_dies_is_seen_in_the_tally(
    c: Any, s: Any, a: Any, *rest: Any
) -> None:
    agent = install(s)
    await ask(s, wire.CONFIGURE, tally=True)
    future = rechunked(c)
    await until(agent.shuffles.running)
    await ask(s, wire.OBSERVE)
    interrupted = len(s.workers[a.address].processing)

    await a.close()
    with contextlib.suppress(RuntimeError):  # before 2023.8 a shuffle was not restarted
        await future

    tally = (await ask(s, wire.OBSERVE))["tally"]
    assert 1 == tally["shuffles"]
    assert future.status == "error" or 2 <= tally["max_shuffle_run"]
    assert future.status == "error" or 0 < tally["repeated"] + tally["interrupted"]
    assert interrupted <= 4
