"""What is not asked for in vain, and how the cluster's limit is shared: through `plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.observed import Demand, ObservedWorker, Pending, Serving
from dask_adaptive.model.past import Blocked, Recommendation
from dask_adaptive.model.plan import Step
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Behavior, Room, ScaleUp, WorkerGroup
from dask_adaptive.planner.caps import LONGEST_WAIT_S
from support.tables import table
from support.worlds import (
    DRAINING,
    GPU,
    GROUP,
    NOW,
    busy,
    cluster,
    decide,
    group_of,
    past_of,
    pending,
    wanting,
    watched,
    worker,
)

NO_NODE = "0/3 nodes are available: 3 Insufficient cpu"
QUOTA = (
    'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=5, limited: pods=5'
)

REFUSED = 'admission webhook "images.example.com" denied the request: no such image'


def stuck(name: str, s: float = 400.0, why: str = NO_NODE) -> ObservedWorker:
    return pending(name, waiting=why, unschedulable_s=s, age_s=s)


def refused(name: str, why: str) -> ObservedWorker:
    return pending(name, refused=why)


def ask(
    desired: int, workers: Sequence[ObservedWorker], blocked: Blocked | None = None,
    *, room: Room | None = None, at: float = NOW, max_pending: int | None = None, **policy: Any,
) -> tuple[int, list[Step], Blocked | None]:  # fmt: skip
    """The number of a group for which so many are wanted, its caps, and what blocks it."""
    world = cluster(workers, wants=(wanting(desired),), demand=Demand())
    group = replace(world.groups[0], room=room)
    past = past_of(recommendations=(Recommendation(at - 5, 0),), blocked=blocked)
    behavior = Behavior(ScaleUp(max_pending=max_pending))
    decided = decide(
        replace(world, groups=(group,)), past, now=at, max_replicas=99, behavior=behavior, **policy
    )  # fmt: skip
    (found,) = decided.groups
    assert found.desired == found.steps[-1].replicas  # the last step has made the number
    return found.desired, [s for s in found.steps if s.stage == "cap"], found.blocked


def gated(name: str) -> ObservedWorker:
    return pending(name, gated=True, waiting="SchedulingGated: kueue.x-k8s.io/admission")


ONE = worker("one", age_s=1e6)
GATED = gated("gated")
STARTING = pending("starting", age_s=20.0)
LEAVING = worker("leaving", **DRAINING)


@table(
    "desired, workers, settings, expected, reasons",
    those_on_their_way_count=(9, [ONE, STARTING], {"max_pending": 3}, 4, [Reason.SCALE_UP_LIMITED]),
    just_as_many=(4, [ONE, STARTING], {"max_pending": 3}, 4, []),
    more_than_the_cap_stay=(9, [ONE, STARTING, pending("b")], {"max_pending": 1}, 3,
        [Reason.SCALE_UP_LIMITED]),
    a_fall_passes=(1, [ONE, STARTING, pending("b")], {"max_pending": 1}, 1, []),
    called_back_is_not_pending=(9, [ONE, LEAVING], {"max_pending": 0}, 2,
        [Reason.SCALE_UP_LIMITED]),
    less_than_no_room=(9, [ONE], {"room": Room(-1, "quota")}, 1, [Reason.QUOTA_EXCEEDED]),
    back_in_its_own_room=(2, [ONE, LEAVING], {"room": Room(0, "quota")}, 2, []),
    each_that_lowers_is_told=(9, [ONE], {"room": Room(2, "quota"), "max_pending": 5}, 3,
        [Reason.SCALE_UP_LIMITED, Reason.QUOTA_EXCEEDED]),
    one_that_does_not_is_not=(9, [ONE], {"room": Room(5, "quota"), "max_pending": 2}, 3,
        [Reason.SCALE_UP_LIMITED]),
    not_for_longer_than_the_timeout=(9, [ONE, stuck("a", 300.0)], {}, 9, []),
    no_node=(9, [ONE, stuck("a", 301.0)], {}, 2, [Reason.UNSCHEDULABLE]),
    quota=(9, [ONE, refused("a", QUOTA)], {}, 2, [Reason.QUOTA_EXCEEDED]),
    admission=(9, [ONE, refused("a", REFUSED)], {}, 2, [Reason.ADMISSION_REFUSED]),
    a_refusal_says_more=(9, [ONE, stuck("a"), refused("b", QUOTA)], {}, 3, [Reason.QUOTA_EXCEEDED]),
    connected_so_not_stuck=(9, [worker("a", unschedulable_s=400.0)], {}, 9, []),
    deleted_so_not_waited_for=(9, [ONE, pending("a", deleting=True, unschedulable_s=400.0)], {}, 9,
        []),
    not_admitted=(9, [ONE, GATED], {}, 9, [Reason.ADMISSION_GATED]),
    all_that_are_wanted_wait=(2, [ONE, GATED], {}, 2, [Reason.ADMISSION_GATED]),
    more_than_are_wanted_wait=(1, [ONE, GATED], {}, 1, []),
    those_that_wait_are_pending=(9, [ONE, GATED], {"max_pending": 1}, 2,
        [Reason.SCALE_UP_LIMITED, Reason.ADMISSION_GATED]),
    too_many_were_preempted=(9, [ONE, GATED, gated("b"), STARTING], {"max_pending": 1}, 3,
        [Reason.SCALE_UP_LIMITED, Reason.ADMISSION_GATED]),
    they_wait_beside_those_that_start=(9, [ONE, GATED, STARTING], {"max_pending": 1}, 3,
        [Reason.SCALE_UP_LIMITED, Reason.ADMISSION_GATED]),
    back_although_stuck=(9, [stuck("a"), LEAVING], {}, 2, [Reason.UNSCHEDULABLE]),
)  # fmt: skip
def test_caps(
    desired: int, workers: Sequence[ObservedWorker], settings: Mapping[str, Any], expected: int,
    reasons: list[Reason],
) -> None:  # fmt: skip
    number, steps, _ = ask(desired, workers, **settings)

    assert (expected, reasons) == (number, [step.reason for step in steps])


def test_after_a_wait_one_more_is_tried_and_the_wait_doubles_up_to_half_an_hour() -> None:
    known, asked, waits, at = None, [], [], NOW
    workers = [ONE, stuck("first")]
    for i in range(9):
        number, _, blocked = ask(30, workers, known, at=at)
        assert blocked is not None
        known = blocked
        asked.append(number - len(workers))
        waits.append(blocked.until - at)
        workers = [*workers, *(stuck(f"try-{i}-{n}") for n in range(number - len(workers)))]
        at = blocked.until
        early, _, unchanged = ask(30, workers, known, at=at - 0.1)
        assert len(workers) == early
        assert unchanged is not None
        assert blocked.until == unchanged.until

    assert [0, *[1] * 8] == asked
    assert [60, 120, 240, 480, 960, 1800, 1800, 1800, 1800] == waits


@table(
    "workers, is_over",
    those_that_waited_are_gone=([ONE], False),
    it_still_starts=([ONE, pending("a")], False),
    it_has_come=([ONE, worker("a")], True),
    a_younger_one_has_come=([ONE, worker("new", age_s=29.0)], True),
    an_older_one_was_there=([ONE, worker("old", age_s=30.0)], False),
)
def test_a_worker_that_comes_ends_the_wait(workers: list[ObservedWorker], is_over: bool) -> None:
    began = NOW - 30.0
    known = Blocked(began + 60, Reason.UNSCHEDULABLE, "no node", 1, frozenset({"a", "gone"}))

    number, steps, blocked = ask(9, workers, known)

    assert (9 if is_over else len(workers), is_over) == (number, blocked is None)
    assert ([] if is_over else [Reason.UNSCHEDULABLE]) == [step.reason for step in steps]


def test_what_nobody_has_tried_for_long_is_not_known_any_more() -> None:
    known = Blocked(NOW - LONGEST_WAIT_S, Reason.UNSCHEDULABLE, "no node", 5)

    assert ask(1, [ONE], known)[2] is not None
    assert ask(1, [ONE], known, at=NOW + 1)[2] is None


kinds = st.sampled_from([worker, pending, stuck, lambda name: refused(name, QUOTA)])
leavers = st.just(partial(worker, **DRAINING))
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
    serving = sum(isinstance(w.lifecycle, Pending | Serving) for w in workers)

    number, steps, _ = ask(
        desired, workers, known,
        room=None if room is None else Room(room, "quota"), max_pending=most,
    )  # fmt: skip

    assert min(desired, serving) <= number <= desired
    assert number == desired or steps


# `maxReplicas` of all groups together

WILD = "etl-wild"


def limited(
    wants: Sequence[int], there: Sequence[Sequence[ObservedWorker]] = ((), (), ()),
    *, max_replicas: int = 6, priorities: Sequence[int] = (0, 0, 0),
) -> list[tuple[int, list[Step]]]:  # fmt: skip
    """Of so many groups, each with its own maximum, the numbers and what the limit says of them."""
    names = (GROUP, GPU, WILD)[: len(wants)]
    bounds = tuple(WorkerGroup(n, 50, priority=p) for n, p in zip(names, priorities, strict=False))
    others = [group_of(n, ws) for n, ws in zip(names[1:], there[1:], strict=False)]
    asked = tuple(wanting(number, name) for name, number in zip(names, wants, strict=True))
    world = cluster(there[0], others=others, demand=Demand(), wants=asked)
    decided = decide(world, watched(GPU, WILD), max_replicas=max_replicas, worker_groups=bounds)
    return [(g.desired, [s for s in g.steps if s.stage == "cluster"]) for g in decided.groups]


def limit(needed: int, number: int) -> Step:
    message = f"{needed} needed, {number} for now: maxReplicas of all groups is 6"
    return Step("cluster", number, Reason.TOO_MANY_REPLICAS, message)


def several(make: Any, names: str, **changes: Any) -> list[ObservedWorker]:
    return [make(name, **changes) for name in names]


def test_above_the_limit_who_comes_first_keeps_what_it_has_and_grows_no_more() -> None:
    there = (several(busy, "abcd"), several(busy, "xyz"))

    expected = [(4, [limit(7, 4)]), (2, [limit(3, 2)])]
    assert expected == limited([7, 3], there, priorities=[1, 0])


@table(
    "wants, priorities, max_replicas, expected",
    equals_alike=([9, 9], [0, 0], 10, [5, 5]),
    the_odd_one_in_order=([9, 9], [0, 0], 11, [6, 5]),
    what_one_leaves_the_other_takes=([2, 9], [0, 0], 10, [2, 8]),
    equals_share_what_is_left=([9, 9, 9], [0, 5, 0], 13, [2, 9, 2]),
    one_each_where_few_are_left=([9, 9, 9], [0, 0, 0], 2, [1, 1, 0]),
    no_more_than_each_lacks=([6, 20, 1], [0, 0, 0], 16, [6, 9, 1]),
)
def test_who_gets_how_much(
    wants: list[int], priorities: list[int], max_replicas: int, expected: list[int]
) -> None:
    found = limited(wants, max_replicas=max_replicas, priorities=priorities)

    assert expected == [number for number, _ in found]


@table(
    "default, gpu, wants, expected",
    those_that_have_yet_to_leave_keep_their_places=(several(worker, "abcd"), several(busy, "x"),
        [1, 8], [1, 2]),
    the_first_does_not_take_what_another_has=(
        [*several(busy, "abc"), pending("d", refused="exceeded quota")], several(busy, "xyz"),
        [8, 8], [3, 3]),
    those_that_come_are_waited_for=(several(busy, "ab"), several(pending, "wxyz"), [4, 4], [2, 4]),
    no_machine_takes_them=(several(busy, "ab"), several(pending, "wxyz", unschedulable_s=300.1),
        [4, 4], [4, 2]),
    they_are_not_admitted=(several(busy, "ab"), several(gated, "wxyz"), [4, 4], [4, 2]),
    they_are_refused=(several(busy, "ab"), several(pending, "wxyz", refused="exceeded quota"),
        [4, 4], [4, 2]),
)  # fmt: skip
def test_places_that_others_have(
    default: list[ObservedWorker], gpu: list[ObservedWorker], wants: list[int], expected: list[int]
) -> None:
    found = limited(wants, (default, gpu), priorities=[int(wants == [8, 8]), 0])

    assert expected == [number for number, _ in found]
