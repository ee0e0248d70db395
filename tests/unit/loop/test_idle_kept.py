"""What `idleTimeout: Auto` goes by outlives the process, and nothing is made up by that."""

from __future__ import annotations

from dask_adaptive.model.past import GroupPast
from dask_adaptive.planner.context import IdleTime
from support.fake_cluster import GROUP, FakeCluster


def restored(start_s: float) -> GroupPast:
    fake = FakeCluster(workers=1)
    fake.start_operator(idle={GROUP: IdleTime(start_s)})
    return fake.loop._past.of(GROUP)


def test_a_start_that_was_only_assumed_does_not_become_a_measured_one() -> None:
    assert (None, ()) == (restored(10.0).arrival_s, restored(10.0).starts)


def test_what_was_measured_is_known_again() -> None:
    mine = restored(33.0)

    assert (33.0, (33.0,)) == (mine.arrival_s, mine.starts)
