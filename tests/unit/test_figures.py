"""Figures that move with the load are told every few seconds, all else at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dask_adaptive.loop.figures import EVERY_S, can_wait
from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.loop.status import Condition, GroupRow, PauseRow, Status, WorkerRow
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Replacing
from support.world import World
from support.worlds import POLICY

KEY = ClusterKey("team", "etl")
CONDITION = Condition("Ready", True, Reason.RECONCILED, "")
GROUP = GroupRow("g", 4, 4, 4, 4, 0, Reason.RECONCILED, "")


async def test_workers_that_begin_and_end_tasks_cost_no_write_each() -> None:
    world = World(workers=2, target=2)
    loop = ClusterLoop(KEY, world.ports())
    await loop.one_pass(POLICY)
    assert 1 == len(world.statuses)

    for second in range(1, 8):  # the one of 0 s, and that of EVERY_S
        world.now, world.busy = float(second), second >= 2
        await loop.one_pass(POLICY)

    assert EVERY_S == 4.0
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


ROW = WorkerRow("w1", "Draining", Reason.RETIRING, "idle")
DUE = Replacing("w1", Reason.LIFETIME, "59m of 1h", "Due")
OLD = Status(workers=(ROW,), replacing=(DUE,), groups=(GROUP,), conditions=(CONDITION,))


@pytest.mark.parametrize(
    "new",
    [
        replace(OLD, busy=3, idle=1, connected=4, pending=2, replicas=6, wanted=7, message="x"),
        replace(OLD, workers=(replace(ROW, state="Going", reason=Reason.DRAINED),)),
        replace(OLD, workers=(ROW, WorkerRow("w2", "Pending", Reason.NEVER_CONNECTED, "starts"))),
        replace(OLD, workers=()),
        replace(OLD, replacing=(replace(DUE, message="59m30s of 1h"),)),
        replace(OLD, replacing=()),
        replace(OLD, groups=(replace(GROUP, connected=9, message="x"),)),
        replace(OLD, conditions=(replace(CONDITION, message="x"),)),
    ],
)
def test_what_moves_with_the_load_can_wait(new: Status) -> None:
    assert can_wait(new, OLD)


@pytest.mark.parametrize(
    "new",
    [
        replace(OLD, desired=3),
        replace(OLD, reason=Reason.BUSY),
        replace(OLD, workers=(ROW, replace(ROW, name="w2"))),
        replace(OLD, replacing=(replace(DUE, state="Surging"),)),
        replace(OLD, recycled=((Reason.LIFETIME, 1),)),
        replace(OLD, recent=(1.0,)),
        replace(OLD, pause=PauseRow("held")),
        replace(OLD, distributed="2026.8.0"),
        replace(OLD, agent="1"),
        replace(OLD, groups=(replace(GROUP, desired=9),)),
        replace(OLD, groups=(replace(GROUP, reason=Reason.BUSY),)),
        replace(OLD, conditions=(replace(CONDITION, status=False),)),
        replace(OLD, conditions=(replace(CONDITION, reason=Reason.BUSY),)),
    ],
)
def test_what_was_decided_and_who_leaves_cannot(new: Status) -> None:
    assert not can_wait(new, OLD)
