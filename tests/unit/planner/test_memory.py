"""What a pass leaves for the next, to the figure: of a group, of what was done, of each worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.model.observed import ObservedCluster, ObservedWorker, Retiring
from dask_adaptive.model.past import Blocked, Change, GroupPast, Past, Recommendation, Refusal
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    GroupPlan,
    Outcome,
    Plan,
    Retire,
    SetReplicas,
)
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast
from dask_adaptive.model.scaling import Behavior, RatePolicy, RateType, ScaleUp
from dask_adaptive.planner.memory import renewed
from support.tables import table
from support.worlds import GROUP, NOW, PAST, POLICY, busy, cluster, remember, worker

#: Changes of the number are remembered for as long as a rate policy looks back.
RATED = dataclasses.replace(
    POLICY, behavior=Behavior(ScaleUp(policies=(RatePolicy(RateType.PODS, 9, 100.0),)))
)
BLOCKED = Blocked(NOW + 60, Reason.UNSCHEDULABLE, "no machine")
KNOWN = GroupPast(
    recommendations=(Recommendation(NOW - 6, 4), Recommendation(NOW - 5, 2)),
    changes=(Change(NOW - 50, 2),), gap=(2, 2), gap_since=NOW - 40, desired=2, requested=2,
    up_at=NOW - 50, arrival_s=20.0, starts=(20.0,), blocked=BLOCKED, since=NOW - 100,
)  # fmt: skip
TWO = (busy("a"), busy("b"))
SEEN = frozenset("ab")


def decided(**changes: Any) -> GroupPlan:
    """A plan to go on with two workers."""
    steady = GroupPlan(GROUP, 2, 2, 2, Reason.DESIRED_WITHIN_RANGE, "", current=2)
    return dataclasses.replace(steady, **changes)


def done(action: Action, is_done: bool = True) -> Outcome:
    return Outcome(action, is_done, action.reason, "")


def after(
    outcomes: Sequence[Outcome] = (), *, mine: GroupPast = KNOWN,
    workers: Sequence[ObservedWorker] = TWO, replicas: int | None = None, **changes: Any,
) -> GroupPast:  # fmt: skip
    # Another group has been watched, so that the cluster has been.
    past = Past(
        session="s", since=0.0, groups={GROUP: mine, "etl-gpu": KNOWN}, seen=SEEN,
        awaited={w.name: 0.0 for w in workers if w.name not in SEEN},
    )  # fmt: skip
    world = cluster(workers, replicas=replicas)
    whole = Plan(Reason.DESIRED_WITHIN_RANGE, "", groups=(decided(**changes),))
    return remember(past, world, RATED, whole, outcomes, now=NOW).groups[GROUP]


# One group


def test_how_long_the_last_ones_took_to_come() -> None:
    mine = KNOWN
    for n in range(9):
        mine = after(mine=mine, workers=[*TWO, worker(f"w{n}", age_s=float(n))])
        assert (20.0, *(3.0 + i for i in range(n + 1)))[-9:] == mine.starts


WISH = (Recommendation(NOW, 2),)


@table(
    "changes, is_anew",
    in_time=({"recommendations": (Recommendation(NOW - 19.9, 2),)}, False),
    blind=({"recommendations": (Recommendation(NOW - 20, 9),)}, True),
    just_begun=({"recommendations": (), "since": NOW - 19.9}, False),
    never_a_wish=({"recommendations": (), "since": NOW - 20}, True),
    scaled_anew=({"since": None}, True),
)
def test_after_blindness_the_groups_window_begins_anew(
    changes: dict[str, Any], is_anew: bool
) -> None:
    mine = dataclasses.replace(KNOWN, **changes)
    found = after(mine=mine)

    assert (NOW if is_anew else mine.since) == found.since
    if is_anew:
        assert WISH == found.recommendations


UP, DOWN = Reason.LOAD_INCREASED, Reason.UNDERUTILIZED


def to(replicas: int, *, group: str = GROUP, reason: Reason = UP) -> SetReplicas:
    return SetReplicas(group, replicas, reason, "")


def cancel(name: str) -> Cancel:
    return Cancel(name, (name,), UP, "")


def retire(name: str, reason: Reason = DOWN) -> Retire:
    return Retire(name, (name,), reason, "")


def delete(name: str, reason: Reason = Reason.NEVER_CONNECTED) -> Delete:
    return Delete(name, (), reason, "", "u")


@table(
    "desired, outcomes, expected",
    asked_and_not_got=(9, [], 0),
    refused=(9, [done(to(5), is_done=False)], 0),
    one_of_two=(9, [done(cancel("a"), is_done=False), done(to(5))], 3),
    no_more_than_is_desired=(4, [done(to(5))], 2),
    lowered=(9, [done(to(1))], 0),
    another_groups=(9, [done(to(5, group="etl-gpu"))], 0),
    corrected=(9, [done(to(5, reason=Reason.REPLICAS_CORRECTED))], 0),
    called_back=(9, [done(cancel("a"))], 1),
    not_of_this_group=(9, [done(cancel("x")), done(delete("x"))], 0),
    called_back_and_more=(9, [done(cancel("a")), done(to(5))], 4),
    and_one_leaves=(9, [done(cancel("a")), done(retire("b"))], 1),
    nobody_would_go=(0, [], 0),
    one_goes=(0, [done(retire("a"))], -1),
    one_never_came=(0, [done(retire("a")), done(delete("b"))], -2),
    no_fewer_than_desired=(1, [done(retire("a")), done(retire("b"))], -1),
    replaced=(0, [done(retire("a", Reason.LIFETIME))], 0),
    each=(0, [done(retire("a")), done(retire("b", Reason.LIFETIME))], -1),
    it_would_not=(0, [done(retire("a"), is_done=False)], 0),
    counted_when_it_was_retired=(0, [done(delete("a", Reason.DRAINED))], 0),
)
def test_the_number_has_changed_by_what_was_got(
    desired: int, outcomes: list[Outcome], expected: int
) -> None:
    mine = dataclasses.replace(KNOWN, changes=())
    found = after(outcomes, mine=mine, desired=desired)

    assert ((Change(NOW, expected),) if expected else ()) == found.changes
    assert (NOW if expected > 0 else KNOWN.up_at) == found.up_at


# The cluster


HOLD = Plan(Reason.DESIRED_WITHIN_RANGE, "", groups=(decided(),))


def next_past(outcomes: Sequence[Outcome] = (), **changes: Any) -> Past:
    past = Past(session="s", since=NOW - 5, seen=SEEN)
    past = dataclasses.replace(past, **changes)
    return remember(past, cluster(TWO), RATED, HOLD, outcomes, now=NOW)


def test_of_a_scheduler_that_began_anew_all_is_kept_but_the_load() -> None:
    recycle = RecyclePast(
        begun=(1.0,), totals={Reason.LIFETIME: 2}, aborted={"a": (2.0, "why")}, ready_s=33.0
    )
    kept: dict[str, Any] = {
        "leaving": frozenset("x"), "homes": {"x": GROUP}, "seen": SEEN, "aborts": {"a": 1},
        "counted": {"a": "pod"},
    }  # fmt: skip
    past = Past(
        session="s", since=1.0, groups={GROUP: KNOWN}, deleted=frozenset("x"),
        announced=frozenset("y"),
        refusals={"a": Refusal(NOW + 9, Reason.PINNED, "")}, floors={GROUP: 1},
        recycle=dataclasses.replace(recycle, pace={"uid-a": (1.0, 1, 1.0)}), **kept,
    )  # fmt: skip
    mine = GroupPast(
        changes=KNOWN.changes, up_at=NOW - 50, arrival_s=20.0, starts=(20.0,), blocked=BLOCKED
    )  # fmt: skip

    assert Past(groups={GROUP: mine}, recycle=recycle, **kept) == renewed(past)


@table(
    "changes, expected",
    just_begun=({"since": NOW - 19.9}, NOW - 19.9),
    blind_since_it_began=({"since": NOW - 20}, NOW),
    never_seen=({"since": None}, NOW),
    a_wish_lately=({"since": NOW - 90, "groups": {GROUP: KNOWN}}, NOW - 90),
    of_any_group=({"since": NOW - 90, "groups": {GROUP: GroupPast(), "b": KNOWN}}, NOW - 90),
    no_wish_for_too_long=({"since": NOW - 90,
        "groups": {GROUP: GroupPast(recommendations=(Recommendation(NOW - 20, 1),))}}, NOW),
    begun_anew=({"session": "another", "groups": {GROUP: KNOWN}}, NOW),
)  # fmt: skip
def test_since_when_the_load_is_watched(changes: dict[str, Any], expected: float) -> None:
    assert expected == next_past(**changes).since


def test_a_deletion_is_remembered_until_its_worker_is_gone() -> None:
    assert frozenset("ab") == next_past([done(delete("b"))], deleted=frozenset("ax")).deleted
    assert frozenset() == next_past([done(delete("b"), is_done=False)]).deleted


@pytest.mark.parametrize(
    ("reason", "until"),
    [(Reason.UNDERUTILIZED, NOW + 15), (Reason.NODE_GOING, NOW + 5), (Reason.LIFETIME, NOW + 5)],
)
def test_a_worker_that_would_not_go_is_left_alone_for_a_while(reason: Reason, until: float) -> None:
    before = {
        "b": Refusal(NOW, Reason.PINNED, "over"),
        "c": Refusal(NOW + 1, Reason.PINNED, "not over"),
    }
    refused = Outcome(retire("a", reason), False, Reason.PINNED, "pinned")
    found = next_past([refused, done(retire("d"))], refusals=before).refusals

    assert {"a": Refusal(until, Reason.PINNED, "pinned"), "c": before["c"]} == found


# What leaves, and what we have told


def seen(world: ObservedCluster, *outcomes: Outcome, **past: Any) -> Past:
    return remember(dataclasses.replace(PAST, **past), world, POLICY, HOLD, outcomes, now=NOW)


DELETE_X = Delete("x", ("x",), Reason.DRAINED, "", "u")
SET_5 = SetReplicas(GROUP, 5, Reason.LOAD_INCREASED, "")


@table(
    "world, outcomes, past, expected",
    deleted=(cluster([busy("a")]), [done(DELETE_X)], {}, {"x"}),
    missing=(cluster([busy("a")], replicas=2), [], {"leaving": frozenset("x")}, {"x"}),
    settled_and_raised_in_the_first_pass_of_a_new_operator=(cluster([busy("a")]), [done(SET_5)],
        {"leaving": frozenset("x")}, set()),
    raised_with_the_missing_counted=(cluster([busy("a")], replicas=2), [done(SET_5)],
        {"leaving": frozenset("x")}, set()),
    on_its_way=(cluster([worker("x", retiring=Retiring())]), [], {}, {"x"}),
    called_back=(cluster([worker("x")]), [], {"leaving": frozenset("x")}, set()),
)  # fmt: skip
def test_who_explains_a_gap(
    world: ObservedCluster, outcomes: list[Outcome], past: dict[str, Any], expected: set[str]
) -> None:
    assert expected == seen(world, *outcomes, **past).leaving
