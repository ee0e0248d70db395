"""What one pass tells: limits to the agent, reasons and arrivals to people; to the figure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import Leaving, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Arriving, GroupPlan, SetReplicas
from dask_adaptive.model.policy import Disruption
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Amount,
    Budget,
    FailureQuota,
    LifetimeQuota,
    Limit,
    Limits,
    Quota,
    QuotaNotes,
    QuotaUse,
    Recycle,
    RecyclePast,
    Selection,
    TaskQuota,
    Trait,
    Use,
    Window,
)
from dask_adaptive.model.scaling import GroupBounds
from dask_adaptive.planner.budget import Headcount, count_heads, rules_for
from dask_adaptive.planner.fleet import set_apart, sort_fleet
from dask_adaptive.planner.joined import LATE, arriving, summary
from dask_adaptive.planner.limits import Bounded, limits_for
from dask_adaptive.planner.load import Load
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.quotas import Assessment
from dask_adaptive.planner.stages import Draft
from dask_adaptive.planner.why import limited_by, why_at_rest, why_more
from support.worlds import GROUP, NOW, PAST, POLICY, busy, cluster, past_of, pending, worker

SHUT = Disruption(windows=(Window("0 2 * * *", 3600.0),))
NEVER_FULL = Disruption(budgets=(Budget(Amount(0), frozenset({Reason.TASK_QUOTA})),))
NEVER_FAILED = Disruption(budgets=(Budget(Amount(0), frozenset({Reason.FAILURES})),))
AT = 1_700_000_000.0  # 22:13 UTC
OLD = {"pod_age_s": 500.0}


# --- limits: who may go on with how much ----------------------------------------------------------


def told(
    workers: Sequence[ObservedWorker], recycle: Recycle, *, others: Sequence[ObservedWorker] = (),
    disruption: Disruption = Disruption(), under_way: str = "", begun: int = 0,  # noqa: B008
    aborted: str = "", left: int = 99, expected_s: float = 0.0,
    group_recycle: dict[str, Recycle] | None = None,
) -> Limits:  # fmt: skip
    other = (ObservedGroup("more", len(others), tuple(others)),) if others else ()
    world = replace(cluster(workers, others=other, expected_s=expected_s), at=AT)
    policy = replace(
        POLICY, recycle=recycle, disruption=disruption, group_recycle=group_recycle or {}
    )
    past = RecyclePast(aborted={name: (NOW + 9.0, "none came") for name in aborted})
    groups = []
    for group in world.groups:
        own = policy.recycle_of(group.name)
        rules = rules_for(world, policy, own, past, is_scaled=False, now=NOW)
        n = len(group.workers)
        mine = frozenset(under_way) & {w.name for w in group.workers}
        groups.append(Bounded(group, rules, Headcount(n, n, 0), mine, begun))
    return limits_for(groups, world, policy, left=left)


def row(limits: Limits, name: str) -> tuple[int, int, bool, tuple[str, ...]] | None:
    """What one worker is told: runs, failures, whether it is exact, patterns; None: nothing."""
    limit = limits.workers.get(name)
    if limit is None:
        return None
    profile = limits.profiles[limit.profile]
    return limit.runs, profile.failures, profile.exact, profile.patterns


A, B = busy("a", **OLD), busy("b", **OLD)
YOUNG = busy("a", pod_age_s=59.0)
ALL = Recycle(TaskQuota(20, exact=True), failures=FailureQuota(5, 60.0, ("x",)))
LOOSE = replace(ALL, tasks=TaskQuota(20))


@pytest.mark.parametrize(
    ("one", "settings", "expected", "stops"),
    [
        pytest.param(A, {}, (20, 5, False, ("x",)), 1, id="all-that-there-is"),
        pytest.param(YOUNG, {"min_age_s": 59.0}, (20, 5, False, ("x",)), 1, id="just-old-enough"),
        pytest.param(YOUNG, {"min_age_s": 60.0}, None, 1, id="too-young"),
        pytest.param(
            YOUNG, {"min_age_s": 60.0, "under_way": "a"}, (20, 5, False, ("x",)), 1,
            id="young-but-being-replaced",
        ),
        pytest.param(A, {"aborted": "a"}, (0, 0, False, ()), 1, id="no-replacement-came"),
        pytest.param(
            replace(A, ends_in_s=99.0), {"aborted": "a"}, (0, 0, False, ()), 1, id="but-it-ends"
        ),
        pytest.param(
            A, {"aborted": "a", "under_way": "a"}, (20, 5, False, ("x",)), 1,
            id="none-came-but-it-goes",
        ),
        pytest.param(A, {"left": 0}, None, 0, id="no-more-this-hour"),
        pytest.param(A, {"left": 0, "under_way": "b"}, (20, 5, False, ("x",)), 1, id="but-another"),
        pytest.param(A, {"disruption": SHUT}, None, 0, id="no-window-is-open"),
        pytest.param(
            A, {"disruption": NEVER_FULL}, (0, 5, False, ("x",)), 2, id="never-for-its-tasks"
        ),
        pytest.param(
            A, {"disruption": NEVER_FAILED}, (20, 0, False, ()), 2, id="never-for-its-failures"
        ),
    ],
)  # fmt: skip
def test_what_a_worker_is_told(
    one: ObservedWorker, settings: dict[str, Any], expected: Any, stops: int
) -> None:
    rest = {name: value for name, value in settings.items() if name != "min_age_s"}
    limits = told([one, B], replace(LOOSE, min_age_s=settings.get("min_age_s", 0.0)), **rest)

    assert (expected, stops) == (row(limits, "a"), limits.stops)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"min_age_s": 60.0}, id="too-young"),
        pytest.param({"aborted": "a"}, id="no-replacement-came"),
        pytest.param({"left": 0}, id="no-more-this-hour"),
        pytest.param({"disruption": SHUT}, id="no-window-is-open"),
        pytest.param({"begun": 99}, id="no-more-may-be-missing"),
    ],
)
def test_an_exact_quota_holds_whatever_holds_its_replacement_back(settings: dict[str, Any]) -> None:
    rest = {name: value for name, value in settings.items() if name != "min_age_s"}
    rules = replace(ALL, min_age_s=settings.get("min_age_s", 0.0))
    limits = told([YOUNG, B], rules, **rest)
    found = row(limits, "a")

    assert found is not None
    assert (20, True) == (found[0], found[2])
    assert limits.others is not None, "and for those that join before the next pass"
    newcomer = limits.profiles[limits.others]
    assert (20, True) == (newcomer.runs, newcomer.exact)


def test_the_lowest_exact_quota_of_any_group_holds_for_newcomers() -> None:
    """Nobody can tell yet to which group they belong; those without a quota are told so."""
    groups = {"more": Recycle(TaskQuota(7, exact=True))}
    limits = told([A, B], ALL, others=[busy("c")], group_recycle=groups)
    loose = told([A, B], LOOSE, others=[busy("c")], group_recycle={"more": Recycle(TaskQuota(7))})

    assert limits.others is not None
    newcomer = limits.profiles[limits.others]
    assert (7, True) == (newcomer.runs, newcomer.exact)
    assert (20, 7) == (limits.workers["a"].runs, limits.workers["c"].runs)
    assert loose.others is None


@pytest.mark.parametrize(
    ("recycle", "notes", "expected", "stops"),
    [
        pytest.param(Recycle(), QuotaNotes(tasks=7), (7, 0, False, ()), 1, id="its-runs"),
        pytest.param(Recycle(), QuotaNotes(failures=3), (0, 3, False, ()), 1, id="its-failures"),
        pytest.param(Recycle(), QuotaNotes(memory_soft=0.5), None, 0, id="nothing-here"),
        pytest.param(ALL, QuotaNotes(tasks=0, failures=0), (0, 0, True, ("x",)), 1, id="no-quota"),
    ],
)  # fmt: skip
def test_a_worker_is_told_its_own_numbers(
    recycle: Recycle, notes: QuotaNotes, expected: Any, stops: int
) -> None:
    for noted, plain in itertools.permutations([replace(A, quota_notes=notes), B]):
        limits = told([noted, plain], recycle)

        assert (expected, stops) == (row(limits, "a"), limits.stops)


@pytest.mark.parametrize(
    ("recycle", "stops"),
    [
        (Recycle(), 0),
        (Recycle(TaskQuota(20)), 1),
        (Recycle(TaskQuota(20, exact=True)), 2),  # agents of 0.1.0 are told, too
        (Recycle(TaskQuota(from_walltime=True)), 1),
        (Recycle(failures=FailureQuota(5)), 1),
        (Recycle(failures=FailureQuota(patterns=("x",))), 1),
        (Recycle(lifetime=LifetimeQuota(60.0)), 0),
        (Recycle(selection=Selection((Trait.DURATION,))), 0),
    ],
)
def test_workers_may_be_stopped_only_by_rules_that_stop(recycle: Recycle, stops: int) -> None:
    assert stops == told([A, B], recycle).stops


def test_those_that_are_too_young_do_not_make_others_stop() -> None:
    rules = Recycle(selection=Selection((Trait.DURATION,)), min_age_s=600.0)

    assert 0 == told([A, B], rules).stops


def test_newcomers_may_be_stopped_before_anybody_has_come() -> None:
    assert 1 == told([pending("p")], Recycle(TaskQuota(20))).stops


def test_the_runs_that_fit_before_an_end_are_told() -> None:
    ends = replace(A, ends_in_s=110.0)
    limits = told([ends, B], Recycle(TaskQuota(from_walltime=True)), expected_s=10.0)

    assert {"a": Limit(10, 100.0)} == limits.workers


def test_newcomers_are_told_by_the_rules_of_the_default_group() -> None:
    rules = Recycle(failures=FailureQuota(5))

    assert 0 == told([A, B], rules, others=[busy("c")]).others
    assert told([A, B], rules, group_recycle={"more": Recycle()}).others is None


@pytest.mark.parametrize(
    ("under_way", "left", "expected"),
    [
        pytest.param("", 99, 5, id="of-each-group-its-own"),
        pytest.param("", 3, 3, id="within-the-hour"),
        pytest.param("abc", 0, 3, id="those-under-way-have-been-counted"),
        pytest.param("abc", 1, 4, id="and-one-more"),
    ],
)
def test_stops_are_those_of_all_groups_within_the_hour(
    under_way: str, left: int, expected: int
) -> None:
    free = Disruption(budgets=(Budget(Amount(percent=100.0)),))
    groups: dict[str, Any] = {"workers": [A, B], "others": [busy("c"), busy("d"), busy("e")]}
    limits = told(**groups, recycle=ALL, disruption=free, under_way=under_way, left=left)

    assert expected == limits.stops


def test_workers_that_are_stopped_and_paused_are_missing_once() -> None:
    both = worker("a", stopped="x", paused=True)
    group = cluster([both, worker("b", paused=True), worker("c", stopped="x"), worker("d")])
    heads = count_heads(sort_fleet(group.groups[0]), Past(), 4)

    assert (Headcount(4, 4, 2, 1), 3) == (heads, heads.missing)


# --- why a number is what it is -------------------------------------------------------------------


def draft(
    *workers: ObservedWorker, steps: Sequence[Step] = (), wanted: int = 5, number: int = 5,
    replicas: int | None = None,
) -> Draft:  # fmt: skip
    group = ObservedGroup(GROUP, len(workers) if replicas is None else replicas, workers)
    load = Load(wanted, Reason.LOAD_INCREASED, "much to do", {}, "load", ())
    return Draft(
        group, GroupBounds(GROUP, 9), sort_fleet(group), Assessment(), load, len(workers), wanted,
        number, tuple(steps),
    )  # fmt: skip


LOAD = Step("load", 5, Reason.LOAD_INCREASED, "5 for the load")
LEAST = Step("bounds", 5, Reason.TOO_FEW_REPLICAS, "minReplicas is 5")
BY_DAY = Reason.SCHEDULED_MINIMUM
FLOOR = Step("schedule", 5, BY_DAY, "5 by day")
RECYCLING = Step("recycling", 5, Reason.RECYCLING, "one more")
MOST = Step("bounds", 5, Reason.TOO_MANY_REPLICAS, "maxReplicas is 5")
FULL = Step("caps", 5, Reason.QUOTA_EXCEEDED, "no more room")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([], (Reason.LOAD_INCREASED, "5 wanted, 1 there: 5 workers"), id="no-stage"),
        pytest.param([LOAD], (Reason.LOAD_INCREASED, "5 wanted, 1 there: 5 workers"), id="load"),
        pytest.param([RECYCLING], (Reason.LOAD_INCREASED, "5 wanted, 1 there: 5 workers"),
                     id="a-replacement"),
        pytest.param([LEAST], (Reason.BELOW_MINIMUM, "5 wanted, 1 there: 5 workers"), id="least"),
        pytest.param([FLOOR], (BY_DAY, "5 by day: 5 workers, 1 there"), id="a-schedule"),
        pytest.param([replace(LOAD, replicas=4), FLOOR, LEAST],
                     (BY_DAY, "5 by day: 5 workers, 1 there"), id="the-first-of-so-many"),
        pytest.param([replace(FLOOR, replicas=7), MOST],
                     (BY_DAY, "5 by day: 5 workers, 1 there"), id="or-of-more"),
    ],
)  # fmt: skip
def test_why_there_are_to_be_more(steps: Sequence[Step], expected: tuple[Reason, str]) -> None:
    one = draft(worker("a"), steps=steps)

    assert expected == why_more(one, one.fleet)


RETIRES = worker("r", leaving=Leaving.DRAINING, in_service=False)
REPLACED = replace(RETIRES, name="s", leaving_reason=Reason.TASK_QUOTA)
AT_REST = (Reason.DESIRED_WITHIN_RANGE, "5 workers wanted and there")


@pytest.mark.parametrize(
    ("workers", "steps", "expected"),
    [
        pytest.param("", [LOAD], AT_REST, id="for-the-load"),
        pytest.param("", [RECYCLING], AT_REST, id="for-a-replacement"),
        pytest.param("", [FLOOR, replace(LOAD, replicas=6)], AT_REST, id="a-stage-that-was-cut"),
        pytest.param("", [FLOOR], (BY_DAY, "5 by day"), id="a-schedule"),
        pytest.param("r", [FLOOR], (Reason.RETIRING, "1 workers are on their way out"), id="leave"),
        pytest.param("rst", [FLOOR], (Reason.RECYCLING, "2 workers are being replaced"),
                     id="replaced-first-or-in-place"),
    ],
)  # fmt: skip
def test_why_a_group_is_at_rest(
    workers: str, steps: Sequence[Step], expected: tuple[Reason, str]
) -> None:
    every = {"r": RETIRES, "s": REPLACED, "t": worker("t")}
    one = draft(*(every[name] for name in workers), steps=steps)
    fleet = set_apart(one.fleet, replaced={"t"})

    assert expected == why_at_rest(one, fleet, None)
    assert (Reason.QUOTA_EXCEEDED, "no more room") == why_at_rest(one, fleet, FULL)


@pytest.mark.parametrize(
    ("step", "is_at_rest", "expected"),
    [
        (LOAD, True, None),
        (replace(FULL, replicas=6), True, None),
        (FULL, True, FULL),
        (FULL, False, FULL),
        (MOST, True, MOST),
        (MOST, False, None),
    ],
)
def test_what_limits_a_number(step: Step, is_at_rest: bool, expected: Step | None) -> None:
    assert expected == limited_by(draft(steps=[LOAD, step]), is_at_rest=is_at_rest)


# --- one plan of several groups -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "groups", "expected"),
    [
        (Reason.DESIRED_WITHIN_RANGE, 1, "a few"),
        (Reason.DESIRED_WITHIN_RANGE, 2, "4 workers wanted and there, in 2 groups"),
        (Reason.SCHEDULED_MINIMUM, 1, "a few"),
        (Reason.SCHEDULED_MINIMUM, 2, "a: a few"),
    ],
)
def test_a_plan_is_told_by_its_most_telling_group(
    first: Reason, groups: int, expected: str
) -> None:
    rest = GroupPlan("b", 2, 1, 2, Reason.DESIRED_WITHIN_RANGE, "enough")
    every = (GroupPlan("a", 2, 3, 2, first, "a few"), rest)[:groups]
    whole = summary(every)

    assert (first, expected, 3 + groups - 1, 2 * groups) == (
        whole.reason, whole.message, whole.wanted, whole.desired,
    )  # fmt: skip
    assert every == whole.groups


def test_the_highest_use_of_each_groups_quotas_is_told() -> None:
    there = (ObservedGroup("more", 1, (busy("b", use=Use(runs=5)),)),)
    world = cluster([busy("a", use=Use(runs=2))], others=there, target=1)
    decided = plan(world, replace(POLICY, recycle=Recycle(TaskQuota(20))), PAST, now=NOW)

    uses = (QuotaUse(GROUP, Quota.TASKS, 0.1, "a"), QuotaUse("more", Quota.TASKS, 0.25, "b"))
    assert (uses, "") == (decided.uses, decided.storm)


# --- what is on its way ---------------------------------------------------------------------------

TAKES_S = 40.0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"age_s": 0.0}, 40.0, id="just-asked-for"),
        pytest.param({"age_s": 15.0}, 25.0, id="some-time-ago"),
        pytest.param({"age_s": 30.0}, 10.0, id="a-quarter-is-left"),
        pytest.param({"age_s": 35.0}, 10.0, id="and-no-less-is-expected"),
        pytest.param({"age_s": LATE * TAKES_S}, 10.0, id="as-late-as-may-be"),
        pytest.param({"age_s": LATE * TAKES_S + 1.0}, None, id="too-late"),
        pytest.param({"age_s": 15.0, "unschedulable_s": TAKES_S}, 25.0, id="no-place-for-a-while"),
        pytest.param({"age_s": 15.0, "unschedulable_s": TAKES_S + 1.0}, None, id="for-too-long"),
        pytest.param({"age_s": 15.0, "refused": "no image"}, None, id="it-cannot-start"),
    ],
)
def test_when_a_worker_is_expected(changes: dict[str, Any], expected: float | None) -> None:
    one = draft(pending("a", **changes))
    past = past_of(arrival_s=TAKES_S)

    told = () if expected is None else (Arriving(1, expected),)
    assert told == arriving([one], [], past, now=NOW)


@pytest.mark.parametrize(
    ("replicas", "asked", "expected"),
    [
        pytest.param(1, None, (), id="none-is-asked-for"),
        pytest.param(0, None, (), id="nor-where-there-are-more-than-asked-for"),
        pytest.param(3, None, (Arriving(2, TAKES_S),), id="asked-for-before"),
        pytest.param(1, 4, (Arriving(3, TAKES_S),), id="asked-for-now"),
        pytest.param(3, 4, (Arriving(3, TAKES_S),), id="both"),
    ],
)
def test_who_has_been_asked_for_is_expected(
    replicas: int, asked: int | None, expected: tuple[Arriving, ...]
) -> None:
    actions = [] if asked is None else [SetReplicas(GROUP, asked, Reason.LOAD_INCREASED, "")]
    past = past_of(arrival_s=TAKES_S, gap=(replicas, 1), gap_since=NOW)

    assert expected == arriving([draft(worker("a"), replicas=replicas)], actions, past, now=NOW)


def test_where_no_arrival_was_seen_the_usual_time_is_expected() -> None:
    past = replace(PAST, recycle=RecyclePast(ready_s=12.0))
    nobody = draft(replicas=0)

    (some,) = arriving([draft(pending("a", age_s=2.0)), nobody], [], past, now=NOW)
    assert Arriving(1, 10.0) == some
