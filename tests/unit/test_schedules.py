"""Floors at certain hours."""

from __future__ import annotations

from datetime import datetime

import pytest

from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Window
from dask_adaptive.model.scaling import Schedule
from dask_adaptive.planner.schedules import floor_of
from support.worlds import GROUP

DAY = Window("0 8 * * 1-5", 10 * 3600.0, "Europe/Berlin")
MORNING = Window("0 8 * * *", 3600.0, "Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("schedules", "group", "instant", "expected"),
    [
        pytest.param((), GROUP, "2026-01-12T09:00+01:00", 0, id="none"),
        pytest.param((Schedule(DAY, 5),), GROUP, "2026-01-12T09:00+01:00", 5, id="open"),
        pytest.param((Schedule(DAY, 5),), GROUP, "2026-01-12T08:00+01:00", 5, id="it-opens"),
        pytest.param((Schedule(DAY, 5),), GROUP, "2026-01-12T07:59:59+01:00", 0, id="not-yet"),
        pytest.param((Schedule(DAY, 5),), GROUP, "2026-01-12T18:00+01:00", 0, id="it-closes"),
        pytest.param((Schedule(DAY, 5),), GROUP, "2026-01-11T09:00+01:00", 0, id="on-a-sunday"),
        pytest.param((Schedule(DAY, 5),), GROUP, "2026-07-13T06:00+00:00", 5, id="in-summer"),
        pytest.param((Schedule(DAY, 5), Schedule(MORNING, 8)), GROUP, "2026-01-12T08:30+01:00", 8,
                     id="the-highest-counts"),
        pytest.param((Schedule(MORNING, 8), Schedule(DAY, 5)), GROUP, "2026-01-12T09:30+01:00", 5,
                     id="of-those-that-are-open"),
        pytest.param((Schedule(DAY, 5),), "etl-gpu", "2026-01-12T09:00+01:00", 0,
                     id="the-default-group-is-meant"),
        pytest.param((Schedule(DAY, 5, "etl-gpu"),), GROUP, "2026-01-12T09:00+01:00", 0,
                     id="another-group-is-meant"),
        pytest.param((Schedule(DAY, 5, "etl-gpu"),), "etl-gpu", "2026-01-12T09:00+01:00", 5,
                     id="this-group-is-meant"),
        pytest.param((Schedule(DAY, 0),), GROUP, "2026-01-12T09:00+01:00", 0, id="a-floor-of-none"),
        pytest.param((Schedule(DAY, 1),), GROUP, "2026-01-12T09:00+01:00", 1, id="a-floor-of-one"),
    ],
)  # fmt: skip
def test_floor(schedules: tuple[Schedule, ...], group: str, instant: str, expected: int) -> None:
    floor, step = floor_of(schedules, group, GROUP, at=at(instant))

    assert expected == floor
    assert (expected > 0) == (step is not None)


def test_the_step_names_the_schedule() -> None:
    _, step = floor_of((Schedule(DAY, 5),), GROUP, GROUP, at=at("2026-01-12T09:00+01:00"))

    assert step is not None
    assert ("schedule", 5, Reason.SCHEDULED_MINIMUM) == (step.stage, step.replicas, step.reason)
    assert "at least 5 by schedule 0 8 * * 1-5 (Europe/Berlin)" == step.message
