"""Workers sorted by lifecycle, as the planner and the status see a group."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive.model.observed import Leaving, ObservedGroup
from dask_adaptive.planner.actions.groups import sort_workers
from support.worlds import GROUP, SHUFFLE, pending, worker

GOES: dict[str, Any] = {"node_terminating": "cordoned"}


@pytest.mark.parametrize(
    ("one", "place"),
    [
        (worker("a"), "active"),
        (pending("a"), "pending"),
        (pending("a", terminating="1 task"), "pending"),
        (worker("a", leaving=Leaving.DRAINING), "retiring"),
        (worker("a", leaving=Leaving.DRAINED), "retiring"),
        (worker("a", in_service=False), "other"),
        (worker("a", deleting=True), "other"),
        (worker("a", **GOES), "on_terminating_node"),
        (worker("a", pins=(SHUFFLE,), **GOES), "active"),
        (worker("a", actors=True, **GOES), "active"),
        (worker("a", leaving=Leaving.DRAINING, **GOES), "retiring"),
        (pending("a", **GOES), "pending"),
        (pending("a", terminating="1 task", **GOES), "other"),
    ],
)
def test_each_worker_has_one_place(one: Any, place: str) -> None:
    places = ("pending", "active", "on_terminating_node", "retiring", "other")

    def placed(*deleted: str) -> list[str]:
        found = sort_workers(ObservedGroup(GROUP, 1, (one,)), deleted)
        return [name for name in places if getattr(found, name)]

    assert [place] == placed()
    assert ["other"] == placed("a")
