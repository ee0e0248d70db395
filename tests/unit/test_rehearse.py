"""What a rehearsal adds up to."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.model.observed import Tally
from dask_adaptive.model.policy import parse_policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.rehearse.record import Recorder, Sample
from dask_adaptive.rehearse.runner import missing_here
from dask_adaptive.rehearse.view import rows_of

TALLY = Tally(10, 12, 1, 2, 1, 1, 1)


def sample(connected: dict[str, float], wanted: int = 0, present: int | None = None) -> Sample:
    return Sample(len(connected) if present is None else present, connected, wanted, wanted, TALLY)


def test_figures() -> None:
    now = 0.0
    recorder = Recorder(maximum=4, clock=lambda: now)
    recorder.add(sample({}, wanted=2))
    now = 1.0
    recorder.add(sample({}, wanted=2, present=2))
    now = 3.0
    recorder.add(sample({"a": 0.0, "b": 0.0}, wanted=2))
    now = 10.0
    recorder.add(sample({"a": 5.0, "b": 0.0}))
    now = 12.0
    recorder.add(sample({"b": 0.0}))

    figures = recorder.figures()

    assert (3.0,) == figures.to_connected_s
    assert (7.0,) == figures.to_gone_s
    assert 2 == figures.peak_workers
    assert 2 * 2.0 + 2 * 7.0 + 2 * 2.0 == figures.worker_s
    assert 4 * 12.0 == figures.fixed_worker_s
    assert ("redone because of us", "3") in rows_of(figures)


def test_recycled_workers_are_told_by_reason() -> None:
    recorder = Recorder(maximum=4, clock=lambda: 0.0)
    assert "workers recycled" not in dict(rows_of(recorder.figures()))
    for count in (1, 3):
        recycled = ((Reason.LIFETIME, 1), (Reason.TASK_QUOTA, count))
        recorder.add(dataclasses.replace(sample({"a": 0.0}), recycled=recycled))

    assert "1 Lifetime, 3 TaskQuota" == dict(rows_of(recorder.figures()))["workers recycled"]


@pytest.mark.parametrize("default", [[], [{"name": "etl-default", "maxReplicas": 3}]])
def test_groups_that_a_rehearsal_does_not_have_are_named(default: list[dict[str, Any]]) -> None:
    groups = [*default, {"name": "etl-gpu", "maxReplicas": 2}, {"name": "etl-fixed"}]
    spec = {"clusterRef": {"name": "etl"}, "maxReplicas": 5, "workerGroups": groups}

    (line,) = missing_here(parse_policy(spec))
    assert line.startswith("worker group etl-gpu is not here: a rehearsal has only the default one")
