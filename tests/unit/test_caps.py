"""What is not asked for in vain, and how the cluster's limit is shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.observed import Leaving, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import NO_PAST, Blocked, GroupPast
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Behavior, Caps, GroupBounds, Room, Scaling
from dask_adaptive.planner.caps import LONGEST_WAIT_S, capped, shared
from dask_adaptive.planner.fleet import sort_fleet
from support.worlds import GROUP, NOW, POLICY, pending, worker

NO_NODE = "0/3 nodes are available: 3 Insufficient cpu"
QUOTA = (
    'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=5, limited: pods=5'
)
REFUSED = 'admission webhook "images.example.com" denied the request: no such image'


def stuck(name: str, s: float = 400.0) -> ObservedWorker:
    return pending(name, waiting=NO_NODE, unschedulable_s=s, age_s=s)


def refused(name: str, why: str) -> ObservedWorker:
    return pending(name, refused=why)


def ask(
    desired: int, workers: Sequence[ObservedWorker], past: GroupPast = NO_PAST,
    *, room: Room | None = None, at: float = NOW, **behavior: Any,
) -> tuple[int, list[Reason], Blocked | None]:  # fmt: skip
    group = ObservedGroup(GROUP, len(workers), tuple(workers), room=room)
    policy = replace(POLICY, scaling=Scaling(behavior=Behavior(**behavior)))
    number, steps, blocked = capped(desired, sort_fleet(group), group, policy, past, now=at)
    assert all(step.stage == "cap" for step in steps)
    return number, [step.reason for step in steps], blocked


ONE, TWO = worker("one", age_s=1e6), worker("two", age_s=1e6)
STARTING = pending("starting", age_s=20.0)
LEAVING = worker("leaving", leaving=Leaving.DRAINING, in_service=False)


@pytest.mark.parametrize(
    ("desired", "workers", "settings", "expected", "reasons"),
    [
        pytest.param(9, [ONE], {}, 9, [], id="nothing-caps"),
        pytest.param(9, [ONE], {"max_pending": 3}, 4, [Reason.MAX_PENDING], id="pending"),
        pytest.param(9, [ONE, STARTING], {"max_pending": 3}, 4, [Reason.MAX_PENDING],
                     id="those-on-their-way-count"),
        pytest.param(4, [ONE, STARTING], {"max_pending": 3}, 4, [], id="just-as-many"),
        pytest.param(9, [ONE, STARTING, pending("b")], {"max_pending": 1}, 3, [Reason.MAX_PENDING],
                     id="more-than-the-cap-stay"),
        pytest.param(1, [ONE, STARTING, pending("b")], {"max_pending": 1}, 1, [],
                     id="a-fall-passes"),
        pytest.param(9, [ONE, LEAVING], {"max_pending": 0}, 2, [Reason.MAX_PENDING],
                     id="called-back-is-not-pending"),
        pytest.param(9, [ONE], {"room": Room(2, "quota")}, 3, [Reason.QUOTA_EXCEEDED], id="room"),
        pytest.param(9, [ONE], {"room": Room(-1, "quota")}, 1, [Reason.QUOTA_EXCEEDED],
                     id="less-than-no-room"),
        pytest.param(1, [ONE, TWO], {"room": Room(0, "quota")}, 1, [], id="a-fall-needs-no-room"),
        pytest.param(2, [ONE, LEAVING], {"room": Room(0, "quota")}, 2, [],
                     id="back-in-its-own-room"),
        pytest.param(9, [ONE], {"room": Room(2, "quota"), "max_pending": 5}, 3,
                     [Reason.MAX_PENDING, Reason.QUOTA_EXCEEDED], id="each-that-lowers-is-told"),
        pytest.param(9, [ONE], {"room": Room(5, "quota"), "max_pending": 2}, 3,
                     [Reason.MAX_PENDING], id="one-that-does-not-is-not"),
        pytest.param(9, [ONE, stuck("a", 300.0)], {}, 9, [], id="not-for-longer-than-the-timeout"),
        pytest.param(9, [ONE, stuck("a", 301.0)], {}, 2, [Reason.UNSCHEDULABLE], id="no-node"),
        pytest.param(2, [ONE, stuck("a")], {}, 2, [Reason.UNSCHEDULABLE],
                     id="told-as-long-as-it-is-waited-for"),
        pytest.param(1, [ONE, stuck("a")], {}, 1, [], id="not-needed-so-not-told"),
        pytest.param(9, [ONE, refused("a", QUOTA)], {}, 2, [Reason.QUOTA_EXCEEDED], id="quota"),
        pytest.param(9, [ONE, refused("a", REFUSED)], {}, 2, [Reason.ADMISSION_REFUSED],
                     id="admission"),
        pytest.param(9, [ONE, stuck("a"), refused("b", QUOTA)], {}, 3, [Reason.QUOTA_EXCEEDED],
                     id="a-refusal-says-more"),
        pytest.param(9, [worker("a", unschedulable_s=400.0)], {}, 9, [],
                     id="connected-so-not-stuck"),
        pytest.param(9, [ONE, pending("a", going=True, unschedulable_s=400.0)], {}, 9, [],
                     id="deleted-so-not-waited-for"),
        pytest.param(9, [stuck("a"), LEAVING], {}, 2, [Reason.UNSCHEDULABLE],
                     id="back-although-stuck"),
    ],
)  # fmt: skip
def test_caps(
    desired: int, workers: Sequence[ObservedWorker], settings: Mapping[str, Any], expected: int,
    reasons: list[Reason],
) -> None:  # fmt: skip
    assert (expected, reasons) == ask(desired, workers, **settings)[:2]


def test_a_refusal_speaks_in_the_words_of_who_refuses() -> None:
    group = ObservedGroup(GROUP, 3, (ONE, stuck("b", 360.0), stuck("a", 720.0)))

    _, steps, blocked = capped(9, sort_fleet(group), group, POLICY, GroupPast(), now=NOW)

    message = f"2 workers have found no node for over 5m: {NO_NODE}"
    assert [message] == [step.message for step in steps]
    assert Blocked(NOW + 60, Reason.UNSCHEDULABLE, message, 1, frozenset({"a", "b"})) == blocked


def test_after_a_wait_one_more_is_tried_and_the_wait_doubles_up_to_half_an_hour() -> None:
    past, asked, waits, at = GroupPast(), [], [], NOW
    workers = [ONE, stuck("first")]
    for i in range(9):
        number, _, blocked = ask(30, workers, past, at=at)
        assert blocked is not None
        past = replace(past, blocked=blocked)
        asked.append(number - len(workers))
        waits.append(blocked.until - at)
        workers = [*workers, *(stuck(f"try-{i}-{n}") for n in range(number - len(workers)))]
        at = blocked.until
        early, _, unchanged = ask(30, workers, past, at=at - 0.1)
        assert len(workers) == early
        assert unchanged is not None
        assert blocked.until == unchanged.until

    assert [0, *[1] * 8] == asked
    assert [60, 120, 240, 480, 960, 1800, 1800, 1800, 1800] == waits


def test_nothing_is_tried_while_nothing_more_is_needed() -> None:
    known = Blocked(NOW - 10, Reason.UNSCHEDULABLE, "no node", 3, frozenset({"a"}))

    number, reasons, blocked = ask(2, [ONE, stuck("a")], GroupPast(blocked=known))

    assert (2, [Reason.UNSCHEDULABLE]) == (number, reasons)
    assert blocked is not None
    assert (known.until, 3) == (blocked.until, blocked.times)


@pytest.mark.parametrize(
    ("desired", "workers"),
    [
        pytest.param(1, [ONE], id="all-that-are-needed-are-there"),
        pytest.param(2, [ONE, STARTING], id="or-start"),
    ],
)
def test_a_wait_that_holds_nothing_back_is_not_told(
    desired: int, workers: list[ObservedWorker]
) -> None:
    known = Blocked(NOW + 10, Reason.UNSCHEDULABLE, "no node", 1, frozenset({"gone"}))

    assert (desired, []) == ask(desired, workers, GroupPast(blocked=known))[:2]


@pytest.mark.parametrize(
    ("workers", "is_over"),
    [
        pytest.param([ONE], False, id="those-that-waited-are-gone"),
        pytest.param([ONE, pending("a")], False, id="it-still-starts"),
        pytest.param([ONE, worker("a")], True, id="it-has-come"),
        pytest.param([ONE, worker("new", age_s=29.0)], True, id="a-younger-one-has-come"),
        pytest.param([ONE, worker("old", age_s=31.0)], False, id="an-older-one-was-there"),
    ],
)
def test_a_worker_that_comes_ends_the_wait(workers: list[ObservedWorker], is_over: bool) -> None:
    began = NOW - 30.0
    known = Blocked(began + 60, Reason.UNSCHEDULABLE, "no node", 1, frozenset({"a", "gone"}))

    number, reasons, blocked = ask(9, workers, GroupPast(blocked=known))

    assert (9 if is_over else len(workers), is_over) == (number, blocked is None)
    assert ([] if is_over else [Reason.UNSCHEDULABLE]) == reasons


def test_what_nobody_has_tried_for_long_is_not_known_any_more() -> None:
    known = Blocked(NOW - LONGEST_WAIT_S, Reason.UNSCHEDULABLE, "no node", 5)

    assert ask(1, [ONE], GroupPast(blocked=known))[2] is not None
    assert ask(1, [ONE], GroupPast(blocked=known), at=NOW + 1)[2] is None


def test_the_timeout_is_the_policys() -> None:
    group = ObservedGroup(GROUP, 1, (stuck("a", 30.0),))
    policy = replace(POLICY, scaling=Scaling(caps=Caps(unschedulable_timeout_s=20.0)))

    assert 1 == capped(9, sort_fleet(group), group, policy, GroupPast(), now=NOW)[0]


kinds = st.sampled_from([worker, pending, stuck, lambda name: refused(name, QUOTA)])
leavers = st.just(lambda name: worker(name, leaving=Leaving.DRAINING, in_service=False))
fleets = st.lists(kinds | leavers, max_size=8).map(
    lambda makers: [make(f"w{i}") for i, make in enumerate(makers)]
)
blocks = st.none() | st.builds(
    Blocked, st.floats(NOW - 4000, NOW + 1800), st.just(Reason.UNSCHEDULABLE), st.just("why"),
    st.integers(1, 9), st.just(frozenset({"w0"})),
)  # fmt: skip


@given(
    st.integers(0, 20),
    fleets,
    blocks,
    st.none() | st.integers(-2, 9),
    st.none() | st.integers(0, 9),
)
def test_caps_take_nobody_away_and_ask_for_no_more(
    desired: int, workers: list[ObservedWorker], known: Blocked | None, room: int | None,
    most: int | None,
) -> None:  # fmt: skip
    serving = sort_fleet(ObservedGroup(GROUP, 0, tuple(workers))).serving

    number, reasons, _ = ask(
        desired, workers, GroupPast(blocked=known),
        room=None if room is None else Room(room, "quota"), max_pending=most,
    )  # fmt: skip

    assert min(desired, serving) <= number <= desired
    assert number == desired or reasons


BOUNDS = (GroupBounds("a", 50, priority=5), GroupBounds("b", 50), GroupBounds("c", 50))


@pytest.mark.parametrize(
    ("desired", "floor", "maximum", "expected"),
    [
        pytest.param({"a": 3, "b": 4}, {}, 7, {"a": 3, "b": 4}, id="enough"),
        pytest.param({"a": 3, "b": 4}, {}, 5, {"a": 3, "b": 2}, id="the-highest-first"),
        pytest.param({"b": 4, "a": 9}, {}, 5, {"b": 0, "a": 5}, id="whatever-the-order"),
        pytest.param({"a": 9, "b": 4}, {"b": 2}, 5, {"a": 3, "b": 2}, id="not-below-a-floor"),
        pytest.param({"a": 9, "b": 4}, {"a": 6, "b": 4}, 5, {"a": 6, "b": 4},
                     id="floors-come-first"),
        pytest.param({"a": 1, "b": 9}, {"a": 6}, 5, {"a": 1, "b": 4}, id="no-more-than-desired"),
        pytest.param({"b": 9, "c": 9}, {}, 10, {"b": 5, "c": 5}, id="equals-alike"),
        pytest.param({"b": 9, "c": 9}, {}, 11, {"b": 6, "c": 5}, id="the-odd-one-in-order"),
        pytest.param({"b": 2, "c": 9}, {}, 10, {"b": 2, "c": 8},
                     id="what-one-leaves-the-other-takes"),
        pytest.param({"a": 4, "x": 9}, {}, 6, {"a": 4, "x": 2},
                     id="unknown-groups-have-no-priority"),
        pytest.param({}, {}, 6, {}, id="none"),
    ],
)  # fmt: skip
def test_shared(
    desired: dict[str, int], floor: dict[str, int], maximum: int, expected: dict[str, int]
) -> None:
    numbers, steps = shared(desired, BOUNDS, floor, maximum)

    assert expected == numbers
    lowered = {name: number for name, number in expected.items() if number < desired[name]}
    assert lowered == {name: step.replicas for name, step in steps.items()}
    assert all(step.reason is Reason.CLUSTER_LIMIT for step in steps.values())


groups = st.dictionaries(st.sampled_from("abcx"), st.integers(0, 30))


@given(groups, groups, st.integers(0, 60))
def test_the_limit_holds_but_for_floors_and_nothing_is_left_over(
    desired: dict[str, int], floor: dict[str, int], maximum: int
) -> None:
    numbers, _ = shared(desired, BOUNDS, floor, maximum)

    lowest = {name: min(number, floor.get(name, 0)) for name, number in desired.items()}
    assert all(lowest[name] <= number <= desired[name] for name, number in numbers.items())
    total = sum(numbers.values())
    assert total == max(sum(lowest.values()), min(maximum, sum(desired.values())))
