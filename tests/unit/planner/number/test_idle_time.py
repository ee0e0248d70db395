"""How long an idle worker is worth keeping, and what that is made from."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.kube.status_json import idle_of, status_json
from dask_adaptive.loop.status import GroupRow, Status
from dask_adaptive.model.past import GroupPast, Past, Pauses
from dask_adaptive.model.policy import parse_policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import AUTO_S, GroupBounds
from dask_adaptive.planner.number.idle_time import (
    EDGES_S,
    LONGER,
    IdleTime,
    after,
    idle_times,
    with_idle_times,
    worth_keeping_s,
)
from support.policies import spec
from support.worlds import cluster, worker

NO_PAST = Past()
BOUNDS = GroupBounds("etl-default", 10, 0, AUTO_S, 0)
LENGTHS = (*EDGES_S, math.inf)

lengths = st.floats(0.1, 7000)
costs = st.floats(1, 2000)


def paid(pause_s: float, kept_s: float, return_cost: float) -> float:
    return pause_s if pause_s < kept_s else kept_s + return_cost


def known(*pauses: float, workers: int = 1) -> Pauses:
    """After these pauses, one after the other."""
    found, now = after(Pauses(), workers, BOUNDS, now=0.0), 0.0
    for pause in pauses:
        found = after(found, 0, BOUNDS, now=now + 1)
        now += 1 + pause
        found = after(found, workers, BOUNDS, now=now)
    return found


@given(lengths, costs)
def test_never_more_than_twice_what_hindsight_pays_where_nothing_is_known(
    pause_s: float, return_cost: float
) -> None:
    kept_s = worth_keeping_s((), return_cost)

    assert paid(pause_s, kept_s, return_cost) <= 2 * min(pause_s, return_cost) + 1e-6


@given(st.lists(st.floats(5, 7000), min_size=4, max_size=30), costs)
def test_no_other_time_would_have_been_much_better_for_the_pauses_that_are_known(
    pauses: list[float], return_cost: float
) -> None:
    weights = [0.0] * len(LENGTHS)
    for pause in pauses:
        weights[next(i for i, edge in enumerate(LENGTHS) if pause <= edge)] += 1
    kept_s = worth_keeping_s(weights, return_cost)

    def mean(seconds: float) -> float:
        return sum(paid(p, seconds + 1e-9, return_cost) for p in pauses) / len(pauses)

    best = min(mean(s) for s in (0.0, return_cost, *pauses, *EDGES_S))
    assert mean(kept_s) <= 2**0.5 * best + 1e-6  # lengths are known to a factor of as much


def test_pauses_that_end_soon_are_waited_for() -> None:
    assert 20 >= worth_keeping_s(known(*[12.0] * 5).weights, 20.0) > 12.0


@given(st.floats(5, 60), st.floats(5, 60))
def test_a_pause_that_is_a_little_longer_than_the_last_does_not_let_go(
    pause_s: float, return_cost: float
) -> None:
    """Or a loop with regular pauses would lose its workers right before each batch."""
    kept_s = worth_keeping_s(known(*[pause_s] * 5).weights, 3 * max(pause_s, return_cost))

    assert kept_s >= 1.15 * pause_s


def test_pauses_that_last_are_not() -> None:
    assert 0.0 == worth_keeping_s(known(*[500.0] * 5).weights, 20.0)


def test_of_pauses_of_both_kinds_the_short_ones_are_waited_for() -> None:
    assert 12.0 < worth_keeping_s(known(*[12.0, 12.0, 12.0, 900.0] * 3).weights, 60.0) <= 20


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(0.1, 900)), max_size=40))
def test_each_worker_that_is_needed_again_has_had_its_pause(steps: list[tuple[int, float]]) -> None:
    """Beside a second way to count: each worker by itself."""
    instants = list(accumulate((seconds for _, seconds in steps), initial=0.0))
    found, since, weights = Pauses(), dict[int, float](), [0.0] * len(LENGTHS)
    last: int | None = None
    for (number, _), now in zip(steps, instants, strict=False):
        found = after(found, number, BOUNDS, now=now)
        number = min(number, BOUNDS.maximum)
        if last is not None:
            since |= {n: now for n in range(number, last)}
            ended = [now - since.pop(n) for n in range(last, number) if n in since]
            ended = [length for length in ended if length >= EDGES_S[0]]
            if ended:
                weights = [0.95 * w for w in weights]
                for length in ended:
                    at = next(i for i, edge in enumerate(LENGTHS) if LONGER * length <= edge)
                    weights[at] += 1 / len(ended)
        last = number

    assert pytest.approx(weights, abs=0.02) == list(found.weights or [0.0] * len(LENGTHS))


def test_older_pauses_count_less() -> None:
    weights = known(*[6.0] * 10, *[50.0] * 60).weights

    assert 1 > weights[2] > 0
    assert 1 / (1 - 0.95) > sum(weights) > 15


def test_of_very_many_falls_the_oldest_are_forgotten() -> None:
    wide = replace(BOUNDS, maximum=10_000)
    found = after(Pauses(), 10_000, wide, now=0.0)
    for n in range(5_000):
        found = after(found, 9_999 - n, wide, now=float(n))

    assert 100 == len(found.falls)
    assert all(a.replicas > b.replicas and a.at < b.at for a, b in pairwise(found.falls))


def auto(past: Past = NO_PAST, written: str = "{}", **scheduler: Any) -> IdleTime:
    world = cluster([worker("a")])
    world = replace(world, scheduler=replace(world.scheduler, **scheduler))
    (found,) = idle_times(parse_policy(spec(written)), world, past).values()
    return found


def test_a_start_that_was_not_measured_takes_ten_seconds() -> None:
    assert 20 == auto().seconds


def test_what_a_return_costs_is_measured_and_so_is_the_data_that_moves() -> None:
    quick = Past(groups={"etl-default": GroupPast(starts=(9.0, 4.2, 3.0))})

    idle, laden = auto(quick), auto(quick, results=10**9)
    assert (10, 5, 0) == (idle.seconds, idle.start_s, idle.move_s)
    assert (30, 5, 10) == (laden.seconds, laden.start_s, laden.move_s)
    assert "a worker takes 5s to come, its data 10s; no pause is known" in str(laden)


@pytest.mark.parametrize(("start_s", "expected"), [(0.5, 10), (1000.0, 600)])
def test_it_stays_within_its_bounds(start_s: float, expected: int) -> None:
    past = Past(groups={"etl-default": GroupPast(starts=(start_s,))})

    assert expected == auto(past).seconds
    assert 30 == auto(past, "idleTimeoutAuto: {min: 30s, max: 30s}").seconds


def test_a_fixed_time_is_left_alone_group_by_group() -> None:
    policy = parse_policy(spec(
        "{idleTimeout: 7s, workerGroups: [{name: g, maxReplicas: 2, idleTimeout: Auto},"
        " {name: h, maxReplicas: 2}]}"
    ))  # fmt: skip
    times = idle_times(policy, cluster([worker("a")]), Past())
    found = with_idle_times(policy, times, "etl-default").bounds("etl-default")

    assert {"g"} == times.keys()
    assert [7.0, 20.0, 7.0] == [b.idle_timeout_s for b in found]


def test_an_operator_that_starts_goes_on_from_the_status() -> None:
    idle = IdleTime(15, 5, 3, known(12.0, 12.0, 9000.0).weights)
    row = GroupRow("etl-default", 1, 1, 1, 1, 0, Reason.RECONCILED, "", idle)
    written = status_json(Status(groups=(row,)), before={}, now="2026-01-01T00:00:00Z")

    assert {"etl-default": idle} == idle_of(written)


@pytest.mark.parametrize("found", [{}, {"seconds": 5}, {"pauses": 3}, {"pauses": [{"x": 1}]}, 7])
def test_what_cannot_be_read_of_a_status_is_not_known(found: Any) -> None:
    assert {} == idle_of({"groups": [{"name": "g", "idleTimeout": found}, {"name": "h"}]})
