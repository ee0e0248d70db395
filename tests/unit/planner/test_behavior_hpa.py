"""
HPA's own tables, put to our `behavior`: the same numbers must come out.

The tables are those of `pkg/controller/podautoscaler/horizontal_test.go` of Kubernetes, since
autoscaling/v2; each is named where it is used. Left out, because they are about something that we
do not have:

* the slots in which HPA keeps recommendations and events (`expectedLogLength`,
  `expectedRecommendations`, the `outdated` flags): ours are pruned, test_behavior.py;
* an HPA without `behavior` (the last row of TestConvertDesiredReplicasWithRules; of
  TestStoreScaleEvents the row that keeps an outdated event because nothing looks at it): without
  policies we have no limit, and remember no change;
* what turns metrics into a number (TestScaleUp…, TestScaleDown…, TestTolerance…): HPA's tolerance
  is about the ratio of a metric, which we do not have; ours is about workers.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_adaptive.model.past import Change, GroupPast, Recommendation
from dask_adaptive.model.scaling import Behavior, RatePolicy, RateType, ScaleDown, ScaleUp, Select
from dask_adaptive.planner.behavior import damped, remembered
from support.tables import table

NOW = 100_000.0
MINUTE_S = 60.0

#: What HPA fills in (GenerateHPAScaleUpRules, GenerateHPAScaleDownRules), but for its windows.
PODS_4, DOUBLE = RatePolicy(RateType.PODS, 4, 15.0), RatePolicy(RateType.PERCENT, 100, 15.0)
UP = (PODS_4, DOUBLE)
DOWN = (DOUBLE,)


def rules(
    pods: int = 0, pods_s: float = 0, percent: int = 0, percent_s: float = 0
) -> tuple[RatePolicy, ...]:
    both = ((RateType.PODS, pods, pods_s), (RateType.PERCENT, percent, percent_s))
    return tuple(RatePolicy(kind, value, period_s) for kind, value, period_s in both if value)


def spread(numbers: Sequence[int], over_s: int) -> tuple[Change, ...]:
    """One change in the middle of each part of a time (generateEventsUniformDistribution)."""
    part = over_s / len(numbers)
    return tuple(
        Change(NOW - int(over_s - part * (i + 0.5)), number) for i, number in enumerate(numbers)
    )


def moved(
    current: int, wanted: int, behavior: Behavior, past: GroupPast, minimum: int, maximum: int
) -> tuple[int, str]:
    """The number within bounds, and HPA's word for what limited it."""
    number, _ = damped(wanted, current, behavior, past, idle_timeout_s=0.0, since=0.0, now=NOW)
    bounded = min(max(number, minimum), maximum)
    if bounded == wanted:
        return bounded, "DesiredWithinRange"
    if bounded != number:
        return bounded, "TooFewReplicas" if bounded > number else "TooManyReplicas"
    return bounded, "ScaleUpLimit" if wanted > current else "ScaleDownLimit"


GONE = spread([-1, -5, -9], 120)
ALL_GONE = spread([-10, -10, -10], 120)
OFTEN_GONE = spread([-8, -12, -9, -11], 120)
CAME = spread([1, 5, 9], 120)
DESIRED, FEW, MANY = "DesiredWithinRange", "TooFewReplicas", "TooManyReplicas"


@table(
    "current, wanted, bounds, rates, events, expected",
    # TestScalingWithRules, TestConvertDesiredReplicasWithRules
    in_range=(5, 7, (3, 8), UP, (), (7, DESIRED)),
    above_maximum=(100, 1000, (100, 150), UP, (), (150, MANY)),
    one_percent_is_rounded_up=(3, 1000, (1, 2000), rules(percent=1, percent_s=60), (),
        (4, "ScaleUpLimit")),
    defaults_double=(10, 50, (1, 1000), UP, (), (20, "ScaleUpLimit")),
    percent_allows_more=(10, 500, (1, 1000), rules(2, 60, 100, 60), (), (20, "ScaleUpLimit")),
    pods_limit=(10, 50, (1, 1000), rules(30, 60), (), (40, "ScaleUpLimit")),
    percent_limits=(10, 50, (1, 1000), rules(percent=200, percent_s=60), (), (30, "ScaleUpLimit")),
    # TestScalingWithRules
    more_came_than_the_policy_allows_by_now=(100, 500, (1, 1000), rules(5, 120), CAME,
        (100, "ScaleUpLimit")),
    pods_from_the_periods_beginning=(100, 500, (1, 1000), rules(150, 120), CAME,
        (235, "ScaleUpLimit")),
    percent_of_the_periods_beginning=(100, 500, (1, 1000), rules(percent=200, percent_s=120), CAME,
        (255, "ScaleUpLimit")),
    both_ways_in_the_period=(6, 24, (1, 1000), rules(percent=300, percent_s=300),
        (*spread([4], 120), *spread([-2], 120)), (16, "ScaleUpLimit")),
    some_are_too_old=(100, 200, (1, 1000), rules(1000, 60), spread([8, 12, 9, 11], 120),
        (200, DESIRED)),
    below_minimum=(3, 1, (2, 8), DOWN, (), (2, FEW)),
    to_none=(1, 0, (0, 10), DOWN, (), (0, DESIRED)),
    down_pods_allow_more=(100, 2, (1, 1000), rules(20, 60, 1, 60), (), (80, "ScaleDownLimit")),
    down_pods_allow_more_by_one=(100, 2, (1, 1000), rules(2, 60, 1, 60), (),
        (98, "ScaleDownLimit")),
    minimum_before_percent=(10, 2, (5, 1000), rules(percent=100, percent_s=60), (), (5, FEW)),
    down_pods_limit=(10, 2, (1, 1000), rules(5, 60), (), (5, "ScaleDownLimit")),
    just_the_percent=(10, 5, (1, 1000), rules(percent=50, percent_s=60), (), (5, DESIRED)),
    defaults_allow_all=(10, 5, (1, 1000), DOWN, GONE, (5, DESIRED)),
    more_left_than_the_policy_allows_by_now=(100, 2, (1, 1000), rules(5, 120), GONE,
        (100, "ScaleDownLimit")),
    down_percent_of_the_periods_beginning=(100, 0, (1, 1000), rules(percent=50, percent_s=120),
        spread([-2, -4, -6], 120), (56, "ScaleDownLimit")),
    down_both_ways_in_the_period=(10, 1, (1, 1000), rules(percent=50, percent_s=180),
        (*spread([2], 120), *spread([-4], 120)), (6, "ScaleDownLimit")),
    the_percent_is_used_up=(100, 0, (1, 1000), rules(percent=10, percent_s=120), ALL_GONE,
        (100, "ScaleDownLimit")),
    more_than_all=(10, 5, (1, 1000), rules(percent=1000, percent_s=120), ALL_GONE, (5, DESIRED)),
    down_some_are_too_old=(100, 5, (1, 1000), rules(1000, 60), OFTEN_GONE, (5, DESIRED)),
)  # fmt: skip
def test_moves_are_those_of_hpa(
    current: int, wanted: int, bounds: tuple[int, int], rates: tuple[RatePolicy, ...],
    events: tuple[Change, ...], expected: tuple[int, str],
) -> None:  # fmt: skip
    """The rates are those of the direction; the other has HPA's defaults."""
    up, down = (rates, DOWN) if wanted > current else (UP, rates)
    behavior = Behavior(ScaleUp(policies=up), ScaleDown(0.0, policies=down))

    assert expected == moved(current, wanted, behavior, GroupPast(changes=events), *bounds)


@table(
    "current, wanted, expected",
    # TestCalculateScaleUpLimitWithScalingRules, TestCalculateScaleDownLimitWithBehaviors
    up=(1, 100, 2),
    down=(5, 0, 3),
)
def test_the_policy_that_allows_least(current: int, wanted: int, expected: int) -> None:
    least = (0.0, Select.MIN, rules(2, 60, 50, 60))
    behavior = Behavior(ScaleUp(*least), ScaleDown(*least))

    assert expected == moved(current, wanted, behavior, GroupPast(), 0, 100)[0]


def watched(past: Sequence[tuple[float, int]], wanted: int) -> GroupPast:
    """
    Recommendations by their age in minutes, and that of the last pass.

    The last one is ours: we let nobody go unless the load has been watched without a gap. It asks
    for what is wanted now, so it changes neither the highest nor the lowest.
    """
    kept = [Recommendation(NOW - minutes * MINUTE_S, number) for minutes, number in past]
    return GroupPast((*sorted(kept), Recommendation(NOW - 1, wanted)))


@table(
    "past, current, wanted, up_s, down_s, expected",
    # TestNormalizeDesiredReplicas: no `behavior`, a window of 5 minutes
    empty_log=([], 9, 5, 0, 300, 5),
    stabilize=([(2, 4), (1, 5)], 9, 3, 0, 300, 5),
    old_ones_do_not_count=([(10, 10), (9, 9)], 9, 3, 0, 300, 3),
    # TestNormalizeDesiredReplicasWithBehavior
    fall_held=([(2, 4), (1, 5)], 100, 3, 0, 180, 5),
    rise_held=([(2, 4), (1, 5)], 1, 7, 300, 0, 4),
    a_window_of_the_other_way_down=([(2, 1), (1, 2)], 100, 3, 300, 0, 3),
    a_window_of_the_other_way_up=([(2, 4), (1, 5)], 1, 3, 0, 300, 3),
    rise_held_by_new=([(100, 10), (1, 6), (2, 5), (3, 9)], 1, 100, 300, 0, 5),
    no_rise_when_the_load_falls=([(100, 2), (3, 3)], 2, 1, 300, 300, 2),
    no_fall_when_the_load_rises=([(100, 2), (3, 1)], 2, 3, 300, 300, 2),
)
def test_windows(
    past: Sequence[tuple[float, int]], current: int, wanted: int, up_s: float, down_s: float,
    expected: int,
) -> None:  # fmt: skip
    behavior = Behavior(ScaleUp(up_s), ScaleDown(down_s))

    assert expected == moved(current, wanted, behavior, watched(past, wanted), 0, 1000)[0]


TWO = rules(10, 60, 100, 60)


@table(
    "sign",
    up=1,
    down=-1,
)
@table(
    "policies, before, counted, kept",
    # TestStoreScaleEvents: changes by age, how many count in 60 s, what stays with a new 5
    nobody_looks_any_more=((), [(0.5, 7)], 7, []),
    first=(TWO, [], 0, [5]),
    just_outdated=(TWO, [(60, 7)], 0, [5]),
    not_outdated=(TWO, [(58, 7)], 7, [7, 5]),
    one_of_two=(rules(10, 60), [(61, 7), (59, 6)], 6, [6, 5]),
    the_longest_period_counts=(rules(10, 60, 100, 30), [(61, 7), (61, 9), (59, 6), (29, 8)], 14,
        [6, 8, 5]),
    both=(rules(10, 120, 100, 30), [(59, 6), (58, 7)], 13, [6, 7, 5]),
)  # fmt: skip
def test_changes_are_kept_as_long_as_a_policy_looks_back(
    policies: tuple[RatePolicy, ...], before: Sequence[tuple[float, int]], counted: int,
    kept: Sequence[int], sign: int,
) -> None:  # fmt: skip
    past = GroupPast(changes=tuple(Change(NOW - age_s, sign * n) for age_s, n in before))
    up, down = ScaleUp(policies=policies), ScaleDown(0.0, policies=policies)
    behavior = Behavior(scale_up=up) if sign > 0 else Behavior(scale_down=down)
    minute = (0.0, Select.MAX, rules(50, 60))
    far = 1000 + sign * 500

    allowed, _ = moved(1000, far, Behavior(ScaleUp(*minute), ScaleDown(*minute)), past, 0, 9999)
    after = remembered(
        past, wanted=far, before=10, after=10 + sign * 5, behavior=behavior,
        idle_timeout_s=0.0, now=NOW,
    )  # fmt: skip

    assert 1000 + sign * (50 - counted) == allowed
    assert [sign * number for number in kept] == [c.workers for c in after.changes]
