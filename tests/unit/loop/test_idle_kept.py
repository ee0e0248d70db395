"""What `idleTimeout: Auto` goes by outlives the process, and nothing is made up by that."""

from __future__ import annotations

from dask_adaptive.loop.status import GroupRow, Status
from dask_adaptive.model.past import GroupPast
from support.fake_cluster import GROUP, FakeCluster


def restored(start_s: int) -> GroupPast:
    fake = FakeCluster(workers=1)
    group = GroupRow(GROUP, start_seconds=start_s, move_seconds=0)
    fake.start_operator(Status(groups=(group,)))
    return fake.loop._past.of(GROUP)


def test_a_start_that_was_only_assumed_does_not_become_a_measured_one() -> None:
    assert (None, ()) == (restored(10).arrival_s, restored(10).starts)


def test_what_was_measured_is_known_again() -> None:
    mine = restored(33)

    assert (33.0, (33.0,)) == (mine.arrival_s, mine.starts)
