"""What a rehearsal adds up to."""

from __future__ import annotations

from dask_adaptive_lab.rehearse.views import RehearsalFigures
from dask_adaptive_lab.tally import Tally

TALLY = Tally(10, 12, 1, 2, 1, 1, 1)


def test_figures() -> None:
    now = 0.0
    figures = RehearsalFigures(maximum=4, clock=lambda: now)
    figures.counted(TALLY)
    assert "workers recycled" not in dict(figures.rows())
    for now, present, connected in ((1.0, 2, 0), (3.0, 2, 2), (10.0, 1, 1), (12.0, 1, 1)):  # noqa: B007
        figures.add(present=present, connected=connected, recycled={"Lifetime": 1, "TaskQuota": 3})

    assert 2 * 2.0 + 2 * 7.0 + 1 * 2.0 == figures.worker_s
    rows = dict(figures.rows())
    assert "20 of 48 (42%)" == rows["worker-seconds, of a fixed cluster's"]
    assert ("2", "3") == (rows["peak workers"], rows["tasks rerun by scaling"])
    assert "1 Lifetime, 3 TaskQuota" == rows["workers recycled"]
