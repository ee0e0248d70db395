"""What the agent is told to enforce between two passes: `Plan.limits`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.plan import Plan
from dask_adaptive.model.policy import Disruption
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Amount,
    Budget,
    FailureQuota,
    GroupRecycle,
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
from support.recycles import AT, FULL, IN_PLACE, NIGHT
from support.tables import table
from support.worlds import (
    NOW,
    PAST,
    POLICY,
    busy,
    changed,
    cluster,
    dated,
    group_of,
    plan,
    with_walltimes,
    worker,
)  # fmt: skip

SHUT = Disruption(windows=(NIGHT,))
NEVER_FULL = Disruption(budgets=(Budget(Amount(0), frozenset({Reason.TASK_QUOTA})),))
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


@table(
    "one, settings, expected, cordons",
    just_old_enough=(YOUNG, {"min_age_s": 59.0}, EVERYTHING, 1),
    too_young=(YOUNG, {"min_age_s": 60.0}, None, 1),
    none_came_but_it_ends=(changed(A, ends_at=99.0), {"past": ABORTED, **IN_PLACE},
        (0, 0, False, ()), 1),
    never_for_tasks=(A, {"disruption": NEVER_FULL}, (0, 5, False, ("x",)), 2),
)  # fmt: skip
def test_what_a_worker_is_told(
    one: ObservedWorker, settings: dict[str, Any], expected: Any, cordons: int
) -> None:
    own = {k: settings[k] for k in ("min_age_s", "strategy", "max_per_hour") if k in settings}
    rest = {name: settings[name] for name in ("past", "disruption") if name in settings}
    other = changed(B, **settings.get("b", {}))
    limits = told([one, other], dataclasses.replace(LOOSE, **own), **rest)

    assert (expected, cordons) == (row(limits, "a"), limits.cordons)


@table(
    "settings",
    no_replacement_came={"past": ABORTED},
    no_window_is_open={"disruption": SHUT},
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


@table(
    "changes, recycle, expected_s, expected",
    within_the_margin=({"ends_in_s": 7.0}, Recycle(), 0.0, Limit(0, 0.001)),
    has_passed=({"ends_in_s": 0.0}, Recycle(), 0.0, Limit(0, 0.0)),
    what_fits_besides_those_that_run=({"ends_in_s": 110.0, "use": Use(runs=7), "processing": 3},
        FITS, 0.5, Limit(207, 100.0)),
    exact_counts_what_is_assigned=({"ends_in_s": 110.0, "use": Use(runs=7), "processing": 3},
        Recycle(TaskQuota(exact=True, from_walltime=True)), 0.5, Limit(210, 100.0)),
    none_would_be_no_limit=({"ends_in_s": 110.0}, FITS, 500.0, Limit(1, 100.0)),
    who_knows_what_fits=({"ends_in_s": 70.0, "use": Use(runs=7)}, FITS, 0.0, Limit(0, 60.0)),
    a_number_that_can_be_sent=({"ends_in_s": 9e99, "use": Use(runs=1)}, FITS, 1e-9,
        Limit(1 + 10**9, 9e99)),
)  # fmt: skip
def test_the_limit_of_a_worker(
    changes: dict[str, Any], recycle: Recycle, expected_s: float, expected: Limit | None
) -> None:
    one = worker("a", **{**OLD, **changes})
    limits = told([one, B], recycle, expected_s=expected_s)

    found = limits.workers.get("a")
    assert expected == (found and dataclasses.replace(found, profile=0))


# --- the rules that workers share -----------------------------------------------------------------


@table(
    "recycle, settings, expected",
    too_young=(Recycle(TaskQuota(20), min_age_s=60.0), {}, False),
    not_exact=(Recycle(TaskQuota(20)),
        {"others": [busy("c")],
        "worker_groups": (WorkerGroup("more", recycle=GroupRecycle(TaskLimit(7))),)}, False),
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
TASKS = Recycle(TaskQuota(20))


@table(
    "max_per_hour, begun, full, expected",
    those_under_way_have_been_counted=(2, 0, "ab", 2),
    and_one_more=(3, 0, "ab", 3),
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

    assert expected == limits.cordons
    assert {"etl-default": 0, "more": 3} == limits.group_cordons
    assert {"etl-default", "more"} == {one.group for one in limits.profiles}
