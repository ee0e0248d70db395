"""Limits as the operator says them: parsed once, and remembered by name."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from dask_adaptive_agent.limits import NEVER, NO_LIMIT, PASSED, UNNAMED, Limits
from dask_adaptive_agent.settings import Invalid

REQUEST: dict[str, Any] = {
    "names": ["x", 'y "quoted"', "tcp://10.0.0.1:1"],
    "runs": [5, 0, 7],
    "left_ms": [-1, 30_000, 0],
    "profile": [0, 1, 0],
    "profiles": [
        {"exact": True, "patterns": ["*CUDA*", "OSError*"]},
        {"failures": 3, "window_ms": 1000, "fresh_ms": 5000, "floor_ms": 20, "deviations": 1},
    ],
    "stops": 2,
}


def limits(request: dict[str, Any] = REQUEST) -> tuple[Limits, list[float]]:
    now = [100.0]
    workers: Any = {
        "tcp://10.0.0.1:1": SimpleNamespace(name=7, address="tcp://10.0.0.1:1"),
        "tcp://10.0.0.2:1": SimpleNamespace(name="x", address="tcp://10.0.0.2:1"),
        "tcp://10.0.0.3:1": SimpleNamespace(name='y "quoted"', address="tcp://10.0.0.3:1"),
        "tcp://10.0.0.4:1": SimpleNamespace(name="nobody", address="tcp://10.0.0.4:1"),
    }
    told = Limits(workers, lambda: now[0])
    told.told(request)
    return told, now


def test_limits_are_by_name_or_by_address() -> None:
    told, _ = limits()

    runs = [told.of(f"tcp://10.0.0.{i}:1").runs for i in (1, 2, 3, 4, 5)]

    assert [7, 5, NEVER, NEVER, NEVER] == runs
    assert NO_LIMIT == told.of("tcp://10.0.0.4:1")
    assert UNNAMED == told.profile("tcp://10.0.0.5:1")
    assert told.are_exact
    assert 2 == told.stops


def test_ends_come_nearer() -> None:
    told, now = limits()
    now[0] += 10

    left = [told.of(f"tcp://10.0.0.{i}:1").ends_at - now[0] for i in (1, 2, 3, 4)]

    assert [PASSED, math.inf, 20, math.inf] == left


def test_a_profile_has_defaults() -> None:
    told, _ = limits()
    first, second = told.profiles

    assert (True, 0, 600.0, math.inf, 0.0, 2.0, False) == (
        first.exact, first.failures, first.window_s, first.fresh_s, first.floor_s,
        first.deviations, first.measure,
    )  # fmt: skip
    assert (False, 3, 1.0, 5.0, 0.02, 1.0) == (
        second.exact, second.failures, second.window_s, second.fresh_s, second.floor_s,
        second.deviations,
    )  # fmt: skip
    assert ["*CUDA*", "", "OSError*"] == [
        first.match(text) for text in ("RuntimeError('CUDA')", "ValueError()", "OSError(28)")
    ]


def test_each_request_replaces_the_last_one() -> None:
    told, _ = limits()
    generation = told.generation
    told.told({"names": ["nobody"], "runs": [1], "left_ms": [-1], "profile": [0], "profiles": [{}]})

    assert NO_LIMIT == told.of("tcp://10.0.0.2:1")
    assert 1 == told.of("tcp://10.0.0.4:1").runs
    assert generation < told.generation
    assert not told.are_exact
    told.clear()
    assert told.is_empty


@pytest.mark.parametrize(
    "wrong",
    [{"runs": [1]}, {"profile": [0, 0, 2]}, {"stops": -1}, {"profiles": [{"patterns": [7]}, {}]}],
)
def test_what_makes_no_sense_changes_nothing(wrong: dict[str, Any]) -> None:
    told, _ = limits()
    generation = told.generation

    with pytest.raises(Invalid):
        told.told({**REQUEST, **wrong})

    assert 5 == told.of("tcp://10.0.0.2:1").runs
    assert (generation, 2) == (told.generation, told.stops)
