"""What the planner promises whatever the groups, their load, their drift and their policy."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.model.observed import Leaving, ObservedCluster
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Cancel, Delete, Plan, Restart, Retire, SetReplicas
from dask_adaptive.model.policy import Policy, Retirement
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import (
    Behavior,
    Direction,
    GroupBounds,
    Pause,
    RatePolicy,
    RateType,
    Room,
    Scaling,
    Select,
)
from dask_adaptive.planner.plan import plan
from support.town import STEP_S, Town
from support.worlds import GROUP, NOW, past_of

GPU, LEFT_ALONE = "etl-gpu", "etl-wild"
NAMES = (GROUP, GPU, LEFT_ALONE)

rates = st.lists(
    st.builds(
        RatePolicy, st.sampled_from(RateType), st.integers(1, 200), st.sampled_from([5.0, 30.0])
    ),
    max_size=2,
).map(tuple)
directions = st.builds(
    Direction,
    window_s=st.sampled_from([0.0, 15.0, 60.0]),
    select=st.sampled_from([Select.MAX, Select.MIN]),
    policies=rates,
    tolerance=st.just(0.0),
)
behaviors = st.builds(
    Behavior,
    up=directions,
    down=directions,
    max_pending=st.none() | st.integers(1, 4),
    delay_after_up_s=st.sampled_from([0.0, 20.0]),
)


def bounds(name: str) -> st.SearchStrategy[GroupBounds]:
    return st.builds(
        lambda low, more, idle, rank: GroupBounds(name, low + more, low, idle, rank),
        st.integers(0, 2), st.integers(0, 6), st.sampled_from([None, 0.0, 20.0]), st.integers(0, 2),
    )  # fmt: skip


policies = st.builds(
    lambda groups, most, behavior, at_once: Policy(
        "etl", most, idle_timeout_s=30.0, retirement=Retirement(max_concurrent=at_once),
        scaling=Scaling(groups=groups, behavior=behavior),
    ),
    st.tuples(bounds(GROUP), bounds(GPU)), st.integers(4, 12), behaviors, st.integers(1, 5),
)  # fmt: skip

numbers = st.fixed_dictionaries({name: st.integers(0, 7) for name in NAMES})
pinned = st.frozensets(
    st.sampled_from([f"{name}-worker-{i:03}" for name in NAMES for i in range(1, 20)]), max_size=6
)
events = st.lists(
    st.tuples(
        numbers,  # what each group's load is from now on
        st.booleans(),  # upstream gets round to its work
        st.booleans(),  # our own operator dies
        st.none() | st.tuples(st.sampled_from(NAMES[:2]), st.integers(0, 9)),  # somebody scales
    ),
    max_size=15,
)


def bounds_of(policy: Policy) -> dict[str, GroupBounds]:
    return {b.name: b for b in policy.bounds(GROUP)}


def history(town: Town, policy: Policy, happened: list[Any]) -> list[tuple[ObservedCluster, Plan]]:
    """What was seen and decided while all that happened."""
    passes = []
    for loads, handles, dies, scaled in happened:
        town.loads.update(loads)
        if scaled is not None and scaled[1] >= len(town.rows[scaled[0]].workers):
            town.rows[scaled[0]].replicas = scaled[
                1
            ]  # by hand: what upstream makes of it is theirs
        world = town.seen()
        passes.append((world, town.step(policy, handles=handles, dies=dies)))
    return passes


@settings(max_examples=40)
@given(numbers, policies, pinned, events)
def test_whatever_happens_the_promises_hold(
    sizes: dict[str, int], policy: Policy, pins: frozenset[str], happened: list[Any]
) -> None:
    town = Town(sizes, pinned=pins)
    wild = dict(town.rows[LEFT_ALONE].workers)

    for world, decided in history(town, policy, happened):
        bounds_hold(world, decided, policy)
        pins_and_budgets_hold(world, decided, policy)
        of_others = {w.name for g in world.groups if g.name == LEFT_ALONE for w in g.workers}
        for action in decided.actions:
            assert getattr(action, "group", "") != LEFT_ALONE
            assert getattr(action, "worker", "") not in of_others

    assert 0 == town.killed
    assert wild.keys() == town.rows[LEFT_ALONE].workers.keys()


def bounds_hold(world: ObservedCluster, decided: Plan, policy: Policy) -> None:
    """No group is asked to be larger than it may be, nor all together."""
    limits = bounds_of(policy)
    for group in decided.groups:
        assert group.desired <= max(limits[group.group].maximum, 0)
    present = {g.name: len(g.workers) for g in world.groups if g.name in limits}
    asked = {a.group: a.replicas for a in decided.actions if isinstance(a, SetReplicas)}
    rises = {name: n - present[name] for name, n in asked.items() if n > present[name]}
    if rises:
        leaving = sum(
            w.leaving is not Leaving.NO
            for g in world.groups if g.name in limits for w in g.workers
        )  # fmt: skip
        back = sum(isinstance(a, Cancel) for a in decided.actions)
        total = sum(present.values()) - leaving + back
        assert total + sum(rises.values()) <= max(policy.maximum, total)


def pins_and_budgets_hold(world: ObservedCluster, decided: Plan, policy: Policy) -> None:
    known = {w.name: w for g in world.groups for w in g.workers}
    begun = 0
    for action in decided.actions:
        if isinstance(action, Retire):
            begun += 1
            worker = known[action.worker]
            assert not worker.is_pinned
            assert not worker.processing
        assert not isinstance(action, Restart)
        if isinstance(action, Delete):
            worker = known[action.worker]
            assert not worker.is_connected or worker.leaving is Leaving.DRAINED
    if begun:
        under_way = sum(w.leaving is not Leaving.NO for w in known.values())
        assert begun + under_way <= policy.retirement.max_concurrent


@settings(max_examples=20)
@given(numbers, policies, events, numbers)
def test_all_settles_from_any_drift(
    sizes: dict[str, int], policy: Policy, happened: list[Any], last: dict[str, int]
) -> None:
    """Then nothing is left to do, and the same world seen again gives the same plan: no action."""
    town = Town(sizes)
    history(town, policy, happened)
    town.loads.update(last)
    town.run(policy, 60)

    assert () == town.decided.actions
    assert () == plan(town.seen(), policy, town.past, now=town.now + STEP_S).actions
    wishes, there, busy_ones, most = 0, 0, 0, 0
    for name, own in bounds_of(policy).items():
        row = town.rows[name]
        wish = min(max(last[name], own.minimum), own.maximum)
        at_work = sum(state == "busy" for state in row.workers.values())
        assert len(row.workers) == row.replicas
        assert len(row.workers) <= max(wish, at_work)  # whoever is at work stays, over any bound
        wishes, there, busy_ones = wishes + wish, there + len(row.workers), busy_ones + at_work
        most += max(wish, at_work)
    together = min(policy.maximum, wishes)
    assert together <= there <= most
    if busy_ones <= together and most == wishes:
        assert there == together


@settings(max_examples=20)
@given(numbers, policies, numbers)
def test_a_constant_load_turns_nothing_back(
    sizes: dict[str, int], policy: Policy, loads: dict[str, int]
) -> None:
    """Once watched for as long as any window lasts, each group moves one way only."""
    town = Town(sizes)
    town.loads.update(loads)
    counts: dict[str, list[int]] = {name: [] for name in bounds_of(policy)}
    for _ in range(40):
        town.step(policy)
        for name, row in counts.items():
            states = town.rows[name].workers.values()
            row.append(sum(state != "drained" for state in states))
    for row in counts.values():
        moves = [b - a for a, b in itertools.pairwise(row) if b != a]
        turns = sum((a > 0) != (b > 0) for a, b in itertools.pairwise(moves))
        assert turns <= 1


worlds = st.builds(
    lambda sizes, loads, pins, states: _drifted(sizes, loads, pins, states),
    numbers, numbers, pinned,
    st.lists(st.sampled_from(["pending", "idle", "busy", "drained"]), max_size=20),
)  # fmt: skip


def _drifted(
    sizes: dict[str, int], loads: dict[str, int], pins: frozenset[str], states: list[str]
) -> ObservedCluster:
    town = Town(sizes, pinned=pins)
    town.loads.update(loads)
    names = [(row, name) for row in town.rows.values() for name in row.workers]
    for (row, name), state in zip(names, states, strict=False):
        row.workers[name] = state
    return town.seen()


watched = st.builds(
    lambda desired, up: past_of(past_of(desired=desired), group=GPU, desired=desired, up_at=up),
    st.none() | st.integers(0, 9), st.none() | st.floats(NOW - 60, NOW),
)  # fmt: skip
pasts = st.just(Past()) | watched


@settings(max_examples=50)
@given(worlds, policies, pasts)
def test_the_same_input_gives_the_same_plan(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    assert plan(world, policy, past, now=NOW) == plan(world, policy, past, now=NOW)


@settings(max_examples=50)
@given(worlds, policies, pasts, st.integers(0, 6), st.sampled_from(NAMES[:2]))
def test_more_load_never_gives_fewer_workers(
    world: ObservedCluster, policy: Policy, past: Past, more: int, name: str
) -> None:
    """Of the group that it is for, with the same past; of all together never either."""
    key = "" if name == GROUP else name
    wants = [
        dataclasses.replace(w, workers=w.workers + more) if w.group == key else w
        for w in world.scheduler.wants
    ]
    higher = dataclasses.replace(
        world, scheduler=dataclasses.replace(world.scheduler, wants=tuple(wants))
    )
    before = plan(world, policy, past, now=NOW)
    after = plan(higher, policy, past, now=NOW)

    numbers_before = {g.group: g.desired for g in before.groups}
    numbers_after = {g.group: g.desired for g in after.groups}
    assert numbers_after.get(name, 0) >= numbers_before.get(name, 0)
    assert after.desired >= before.desired


@settings(max_examples=50)
@given(worlds, policies, pasts, st.sampled_from(["all", "scale_in", "scale_out"]))
def test_what_people_hold_is_held(
    world: ObservedCluster, policy: Policy, past: Past, held: str
) -> None:
    paused = dataclasses.replace(world, pause=Pause(**{held: True}))
    decided = plan(paused, policy, past, now=NOW)
    present = {g.name: len(g.workers) for g in world.groups}
    pendings = {w.name for g in world.groups for w in g.workers if not w.is_connected}

    for action in decided.actions:
        if held != "scale_out":
            assert not isinstance(action, Retire)
            assert getattr(action, "worker", "") not in pendings
        if held != "scale_in" and isinstance(action, SetReplicas):
            assert action.replicas <= present[action.group]


@settings(max_examples=50)
@given(worlds, policies, pasts)
def test_nobody_leaves_before_the_load_has_been_watched(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    """Where a rule looks back; and a lower maximum is not a matter of load."""
    down = policy.scaling.behavior.down
    longest = dataclasses.replace(
        policy.scaling.behavior, down=dataclasses.replace(down, window_s=60)
    )
    groups = tuple(dataclasses.replace(b, maximum=99) for b in policy.scaling.groups)
    scaling = dataclasses.replace(policy.scaling, behavior=longest, groups=groups)
    watchful = dataclasses.replace(policy, maximum=99, scaling=scaling)
    fresh = dataclasses.replace(past, since=NOW - 59.0)

    for known in (Past(), fresh, dataclasses.replace(past, groups={})):
        decided = plan(world, watchful, known, now=NOW)
        assert not [a for a in decided.actions if isinstance(a, Retire)]


@settings(max_examples=50)
@given(worlds, policies, pasts, st.integers(0, 4))
def test_no_more_is_asked_for_than_there_is_room_for(
    world: ObservedCluster, policy: Policy, past: Past, room: int
) -> None:
    groups = tuple(dataclasses.replace(g, room=Room(room, "quota")) for g in world.groups)
    decided = plan(dataclasses.replace(world, groups=groups), policy, past, now=NOW)

    for action in decided.actions:
        if isinstance(action, SetReplicas) and action.reason is not Reason.REPLICAS_CORRECTED:
            group = world.group(action.group)
            assert group is not None
            assert action.replicas - len(group.workers) <= room
