"""Figures that move with the load are told every few seconds, all else at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.loop.one_pass import STATUS_EVERY_S, only_figures_changed
from dask_adaptive.loop.status import Condition, GroupRow, SchedulerRow, Status, WorkerRow
from dask_adaptive.model.plan import Decision
from dask_adaptive.model.reason import Reason
from support.fake_cluster import FakeCluster, completed
from support.tables import table

CONDITION = Condition("Ready", True, Reason.RECONCILED, "")
GROUP = GroupRow("g", 4, 4, 4, 4, 0, Reason.RECONCILED, "")


@table(
    "go_on",
    a_little_later=lambda fake: fake.steps(1, after_s=STATUS_EVERY_S),
    as_the_process_stops=lambda fake: completed(fake.loop.flush()),
)
def test_that_workers_were_asked_for_is_told_by_an_event_and_later(go_on: Any) -> None:
    fake = FakeCluster(1, target=1)
    fake.step()
    fake.target = 3
    fake.step(after_s=1.0)
    assert "event" in fake.calls
    assert [1] == [status.desired for status in fake.statuses]
    go_on(fake)

    assert [1, 3] == [status.desired for status in fake.statuses]


ROW = WorkerRow("w1", "Draining", Reason.RETIRING, "idle")
DUE = WorkerRow("w3", "Due", Reason.LIFETIME, "59m of 1h")
OLD = Status(workers=(ROW, DUE), groups=(GROUP,), conditions=(CONDITION,))


@pytest.mark.parametrize(
    "new",
    [
        replace(OLD, last_decision=Decision(1.0, "g", 1, 1, 1, Reason.BUSY, "", "Held")),
        replace(OLD, last_decision=Decision(1.0, "g", 1, 1, 1, Reason.BUSY, "", "Done")),
        replace(OLD, desired=3, reason=Reason.BUSY, groups=(replace(GROUP, reason=Reason.BUSY),)),
        replace(OLD, busy=3, idle=1, connected=4, pending=2, replicas=6, wanted=7, message="x"),
        replace(OLD, workers=(replace(ROW, state="Going", reason=Reason.DRAINED), DUE)),
        replace(OLD, workers=(ROW, WorkerRow("w2", "Pending", Reason.NEVER_CONNECTED, "starts"))),
        replace(OLD, workers=()),
        replace(OLD, workers=(ROW, replace(DUE, message="59m30s of 1h"))),
        replace(OLD, groups=(replace(GROUP, connected=9, message="x"),)),
        replace(OLD, conditions=(replace(CONDITION, message="x"),)),
    ],
)
def test_what_moves_with_the_load_can_wait(new: Status) -> None:
    assert only_figures_changed(new, OLD)


@pytest.mark.parametrize(
    "new",
    [
        replace(OLD, generation=2),
        replace(OLD, workers=(ROW, replace(ROW, name="w2"))),
        replace(OLD, workers=(ROW, replace(DUE, state="Surging"))),
        replace(OLD, recycled={Reason.LIFETIME: 1}),
        replace(OLD, recent=(1.0,)),
        replace(OLD, scheduler=SchedulerRow("2026.8.0")),
        replace(OLD, scheduler=SchedulerRow(agent="1")),
        replace(OLD, conditions=(replace(CONDITION, status=False),)),
        replace(OLD, conditions=(replace(CONDITION, reason=Reason.BUSY),)),
    ],
)
def test_what_was_decided_and_who_leaves_cannot(new: Status) -> None:
    assert not only_figures_changed(new, OLD)
