"""Figures that move with the load are told every few seconds, all else at once."""

from __future__ import annotations

from dask_adaptive.loop.figures import EVERY_S
from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.model.keys import ClusterKey
from support.world import World
from support.worlds import POLICY

KEY = ClusterKey("team", "etl")


async def test_workers_that_begin_and_end_tasks_cost_no_write_each() -> None:
    world = World(workers=2, target=2)
    loop = ClusterLoop(KEY, world.ports())
    await loop.one_pass(POLICY)
    assert 1 == len(world.statuses)

    for second in range(1, 10):  # the one of 0 s, and that of EVERY_S
        world.now, world.busy = float(second), second % 2 == 1
        await loop.one_pass(POLICY)

    assert EVERY_S == 5.0
    assert [0, 2] == [status.busy for status in world.statuses]


async def test_the_last_figures_are_told_in_the_end() -> None:
    world = World(workers=2, target=2)
    loop = ClusterLoop(KEY, world.ports())
    await loop.one_pass(POLICY)
    world.now, world.busy = 1.0, True
    await loop.one_pass(POLICY)
    world.now = 1.0 + EVERY_S
    await loop.one_pass(POLICY)
    assert [0, 2] == [status.busy for status in world.statuses]


async def test_what_is_done_is_told_at_once() -> None:
    world = World(workers=1, target=1)
    loop = ClusterLoop(KEY, world.ports())
    await loop.one_pass(POLICY)
    world.now, world.target = 1.0, 3
    await loop.one_pass(POLICY)
    assert [1, 3] == [status.desired for status in world.statuses]
