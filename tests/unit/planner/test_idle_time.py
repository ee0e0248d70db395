"""How long an idle worker is worth keeping, and what that is made from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.past import GroupPast, Past
from dask_adaptive.model.policy import parse_policy
from dask_adaptive.planner.context import IdleTime, in_numbers
from support.policies import spec
from support.worlds import cluster, worker

NO_PAST = Past()


def auto(past: Past = NO_PAST, **scheduler: Any) -> IdleTime:
    world = cluster([worker("a")])
    world = replace(world, scheduler=replace(world.scheduler, **scheduler))
    _, times = in_numbers(parse_policy(spec("{}")), world, past)
    return times["etl-default"]


@given(st.floats(0.1, 7000), st.integers(3, 300))
def test_never_more_than_three_times_what_hindsight_pays(pause_s: float, start_s: int) -> None:
    kept_s = IdleTime(start_s).seconds
    paid_s = pause_s if pause_s < kept_s else kept_s + 2 * start_s

    assert paid_s <= 3 * min(pause_s, 2 * start_s) + 1e-6


def test_a_start_that_was_not_measured_takes_ten_seconds() -> None:
    assert 10 == auto().start_s


def test_what_a_return_costs_is_measured_and_so_is_the_data_that_moves() -> None:
    quick = Past(groups={"etl-default": GroupPast(starts=(19.0, 14.2, 13.0))})

    idle, laden = auto(quick), auto(quick, results=10**9)
    assert (15, 15, 0) == (idle.seconds, idle.start_s, idle.move_s)
    assert (25, 15, 10) == (laden.seconds, laden.start_s, laden.move_s)
    assert all(figure in str(laden) for figure in ("25s", "15s", "10s"))


@pytest.mark.parametrize(("start_s", "expected"), [(0.5, 12), (1000.0, 300)])
def test_it_stays_within_its_bounds(start_s: float, expected: int) -> None:
    past = Past(groups={"etl-default": GroupPast(starts=(start_s,))})

    assert expected == auto(past).seconds


def test_a_fixed_time_is_left_alone_group_by_group() -> None:
    policy = parse_policy(spec(
        "{idleTimeout: 7s, workerGroups: [{name: g, maxReplicas: 2, idleTimeout: Auto},"
        " {name: h, maxReplicas: 2}]}"
    ))  # fmt: skip
    found, times = in_numbers(policy, cluster([worker("a")]), Past())

    assert {"g"} == times.keys()
    assert [7.0, 12.0, 7.0] == [b.idle_timeout_s for b in found.bounds("etl-default")]
