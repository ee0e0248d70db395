"""What `behavior` promises for every load and every past, and the rules that HPA does not have."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.past import Change, GroupPast, Recommendation
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Behavior, Direction, RatePolicy, RateType, Select
from dask_adaptive.planner.behavior import damped, remembered

NOW = 10_000.0
IDLE_S = 60.0
WATCHED = GroupPast((Recommendation(NOW - 1, 0),))

numbers = st.integers(0, 40)
seconds = st.sampled_from([0.0, 5.0, 30.0, 90.0])
policies = st.builds(
    RatePolicy, st.sampled_from(RateType), st.integers(1, 150), st.sampled_from([5.0, 20.0, 60.0])
)
directions = st.builds(
    Direction,
    window_s=seconds,
    select=st.sampled_from(Select),
    policies=st.lists(policies, max_size=2).map(tuple),
    tolerance=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
behaviors = st.builds(Behavior, up=directions, down=directions, delay_after_up_s=seconds)


@st.composite
def pasts(draw: st.DrawFn) -> GroupPast:
    ages = sorted(draw(st.lists(st.floats(0.5, 100), max_size=6)), reverse=True)
    changes = draw(st.lists(st.tuples(st.floats(0.5, 70), st.integers(-9, 9)), max_size=5))
    return GroupPast(
        recommendations=tuple(Recommendation(NOW - age, draw(numbers)) for age in ages),
        changes=tuple(Change(NOW - age, n) for age, n in sorted(changes, reverse=True)),
        desired=draw(st.none() | numbers),
        asked=draw(st.none() | numbers),
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


@given(numbers, numbers, numbers, behaviors, pasts(), sinces)
def test_more_wanted_never_gives_fewer(
    one: int, other: int, current: int, behavior: Behavior, past: GroupPast, since: float | None
) -> None:
    low, high = sorted((one, other))

    assert moved(low, current, behavior, past, since) <= moved(high, current, behavior, past, since)


@given(numbers, numbers, behaviors, pasts())
def test_no_fall_below_what_was_wanted_within_the_window(
    wanted: int, current: int, behavior: Behavior, past: GroupPast
) -> None:
    window_s = behavior.down.window_s or 0.0
    recent = [r.replicas for r in past.recommendations if NOW - r.at < window_s]

    assert moved(wanted, current, behavior, past) >= min(current, max(recent, default=0))


@given(numbers, numbers, behaviors, pasts())
def test_no_rise_above_what_was_wanted_within_the_window(
    wanted: int, current: int, behavior: Behavior, past: GroupPast
) -> None:
    window_s = behavior.up.window_s or 0.0
    recent = [r.replicas for r in past.recommendations if NOW - r.at < window_s]

    assert moved(wanted, current, behavior, past) <= max(current, min(recent, default=wanted))


@given(numbers, numbers, behaviors, pasts(), st.floats(0.5, 200))
def test_less_memory_only_ever_delays_a_fall(
    wanted: int, current: int, behavior: Behavior, past: GroupPast, watched_s: float
) -> None:
    """A new operator has watched for less long, and knows of nothing before that."""
    since = NOW - watched_s
    new = GroupPast(
        recommendations=tuple(r for r in past.recommendations if r.at >= since),
        changes=tuple(c for c in past.changes if c.at >= since),
        up_at=past.up_at if past.up_at is not None and past.up_at >= since else None,
    )
    falls = min(current, moved(wanted, current, behavior, past))
    assert falls <= min(current, moved(wanted, current, behavior, new, since))


@given(numbers, numbers, behaviors, pasts())
def test_an_empty_past_takes_nobody_away(
    wanted: int, current: int, behavior: Behavior, past: GroupPast
) -> None:
    """But for a policy that says so: no window, no policy, no delay."""
    asks_for_time = (
        (behavior.down.window_s or 0) > 0 or behavior.delay_after_up_s > 0 or behavior.down.policies
    )

    if asks_for_time:
        assert moved(wanted, current, behavior, GroupPast(), None) >= current


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
    behavior = Behavior(Direction(0.0, select, (up,)), Direction(0.0, select, (down,)))

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
        for direction, best in ((behavior.down, max), (behavior.up, min)):
            window_s = direction.window_s or 0.0
            of_all = [r.replicas for r in everything if at - r.at < window_s]
            of_kept = [r.replicas for r in past.recommendations if at - r.at < window_s]
            assert best(of_all, default=None) == best(of_kept, default=None)
        assert len(past.recommendations) <= 2 * len(set(loads)) + 1
        assert all(a.at <= b.at for a, b in pairwise(past.changes))


def test_however_many_changes_there_are_few_are_kept_and_none_counts_for_less_long() -> None:
    hour = Behavior(Direction(0.0, policies=(RatePolicy(RateType.PODS, 5, 3600.0),)))
    past = GroupPast()

    for i in range(600):
        past = remembered(
            past, wanted=0, before=i, after=i + 1, behavior=hour, idle_timeout_s=60.0, now=float(i)
        )

    assert 200 == len(past.changes)
    assert 600 == sum(c.workers for c in past.changes)
    ages = list(accumulate(c.workers for c in past.changes))
    assert all(c.at >= reached - 1 for c, reached in zip(past.changes, ages, strict=True))


@given(numbers, st.lists(numbers, min_size=5, max_size=30))
def test_on_a_constant_load_the_direction_changes_at_most_once(
    settled: int, before: list[int]
) -> None:
    behavior = Behavior(
        Direction(0.0, policies=(RatePolicy(RateType.PERCENT, 100, 15.0),)),
        Direction(60.0, policies=(RatePolicy(RateType.PERCENT, 25, 30.0),)),
    )

    counts, _ = driven([*before, *([settled] * 120)], behavior)

    tail = counts[len(before) - 1 :]
    signs = [b > a for a, b in pairwise(tail) if a != b]
    assert sum(a != b for a, b in pairwise(signs)) <= 1
    assert settled == counts[-1]


def down(window_s: float | None = 0.0, **rules: Any) -> Behavior:
    return Behavior(down=Direction(window_s, **rules))


DELAYED = Behavior(down=Direction(0.0), delay_after_up_s=120.0)
ONE_A_MINUTE = (RatePolicy(RateType.PODS, 1, 60.0),)
SLOW = Behavior(Direction(policies=ONE_A_MINUTE))
DIED = GroupPast(desired=8, asked=8)


@pytest.mark.parametrize(
    ("wanted", "behavior", "past", "since", "expected", "reason"),
    [
        pytest.param(2, down(None), WATCHED, 0.0, 2, None, id="watched"),
        pytest.param(2, down(None), WATCHED, NOW - IDLE_S, 2, None, id="watched-just-long-enough"),
        pytest.param(2, down(None), WATCHED, NOW - IDLE_S + 1, 5, Reason.SCALE_DOWN_STABILIZED,
                     id="the-window-is-the-idle-timeout"),
        pytest.param(2, down(30.0), WATCHED, NOW - 31, 2, None, id="unless-it-has-its-own"),
        pytest.param(2, down(None), WATCHED, None, 5, Reason.SCALE_DOWN_STABILIZED,
                     id="never-watched"),
        pytest.param(2, down(None), GroupPast(), 0.0, 5, Reason.SCALE_DOWN_STABILIZED,
                     id="nothing-recommended"),
        pytest.param(2, down(None), GroupPast((Recommendation(NOW - 20.0, 2),)), 0.0, 5,
                     Reason.SCALE_DOWN_STABILIZED, id="blind"),
        pytest.param(2, down(None), GroupPast((Recommendation(NOW - 19.9, 2),)), 0.0, 2,
                     None, id="not-quite-blind"),
        pytest.param(
            2, down(None), GroupPast((Recommendation(NOW - 59, 4), Recommendation(NOW - 1, 2))),
            0.0, 4, Reason.SCALE_DOWN_STABILIZED, id="a-dip",
        ),
        pytest.param(
            2, down(None), GroupPast((Recommendation(NOW - 60, 4), Recommendation(NOW - 1, 2))),
            0.0, 2, None, id="a-dip-that-outlives-the-window",
        ),
        pytest.param(2, down(0.0), GroupPast(), None, 2, None, id="no-window-no-watching"),
        pytest.param(2, down(0.5), GroupPast(), None, 5, Reason.SCALE_DOWN_STABILIZED,
                     id="a-short-window-is-one"),
        pytest.param(9, Behavior(), GroupPast(), None, 9, None, id="a-rise-passes-at-once"),
        pytest.param(9, Behavior(Direction(30.0)), WATCHED, None, 5, Reason.SCALE_UP_STABILIZED,
                     id="a-rise-with-a-window-is-watched-too"),
        pytest.param(9, Behavior(Direction(30.0)), GroupPast((Recommendation(NOW - 1, 9),)), 0.0,
                     9, None, id="a-rise-that-lasted"),
        pytest.param(2, DELAYED, GroupPast(up_at=NOW - 119), 0.0, 5, Reason.DELAY_AFTER_SCALE_UP,
                     id="more-were-asked-for-lately"),
        pytest.param(2, DELAYED, GroupPast(up_at=NOW - 120), 0.0, 2, None, id="delay-over"),
        pytest.param(2, DELAYED, GroupPast(), NOW - 119, 5, Reason.DELAY_AFTER_SCALE_UP,
                     id="they-may-have-been"),
        pytest.param(2, DELAYED, GroupPast(), NOW - 120, 2, None, id="they-were-not"),
        pytest.param(9, DELAYED, GroupPast(up_at=NOW), 0.0, 9, None, id="a-rise-is-not-delayed"),
        pytest.param(2, down(policies=ONE_A_MINUTE), GroupPast(), NOW - 59, 5,
                     Reason.SCALE_DOWN_LIMITED, id="what-left-before-is-not-known"),
        pytest.param(2, down(policies=ONE_A_MINUTE), GroupPast(), NOW - 60, 4,
                     Reason.SCALE_DOWN_LIMITED, id="one-may-leave"),
        pytest.param(4, down(tolerance=0.2), GroupPast(), 0.0, 5, Reason.WITHIN_TOLERANCE,
                     id="within-tolerance"),
        pytest.param(3, down(tolerance=0.2), GroupPast(), 0.0, 3, None, id="beyond-tolerance"),
        pytest.param(0, down(tolerance=1.0), GroupPast(), 0.0, 0, None, id="none-is-no-small-step"),
        pytest.param(6, Behavior(Direction(tolerance=0.2)), GroupPast(), 0.0, 5,
                     Reason.WITHIN_TOLERANCE, id="within-tolerance-up"),
        pytest.param(7, Behavior(Direction(tolerance=0.2)), GroupPast(), 0.0, 7, None,
                     id="beyond-tolerance-up"),
        pytest.param(6, down(tolerance=0.2), GroupPast(), 0.0, 6, None, id="each-way-its-own"),
        pytest.param(9, SLOW, DIED, 0.0, 9,
                     None, id="the-dead-are-replaced-and-one-more-comes"),
        pytest.param(12, SLOW, DIED, 0.0, 9,
                     Reason.SCALE_UP_LIMITED, id="and-no-second"),
        pytest.param(8, Behavior(Direction(select=Select.DISABLED)), DIED, 0.0, 8,
                     None, id="the-dead-are-replaced-though-disabled"),
        pytest.param(8, Behavior(Direction(tolerance=1.0)), DIED, 0.0, 8,
                     None, id="the-dead-are-replaced-though-within-tolerance"),
        pytest.param(9, SLOW, GroupPast(desired=8, asked=5), 0.0,
                     6, Reason.SCALE_UP_LIMITED, id="what-was-never-got-is-not-owed"),
        pytest.param(9, SLOW, GroupPast(desired=5, asked=8), 0.0,
                     6, Reason.SCALE_UP_LIMITED, id="nor-what-was-not-needed-any-more"),
        pytest.param(10, Behavior(Direction(tolerance=0.5)), DIED, 0.0, 8,
                     Reason.WITHIN_TOLERANCE, id="and-what-is-near-to-that-is-tolerated"),
        pytest.param(9, SLOW,
                     GroupPast(changes=(Change(NOW - 1, 9),)), 0.0, 5, Reason.SCALE_UP_LIMITED,
                     id="fewer-than-came-are-there"),
    ],
)  # fmt: skip
def test_five_workers(
    wanted: int, behavior: Behavior, past: GroupPast, since: float | None, expected: int,
    reason: Reason | None,
) -> None:  # fmt: skip
    number, steps = damped(wanted, 5, behavior, past, idle_timeout_s=IDLE_S, since=since, now=NOW)

    assert expected == number
    assert ([] if reason is None else [reason]) == [s.reason for s in steps]


def test_a_step_says_which_rule_and_in_which_words() -> None:
    two = Direction(0.0, Select.MIN, (*ONE_A_MINUTE, RatePolicy(RateType.PERCENT, 50, 90.0)))

    _, rate = damped(0, 5, Behavior(two, two), GroupPast(), idle_timeout_s=0, since=0.0, now=NOW)
    _, window = damped(0, 5, Behavior(), GroupPast(), idle_timeout_s=90, since=0.0, now=NOW)

    assert (
        "0 needed, 4 allowed now (behavior.scaleDown: 1 in 1m and 50% in 1m30s)" == rate[0].message
    )
    assert "0 wanted, 5 held until the fall has lasted 1m30s" == window[0].message

    slow = Behavior(Direction(30.0))
    _, window = damped(9, 5, slow, GroupPast(), idle_timeout_s=90, since=0.0, now=NOW)

    assert "9 wanted, 5 held until the rise has lasted 30s" == window[0].message


def test_only_what_was_asked_for_is_remembered() -> None:
    past = GroupPast(up_at=NOW - 500, arrival_s=7.0, asked=7)

    same = remembered(
        past, wanted=3, before=5, after=5, behavior=SLOW, idle_timeout_s=60.0, now=NOW
    )
    fewer = remembered(
        past, wanted=3, before=5, after=3, behavior=SLOW, idle_timeout_s=60.0, now=NOW
    )
    more = remembered(
        past, wanted=9, before=5, after=9, behavior=SLOW, idle_timeout_s=60.0, now=NOW
    )

    assert replace(past, recommendations=(Recommendation(NOW, 3),)) == same
    assert ((Change(NOW, -2),), NOW - 500, 3) == (fewer.changes, fewer.up_at, fewer.asked)
    assert ((Change(NOW, 4),), NOW, 9, 7.0) == (
        more.changes,
        more.up_at,
        more.asked,
        more.arrival_s,
    )


@pytest.mark.parametrize(
    ("after", "changes", "up_at"),
    [
        pytest.param(7, (), None, id="some-of-the-dead-are-replaced"),
        pytest.param(9, (), None, id="all-of-them"),
        pytest.param(12, (Change(NOW, 3),), NOW, id="and-more-come"),
    ],
)
def test_replacing_the_dead_is_no_change(
    after: int, changes: tuple[Change, ...], up_at: float | None
) -> None:
    """Or each would let one more of the living leave within the period."""
    past = GroupPast(desired=9, asked=9)

    then = remembered(
        past, wanted=12, before=5, after=after, behavior=SLOW,
        idle_timeout_s=60.0, now=NOW,
    )  # fmt: skip

    assert (changes, up_at, max(after, 9)) == (then.changes, then.up_at, then.asked)
