"""What the agent is told to enforce between two passes: `Plan.limits`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.plan import Plan
from dask_adaptive.model.policy import Disruption
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Amount,
    Budget,
    FailureQuota,
    GroupRecycle,
    LifetimeQuota,
    Limit,
    Limits,
    MemoryQuota,
    Profile,
    Recycle,
    RecyclePast,
    Strategy,
    TaskLimit,
    TaskQuota,
    Use,
)
from dask_adaptive.model.scaling import WorkerGroup
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.recycling.effective_quotas import with_walltimes
from support.recycles import AT, FULL, IN_PLACE, NIGHT
from support.worlds import NOW, PAST, POLICY, busy, cluster, dated, group_of, pending, worker

SHUT = Disruption(windows=(NIGHT,))
NEVER_FULL = Disruption(budgets=(Budget(Amount(0), frozenset({Reason.TASK_QUOTA})),))
NEVER_FAILED = Disruption(budgets=(Budget(Amount(0), frozenset({Reason.FAILURES})),))
ABORTED = RecyclePast(aborted={"a": (NOW + 9.0, "none came")})


def decide(
    workers: Sequence[ObservedWorker], recycle: Recycle, *, others: Sequence[ObservedWorker] = (),
    past: RecyclePast | None = None, strangers: tuple[str, ...] = (), expected_s: float = 0.0,
    desired: int | None = None, **policy: Any,
) -> Plan:  # fmt: skip
    """One pass in which as many are desired as there are, and none is missing."""
    more = [group_of("more", others)] if others else []
    n = len(workers) if desired is None else desired
    target = n + len(others)
    world = cluster(workers, others=more, expected_s=expected_s, target=target)
    world = dataclasses.replace(dated(world, AT), strangers=strangers)
    rules = dataclasses.replace(
        POLICY, **{"min_replicas": n, "max_replicas": n + 9, "recycle": recycle, **policy}
    )
    known = dataclasses.replace(PAST, recycle=past or RecyclePast())
    return plan(with_walltimes(world, rules), rules, known, now=NOW)


def told(*args: Any, **settings: Any) -> Limits:
    return decide(*args, **settings).limits


def row(limits: Limits, name: str) -> tuple[int, int, bool, tuple[str, ...]] | None:
    """What one worker is told: runs, failures, whether it is exact, patterns; None: nothing."""
    limit = limits.workers.get(name)
    if limit is None:
        return None
    profile = limits.profiles[limit.profile]
    return limit.runs, profile.failures, profile.exact, profile.patterns


OLD: dict[str, Any] = {"pod_age_s": 500.0}
A, B = busy("a", **OLD), busy("b", **OLD)
YOUNG = busy("a", pod_age_s=59.0)
ALL = Recycle(TaskQuota(20, exact=True), failures=FailureQuota(5, 60.0, ("x",)))
LOOSE = dataclasses.replace(ALL, tasks=TaskQuota(20), memory=MemoryQuota(hard=0.9))
EVERYTHING = (20, 5, False, ("x",))


@pytest.mark.parametrize(
    ("one", "settings", "expected", "stops"),
    [
        pytest.param(A, {}, EVERYTHING, 1, id="all-that-there-is"),
        pytest.param(YOUNG, {"min_age_s": 59.0}, EVERYTHING, 1, id="just-old-enough"),
        pytest.param(YOUNG, {"min_age_s": 60.0}, None, 1, id="too-young"),
        pytest.param(dataclasses.replace(YOUNG, **FULL), {"min_age_s": 60.0, **IN_PLACE},
                     EVERYTHING, 0, id="young-but-being-replaced"),
        pytest.param(A, {"past": ABORTED, **IN_PLACE}, (0, 0, False, ()), 1, id="none-came"),
        pytest.param(A, {"past": ABORTED}, None, 0, id="nobody-while-replacements-do-not-come"),
        pytest.param(dataclasses.replace(A, ends_at=99.0), {"past": ABORTED, **IN_PLACE},
                     (0, 0, False, ()), 1, id="none-came-but-it-ends"),
        pytest.param(dataclasses.replace(A, ends_at=5.0), {"past": ABORTED, **IN_PLACE},
                     EVERYTHING, 0, id="none-came-but-it-goes"),
        pytest.param(A, {"max_per_hour": Amount(0)}, None, 0, id="no-more-this-hour"),
        pytest.param(A, {"disruption": SHUT}, None, 0, id="no-window-is-open"),
        pytest.param(A, {"disruption": NEVER_FULL}, (0, 5, False, ("x",)), 2, id="never-for-tasks"),
        pytest.param(A, {"disruption": NEVER_FAILED}, (20, 0, False, ()), 2, id="nor-for-failures"),
    ],
)  # fmt: skip
def test_what_a_worker_is_told(
    one: ObservedWorker, settings: dict[str, Any], expected: Any, stops: int
) -> None:
    own = {k: settings[k] for k in ("min_age_s", "strategy", "max_per_hour") if k in settings}
    rest = {name: settings[name] for name in ("past", "disruption") if name in settings}
    other = dataclasses.replace(B, **settings.get("b", {}))
    limits = told([one, other], dataclasses.replace(LOOSE, **own), **rest)

    assert (expected, stops) == (row(limits, "a"), limits.stops)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"min_age_s": 60.0}, id="too-young"),
        pytest.param({"past": ABORTED}, id="no-replacement-came"),
        pytest.param({"max_per_hour": Amount(0)}, id="no-more-this-hour"),
        pytest.param({"disruption": SHUT}, id="no-window-is-open"),
    ],
)
def test_an_exact_quota_holds_whatever_holds_its_replacement_back(settings: dict[str, Any]) -> None:
    own = {k: settings.pop(k) for k in ("min_age_s", "max_per_hour") if k in settings}
    limits = told([YOUNG, B], dataclasses.replace(ALL, **own), **settings)
    found = row(limits, "a")

    assert found is not None
    assert (20, True) == (found[0], found[2])
    assert limits.others is not None, "and for those that join before the next pass"
    newcomer = limits.profiles[limits.others]
    assert (20, True) == (newcomer.runs, newcomer.exact)


FITS = Recycle(TaskQuota(from_walltime=True))
BOTH = Recycle(tasks=TaskQuota(10, exact=True, from_walltime=True))


@pytest.mark.parametrize(
    ("changes", "recycle", "expected_s", "expected"),
    [
        pytest.param({"ends_in_s": 70.0}, Recycle(TaskQuota(1000)), 0.0, Limit(1000, 60.0),
                     id="end"),
        pytest.param({"ends_in_s": 7.0}, Recycle(), 0.0, Limit(0, 0.001), id="within-the-margin"),
        pytest.param({"ends_in_s": 0.0}, Recycle(), 0.0, Limit(0, 0.0), id="has-passed"),
        pytest.param({"pod_age_s": 3500.0}, Recycle(lifetime=LifetimeQuota(3600.0)), 9.0, None,
                     id="old-is-no-end"),
        pytest.param({"ends_in_s": 110.0, "use": Use(runs=7), "processing": 3}, FITS, 0.5,
                     Limit(207, 100.0), id="what-fits-besides-those-that-run"),
        pytest.param({"ends_in_s": 110.0, "use": Use(runs=7), "processing": 3},
                     Recycle(TaskQuota(exact=True, from_walltime=True)), 0.5,
                     Limit(210, 100.0), id="exact-counts-what-is-assigned"),
        pytest.param({"ends_in_s": 110.0, "use": Use(runs=7)}, FITS, 500.0, Limit(7, 100.0),
                     id="not-one-more-fits"),
        pytest.param({"ends_in_s": 110.0}, FITS, 500.0, Limit(1, 100.0), id="0-would-be-no-limit"),
        pytest.param({"ends_in_s": 70.0, "use": Use(runs=7)}, FITS, 0.0, Limit(0, 60.0),
                     id="who-knows-what-fits"),
        pytest.param({"ends_in_s": 70.0, "use": Use(runs=7), "processing": 2}, BOTH, 25.0,
                     Limit(10, 60.0), id="the-lower-of-both"),
        pytest.param({"ends_in_s": 70.0, "use": Use(runs=4), "processing": 2}, BOTH, 25.0,
                     Limit(8, 60.0), id="or-the-other"),
        pytest.param({"ends_in_s": 9e99, "use": Use(runs=1)}, FITS, 1e-9,
                     Limit(1 + 10**9, 9e99), id="a-number-that-can-be-sent"),
    ],
)  # fmt: skip
def test_the_limit_of_a_worker(
    changes: dict[str, Any], recycle: Recycle, expected_s: float, expected: Limit | None
) -> None:
    one = worker("a", **{**OLD, **changes})
    limits = told([one, B], recycle, expected_s=expected_s)

    found = limits.workers.get("a")
    assert expected == (found and dataclasses.replace(found, profile=0))


def test_an_end_is_told_even_where_no_quota_may_be_followed() -> None:
    ending = dataclasses.replace(A, ends_at=100.0)
    limits = told([ending, B], Recycle(TaskQuota(20)), disruption=SHUT)

    assert ({"a": Limit(0, 90.0)}, 0) == (limits.workers, limits.stops)


def test_a_walltime_is_an_end() -> None:
    ages = {"a": 250.0, "b": 299.0, "c": 50.0}
    rules = Recycle(lifetime=LifetimeQuota(300.0, margin_s=10.0, walltime=True))
    limits = told([busy(n, pod_age_s=age) for n, age in ages.items()], rules)

    assert {"a": 40.0, "b": 0.001, "c": 240.0} == {
        n: limit.left_s for n, limit in limits.workers.items()
    }
    assert [290.0] == [p.fresh_s for p in limits.profiles]


# --- the rules that workers share -----------------------------------------------------------------


def test_the_profile_of_a_group() -> None:
    recycle = Recycle(
        tasks=TaskQuota(9, exact=True),
        lifetime=LifetimeQuota(min_task_duration_s=1.0),
        failures=FailureQuota(20, 60.0, ("x",)),
    )
    whole = Profile(True, 20, 60.0, ("x",), math.inf, 1.0, 9)

    assert (whole,) == told([A, B], recycle).profiles


@pytest.mark.parametrize(
    ("ends_in_s", "fresh_s"), [(60.5, 100.5), (15.0, 55.0), (-39.5, 0.5), (-99.0, 0.0)]
)
def test_a_new_worker_lives_as_long_as_the_youngest(ends_in_s: float, fresh_s: float) -> None:
    youngest = busy("a", pod_age_s=50.0, ends_in_s=ends_in_s)
    workers = [busy("b", pod_age_s=51.0), youngest, pending("p")]
    limits = told(workers, Recycle(failures=FailureQuota(5)))

    assert {fresh_s} == {p.fresh_s for p in limits.profiles}


@pytest.mark.parametrize(("exact", "jitter"), [(False, 0.5), (True, 0.0)])
def test_newcomers_are_watched_by_the_rules_of_all_and_strangers_are_not(
    exact: bool, jitter: float
) -> None:
    """While the operator is away nobody tells them of a quota of their own."""
    rules = Recycle(TaskQuota(20, jitter, exact=exact), failures=FailureQuota(5))
    limits = told([A, B], rules, strangers=("x",))

    assert limits.others is not None
    newcomer = limits.profiles[limits.others]
    assert (5, 20, exact) == (newcomer.failures, newcomer.runs, newcomer.exact)
    assert (0, 0, False, ()) == row(limits, "x")
    assert None is row(told([A, B], Recycle(), strangers=("x",)), "x")


@pytest.mark.parametrize(
    ("recycle", "settings", "expected"),
    [
        pytest.param(Recycle(failures=FailureQuota(5)), {}, True, id="failures"),
        pytest.param(Recycle(TaskQuota(20)), {}, True, id="tasks"),
        pytest.param(Recycle(), {}, False, id="no-quota"),
        pytest.param(Recycle(TaskQuota(20), min_age_s=60.0), {}, False, id="too-young"),
        pytest.param(Recycle(TaskQuota(20)), {"disruption": SHUT}, False, id="no-window"),
        pytest.param(Recycle(failures=FailureQuota(5)), {"others": [busy("c")]}, True,
                     id="as-in-the-default-group"),
        pytest.param(Recycle(failures=FailureQuota(5)), {"others": [busy("c")],
                     "worker_groups": (WorkerGroup("more", recycle=GroupRecycle()),)}, False,
                     id="groups-differ"),
        pytest.param(Recycle(TaskQuota(20)), {"others": [busy("c")],
                     "worker_groups": (
                         WorkerGroup("more", recycle=GroupRecycle(TaskLimit(7))),)}, False,
                     id="not-exact"),
    ],
)  # fmt: skip
def test_whether_newcomers_are_watched(
    recycle: Recycle, settings: dict[str, Any], expected: bool
) -> None:
    limits = told([A, B], recycle, **settings)

    assert (0 if expected else None) == limits.others


def test_the_lowest_exact_quota_of_any_group_holds_for_newcomers() -> None:
    """Nobody can tell yet to which group they belong; those without a quota are told so."""
    groups = (WorkerGroup("more", recycle=GroupRecycle(TaskLimit(7))),)
    limits = told([A, B], ALL, others=[busy("c", **OLD)], worker_groups=groups)

    assert limits.others is not None
    newcomer = limits.profiles[limits.others]
    assert Profile(exact=True, runs=7) == newcomer
    assert (20, 7) == (limits.workers["a"].runs, limits.workers["c"].runs)


# --- how many may be stopped at once --------------------------------------------------------------


C, D = busy("c", **OLD), busy("d", **OLD)
ENDING = dataclasses.replace(A, ends_at=99.0)
TASKS, FITS_ONLY = Recycle(TaskQuota(20)), Recycle(TaskQuota(from_walltime=True))
FULL_TOO = dataclasses.replace(TASKS, memory=MemoryQuota(hard=0.9))


@pytest.mark.parametrize(
    ("workers", "recycle", "settings", "expected"),
    [
        pytest.param([A, B], Recycle(), {}, 0, id="by-no-rule"),
        pytest.param([A, B], TASKS, {}, 1, id="by-tasks"),
        # Agents of 0.1.0 are told, too.
        pytest.param([A, B], Recycle(TaskQuota(20, exact=True)), {}, 2, id="all-where-it-is-exact"),
        pytest.param([A, B], FITS_ONLY, {}, 0, id="who-knows-how-long-a-task-takes"),
        pytest.param([ENDING, B], FITS_ONLY, {"expected_s": 9.0}, 1, id="by-the-runs-that-fit"),
        pytest.param([A, B], Recycle(failures=FailureQuota(5)), {}, 1, id="by-failures"),
        pytest.param([A, B], Recycle(failures=FailureQuota(patterns=("x",))), {}, 1,
                     id="by-patterns"),
        pytest.param([A, B], Recycle(lifetime=LifetimeQuota(9e9)), {}, 0, id="by-no-lifetime"),
        pytest.param([pending("p")], TASKS, {}, 1, id="newcomers-before-anybody-has-come"),
        pytest.param([A, B, C, D], FULL_TOO, {"desired": 4}, 1, id="the-budget"),
        pytest.param([A, B, C, D, busy("e")], FULL_TOO, {"desired": 4}, 2,
                     id="and-a-connected-spare"),
        pytest.param([A, B, C, pending("d", terminating="its pod")], FULL_TOO, {"desired": 4}, 0,
                     id="less-who-is-missing"),
        pytest.param([A, B, C, pending("d")], FULL_TOO, {"desired": 4}, 1,
                     id="one-that-never-connected-is-not"),
        pytest.param([busy("a", paused=True), B, C, D], FULL_TOO, {"desired": 4}, 0,
                     id="less-who-is-paused"),
        pytest.param([busy("a", **FULL), B, C, D], FULL_TOO, {"desired": 4}, 0,
                     id="less-those-that-leave-now"),
    ],
)  # fmt: skip
def test_how_many_may_be_stopped(
    workers: list[ObservedWorker], recycle: Recycle, settings: dict[str, Any], expected: int
) -> None:
    assert expected == told(workers, recycle, **settings).stops


@pytest.mark.parametrize(
    ("max_per_hour", "begun", "full", "expected"),
    [
        pytest.param(3, 0, "", 3, id="within-the-hour"),
        pytest.param(3, 2, "", 1, id="less-those-that-began-in-it"),
        pytest.param(2, 0, "ab", 2, id="those-under-way-have-been-counted"),
        pytest.param(3, 0, "ab", 3, id="and-one-more"),
    ],
)
def test_stops_are_those_of_all_groups_within_the_hour(
    max_per_hour: int | None, begun: int, full: str, expected: int
) -> None:
    limit = None if max_per_hour is None else Amount(max_per_hour)
    free = Disruption(budgets=(Budget(Amount(percent=100.0)),))
    surge = Strategy(max_surge=Amount(9))
    rules = dataclasses.replace(
        ALL, memory=MemoryQuota(hard=0.9), strategy=surge, max_per_hour=limit
    )
    workers = [busy(n, **OLD, **(FULL if n in full else {})) for n in "abcdefgh"[:5]]
    past = RecyclePast(begun=(NOW - 9,) * begun)
    limits = told(workers[:2], rules, others=workers[2:], disruption=free, past=past)

    assert expected == limits.stops
