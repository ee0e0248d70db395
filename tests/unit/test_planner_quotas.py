"""Rules about quotas at their edges: where a line is, whose number counts, how it is written."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import pytest

from dask_adaptive.model.observed import Leaving, ObservedWorker
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    FailureQuota,
    GpuQuota,
    LifetimeQuota,
    Limit,
    Measure,
    MemoryQuota,
    Quota,
    QuotaNotes,
    Recycle,
    RecyclePast,
    Selection,
    TaskQuota,
    Trait,
    Use,
)
from dask_adaptive.planner.asked import still_asked
from dask_adaptive.planner.leaks import FEWEST, SAMPLES, growth, with_sample
from dask_adaptive.planner.outliers import find_outliers
from dask_adaptive.planner.quota_lines import quota_lines
from dask_adaptive.planner.quota_uses import group_uses
from dask_adaptive.planner.rations import (
    limit_of,
    own_lifetime_s,
    own_tasks,
    profile_of,
    shares,
)
from dask_adaptive.planner.walltime import with_walltimes
from support.worlds import NOW, POLICY, cluster, worker

HOUR_S = 3600.0
MIB = 2**20


# --- what a worker drains for: its own number counts, where it has one ----------------------------


@pytest.mark.parametrize(
    ("reason", "rules", "off", "on"),
    [
        (
            Reason.LIFETIME,
            Recycle(lifetime=LifetimeQuota(9.0)),
            QuotaNotes(lifetime_s=math.inf),
            QuotaNotes(lifetime_s=5.0),
        ),
        (
            Reason.TASK_QUOTA,
            Recycle(tasks=TaskQuota(9)),
            QuotaNotes(tasks=0),
            QuotaNotes(tasks=5),
        ),
        (
            Reason.MEMORY_SOFT,
            Recycle(memory=MemoryQuota(soft=0.5)),
            QuotaNotes(memory_soft=math.inf),
            QuotaNotes(memory_soft=0.7),
        ),
        (
            Reason.MEMORY_HARD,
            Recycle(memory=MemoryQuota(hard=0.5)),
            QuotaNotes(memory_hard=math.inf),
            QuotaNotes(memory_hard=0.7),
        ),
        (
            Reason.FAILURES,
            Recycle(failures=FailureQuota(3)),
            QuotaNotes(failures=0),
            QuotaNotes(failures=5),
        ),
    ],
)
def test_a_drain_follows_the_workers_own_number(
    reason: Reason, rules: Recycle, off: QuotaNotes, on: QuotaNotes
) -> None:
    def asked(notes: QuotaNotes | None, recycle: Recycle) -> bool:
        one = worker("a", leaving_reason=reason, quota_notes=notes)
        return still_asked(one, recycle, POLICY)

    assert [True, False, True] == [asked(n, rules) for n in (None, off, on)]
    assert [False, False, True] == [asked(n, Recycle()) for n in (None, off, on)]


def test_a_drain_for_its_end_lasts_while_it_has_one() -> None:
    ending = worker("a", leaving_reason=Reason.LIFETIME, ends_in_s=60.0)

    assert still_asked(ending, Recycle(), POLICY)
    assert not still_asked(dataclasses.replace(ending, ends_in_s=math.inf), Recycle(), POLICY)


# --- how fast memory grows ------------------------------------------------------------------------


def line(n: int, *, rise: float = 60.0) -> list[tuple[float, int]]:
    """So many samples, one a minute, `rise` bytes more each time."""
    return [(1000.0 + i * 60.0, int(i * rise)) for i in range(n)]


def test_the_slope_is_that_of_most_pairs_in_bytes_an_hour() -> None:
    samples = line(9)

    assert pytest.approx(HOUR_S) == growth(samples, window_s=960.0, notable=1.0)
    samples[4] = (samples[4][0], 10**9)
    assert pytest.approx(HOUR_S) == growth(samples, window_s=960.0, notable=1.0)


def test_a_slope_takes_enough_samples_over_half_a_window() -> None:
    assert 0.0 < growth(line(FEWEST), window_s=800.0, notable=1.0)
    assert 0.0 == growth(line(FEWEST - 1), window_s=1.0, notable=1.0)

    assert 0.0 < growth(line(9), window_s=960.0, notable=1.0)  # they span 480 s
    assert 0.0 == growth(line(9), window_s=961.0, notable=1.0)


@pytest.mark.parametrize(("share", "is_told"), [(0.44, False), (0.45, True), (2.0, True)])
def test_much_less_than_what_is_notable_is_none(share: float, is_told: bool) -> None:
    # From the middle of its first third to that of its last a line of 9 rises by 6 steps of 8.
    notable = 3600.0 * 6000
    samples = line(9, rise=60 * 6000 * share)

    assert is_told == (growth(samples, window_s=960.0, notable=notable) > 0)


def test_a_third_at_each_end_is_compared_by_its_median() -> None:
    # One of three at each end is wild: the median of the three does not see it.
    sizes = [9000, 60, 120, 600, 700, 800, 1140, 1200, 0]
    samples = [(60.0 * i, size) for i, size in enumerate(sizes)]

    # 1020 bytes in 480 s, of which a third is what a notable rate would come to.
    assert 0.0 < growth(samples, window_s=960.0, notable=3600.0 * 1020 / 160)
    assert 0.0 == growth(samples, window_s=960.0, notable=3600.0 * 1020.1 / 160)


def test_an_even_number_of_slopes_has_a_median_between_two() -> None:
    samples = [(60.0 * i, i**3) for i in range(8)]  # they have 28 pairs
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(samples, 2))
    between = (slopes[13] + slopes[14]) / 2

    assert slopes[13] != slopes[14]
    assert pytest.approx(between * HOUR_S) == growth(samples, window_s=800.0, notable=1.0)


def test_two_looks_at_the_same_time_make_no_slope() -> None:
    samples = [(0.0, 0), *[(60.0 * i, 60 * i) for i in range(9)]]

    assert pytest.approx(HOUR_S) == growth(samples, window_s=960.0, notable=1.0)


def test_samples_are_taken_evenly_and_kept_for_the_window() -> None:
    step_s = 300.0 / SAMPLES
    first = with_sample((), 0.0, 1, window_s=300.0)

    assert ((0.0, 1),) == first
    assert first == with_sample(first, step_s - 0.1, 2, window_s=300.0)
    assert (*first, (step_s, 2)) == with_sample(first, step_s, 2, window_s=300.0)
    assert (*first, (300.0, 2)) == with_sample(first, 300.0, 2, window_s=300.0)
    assert ((300.1, 2),) == with_sample(first, 300.1, 2, window_s=300.0)


# --- workers unlike the others --------------------------------------------------------------------


def found(uses: Sequence[Use], *traits: Trait, deviations: float = 1.0) -> dict[str, str]:
    workers = [worker(f"w{i}", use=use) for i, use in enumerate(uses)]
    outliers = find_outliers(workers, Selection(traits, min_tasks=0, deviations=deviations))
    return {name: one.message for name, one in outliers.items()}


def means(*seconds: float) -> list[Use]:
    return [Use(mean_s=s) for s in seconds]


@pytest.mark.parametrize(
    ("slow", "written", "mean"),
    [
        pytest.param(5.0, "5s", "2s", id="seconds"),
        pytest.param(1.4, "1.4s", "1.1s", id="parts-of-one"),
        pytest.param(397.0, "397s", "100s", id="no-more-digits-than-it-has"),
        pytest.param(401.0, "401s", "101s", id="hundreds"),
    ],
)
def test_how_long_a_task_takes_is_written_short(slow: float, written: str, mean: str) -> None:
    said = found(means(1.0, 1.0, 1.0, slow), Trait.DURATION)

    assert f"a task takes on average {written}, its group's mean is {mean} (" in said["w3"]
    assert "above it by 1 deviations" in said["w3"]


def test_who_has_not_been_measured_is_not_compared() -> None:
    assert ["w4"] == list(found(means(0.0, 0.0, 1.0, 1.0, 9.0, 1.0), Trait.DURATION))
    assert {} == found(means(0.0, 1.0, 1.0, 9.0), Trait.DURATION)
    # Of what cannot fail to be measured 0 is a value like others.
    assert ["w3"] == list(found([Use(failures=n) for n in (0, 0, 0, 9)], Trait.FAILURES))


def test_the_line_itself_is_not_above_it() -> None:
    # Of 4 with one alone its distance from the mean is sqrt(3) deviations, of 5 it is 2.
    uses = [Use(failures=n) for n in (0, 0, 0, 0, 5)]

    assert {} == found(uses, Trait.FAILURES, deviations=2.0)
    assert ["w4"] == list(found(uses, Trait.FAILURES, deviations=1.9))
    assert {} == found([Use(failures=3)] * 6, Trait.FAILURES, deviations=0.0)


def test_of_two_traits_the_one_further_above_its_line_is_told() -> None:
    uses = [Use(failures=1000, mean_s=1.0)] * 3 + [Use(failures=1001, mean_s=9.0)]
    both = found(uses, Trait.FAILURES, Trait.DURATION)

    assert both == found(uses, Trait.DURATION, Trait.FAILURES)
    assert both["w3"].startswith("a task takes on average 9s")


def test_of_two_traits_alike_the_first_is_told() -> None:
    uses = [Use(failures=n, mean_s=float(n)) for n in (1, 1, 1, 9)]

    assert found(uses, Trait.FAILURES, Trait.DURATION)["w3"].startswith("failures: 9")
    assert found(uses, Trait.DURATION, Trait.FAILURES)["w3"].startswith("a task takes")


# --- what one worker may use ----------------------------------------------------------------------


def test_tasks_and_lifetime_have_jitter_of_their_own() -> None:
    one = worker("a", pod_uid="p")
    of_tasks, of_lifetime = shares("p")

    assert of_tasks != of_lifetime
    assert math.ceil(1000 * (1 - 0.5 * of_tasks)) == own_tasks(one, TaskQuota(1000, 0.5))
    assert 100.0 * (1 - 0.5 * of_lifetime) == own_lifetime_s(one, LifetimeQuota(100.0, 0.5))
    assert 1 == own_tasks(one, TaskQuota(1, 1.0))


@pytest.mark.parametrize(
    ("expected_s", "exact", "runs"),
    [
        pytest.param(0.5, False, 207, id="those-that-run-are-not-counted"),
        pytest.param(0.5, True, 210, id="or-are"),
        pytest.param(500.0, False, 7, id="not-one-more-fits"),
        pytest.param(0.0, False, 0, id="nobody-knows-how-long-one-takes"),
    ],
)
def test_runs_that_fit_before_an_end(expected_s: float, exact: bool, runs: int) -> None:
    one = worker("a", use=Use(runs=7), processing=3, ends_in_s=110.0)
    rules = Recycle(TaskQuota(exact=exact, from_walltime=True))

    assert Limit(runs, 100.0) == limit_of(one, rules, expected_s=expected_s)


@pytest.mark.parametrize(("ends_in_s", "fresh_s"), [(60.5, 100.5), (0.0, 40.0), (-39.5, 0.5)])
def test_a_new_worker_lives_as_long_as_the_youngest(ends_in_s: float, fresh_s: float) -> None:
    youngest = worker("a", pod_age_s=50.0, ends_in_s=ends_in_s)

    assert fresh_s == profile_of(Recycle(), [youngest, worker("b", pod_age_s=51.0)]).fresh_s


def test_the_highest_use_is_found_whatever_the_jitter_and_the_lines() -> None:
    one = worker("a", pod_age_s=50.0, use=Use(process=0.4))
    rules = Recycle(lifetime=LifetimeQuota(100.0, 0.5), memory=MemoryQuota(soft=0.8, hard=0.8))

    of_age = 50.0 / own_lifetime_s(one, rules.lifetime)
    assert {Quota.LIFETIME: of_age, Quota.MEMORY: 0.5} == {
        use.quota: use.ratio for use in group_uses("g", [one], rules, RecyclePast())
    }


# --- lines for people -----------------------------------------------------------------------------


def lines(one: ObservedWorker, recycle: Recycle, **past: object) -> list[tuple[str, str, float]]:
    told = quota_lines(one, recycle, RecyclePast(**past), now=NOW)  # type: ignore[arg-type]
    return [(line.used, line.limit, round(line.ratio, 3)) for line in told]


@pytest.mark.parametrize(
    ("changes", "recycle", "past", "expected"),
    [
        pytest.param(
            {"use": Use(runs=1500)}, Recycle(tasks=TaskQuota(2000)), {},
            ("1,500 tasks run", "2,000", 0.75), id="tasks"),
        pytest.param(
            {"pod_age_s": 900.0}, Recycle(lifetime=LifetimeQuota(HOUR_S)), {},
            ("15m old", "1h", 0.25), id="lifetime"),
        pytest.param(
            {"pod_age_s": 0.25}, Recycle(lifetime=LifetimeQuota(0.5)), {},
            ("250ms old", "500ms", 0.5), id="less-than-a-second"),
        pytest.param(
            {"pod_age_s": 60.0, "ends_in_s": -5.0},
            Recycle(lifetime=LifetimeQuota(margin_s=30.0)), {},
            ("ends in 0s", "30s before its end", 1.0), id="its-end-is-over"),
        pytest.param(
            {"use": Use(unmanaged=0.4)}, Recycle(memory=MemoryQuota(soft=0.8, for_s=60.0)), {},
            ("unmanaged 40%", "soft 80% for 1m", 0.5), id="soft"),
        pytest.param(
            {"use": Use(unmanaged=0.1, process=0.4)},
            Recycle(memory=MemoryQuota(soft=0.8, for_s=60.0, measure=Measure.PROCESS)), {},
            ("process 40%", "soft 80% for 1m", 0.5), id="soft-of-the-process"),
        pytest.param(
            {"use": Use(unmanaged=0.9)}, Recycle(memory=MemoryQuota(soft=0.8, for_s=60.0)),
            {"above_since": {"uid-a": NOW - 30}},
            ("unmanaged 90%, above the line for 30s", "soft 80% for 1m", 1.125), id="above"),
        pytest.param(
            {"use": Use(process=0.45)}, Recycle(memory=MemoryQuota(hard=0.9)), {},
            ("process 45%", "hard 90%", 0.5), id="hard"),
        pytest.param(
            {}, Recycle(memory=MemoryQuota(leak_rate=500.0 * MIB)), {},
            ("no growth seen", "500 MiB an hour", 0.0), id="no-growth"),
        pytest.param(
            {}, Recycle(memory=MemoryQuota(leak_rate=500.0 * MIB)),
            {"growth": {"uid-a": 250.0 * MIB}},
            ("grows by 250 MiB an hour", "500 MiB an hour", 0.5), id="growth"),
        pytest.param(
            {"use": Use(gpu=0.4)}, Recycle(gpu=GpuQuota(soft=0.8, for_s=60.0)), {},
            ("40%", "soft 80% for 1m", 0.5), id="gpu-soft"),
        pytest.param(
            {"use": Use(gpu=0.4)}, Recycle(gpu=GpuQuota(hard=0.8)), {},
            ("40%", "hard 80%", 0.5), id="gpu-hard"),
        pytest.param(
            {"use": Use(failures=5)}, Recycle(failures=FailureQuota(20, 600.0)), {},
            ("5 runs failed", "20 within 10m", 0.25), id="failures"),
        pytest.param(
            {}, Recycle(failures=FailureQuota(patterns=("x", "y"))), {},
            ("none was found", "any of 2 patterns", 0.0), id="no-pattern"),
        pytest.param(
            {"use": Use(match="x!")}, Recycle(failures=FailureQuota(patterns=("x",))), {},
            ("one was found", "any of 1 patterns", 1.0), id="a-pattern"),
    ],
)  # fmt: skip
def test_a_quota_is_told_by_what_is_used_of_what(
    changes: dict[str, object],
    recycle: Recycle,
    past: dict[str, object],
    expected: tuple[str, str, float],
) -> None:
    assert [expected] == lines(worker("a", **changes), recycle, **past)


def test_each_line_names_its_quota() -> None:
    recycle = Recycle(
        tasks=TaskQuota(9), lifetime=LifetimeQuota(9.0),
        memory=MemoryQuota(soft=0.8, hard=0.9, leak_rate=9.0),
        gpu=GpuQuota(soft=0.8, hard=0.9), failures=FailureQuota(9, patterns=("x",)),
    )  # fmt: skip
    told = quota_lines(worker("a", ends_in_s=9.0), recycle, RecyclePast(), now=NOW)

    quotas = [Quota.TASKS, *[Quota.LIFETIME] * 2, *[Quota.MEMORY] * 3, *[Quota.GPU_MEMORY] * 2]
    assert [*quotas, *[Quota.FAILURES] * 2] == [line.quota for line in told]


# --- lifetimes that others enforce ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("age_s", "ends_in_s", "expected"),
    [
        pytest.param(100.0, math.inf, 500.0, id="what-is-left-of-it"),
        pytest.param(599.75, math.inf, 0.25, id="nearly-over"),
        pytest.param(700.0, math.inf, 0.0, id="over"),
        pytest.param(100.0, 60.0, 60.0, id="an-earlier-end-counts"),
        pytest.param(100.0, 900.0, 500.0, id="a-later-one-does-not"),
    ],
)
def test_a_walltime_is_an_end(age_s: float, ends_in_s: float, expected: float) -> None:
    rules = Recycle(lifetime=LifetimeQuota(600.0, is_walltime=True))
    policy = dataclasses.replace(POLICY, recycle=rules)
    world = cluster([worker("a", pod_age_s=age_s, ends_in_s=ends_in_s)])

    (one,) = with_walltimes(world, policy).groups[0].workers
    assert expected == one.ends_in_s
    assert Leaving.NO is one.leaving
