"""How far a number may move: promises for every load, rules that HPA does not have, words."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.past import Change, GroupPast, Recommendation
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Behavior, RatePolicy, RateType, ScaleDown, ScaleUp, Select
from dask_adaptive.planner.behavior import damped, remembered
from support.tables import table
from support.worlds import facts

NOW = 10_000.0
IDLE_S = 60.0
WATCHED = GroupPast((Recommendation(NOW - 1, 0),))

numbers = st.integers(0, 40)
seconds = st.sampled_from([0.0, 5.0, 30.0, 90.0])
policies = st.builds(
    RatePolicy, st.sampled_from(RateType), st.integers(1, 150), st.sampled_from([5.0, 20.0, 60.0])
)
rules: dict[str, Any] = {
    "stabilization_window_s": seconds,
    "select_policy": st.sampled_from(Select),
    "policies": st.lists(policies, max_size=2).map(tuple),
    "tolerance": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
}
behaviors = st.builds(
    Behavior,
    st.builds(ScaleUp, **rules),
    st.builds(ScaleDown, **rules, delay_after_scale_up_s=seconds),
)


@st.composite
def pasts(draw: st.DrawFn) -> GroupPast:
    ages = sorted(draw(st.lists(st.floats(0.5, 100), max_size=6)), reverse=True)
    changes = draw(st.lists(st.tuples(st.floats(0.5, 70), st.integers(-9, 9)), max_size=5))
    return GroupPast(
        recommendations=tuple(Recommendation(NOW - age, draw(numbers)) for age in ages),
        changes=tuple(Change(NOW - age, n) for age, n in sorted(changes, reverse=True)),
        desired=draw(st.none() | numbers),
        requested=draw(st.none() | numbers),
        up_at=draw(st.none() | st.floats(NOW - 100, NOW)),
    )


sinces = st.none() | st.floats(NOW - 200, NOW)


def moved(
    wanted: int, current: int, behavior: Behavior, past: GroupPast, since: float | None = 0.0
) -> int:
    return damped(wanted, current, behavior, past, idle_timeout_s=IDLE_S, since=since, now=NOW)[0]


@given(numbers, numbers, behaviors, pasts(), sinces)
def test_the_number_lies_between_what_is_there_and_what_is_wanted(
    wanted: int, current: int, behavior: Behavior, past: GroupPast, since: float | None
) -> None:
    number, steps = damped(
        wanted, current, behavior, past, idle_timeout_s=IDLE_S, since=since, now=NOW
    )

    assert min(wanted, current) <= number <= max(wanted, current)
    assert [s.replicas for s in steps][-1:] == ([number] if number != wanted else [])


@given(numbers, numbers, behaviors, pasts())
def test_no_move_beyond_what_was_wanted_within_the_windows(
    wanted: int, current: int, behavior: Behavior, past: GroupPast
) -> None:
    def wanted_within(rules: Any) -> list[int]:
        window_s = rules.stabilization_window_s or 0.0
        return [r.replicas for r in past.recommendations if NOW - r.at < window_s]

    number = moved(wanted, current, behavior, past)

    assert number >= min(current, max(wanted_within(behavior.scale_down), default=0))
    assert number <= max(current, min(wanted_within(behavior.scale_up), default=wanted))


@given(numbers, numbers, behaviors, pasts(), st.floats(0.5, 200))
def test_less_memory_only_ever_delays_a_fall(
    wanted: int, current: int, behavior: Behavior, past: GroupPast, watched_s: float
) -> None:
    """A new operator has watched for less long, and knows of nothing before that."""
    since = NOW - watched_s
    # That is measured from what was desired last, which a new one does not know.
    behavior = replace(behavior, scale_down=replace(behavior.scale_down, tolerance=0.0))
    new = GroupPast(
        recommendations=tuple(r for r in past.recommendations if r.at >= since),
        changes=tuple(c for c in past.changes if c.at >= since),
        up_at=past.up_at if past.up_at is not None and past.up_at >= since else None,
    )
    falls = min(current, moved(wanted, current, behavior, past))
    assert falls <= min(current, moved(wanted, current, behavior, new, since))


def driven(
    loads: list[int], behavior: Behavior, dt_s: float = 5.0
) -> tuple[list[int], list[GroupPast]]:
    """The numbers that a group goes through if all that is asked for is there at once."""
    past, counts, kept = GroupPast(), [0], []
    for i, wanted in enumerate(loads):
        at = i * dt_s
        number, _ = damped(
            wanted, counts[-1], behavior, past, idle_timeout_s=IDLE_S, since=-1e6, now=at
        )
        past = remembered(
            past, wanted=wanted, before=counts[-1], after=number, behavior=behavior,
            idle_timeout_s=IDLE_S, now=at,
        )  # fmt: skip
        past = replace(past, desired=number)
        kept.append(past)
        counts.append(number)
    return counts[1:], kept


@given(st.lists(numbers, min_size=5, max_size=60), policies, policies, st.sampled_from(Select))
def test_no_period_sees_more_change_than_its_policy_allows(
    loads: list[int], up: RatePolicy, down: RatePolicy, select: Select
) -> None:
    """Of all that changes within a period, both ways together, as HPA counts it."""
    behavior = Behavior(ScaleUp(0.0, select, (up,)), ScaleDown(0.0, select, (down,)))

    counts, _ = driven(loads, behavior)

    # The change of this pass and those less than a period old: from the number just before them.
    for i, number in enumerate(counts):
        for policy, sign in ((up, 1), (down, -1)):
            first = i - int(policy.period_s // 5.0)
            start = counts[first] if first >= 0 else 0
            if policy.type is RateType.PODS:
                most = policy.value
            else:
                most = max(1, -(-start * policy.value // 100))
            moves = [b - a for a, b in pairwise([0, *counts])]
            if moves[i] * sign > 0:  # what died or was limited the other way is no move of ours
                assert (number - start) * sign <= most


@given(st.lists(numbers, min_size=1, max_size=80), behaviors)
def test_memory_is_bounded_and_pruned_memory_decides_the_same(
    loads: list[int], behavior: Behavior
) -> None:
    everything: list[Recommendation] = []
    _, kept = driven(loads, behavior)

    for i, past in enumerate(kept):
        at = i * 5.0
        everything.append(Recommendation(at, loads[i]))
        for direction, best in ((behavior.scale_down, max), (behavior.scale_up, min)):
            window_s = direction.stabilization_window_s or 0.0
            of_all = [r.replicas for r in everything if at - r.at < window_s]
            of_kept = [r.replicas for r in past.recommendations if at - r.at < window_s]
            assert best(of_all, default=None) == best(of_kept, default=None)
        assert len(past.recommendations) <= 2 * len(set(loads)) + 1
        assert all(a.at <= b.at for a, b in pairwise(past.changes))


def test_however_many_changes_there_are_few_are_kept_and_none_counts_for_less_long() -> None:
    hour = Behavior(ScaleUp(0.0, policies=(RatePolicy(RateType.PODS, 5, 3600.0),)))
    past = GroupPast()

    for i in range(600):
        past = remembered(
            past, wanted=0, before=i, after=i + 1, behavior=hour, idle_timeout_s=60.0, now=float(i)
        )

    assert 200 == len(past.changes)
    assert 600 == sum(c.workers for c in past.changes)
    ages = list(accumulate(c.workers for c in past.changes))
    assert all(c.at >= reached - 1 for c, reached in zip(past.changes, ages, strict=True))


def down(window_s: float | None = 0.0, **rules: Any) -> Behavior:
    return Behavior(scale_down=ScaleDown(window_s, **rules))


DELAYED = Behavior(scale_down=ScaleDown(0.0, delay_after_scale_up_s=120.0))
ONE_A_MINUTE = (RatePolicy(RateType.PODS, 1, 60.0),)
SLOW = Behavior(ScaleUp(policies=ONE_A_MINUTE))
DIED = GroupPast(desired=8, requested=8)
NEWEST = Recommendation(NOW - 1, 2)


@table(
    "wanted, behavior, past, since, expected, reason",
    watched=(2, down(None), WATCHED, 0.0, 2, None),
    watched_just_long_enough=(2, down(None), WATCHED, NOW - IDLE_S, 2, None),
    the_window_is_the_idle_timeout=(2, down(None), WATCHED, NOW - IDLE_S + 1, 5,
        Reason.SCALE_DOWN_STABILIZED),
    unless_it_has_its_own=(2, down(30.0), WATCHED, NOW - 31, 2, None),
    never_watched=(2, down(None), WATCHED, None, 5, Reason.SCALE_DOWN_STABILIZED),
    nothing_recommended=(2, down(None), GroupPast(), 0.0, 5, Reason.SCALE_DOWN_STABILIZED),
    blind=(2, down(None), GroupPast((Recommendation(NOW - 20.0, 2),)), 0.0, 5,
        Reason.SCALE_DOWN_STABILIZED),
    not_quite_blind=(2, down(None), GroupPast((Recommendation(NOW - 19.9, 2),)), 0.0, 2, None),
    a_dip=(2, down(None), GroupPast((Recommendation(NOW - 59, 4), NEWEST)), 0.0, 4,
        Reason.SCALE_DOWN_STABILIZED),
    a_dip_that_outlives_the_window=(2, down(None), GroupPast((Recommendation(NOW - 60, 4), NEWEST)),
        0.0, 2, None),
    no_window_no_watching=(2, down(0.0), GroupPast(), None, 2, None),
    a_short_window_is_one=(2, down(0.5), GroupPast(), None, 5, Reason.SCALE_DOWN_STABILIZED),
    a_rise_with_a_window_is_watched_too=(9, Behavior(ScaleUp(30.0)), WATCHED, None, 5,
        Reason.SCALE_UP_STABILIZED),
    a_rise_that_lasted=(9, Behavior(ScaleUp(30.0)), GroupPast((Recommendation(NOW - 1, 9),)), 0.0,
        9, None),
    more_were_asked_for_lately=(2, DELAYED, GroupPast(up_at=NOW - 119), 0.0, 5,
        Reason.SCALE_DOWN_LIMITED),
    delay_over=(2, DELAYED, GroupPast(up_at=NOW - 120), 0.0, 2, None),
    they_may_have_been=(2, DELAYED, GroupPast(), NOW - 119, 5, Reason.SCALE_DOWN_LIMITED),
    they_were_not=(2, DELAYED, GroupPast(), NOW - 120, 2, None),
    a_rise_is_not_delayed=(9, DELAYED, GroupPast(up_at=NOW), 0.0, 9, None),
    what_left_before_is_not_known=(2, down(policies=ONE_A_MINUTE), GroupPast(), NOW - 59, 5,
        Reason.SCALE_DOWN_LIMITED),
    one_may_leave=(2, down(policies=ONE_A_MINUTE), GroupPast(), NOW - 60, 4,
        Reason.SCALE_DOWN_LIMITED),
    beyond_tolerance=(3, down(tolerance=0.2), GroupPast(), 0.0, 3, None),
    beyond_tolerance_up=(7, Behavior(ScaleUp(tolerance=0.2)), GroupPast(), 0.0, 7, None),
    those_that_leave_one_by_one_all_leave=(4, down(tolerance=0.2), GroupPast(desired=4), 0.0, 4,
        None),
    the_dead_are_replaced_and_one_more_comes=(9, SLOW, DIED, 0.0, 9, None),
    the_dead_are_replaced_though_disabled=(8, Behavior(ScaleUp(select_policy=Select.DISABLED)),
        DIED, 0.0, 8, None),
    the_dead_are_replaced_though_within_tolerance=(8, Behavior(ScaleUp(tolerance=1.0)), DIED, 0.0,
        8, None),
    what_was_never_got_is_not_owed=(9, SLOW, GroupPast(desired=8, requested=5), 0.0, 6,
        Reason.SCALE_UP_LIMITED),
    and_what_is_near_to_that_is_tolerated=(10, Behavior(ScaleUp(tolerance=0.5)), DIED, 0.0, 8,
        Reason.WITHIN_TOLERANCE),
    fewer_than_came_are_there=(9, SLOW, GroupPast(changes=(Change(NOW - 1, 9),)), 0.0, 5,
        Reason.SCALE_UP_LIMITED),
)  # fmt: skip
def test_five_workers(
    wanted: int, behavior: Behavior, past: GroupPast, since: float | None, expected: int,
    reason: Reason | None,
) -> None:  # fmt: skip
    number, steps = damped(wanted, 5, behavior, past, idle_timeout_s=IDLE_S, since=since, now=NOW)

    assert expected == number
    assert ([] if reason is None else [reason]) == [s.reason for s in steps]


# What limits a move, to the figure

TWO_A_MINUTE = RatePolicy(RateType.PODS, 2, 60.0)
HALF_A_MINUTE = RatePolicy(RateType.PERCENT, 50, 60.0)
NEAR: dict[str, Any] = {"tolerance": 0.5}
NONE_TOO_FAR: dict[str, Any] = {"tolerance": 1.0}
RATES: dict[str, Any] = {"policies": (TWO_A_MINUTE, HALF_A_MINUTE)}
LEAST = {**RATES, "select_policy": Select.MIN}
NEVER: dict[str, Any] = {"select_policy": Select.DISABLED}
BOTH_UP, BOTH_DOWN = (f"behavior.scale{way} 2 1m 50% 1m" for way in ("Up", "Down"))


@table(
    "wanted, current, behavior, past, expected",
    nothing_to_do=(3, 3, Behavior(), {}, None),
    no_step_is_not_small=(4, 4, Behavior(ScaleUp(**NEAR), ScaleDown(0.0, **NEAR)), {}, None),
    none_are_needed_still=(9, 0, Behavior(ScaleUp(**RATES)), {"requested": 5},
        ("rate", 2, Reason.SCALE_UP_LIMITED, f"9 2 {BOTH_UP}")),
    none_have_been=(9, 0, Behavior(ScaleUp(**RATES)), {"desired": 5},
        ("rate", 2, Reason.SCALE_UP_LIMITED, f"9 2 {BOTH_UP}")),
    a_small_rise=(6, 4, Behavior(ScaleUp(**NEAR)), {},
        ("tolerance", 4, Reason.WITHIN_TOLERANCE, "6 50% 4")),
    a_small_fall=(2, 4, Behavior(scale_down=ScaleDown(0.0, **NEAR)), {},
        ("tolerance", 4, Reason.WITHIN_TOLERANCE, "2 50% 4")),
    a_small_fall_to_one=(1, 2, Behavior(scale_down=ScaleDown(0.0, **NEAR)), {},
        ("tolerance", 2, Reason.WITHIN_TOLERANCE, "1 50% 2")),
    to_none_is_never_small=(0, 2, Behavior(scale_down=ScaleDown(0.0, **NONE_TOO_FAR)), {}, None),
    nor_is_it_to_the_most=(9, 8, Behavior(ScaleUp(**NONE_TOO_FAR)), {}, None),
    a_fast_rise=(9, 4, Behavior(ScaleUp(**RATES)), {},
        ("rate", 6, Reason.SCALE_UP_LIMITED, f"9 6 {BOTH_UP}")),
    a_rise_as_fast_as_may_be=(6, 4, Behavior(ScaleUp(**RATES)), {}, None),
    no_rise=(9, 4, Behavior(ScaleUp(**NEVER)), {},
        ("rate", 4, Reason.SCALE_UP_LIMITED, "9 4 behavior.scaleUp.selectPolicy")),
    a_fast_fall=(1, 8, Behavior(scale_down=ScaleDown(0.0, **RATES)), {},
        ("rate", 4, Reason.SCALE_DOWN_LIMITED, f"1 4 {BOTH_DOWN}")),
    as_the_least_allows=(1, 8, Behavior(scale_down=ScaleDown(0.0, **LEAST)), {},
        ("rate", 6, Reason.SCALE_DOWN_LIMITED, f"1 6 {BOTH_DOWN}")),
    just_risen=(1, 2, DELAYED, {"up_at": NOW - 0.9},
        ("delay", 2, Reason.SCALE_DOWN_LIMITED, "1 2 2m")),
    not_watched=(1, 2, Behavior(scale_down=ScaleDown(60.0)), {},
        ("window", 2, Reason.SCALE_DOWN_STABILIZED, "1 2 1m")),
    nor_its_rise=(2, 1, Behavior(ScaleUp(30.0)), {},
        ("window", 1, Reason.SCALE_UP_STABILIZED, "2 1 30s")),
)  # fmt: skip
def test_what_limits_a_move(
    wanted: int, current: int, behavior: Behavior, past: dict[str, Any],
    expected: tuple[str, int, Reason, str] | None,
) -> None:  # fmt: skip
    before = GroupPast(**past)
    number, steps = damped(
        wanted, current, behavior, before, idle_timeout_s=0.0, since=0.0, now=NOW,
        highest=9,
    )  # fmt: skip

    told = [(s.stage, s.replicas, s.reason, facts(s.message)) for s in steps]
    assert ([] if expected is None else [expected]) == told
    assert number == (wanted if expected is None else expected[1])


# What is kept of it


def kept(past: GroupPast, before: int, after: int, **changes: Any) -> GroupPast:
    usual: dict[str, Any] = {
        "wanted": after,
        "behavior": Behavior(ScaleUp(**RATES)),
        "idle_timeout_s": 0.0,
    }
    return remembered(past, before=before, after=after, now=NOW, **{**usual, **changes})


@table(
    "earlier, up_s, down_s, is_kept",
    higher_within_the_window_of_a_fall=((10.0, 6), 0.0, 60.0, True),
    higher_at_its_beginning=((59.9, 6), 0.0, 60.0, True),
    higher_before_it=((60.0, 6), 0.0, 60.0, False),
    no_higher=((10.0, 5), 0.0, 60.0, False),
    lower_within_the_window_of_a_rise=((10.0, 4), 60.0, 0.0, True),
    lower_at_its_beginning=((59.9, 4), 60.0, 0.0, True),
    lower_before_it=((60.0, 4), 60.0, 0.0, False),
    no_lower=((10.0, 5), 60.0, 0.0, False),
)
def test_recommendations_are_remembered_as_long_as_they_count(
    earlier: tuple[float, int], up_s: float, down_s: float, is_kept: bool
) -> None:
    ago_s, replicas = earlier
    before = Recommendation(NOW - ago_s, replicas)
    behavior = Behavior(
        ScaleUp(stabilization_window_s=up_s), scale_down=ScaleDown(stabilization_window_s=down_s)
    )
    later = kept(GroupPast(recommendations=(before,)), 5, 5, behavior=behavior)

    newest = Recommendation(NOW, 5)
    assert ((before, newest) if is_kept else (newest,)) == later.recommendations
