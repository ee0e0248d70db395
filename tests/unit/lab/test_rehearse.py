"""What a rehearsal adds up to."""

from __future__ import annotations

from typing import Any

from dask_adaptive.model.reason import Reason
from dask_adaptive_lab.rehearse.views import RehearsalFigures
from dask_adaptive_lab.tally import Tally

TALLY = Tally(10, 12, 1, 2, 1, 1, 1)


def figures_of(*moments: tuple[float, dict[str, float], dict[str, Any]]) -> RehearsalFigures:
    """RehearsalFigures of a cluster of up to four: at which time who had been idle for how long."""
    now = 0.0
    figures = RehearsalFigures(maximum=4, clock=lambda: now)
    figures.counted(TALLY)
    for now, idle_s, more in moments:  # noqa: B007
        least = {"present": len(idle_s), "wanted": 0, "desired": 0}
        figures.add(idle_s=idle_s, **{**least, **more})
    return figures


def test_figures() -> None:
    two = {"wanted": 2, "desired": 2}
    figures = figures_of(
        (0.0, {}, two),
        (1.0, {}, {**two, "present": 2}),
        (3.0, {"a": 0.0, "b": 0.0}, two),
        (10.0, {"a": 5.0, "b": 0.0}, {}),
        (12.0, {"b": 0.0}, {}),
    )

    assert ([3.0], [7.0]) == (figures.to_connected_s, figures.to_gone_s)
    assert 2 * 2.0 + 2 * 7.0 + 2 * 2.0 == figures.worker_s
    rows = dict(figures.rows())
    assert "22 of 48 (46%)" == rows["worker-seconds, of a fixed cluster's"]
    assert "median 3.0 s, 3.0 to 3.0 s" == rows["from load to workers connected"]
    assert ("2", "3") == (rows["peak workers"], rows["tasks rerun by scaling"])


def test_recycled_workers_are_counted_by_reason() -> None:
    assert "workers recycled" not in dict(figures_of((0.0, {}, {})).rows())
    once, thrice = (
        {"recycled": {Reason.LIFETIME: 1, Reason.TASK_QUOTA: count}} for count in (1, 3)
    )
    figures = figures_of((0.0, {"a": 0.0}, once), (1.0, {"a": 0.0}, thrice))

    assert "1 Lifetime, 3 TaskQuota" == dict(figures.rows())["workers recycled"]
