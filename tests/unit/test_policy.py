"""A spec becomes a policy, or a sentence that names the field and the fix."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.duration import format_duration, parse_duration
from dask_adaptive.model.policy import (
    InvalidPolicy,
    Mode,
    OnLifetime,
    OnTimeout,
    Pins,
    Policy,
    Retirement,
    parse_policy,
)

LEAST = {"clusterRef": {"name": "etl"}, "maxReplicas": 3}


def test_only_the_cluster_and_the_maximum_are_needed() -> None:
    assert Policy("etl", 3) == parse_policy(LEAST)


def test_every_field_is_read() -> None:
    spec = {
        **LEAST, "mode": "Advise", "minReplicas": 1, "idleTimeout": "90s",
        "target": {"duration": "2s"},
        "pins": {"shuffle": {"enabled": False, "timeout": "2h"}, "manual": {"maxDuration": "8h"}},
        "retirement": {"gracePeriod": "1m", "onTimeout": "Force", "maxConcurrent": 2,
                       "onLifetime": "Stock"},
    }  # fmt: skip
    expected = Policy(
        "etl", 3, 1, Mode.ADVISE, 90.0, 2.0, Pins(False, 7200.0, 28800.0),
        Retirement(60.0, OnTimeout.FORCE, 2, OnLifetime.STOCK),
    )  # fmt: skip

    assert expected == parse_policy(spec)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clusterRef": {}}, "spec.clusterRef.name is required"),
        ({"clusterRef": "etl"}, "spec.clusterRef must be an object"),
        ({"maxReplicas": None}, "spec.maxReplicas is required"),
        ({"maxReplicas": "3"}, "spec.maxReplicas must be a whole number"),
        ({"maxReplicas": True}, "spec.maxReplicas must be a whole number"),
        ({"minReplicas": -1}, "spec.minReplicas must be a whole number of at least 0"),
        ({"minReplicas": 4}, "between 0 and spec.maxReplicas, got 4 and 3"),
        ({"idleTimeout": "-5s"}, "spec.idleTimeout: '-5s' is not a duration; write one like 90s"),
        ({"idleTimeout": "1 minute"}, "is not a duration"),
        ({"idleTimeout": 60}, "is not a duration"),
        ({"target": {"duration": "0s"}}, "spec.target.duration must be longer than 0s"),
        ({"retirement": {"onLifetime": "Force"}}, "onLifetime must be one of Drain, Stock"),
        ({"mode": "auto"}, "spec.mode must be one of Auto, Advise, Paused"),
        ({"pins": {"shuffle": {"enabled": "yes"}}}, "spec.pins.shuffle.enabled must be true or"),
        ({"pins": {"manual": {"max": "1h"}}}, "spec.pins.manual.max is not a known field"),
        ({"retirement": {"maxConcurrent": 0}}, "spec.retirement.maxConcurrent must be at least 1"),
        ({"retirement": {"onTimeout": "Kill"}}, "must be one of Abort, Force"),
        ({"replicas": 4}, "spec.replicas is not a known field; known here: behavior, clusterRef"),
    ],
)
def test_nonsense_gets_a_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy({**LEAST, **change})

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("1h30m", 5400.0), ("500ms", 0.5), ("1.5h", 5400.0), ("0s", 0.0)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert seconds == parse_duration(text)


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1d", "1 s", "1s ", "1h-2m", None, 5])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@given(st.integers(1, 359_999))
def test_a_written_duration_is_off_by_less_than_its_last_unit(seconds: int) -> None:
    written = parse_duration(format_duration(seconds))

    assert written <= seconds
    assert seconds - written < 60
