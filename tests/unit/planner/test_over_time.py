"""Workers whose quotas are used up are replaced, pass after pass, on a simulated cluster."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Amount, Recycle, Strategy, StrategyType, TaskQuota
from support.fake_cluster import FakeCluster
from support.recycles import IN_PLACE
from support.tables import table
from support.worlds import POLICY


def policy_of(size: int, **recycle: Any) -> Policy:
    quotas = Recycle(**{"tasks": TaskQuota(20), **recycle})
    return dataclasses.replace(POLICY, min_replicas=size, max_replicas=size, recycle=quotas)


@pytest.mark.parametrize("forgets", [False, True], ids=["remembers", "restarts-after-each-pass"])
@table(
    "size, budget, surge, cluster, recycle, at_least",
    surge=(4, 1, 1, {}, {}, 12),
    handled_is_not_known=(4, 1, 1, {"knows_handled": False}, {}, 12),
    slow_upstream=(4, 1, 1, {"handle_s": 4.0}, {}, 8),
    long_drains=(4, 1, 1, {"drain_s": 40.0}, {}, 2),
    slow_pods=(4, 1, 1, {"start_s": 20.0}, {}, 5),
    three_at_a_time=(10, 3, 3, {}, {"strategy": Strategy(max_surge=Amount(percent=25.0))}, 35),
    in_place=(4, 1, 0, {}, IN_PLACE, 14),
    in_place_slow_pods=(10, 3, 0, {"start_s": 20.0}, IN_PLACE, 14),
)
def test_workers_are_replaced_for_ever_within_the_budget(
    size: int, budget: int, surge: int, cluster: dict[str, Any], recycle: dict[str, Any],
    at_least: int, *, forgets: bool,
) -> None:  # fmt: skip
    fake = FakeCluster(size, **{"drain_s": 3.0, "handle_s": 1.0, **cluster})
    policy = policy_of(size, **recycle)
    for _ in range(150):
        fake.step(policy, after_s=1.0, tasks=size)
        if forgets:
            fake.restart_operator()

    assert fake.fewest >= size - budget
    assert (0, 0, 0) == (fake.cluster.killed, fake.cluster.redone, fake.refused)
    assert fake.most <= size + 2 * surge  # those asked for, and those drained but still there
    assert len(fake.retired) >= at_least


def test_every_worker_is_replaced_in_the_end_and_the_number_is_what_it_was() -> None:
    fake, policy = FakeCluster(6), policy_of(6)
    fake.steps(60, policy, after_s=1.0, tasks=6)
    olds = set(fake.cluster.workers)
    fake.on_platform = {name: {"recycle_request": "ann"} for name in olds}
    fake.steps(180, policy_of(6, tasks=TaskQuota(6_000)), after_s=1.0, tasks=6)

    assert olds
    assert not olds & set(fake.cluster.workers)
    assert 6 == len(fake.cluster.workers) == fake.replicas == fake.in_service


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("holds_results", [False, True])
@table(
    "recycle, cluster",
    surge=({}, {}),
    all_at_once=({"strategy": Strategy(max_surge=Amount(4))}, {}),
    in_place=(IN_PLACE, {}),
    in_place_slow_pods=(IN_PLACE, {"start_s": 20.0}),
    room_for_one_more=({"strategy": Strategy(ready_timeout_s=8.0)}, {"room": 5}),
    young=({"min_age_s": 600.0}, {}),
)
def test_an_exact_quota_is_never_passed_and_all_work_is_done(
    recycle: dict[str, Any], cluster: dict[str, Any], *, holds_results: bool, forgets: bool
) -> None:
    """Finding 10: a quota of 15, 400 tasks, 4 workers that come to it in the same second."""
    fake = FakeCluster(4, holds_results=holds_results, drain_s=3.0, handle_s=1.0, **cluster)
    policy = policy_of(4, tasks=TaskQuota(15, exact=True), **recycle)
    while fake.cluster.finished < 400:
        result = fake.step(policy, after_s=1.0, tasks=4)
        assert fake.cluster.now < 1_600, f"stands still: {result.plan}"
        if forgets:
            fake.restart_operator()

    assert 15 == fake.most_runs
    assert (0, 0) == (fake.cluster.killed, fake.cluster.redone)
    assert fake.most <= 4 + 2 * max(1, policy.recycle.strategy.max_surge.number)


def test_where_no_other_worker_can_come_an_exact_quota_waits_for_room_and_goes_on() -> None:
    fake = FakeCluster(3, holds_results=True, room=3)
    policy = policy_of(3, tasks=TaskQuota(15, exact=True), strategy=Strategy(ready_timeout_s=20.0))
    fake.steps(200, policy, after_s=1.0, tasks=3)
    assert (45, 15) == (fake.cluster.finished, fake.most_runs)

    fake.cluster.capacity = 4
    fake.cluster.fill()
    fake.steps(200, policy, after_s=1.0, tasks=3)
    assert 100 < fake.cluster.finished
    assert 15 == fake.most_runs


def test_a_bad_image_costs_no_capacity_once_it_is_known() -> None:
    fake, policy = FakeCluster(4), policy_of(4, strategy=Strategy(ready_timeout_s=20.0))
    fake.start_s = float("inf")
    while sum(e.reason is Reason.RECYCLE_ABORTED for e in fake.events) < 2:
        fake.step(policy, after_s=1.0, tasks=4)
        assert fake.cluster.now < 300
    fake.steps(
        2, policy, after_s=1.0, tasks=4
    )  # limits are lifted, the pod that never started is deleted
    fake.fewest = 4
    fake.steps(35, policy, after_s=1.0, tasks=4)  # it is twice as long each time: 40 s

    assert 4 == fake.fewest == len(fake.cluster.workers) == fake.replicas
    assert [] == fake.retired


def test_recycles_do_not_let_a_cluster_grow() -> None:
    """All workers have tasks, and no fewer are asked for than have: still none is added."""
    fake = FakeCluster(4, drain_s=3.0)
    policy = dataclasses.replace(policy_of(4), min_replicas=0, max_replicas=10)
    for _ in range(200):
        fake.step(policy, after_s=1.0, tasks=sum(w.serves for w in fake.cluster.workers.values()))

    assert len(fake.retired) >= 12
    assert fake.most <= 6
    assert fake.fewest >= 3


@pytest.mark.parametrize("calm_s", [9, 12, 14])
@pytest.mark.parametrize("low", [1, 4])
def test_where_nobody_says_what_upstream_has_seen_it_is_given_time_to_look(
    low: int, calm_s: int
) -> None:
    """Down and up again before it looks, it sees no change, and makes no worker: for ever, once."""
    fake = FakeCluster(5, drain_s=3.0, handle_s=6.0, knows_handled=False)
    policy = dataclasses.replace(POLICY, min_replicas=1, idle_timeout_s=5.0)
    for seconds, tasks in [(3, 5), (calm_s, low), (60, 5)]:
        fake.steps(seconds, policy, after_s=1.0, tasks=tasks)

    assert 5 == len(fake.cluster.workers) == fake.replicas == fake.in_service


HAPPENS = (
    "load", "strategy", "no quota", "quota", "die", "broken", "mended", "crash", "manual", "cordon",
    "uncordon",
)  # fmt: skip
events = st.lists(  # seconds until then, what happens, and to which worker, or how many tasks
    st.tuples(st.integers(1, 12), st.sampled_from(HAPPENS), st.integers(0, 8)), max_size=14
)


@pytest.mark.thorough
@settings(max_examples=60)
@given(events, st.booleans(), st.sampled_from([0.0, 1.0, 6.0]), st.integers(1, 3))
def test_whatever_happens_nobody_is_killed_and_all_settles(
    history: list[tuple[int, str, int]], knows_handled: bool, handle_s: float, surge: int
) -> None:
    """Anything may happen; then nothing does, and there are as many workers as are desired."""
    fake = FakeCluster(5, drain_s=3.0, handle_s=handle_s, knows_handled=knows_handled)
    base = dataclasses.replace(
        POLICY, min_replicas=1, max_replicas=8, idle_timeout_s=5.0,
        recycle=Recycle(
            tasks=TaskQuota(15),
            strategy=Strategy(max_surge=Amount(surge), ready_timeout_s=30.0),
        ),
    )  # fmt: skip
    policy, tasks = base, 5
    for seconds, what, number in history:
        fake.steps(seconds, policy, after_s=1.0, tasks=tasks)
        if what == "load":
            tasks = number
        policy = edited(policy, base, what)
        happen(fake, what, number)
    mend(fake)
    quiet = dataclasses.replace(base, recycle=Recycle())
    fake.steps(150, quiet, after_s=1.0, tasks=tasks)

    assert 0 == fake.cluster.killed
    assert max(1, tasks) == len(fake.cluster.workers) == fake.replicas == fake.in_service
    assert not fake.cluster.workers.keys() & fake.on_platform.keys()  # nobody on a cordoned node
    assert () == fake.last.plan.actions


def edited(policy: Policy, base: Policy, what: str) -> Policy:
    match what:
        case "strategy":
            other = dataclasses.replace(base.recycle, strategy=Strategy(StrategyType.IN_PLACE))
            return dataclasses.replace(policy, recycle=other)
        case "no quota":
            return dataclasses.replace(policy, recycle=Recycle())
    return base if what == "quota" else policy


def happen(fake: FakeCluster, what: str, number: int) -> None:
    match what:
        case "die":
            fake.restart_operator()
        case "broken":
            fake.start_s = float("inf")
        case "mended":
            mend(fake)
        case "uncordon":
            fake.on_platform.clear()
    names = sorted(fake.cluster.workers)
    if names and what == "crash":
        fake.cluster.crash(names[number % len(names)])
    elif names and what in CHANGES:
        fake.on_platform.setdefault(names[number % len(names)], {}).update(CHANGES[what])


CHANGES = {"manual": {"recycle_request": "ann"}, "cordon": {"node_terminating": "cordoned"}}


def mend(fake: FakeCluster) -> None:
    """The image is good again, and the kubelet tries once more."""
    fake.start_s = 5.0
    fake.on_platform = {n: c for n, c in fake.on_platform.items() if "node_terminating" in c}
    for changes in fake.on_platform.values():
        changes.pop("recycle_request", None)
    for worker in fake.cluster.workers.values():
        if not worker.is_here and not worker.deleting:
            fake.cluster.start(worker)
