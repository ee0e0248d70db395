"""Which workers are due, why, in which order, and what holds them back: as `plan` shows it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.observed import Clocks, ObservedWorker
from dask_adaptive.model.plan import Plan
from dask_adaptive.model.policy import Disruption
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Amount,
    Budget,
    FailureQuota,
    GroupRecycle,
    LifetimeLimit,
    LifetimeQuota,
    MemoryQuota,
    Quota,
    Recycle,
    RecyclePast,
    Replacing,
    Strategy,
    TaskQuota,
    Use,
    Window,
)
from dask_adaptive.model.scaling import WorkerGroup
from dask_adaptive.planner.quotas import quota_lines
from support.tables import table
from support.worlds import (
    NOW,
    PAST,
    POLICY,
    busy,
    changed,
    cluster,
    dated,
    plan,
    with_walltimes,
    worker,
)  # fmt: skip
from support.worlds import facts as figures

AT = 1_700_000_000.0  # 22:13 UTC
SHUT = Disruption(windows=(Window("0 2 * * *", 3600.0),))


def never_for(*reasons: Reason) -> Disruption:
    return Disruption(budgets=tuple(Budget(Amount(0), frozenset({each})) for each in reasons))


NEVER_FOR_AGE = never_for(Reason.LIFETIME)


def decide(
    workers: Sequence[ObservedWorker], recycle: Recycle, past: RecyclePast | None = None, *,
    scheduler: dict[str, Any] | None = None, **policy: Any,
) -> Plan:  # fmt: skip
    """One pass over workers that are all needed but one: who is due now can leave at once."""
    n = max(1, len(workers) - 1)
    world = cluster(workers, target=n, **(scheduler or {}))
    rules = {"min_replicas": n, "max_replicas": n, "recycle": recycle, **policy}
    known = dataclasses.replace(PAST, recycle=past or RecyclePast())
    world = dated(world, AT)
    return plan(world, dataclasses.replace(POLICY, **rules), known, now=NOW)


B, C = busy("b", pod_age_s=1.0), busy("c", pod_age_s=1.0)


def verdict(
    changes: dict[str, Any], recycle: Recycle, past: RecyclePast | None = None, *,
    others: tuple[ObservedWorker, ...] = (B, C), **policy: Any,
) -> tuple[Reason, str, str] | None:  # fmt: skip
    """
    Why worker `a` is due, in words, and how: "over" (it leaves now) or "soon" (its replacement is
    asked for), with a "!" if no window holds it and a "*" if maxPerHour does not.
    """

    one = worker("a", **{"processing": 1, "closable": False, **changes})

    def row(rules: Recycle = recycle, **more: Any) -> Replacing | None:
        rows = decide([one, *others], rules, past, **policy, **more).replacing
        return next((row for row in rows if row.worker == "a"), None)

    if (found := row()) is None:
        return None
    how = {"Draining": "over", "Surging": "soon"}[found.state]
    storm = dataclasses.replace(recycle, max_per_hour=Amount(0))
    for sign, held in (("!", row(disruption=SHUT)), ("*", row(storm))):
        how += sign if held is not None and held.state != "Due" else ""
    return found.reason, how, found.message


TASKS = Recycle(tasks=TaskQuota(1000))
EXACT = Recycle(tasks=TaskQuota(1000, exact=True))
LIFETIME = Recycle(lifetime=LifetimeQuota(3600.0))
MARGIN = Recycle(lifetime=LifetimeQuota(margin_s=20.0))
SOFT = Recycle(memory=MemoryQuota(soft=0.8))
HARD = Recycle(memory=MemoryQuota(hard=0.92))
FAILURES = Recycle(failures=FailureQuota(20, 600.0, ("CUDA error",)))
LAST: dict[str, Any] = {"stopped": "has its last task", "stopped_for": Quota.TASKS}
OLD: dict[str, Any] = {"pod_age_s": 500.0}
FAILED: dict[str, Any] = {"stopped": "20 failures", "stopped_for": Quota.FAILURES}


def above(seconds: float) -> RecyclePast:
    return RecyclePast(above_since={"uid-a": NOW - seconds})


def pace(rate: float, *, ago_s: float = 0.0) -> RecyclePast:
    return RecyclePast(pace={"uid-a": (NOW - ago_s, 0, rate)})


@table(
    "changes, recycle, past, expected",
    rested_for_long=({"use": Use(runs=999), "processing": 0}, TASKS, pace(5.0, ago_s=11.0), None),
    exact_what_is_assigned_and_its_pace=({"use": Use(runs=990), "processing": 4}, EXACT, pace(0.6),
        (Reason.TASK_QUOTA, "soon", "1,000 recycle.tasks.max 1000")),
    exact_and_over_no_window_keeps_it_in_service=({"use": Use(runs=1000), **LAST}, EXACT, None,
        (Reason.TASK_QUOTA, "over!", "1,000 recycle.tasks.max 1000")),
    of_a_quota_gone=(LAST, Recycle(tasks=TaskQuota(exact=True)), None, None),
    old_soon=({"pod_age_s": 3590.0}, LIFETIME, None,
        (Reason.LIFETIME, "soon", "1h recycle.lifetime.max 1h")),
    ends_soon=({"ends_in_s": 20.0, **OLD}, Recycle(), None, (Reason.LIFETIME, "soon!", "")),
    its_margin_is_a_fifth_of_its_life=({"ends_in_s": 29.0, "pod_age_s": 11.0}, MARGIN, None, None),
    not_yet_within_its_margin=({"ends_in_s": 10.5}, Recycle(), None,
        (Reason.LIFETIME, "soon!", "")),
    too_short=({"ends_in_s": 900.0, "too_short": True}, MARGIN, None,
        (Reason.LIFETIME, "over!", "")),
    at_hard=({"use": Use(process=0.92)}, HARD, None,
        (Reason.MEMORY_HARD, "over!", "92% recycle.memory.hard")),
    above_soft_since_now=({"use": Use(unmanaged=0.8)}, SOFT, None, None),
    soft_for_nearly_long_enough=({"use": Use(unmanaged=0.8)}, SOFT, above(119.5),
        (Reason.MEMORY_SOFT, "soon", "80% recycle.memory.soft")),
    soft_as_long_as_one_takes_to_come=({"use": Use(unmanaged=0.8)}, SOFT, above(110.0),
        (Reason.MEMORY_SOFT, "soon", "80% recycle.memory.soft")),
    soft_for_less=({"use": Use(unmanaged=0.8)}, SOFT, above(109.9), None),
    failures=({"use": Use(failures=20)}, FAILURES, None,
        (Reason.FAILURES, "over", "20 10m recycle.failures.max 20")),
    cordoned_for_failures_that_are_out_of_the_window=(FAILED, FAILURES, None,
        (Reason.FAILURES, "over", "20")),
    cordoned_by_old_limits_of_failures=(FAILED, TASKS, None, None),
    drift=({"drift": "image"}, Recycle(), None, (Reason.DRIFTED, "over*", "")),
    drift_is_well=({"drift": "image"}, Recycle(drift=False), None, None),
)  # fmt: skip
def test_a_worker_is_due(
    changes: dict[str, Any], recycle: Recycle, past: RecyclePast | None,
    expected: tuple[Reason, str, str] | None,
) -> None:  # fmt: skip
    found = verdict({"pod_age_s": 1.0, **changes}, recycle, past)

    assert expected == (found and (*found[:2], figures(found[2])))


@pytest.mark.parametrize(
    ("ends_in_s", "expected_s", "expected"),
    [
        (80.0, 60.0, {}),
        (79.9, 60.0, {Reason.TASK_QUOTA: "Surging"}),
        (70.0, 60.0, {Reason.TASK_QUOTA: "Surging"}),
        (69.9, 60.0, {Reason.TASK_QUOTA: "Draining"}),
        (20.4, 0.5, {Reason.TASK_QUOTA: "Surging"}),
        (25.0, 0.0, {}),  # nobody knows how long a task takes
        (45.0, 1.0, {}),
    ],
)
def test_a_worker_without_time_for_another_task_is_due(
    ends_in_s: float, expected_s: float, expected: dict[Reason, str]
) -> None:
    fits = Recycle(tasks=TaskQuota(from_walltime=True))
    # Its end itself is no reason: a budget forbids that.
    workers = [busy("a", ends_in_s=ends_in_s, **OLD), B, C]
    decided = decide(workers, fits, scheduler={"expected_s": expected_s}, disruption=NEVER_FOR_AGE)

    rows = [row for row in decided.replacing if row.state != "Due"]
    assert expected == {row.reason: row.state for row in rows}
    words = "no other task fits before it ends (recycle.tasks.fromWalltime)"
    assert {words} >= {row.message for row in rows}


@pytest.mark.parametrize(("expected_s", "state"), [(60.0, "Draining"), (0.0, None)])
def test_no_window_keeps_a_worker_whose_last_task_is_assigned(
    expected_s: float, state: str | None
) -> None:
    exact = Recycle(tasks=TaskQuota(exact=True, from_walltime=True))
    workers = [busy("a", ends_in_s=50.0, pod_age_s=1.0, **LAST), B, C]
    shut = dataclasses.replace(SHUT, budgets=NEVER_FOR_AGE.budgets)
    decided = decide(workers, exact, scheduler={"expected_s": expected_s}, disruption=shut)

    assert state == {row.worker: row.state for row in decided.replacing}.get("a")
    within = [busy("a", ends_in_s=5.0, **LAST), B, C]
    assert "a" in {row.worker for row in decide(within, exact).replacing}


@table(
    "changes, expected",
    what_is_left_of_it=({"pod_age_s": 100.0}, 500.0),
    over=({"pod_age_s": 700.0}, 0.0),
    an_earlier_end_counts=({"pod_age_s": 100.0, "ends_in_s": 60.0}, 60.0),
    a_later_one_does_not=({"pod_age_s": 100.0, "ends_in_s": 900.0}, 500.0),
)
def test_a_walltime_is_an_end(changes: dict[str, Any], expected: float) -> None:
    rules = GroupRecycle(lifetime=LifetimeLimit(600.0, walltime=True))
    groups = (WorkerGroup("etl-default", recycle=rules),)
    policy = dataclasses.replace(POLICY, worker_groups=groups)
    world = cluster([worker("a", **changes)])

    (one,) = with_walltimes(world, policy).groups[0].workers
    assert expected == max(0.0, Clocks().ends_in_s(one))
    assert with_walltimes(world, POLICY) == world
    other = dataclasses.replace(world.groups[0], name="more")
    both = dataclasses.replace(world, groups=(*world.groups, other))
    assert with_walltimes(both, policy).groups[1] is other


# --- in which order -------------------------------------------------------------------------------

ALL = Recycle(
    TaskQuota(1000), LifetimeQuota(3600.0), MemoryQuota(0.8, 0.92, 0.0),
    FailureQuota(20, patterns=("x",)),
)  # fmt: skip


def ordered(workers: Sequence[ObservedWorker], recycle: Recycle, **settings: Any) -> list[str]:
    """All that are due now, the most urgent first: their actors keep them, so that all wait."""
    due = [busy(w.name, actors=True, **facts(w)) for w in workers]
    rows = decide(due, recycle, **settings).replacing
    return [row.worker for row in rows]


def facts(one: ObservedWorker) -> dict[str, Any]:
    names = ("pod_made_at", "ends_at", "drift", "recycle_request")
    process = {"too_short": one.process.too_short, "paused": one.process.is_paused, "use": one.use}
    return {**process, **{name: getattr(one.platform, name) for name in names}}


def test_the_most_pressing_comes_first() -> None:
    workers = [
        worker("tasks", use=Use(runs=1100)),
        worker("tasks-more", use=Use(runs=1200)),
        worker("paused", use=Use(runs=1001), paused=True),
        worker("drift", drift="image"),
        worker("asked", recycle_request="me"),
        worker("fails", use=Use(failures=21)),
        worker("fails-just", use=Use(failures=20)),
        worker("ends", ends_in_s=5.0, **OLD),
        worker("ends-first", ends_in_s=1.0, **OLD),
        worker("full", use=Use(process=0.93)),
    ]
    expected = [
        "full", "ends-first", "ends", "paused", "fails", "fails-just", "asked", "tasks-more",
        "tasks", "drift",
    ]  # fmt: skip

    assert expected == ordered(workers, ALL)


def test_within_its_margin_the_sooner_end_comes_first_whatever_the_margin() -> None:
    for margin_s in (0.0, 0.5, 20.0):
        recycle = Recycle(lifetime=LifetimeQuota(margin_s=margin_s))
        ends = {"a": margin_s - 1.0, "b": margin_s - 2.0}
        workers = [worker(name, ends_in_s=in_s, **OLD) for name, in_s in ends.items()]
        assert ["b", "a"] == ordered(workers, recycle)
    short = worker("a", ends_in_s=99.0, too_short=True)
    late, at_its_margin = (worker("z", ends_in_s=s, paused=True, **OLD) for s in (9.0, 10.0))
    assert ["z", "a"] == ordered([short, late], Recycle())
    assert ["a", "z"] == ordered([short, at_its_margin], Recycle())


def test_of_several_reasons_the_freest_counts_and_then_the_others() -> None:
    """What one may not leave for, it leaves for the next; never soon for what is now."""
    everything = busy("a", use=Use(runs=2000, process=0.95, failures=40), drift="image",
                      pod_age_s=3595.0)  # fmt: skip
    expected = [Reason.MEMORY_HARD, Reason.DRIFTED, Reason.FAILURES, Reason.TASK_QUOTA]
    found: list[Reason] = []
    for _ in expected:
        decided = decide([everything, B, C], ALL, disruption=never_for(*found))
        found += [row.reason for row in decided.replacing if row.state == "Draining"]

    assert expected == found
    held = decide([everything, B, C], ALL, disruption=never_for(*expected))
    assert [(Reason.MEMORY_HARD, "Due")] == [(r.reason, r.state) for r in held.replacing]


# --- how far quotas are used ----------------------------------------------------------------------


def used_up(decided: Plan) -> dict[Quota, tuple[str, float]]:
    return {use.quota: (use.worker, round(use.ratio, 4)) for use in decided.uses}


SEVERAL = [
    busy("a", use=Use(runs=500, unmanaged=0.4, failures=2), pod_age_s=360.0),
    busy("b", use=Use(runs=100, process=0.69, failures=5, match="x"), pod_age_s=1800.0),
    busy("c", use=Use(runs=30), ends_in_s=110.0, pod_age_s=300.0),
]


def ending(ends_in_s: float) -> list[ObservedWorker]:
    return [busy("a"), busy("b", pod_age_s=100.0, ends_in_s=ends_in_s)]


@table(
    "workers, recycle, expected",
    ends_count_too=(SEVERAL, ALL,
        {Quota.TASKS: ("a", 0.5), Quota.LIFETIME: ("c", 0.75), Quota.MEMORY: ("b", 0.75),
        Quota.FAILURES: ("b", 1.0)}),
    a_quarter=(ending(310.0), Recycle(), {Quota.LIFETIME: ("b", 0.25)}),
    half_a_second_is_left=(ending(10.5), Recycle(), {Quota.LIFETIME: ("b", round(100 / 100.5, 4))}),
    only_the_margin_is_left=(ending(10.0), Recycle(), {Quota.LIFETIME: ("b", 1.0)}),
    its_end_is_here=(ending(0.0), Recycle(), {Quota.LIFETIME: ("b", 1.0)}),
)  # fmt: skip
def test_the_highest_use_of_each_quota(
    workers: list[ObservedWorker], recycle: Recycle, expected: dict[Quota, tuple[str, float]]
) -> None:
    assert expected == used_up(decide(workers, recycle))


@table(
    "changes, recycle, expected",
    its_end=({"ends_in_s": -5.0, **OLD}, MARGIN,
        (Quota.LIFETIME, "ends in 0s", "20s before its end", 1.0)),
    no_pattern=({}, Recycle(failures=FailureQuota(patterns=("x", "y"))),
        (Quota.FAILURES, "none was found", "any of 2 patterns", 0.0)),
    a_pattern=({"use": Use(match="x!")}, Recycle(failures=FailureQuota(patterns=("x",))),
        (Quota.FAILURES, "one was found", "any of 1 patterns", 1.0)),
)  # fmt: skip
def test_explain_says_what_is_used_of_what(
    changes: dict[str, Any], recycle: Recycle, expected: tuple[Quota, str, str, float]
) -> None:
    lines = quota_lines(worker("a", **changes), recycle, Clocks())

    found = [(line.quota, line.used, line.limit, round(line.ratio, 3)) for line in lines]
    assert [expected] == found


# --- whatever there is ----------------------------------------------------------------------------

uses = st.builds(
    Use,
    runs=st.integers(0, 1100),
    failures=st.integers(0, 25),
    match=st.sampled_from(["", "", "CUDA error"]),
    process=st.floats(0, 1),
    unmanaged=st.floats(0, 1),
)
#: Instants since 1970 are not finer than this.
spans = st.integers(0, 5000 * 2**10).map(lambda n: n / 2**10)
somes = st.fixed_dictionaries(
    {
        "use": uses, "pod_age_s": spans,
        "ends_in_s": st.just(math.inf) | spans.map(lambda s: s % 300),
        "processing": st.integers(0, 3),
        "drift": st.sampled_from(["", "", "image"]), "too_short": st.booleans(),
        "recycle_request": st.sampled_from(["", "", "me"]),
        "stopped": st.sampled_from(["", "", "stop"]), "stopped_for": st.sampled_from(Quota),
    }
)  # fmt: skip
fleets = st.lists(somes, max_size=4).map(
    lambda rows: [worker(f"w{i}", **row) for i, row in enumerate(rows)]
)
LIVES = [f"uid-w{i}" for i in range(4)]
pasts = st.builds(
    RecyclePast,
    above_since=st.dictionaries(st.sampled_from(LIVES), st.floats(NOW - 300, NOW)),
    pace=st.dictionaries(
        st.sampled_from(LIVES), st.tuples(st.just(NOW), st.integers(0, 1000), st.floats(0, 50))
    ),
    ready_s=st.floats(1, 60),
)
recycles = st.builds(
    Recycle,
    tasks=st.builds(TaskQuota, st.sampled_from([0, 10, 1000]), st.floats(0, 1), st.booleans(),
                    st.booleans()),
    lifetime=st.builds(LifetimeQuota, st.sampled_from([math.inf, 3600.0]), jitter=st.floats(0, 1)),
    memory=st.builds(MemoryQuota, st.sampled_from([math.inf, 0.8]),
                     st.sampled_from([math.inf, 0.92]), st.just(60.0)),
    failures=st.builds(FailureQuota, st.sampled_from([0, 20]), st.just(60.0),
                       st.sampled_from([(), ("CUDA",)])),
    drift=st.booleans(),
)  # fmt: skip


@given(fleets, recycles, pasts, st.floats(0, 100))
def test_whether_a_worker_is_due_does_not_depend_on_others(
    workers: list[ObservedWorker], recycle: Recycle, past: RecyclePast, expected_s: float
) -> None:
    """Of many those that may be due are told by a cheap look, which is to miss nobody."""

    def due(some: list[ObservedWorker]) -> set[tuple[str, Reason, str]]:
        free = dataclasses.replace(recycle, strategy=Strategy(max_surge=Amount(99)))
        some = [changed(w, cordon=None) for w in some]
        decided = decide(some, free, past, disruption=Disruption(budgets=()),
                         scheduler={"expected_s": expected_s})  # fmt: skip
        return {(row.worker, row.reason, row.message) for row in decided.replacing}

    assert due(workers) == {row for one in workers for row in due([one])}


@given(fleets, recycles, pasts, st.randoms())
def test_the_order_of_workers_does_not_matter(
    workers: list[ObservedWorker], recycle: Recycle, past: RecyclePast, shuffled: Any
) -> None:
    workers = [changed(w, actors=True) for w in workers]
    first = decide(workers, recycle, past)
    shuffled.shuffle(workers)
    again = decide(workers, recycle, past)

    assert first.replacing == again.replacing
    assert [(u.quota, u.ratio) for u in first.uses] == [(u.quota, u.ratio) for u in again.uses]


@given(fleets, recycles)
def test_the_uses_told_are_the_highest_there_are(
    workers: list[ObservedWorker], recycle: Recycle
) -> None:
    lines: dict[Quota, float] = {}
    for line in (line for each in workers for line in quota_lines(each, recycle, Clocks())):
        lines[line.quota] = max(line.ratio, lines.get(line.quota, 0.0))

    told = {u.quota: u.ratio for u in decide(workers, recycle).uses}
    assert pytest.approx(lines) == told


@given(
    uses, st.integers(0, 500), st.integers(0, 9), st.floats(0, 1), spans, recycles,
    pasts,
)  # fmt: skip
def test_who_has_used_more_is_not_less_due(
    use: Use, runs: int, failures: int, memory: float, age_s: float, recycle: Recycle,
    past: RecyclePast,
) -> None:  # fmt: skip
    def states(use: Use, age_s: float) -> tuple[int, int]:
        one = worker("w0", use=use, pod_age_s=age_s)
        order = ("", "Surging", "Draining")
        rows = {r.worker: r.state for r in decide([one, B, C], recycle, past).replacing}
        shut = {r.worker: r.state for r in decide([one, B, C], recycle, past,
                                                  disruption=SHUT).replacing}  # fmt: skip
        return order.index(rows.get("w0", "")), shut.get("w0") == "Draining"

    more = dataclasses.replace(
        use, runs=use.runs + runs, failures=use.failures + failures,
        process=use.process + memory, unmanaged=use.unmanaged + memory,
    )  # fmt: skip
    less_used, more_used = states(use, age_s), states(more, age_s + runs)

    assert less_used[0] <= more_used[0]
    assert less_used[1] <= more_used[1]
