"""What the planner promises whatever the groups, their load, their drift and their policy."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.model.observed import (
    Demand,
    ObservedCluster,
    ObservedGroup,
    ObservedWorker,
    Pin,
    Want,
)
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Cancel, Delete, Plan, Restart, Retire, SetReplicas
from dask_adaptive.model.policy import ClusterRef, Policy, Retirement
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import (
    Behavior,
    GroupBounds,
    Pause,
    RatePolicy,
    RateType,
    Room,
    ScaleDown,
    ScaleUp,
    Select,
    WorkerGroup,
)
from support.fake_cluster import FakeCluster
from support.worlds import DRAINED, GPU, GROUP, NOW, busy, cluster, past_of, pending, plan, worker

STEP_S = 5.0
LEFT_ALONE = "etl-wild"
NAMES = (GROUP, GPU, LEFT_ALONE)

rates = st.lists(
    st.builds(
        RatePolicy, st.sampled_from(RateType), st.integers(1, 200), st.sampled_from([5.0, 30.0])
    ),
    max_size=2,
).map(tuple)
rules: dict[str, Any] = {
    "stabilization_window_s": st.sampled_from([0.0, 15.0, 60.0]),
    "select_policy": st.sampled_from([Select.MAX, Select.MIN]),
    "policies": rates,
}
behaviors = st.builds(
    Behavior,
    st.builds(ScaleUp, **rules, max_pending=st.none() | st.integers(1, 4)),
    st.builds(ScaleDown, **rules, delay_after_scale_up_s=st.sampled_from([0.0, 20.0])),
)


def worker_groups(name: str) -> st.SearchStrategy[WorkerGroup]:
    return st.builds(
        lambda low, more, idle, rank: WorkerGroup(name, low + more, low, idle, rank),
        st.integers(0, 2), st.integers(0, 6), st.sampled_from([None, 0.0, 20.0]), st.integers(0, 2),
    )  # fmt: skip


policies = st.builds(
    lambda groups, most, behavior, at_once: Policy(
        ClusterRef("etl"), most, idle_timeout_s=30.0, retirement=Retirement(max_concurrent=at_once),
        worker_groups=groups, behavior=behavior,
    ),
    st.tuples(worker_groups(GROUP), worker_groups(GPU)), st.integers(4, 12), behaviors,
    st.integers(1, 5),
)  # fmt: skip

numbers = st.fixed_dictionaries({name: st.integers(0, 7) for name in NAMES})
pinned = st.frozensets(
    st.sampled_from([f"{name}-worker-{i:04}" for name in NAMES for i in range(1, 20)]), max_size=6
)
events = st.lists(
    st.tuples(
        numbers,  # what each group's load is from now on
        st.booleans(),  # upstream gets round to its work
        st.booleans(),  # our own operator dies
        st.booleans(),  # what we see of the platform is one step old
        st.none() | st.tuples(st.sampled_from(NAMES[:2]), st.integers(0, 9)),  # somebody scales
    ),
    max_size=15,
)


def bounds_of(policy: Policy) -> dict[str, GroupBounds]:
    return {b.name: b for b in policy.bounds(GROUP)}


def load(fake: FakeCluster, loads: dict[str, int]) -> None:
    """From now on so many workers of each group are at work, and a client asks for as many."""
    fake.wants = tuple(Want(n, 60.0, "nb", name) for name, n in loads.items() if n)
    for name, count in loads.items():
        fake.occupy(count, name)


def history(fake: FakeCluster, policy: Policy, happened: list[Any]) -> list[PassResult]:
    """What was seen, decided and done while all that happened."""
    passes = []
    for loads, handles, dies, fake.is_stale, scaled in happened:
        load(fake, loads)
        if scaled is not None and scaled[1] >= len(list(fake.cluster.of(scaled[0]))):
            fake.cluster.replicas[scaled[0]] = scaled[1]  # by hand: what upstream makes of it
        passes.append(fake.step(policy, after_s=STEP_S))
        if dies:
            fake.restart_operator()
        if handles:
            handle(fake)
    return passes


def handle(fake: FakeCluster) -> None:
    for name in NAMES:
        fake.cluster.handle(name)


def settle(fake: FakeCluster, policy: Policy, loads: dict[str, int], steps: int) -> None:
    fake.is_stale = False
    for _ in range(steps):
        load(fake, loads)
        fake.step(policy, after_s=STEP_S)
        handle(fake)


def cluster_of(sizes: dict[str, int], **changes: Any) -> FakeCluster:
    """Upstream gets round to its work only when `handle` says so."""
    return FakeCluster(sizes, handle_s=math.inf, start_s=1.0, **changes)


@settings(max_examples=40, deadline=None)
@given(numbers, policies, pinned, events, st.booleans())
def test_whatever_happens_the_promises_hold(
    sizes: dict[str, int], policy: Policy, pins: frozenset[str], happened: list[Any],
    knows_handled: bool,
) -> None:  # fmt: skip
    """Nobody is killed, however the load changes, slow upstream is, often we die, old our view."""
    fake = cluster_of(sizes, pinned=pins, knows_handled=knows_handled)
    wild = {w.name for w in fake.cluster.of(LEFT_ALONE)}

    deleted: set[str] = set()
    for result in history(fake, policy, happened):
        world, decided = result.observed, result.plan
        bounds_hold(world, decided, policy, deleted)
        done = [outcome.action for outcome in result.outcomes if outcome.done]
        deleted |= {action.worker for action in done if isinstance(action, Delete)}
        pins_and_budgets_hold(world, decided, policy)
        of_others = {w.name for g in world.groups if g.name == LEFT_ALONE for w in g.workers}
        for action in decided.actions:
            assert getattr(action, "group", "") != LEFT_ALONE
            assert getattr(action, "worker", "") not in of_others

    assert (0, 0) == (fake.cluster.killed, fake.cluster.redone)
    assert wild == {w.name for w in fake.cluster.of(LEFT_ALONE)}


def bounds_hold(
    world: ObservedCluster, decided: Plan, policy: Policy, deleted: Collection[str]
) -> None:
    """
    No group is asked to be larger than it may be, nor all together; `deleted` is gone, though what
    we see of the platform may still show it.
    """
    limits = bounds_of(policy)
    for group in decided.groups:
        assert group.desired <= max(limits[group.group].maximum, 0)
    present = {g.name: len(g.workers) for g in world.groups if g.name in limits}
    asked = {a.group: a.replicas for a in decided.actions if isinstance(a, SetReplicas)}
    rises = {name: n - present[name] for name, n in asked.items() if n > present[name]}
    if rises:
        leaving = sum(
            w.retiring is not None or w.name in deleted
            for g in world.groups if g.name in limits for w in g.workers
        )  # fmt: skip
        back = sum(isinstance(a, Cancel) for a in decided.actions)
        total = sum(present.values()) - leaving + back
        assert total + sum(rises.values()) <= max(policy.max_replicas, total)


def pins_and_budgets_hold(world: ObservedCluster, decided: Plan, policy: Policy) -> None:
    known = {w.name: w for g in world.groups for w in g.workers}
    begun = 0
    for action in decided.actions:
        if isinstance(action, Retire):
            begun += 1
            worker = known[action.worker]
            assert not worker.is_pinned
            assert not worker.process.processing
        assert not isinstance(action, Restart)
        if isinstance(action, Delete):
            worker = known[action.worker]
            assert not worker.is_connected or worker.is_drained
    if begun:
        under_way = sum(w.retiring is not None for w in known.values())
        assert begun + under_way <= policy.retirement.max_concurrent


#: One worker of the default group, whose minimum it is; and as many busy ones of another group as
#: the cluster may have: both groups together are one above their limit until a task ends.
FULL_BY_A_MINIMUM = Policy(
    ClusterRef("etl"), 4, idle_timeout_s=30.0, retirement=Retirement(max_concurrent=1),
    worker_groups=(WorkerGroup(GROUP, 1, 1), WorkerGroup(GPU, 4)), behavior=Behavior(),
)  # fmt: skip
FOUR_BUSY = {GROUP: 0, GPU: 4, LEFT_ALONE: 0}


@settings(max_examples=20, deadline=None)
@example(
    {**FOUR_BUSY, GPU: 5},
    FULL_BY_A_MINIMUM,
    [(FOUR_BUSY, False, False, False, (GROUP, 1))],
    FOUR_BUSY,
)
@example({**dict.fromkeys(NAMES, 0), GPU: 1}, FULL_BY_A_MINIMUM, [], dict.fromkeys(NAMES, 0))
@given(numbers, policies, events, numbers)
def test_all_settles_from_any_drift(
    sizes: dict[str, int], policy: Policy, happened: list[Any], last: dict[str, int]
) -> None:
    """Then nothing is left to do."""
    fake = cluster_of(sizes)
    history(fake, policy, happened)
    settle(fake, policy, last, 60)

    assert () == fake.last.plan.actions
    shares = {g.group: g.desired for g in fake.last.plan.groups}
    wishes, there, most, is_free = 0, 0, 0, True
    for name, own in bounds_of(policy).items():
        workers = list(fake.cluster.of(name))
        wish = min(max(last[name], own.minimum), own.maximum)
        at_work = sum(bool(w.running) for w in workers)
        assert len(workers) == fake.cluster.replicas[name]
        assert len(workers) <= max(wish, at_work)  # whoever is at work stays, over any bound
        wishes, there, most = wishes + wish, there + len(workers), most + max(wish, at_work)
        is_free &= at_work <= shares[name]  # of what the limit of all groups leaves for each
    together = min(policy.max_replicas, wishes)
    assert together <= there <= most
    if is_free:
        assert there == together


@settings(max_examples=20, deadline=None)
@given(numbers, policies, numbers)
def test_a_constant_load_turns_nothing_back(
    sizes: dict[str, int], policy: Policy, loads: dict[str, int]
) -> None:
    """Once watched for as long as any window lasts, each group moves one way only."""
    fake = cluster_of(sizes)
    counts: dict[str, list[int]] = {name: [] for name in bounds_of(policy)}
    for _ in range(40):
        settle(fake, policy, loads, 1)
        for name, row in counts.items():
            row.append(sum(w.retiring is None for w in fake.cluster.of(name)))
    for row in counts.values():
        moves = [b - a for a, b in itertools.pairwise(row) if b != a]
        turns = sum((a > 0) != (b > 0) for a, b in itertools.pairwise(moves))
        assert turns <= 1


STATES: dict[str, Callable[..., ObservedWorker]] = {
    "pending": pending, "idle": worker, "busy": busy, "drained": partial(worker, **DRAINED),
}  # fmt: skip


def drifted(
    sizes: dict[str, int], loads: dict[str, int], pins: frozenset[str], states: list[str]
) -> ObservedCluster:
    """Workers in any state, the first ones as `states` says, the others idle."""
    groups, left = [], iter(states)
    for group, size in sizes.items():
        rows = []
        for name in (f"{group}-worker-{n:04}" for n in range(1, size + 1)):
            state = next(left, "idle")
            is_pinned = name in pins and state in ("idle", "busy")
            pin = {"pins": (Pin("client", "nb", "", 60.0),)} if is_pinned else {}
            rows.append(STATES[state](name, group=group, **pin))
        groups.append(ObservedGroup(group, size, tuple(rows), size))
    wants = tuple(Want(n, 60.0, "nb", "" if g == GROUP else g) for g, n in loads.items() if n)
    known = cluster([], others=groups[1:], wants=wants, demand=Demand())
    return dataclasses.replace(known, groups=tuple(groups))


worlds = st.builds(
    drifted, numbers, numbers, pinned, st.lists(st.sampled_from(list(STATES)), max_size=20)
)

watched = st.builds(
    lambda desired, up: past_of(past_of(desired=desired), group=GPU, desired=desired, up_at=up),
    st.none() | st.integers(0, 9), st.none() | st.floats(NOW - 60, NOW),
)  # fmt: skip
pasts = st.just(Past()) | watched


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
    down = policy.behavior.scale_down
    longest = dataclasses.replace(
        policy.behavior, scale_down=dataclasses.replace(down, stabilization_window_s=60.0)
    )
    groups = tuple(dataclasses.replace(g, max_replicas=99) for g in policy.worker_groups)
    watchful = dataclasses.replace(policy, max_replicas=99, behavior=longest, worker_groups=groups)
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
