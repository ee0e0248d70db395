"""P2P shuffles pin their workers: retiring one would restart the shuffle."""

from __future__ import annotations

import contextlib
from typing import Any

import dask
import pytest
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install
from support.agent_work import RUNS, ask, retire, slow_block, until, until_state

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
async def test_a_worker_that_drains_when_a_shuffle_picks_it_comes_back(
    c: Any, s: Any, a: Any, *rest: Any
) -> None:
    """Upstream's new shuffles take every worker, in service or not."""
    agent = install(s)
    await until_state(s, a.name, wire.DRAINED)
    future = rechunked(c)
    await until(agent.shuffles.running)
    participants = agent.shuffles.running()[0].participants

    if a.address in participants:
        await until(lambda: s.workers[a.address].status == Status.running, timeout_s=2)
        assert [(wire.ACTIVE, wire.V_PINNED)] == await retire(s, a.name, busy_ok=True)
    assert 6400 == await future
    assert 2 * BLOCKS == len([shape for shape in RUNS if 80 in shape])


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_shuffle_pins_for_a_limited_time(c: Any, s: Any, a: Any, *rest: Any) -> None:
    agent = install(s)
    future = rechunked(c)
    await until(agent.shuffles.running)
    await ask(s, wire.CONFIGURE, shuffle_timeout_ms=1)

    seen = await ask(s, wire.OBSERVE)

    assert not seen["pins"]
    assert 1 == len(seen["shuffles"])
    assert agent.pinned_by(s.workers[a.address]) == []
    await future


@gen_cluster(client=True, nthreads=FOUR)
async def test_shuffle_pins_can_be_off(c: Any, s: Any, a: Any, *rest: Any) -> None:
    agent = install(s)
    await ask(s, wire.CONFIGURE, shuffle_pins=False)
    future = rechunked(c)
    await until(agent.shuffles.running)

    assert not (await ask(s, wire.OBSERVE))["pins"]
    await future


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
