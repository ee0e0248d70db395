"""Limits as the operator sends them: parsed once, and remembered by name."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from dask_adaptive_agent.protocol.requests import Malformed, Request
from dask_adaptive_agent.quotas.worker_limits import NEVER, NO_LIMIT, PASSED, WorkerLimits

REQUEST: dict[str, Any] = {
    "names": ["x", 'y "quoted"', "tcp://10.0.0.1:1"],
    "runs": [5, 0, 7],
    "left_ms": [-1, 30_000, 0],
    "profile": [0, 1, 0],
    "profiles": [
        {"exact": True, "patterns": ["*CUDA*", "OSError*"]},
        {"failures": 3, "window_ms": 1000, "fresh_ms": 5000, "floor_ms": 20, "group": "gpu"},
    ],
    "stops": 3,
    "group_stops": {"gpu": 1},
}
WORKERS: list[Any] = [
    SimpleNamespace(name=name, address=f"tcp://10.0.0.{i}:1")
    for i, name in enumerate([7, "x", 'y "quoted"', "nobody"], 1)
]


@pytest.fixture
def limits() -> WorkerLimits:
    known = WorkerLimits(lambda: 100.0)
    known.replace(Request(REQUEST))
    return known


def test_limits_are_by_name_or_by_address(limits: WorkerLimits) -> None:
    every = [limits.of_worker(ws) for ws in WORKERS]

    assert [7, 5, NEVER, NEVER] == [limit.runs for limit in every]
    assert [PASSED, math.inf, 130.0, math.inf] == [limit.ends_at for limit in every]
    assert NO_LIMIT == every[3]
    assert limits.are_exact
    assert 3 == limits.cordons


@pytest.mark.parametrize(
    ("group", "out", "expected"),
    [("", "", True), ("", "gpu c c", False), ("gpu", "c c", True), ("gpu", "gpu", False)],
)
def test_each_group_has_stops_of_its_own(
    limits: WorkerLimits, group: str, out: str, expected: bool
) -> None:
    assert ["", "gpu"] == [rules.group for rules in limits.rules]
    assert expected is limits.may_cordon(group, Counter(out.split()))


def test_rules_have_defaults(limits: WorkerLimits) -> None:
    first, second = limits.rules

    assert (True, 0, 600.0, math.inf, 0.0) == (
        first.exact, first.failures, first.window_s, first.fresh_s, first.floor_s,
    )  # fmt: skip
    assert (False, 3, 1.0, 5.0, 0.02) == (
        second.exact, second.failures, second.window_s, second.fresh_s, second.floor_s,
    )  # fmt: skip
    assert ["*CUDA*", "", "OSError*"] == [
        first.match(text) for text in ("RuntimeError('CUDA')", "ValueError()", "OSError(28)")
    ]


def test_each_request_replaces_the_last_one(limits: WorkerLimits) -> None:
    limits.replace(Request(names=["nobody"], runs=[1], left_ms=[-1], profile=[0], profiles=[{}]))

    assert [NEVER, NEVER, NEVER, 1] == [limits.of_worker(ws).runs for ws in WORKERS]
    assert not limits.are_exact
    limits.clear()
    assert limits.is_empty


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"runs": [1]}, "of one length"),
        ({"runs": [1, -1, 1]}, "runs must be from 0"),
        ({"runs": [True, 1, 1]}, "runs must be a list"),
        ({"runs": "1"}, "runs must be a list"),
        ({"left_ms": [-2, 1, 1]}, "left_ms must be from -1"),
        ({"profile": [0, 0, 2]}, "profile must be from 0"),
        ({"profiles": [7]}, "profiles must be a list"),
        ({"profiles": [{"patterns": ["x" * 257]}]}, "at most 256"),
        ({"profiles": [{"patterns": ["x"] * 33}]}, "at most 32"),
        ({"profiles": [{"patterns": "CUDA"}]}, "patterns must be a list"),
        ({"profiles": [{"patterns": [7]}, {}]}, "patterns must be a list"),
        ({"profiles": [{"exact": 1}]}, "exact must be true"),
        ({"profiles": [{"fresh_ms": -2}]}, "fresh_ms must be a whole"),
        ({"stops": None}, "stops must be a whole"),
        ({"stops": -1}, "stops must be a whole"),
        ({"group_stops": {"gpu": "1"}}, "group_stops must be values"),
        ({"others": 2}, "others must be a whole"),
        ({"names": [1, "x", "y"]}, "names must be a list"),
    ],
)
def test_what_makes_no_sense_changes_nothing(
    limits: WorkerLimits, wrong: dict[str, Any], said: str
) -> None:
    rules = limits.rules
    with pytest.raises(Malformed, match=said):
        limits.replace(Request({**REQUEST, **wrong}))

    assert 5 == limits.of_worker(WORKERS[1]).runs
    assert (rules, 3) == (limits.rules, limits.cordons)
