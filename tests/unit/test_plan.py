"""What the planner decides, case by case, and what it promises for every case."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.observed import (
    Leaving,
    ManualPin,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
    Pin,
)
from dask_adaptive.model.past import Past, Recommendation, Refusal
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    Plan,
    Retire,
    SetPin,
    SetReplicas,
    Unpin,
)
from dask_adaptive.model.policy import Mode, Policy, Retirement
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.plan import plan
from support.worlds import (
    GROUP,
    KEY,
    NOW,
    PAST,
    POLICY,
    SHUFFLE,
    busy,
    cluster,
    pending,
    worker,
)

DRAINING = {"leaving": Leaving.DRAINING, "in_service": False}
DRAINED = {"leaving": Leaving.DRAINED, "in_service": False}


def short(action: Action) -> str:
    """An action as a word, so that a table stays readable."""
    match action:
        case SetReplicas(_, replicas):
            return f"={replicas}"
        case Retire(name):
            return f"retire {name}"
        case Cancel(name):
            return f"cancel {name}"
        case Delete(name):
            return f"delete {name}"
        case SetPin(name):
            return f"pin {name}"
        case Unpin(name):
            return f"unpin {name}"


def decide(world: ObservedCluster, past: Past = PAST, **policy: Any) -> Plan:
    return plan(world, dataclasses.replace(POLICY, **policy), past, now=NOW)


A, B, C = worker("a"), worker("b"), worker("c")


@pytest.mark.parametrize(
    ("world", "policy", "expected"),
    [
        pytest.param(cluster([busy("a")], target=4), {}, ["=4"], id="load-grew"),
        pytest.param(cluster([busy("a")], target=99), {}, ["=10"], id="clamped-to-the-maximum"),
        pytest.param(cluster([], target=1), {}, ["=1"], id="from-zero"),
        pytest.param(cluster([]), {"minimum": 2}, ["=2"], id="up-to-the-minimum"),
        pytest.param(cluster([A, B], target=2), {}, [], id="as-wanted"),
        pytest.param(cluster([A, B], target=1), {}, ["retire a"], id="one-too-many"),
        pytest.param(cluster([A, B]), {"minimum": 1}, ["retire a"], id="down-to-the-minimum"),
        pytest.param(cluster([A, B]), {}, ["retire a", "retire b"], id="to-zero"),
        pytest.param(cluster([A, busy("b")], target=1), {}, ["retire a"], id="never-the-busy"),
        pytest.param(cluster([busy("a"), busy("b")], target=0), {}, [], id="all-busy"),
        pytest.param(
            cluster([worker("a", pins=(SHUFFLE,)), B]), {}, ["retire b"], id="never-the-pinned"
        ),
        pytest.param(
            cluster([worker("a", actors=True), B]), {}, ["retire b"], id="never-with-actors"
        ),
        pytest.param(
            cluster([worker("a", idle_s=29.0), B]), {}, ["retire b"], id="idle-long-enough"
        ),
        pytest.param(
            cluster([worker("a", closable=False), B]), {}, ["retire b"], id="only-if-offered"
        ),
        pytest.param(
            cluster([worker("a", sole_bytes=9), worker("b", sole_bytes=5), C], target=1), {},
            ["retire c", "retire b"], id="least-data-first",
        ),
        pytest.param(
            cluster([worker("a"), worker("b", idle_s=200.0)], target=1), {}, ["retire b"],
            id="then-longest-idle",
        ),
        pytest.param(cluster([worker("a", sole_bytes=9)]), {}, [], id="last-copy-no-recipient"),
        pytest.param(
            cluster([busy("a"), pending("p"), B], target=1), {}, ["delete p", "retire b"],
            id="pending-goes-first",
        ),
        pytest.param(
            cluster([pending("old", age_s=90.0), pending("new", age_s=3.0), busy("a")], target=2),
            {}, ["delete new"], id="youngest-pending-first",
        ),
        pytest.param(
            cluster([pending("new", age_s=3.0), pending("stuck", waiting="Unschedulable: full"),
                     busy("a")], target=2),
            {}, ["delete stuck"], id="stuck-before-starting",
        ),
        pytest.param(
            cluster([pending("p", manual_pin=ManualPin(60.0, ""))]), {}, [], id="pinned-pending"
        ),
        pytest.param(
            cluster([A, worker("b", **DRAINING)], target=2), {}, ["cancel b"], id="wanted-again"
        ),
        pytest.param(
            cluster([A, worker("b", **DRAINING)], target=4), {}, ["cancel b", "=4"],
            id="called-back-before-new-ones",
        ),
        pytest.param(
            cluster([A, worker("b", **DRAINED)], target=1), {}, ["delete b"], id="drained-goes"
        ),
        pytest.param(
            cluster([A, worker("b", **DRAINING)], target=1), {}, [], id="draining-is-waited-for"
        ),
        pytest.param(
            cluster([A, B, worker("c", **DRAINING)]),
            {"retirement": Retirement(max_concurrent=1)}, [], id="not-all-at-once",
        ),
        pytest.param(
            cluster([A, worker("b", going=True)], target=1), {}, [], id="one-is-being-deleted"
        ),
        pytest.param(
            cluster([A, worker("b", in_service=False)], target=2), {}, ["=3"],
            id="closed-by-somebody-else-is-replaced",
        ),
    ],
)  # fmt: skip
def test_plan(world: ObservedCluster, policy: dict[str, Any], expected: list[str]) -> None:
    assert expected == [short(a) for a in decide(world, **policy).actions]


OTHERS = (
    ObservedGroup("etl-gpu", 2, (worker("g1", group="etl-gpu"), worker("g2", group="etl-gpu"))),
)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param(2, ["retire a"], id="others-serve-the-load"),
        pytest.param(3, [], id="others-and-one"),
        pytest.param(5, ["=3"], id="others-are-not-counted-twice"),
    ],
)
def test_other_groups_are_counted_and_never_touched(target: int, expected: list[str]) -> None:
    world = cluster([A], target=target, others=OTHERS)

    assert expected == [short(a) for a in decide(world).actions]


def test_a_deployment_of_two_processes_counts_as_two_dask_workers() -> None:
    world = cluster(
        [worker("a", dask_names=("a-0", "a-1"), processing=2, closable=False)], target=5
    )

    assert ["=3"] == [short(a) for a in decide(world).actions]


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        pytest.param(Past(), ["hold"], id="an-operator-that-has-just-started"),
        pytest.param(
            dataclasses.replace(PAST, session="other"), ["hold"], id="a-scheduler-that-has"
        ),
        pytest.param(dataclasses.replace(PAST, since=NOW - 29), ["hold"], id="watched-too-short"),
        pytest.param(
            dataclasses.replace(PAST, recommendations=(Recommendation(NOW - 25, 0),)), ["hold"],
            id="blind-until-now",
        ),
        pytest.param(
            dataclasses.replace(
                PAST, recommendations=(Recommendation(NOW - 29, 2), Recommendation(NOW - 1, 0))
            ),
            ["hold"], id="a-dip-in-the-window",
        ),
        pytest.param(
            dataclasses.replace(
                PAST, recommendations=(Recommendation(NOW - 30, 2), Recommendation(NOW - 1, 0))
            ),
            ["retire a", "retire b"], id="a-dip-that-outlives-it",
        ),
        pytest.param(
            dataclasses.replace(PAST, refusals={"a": Refusal(NOW + 1, Reason.BUSY, "")}),
            ["retire b"], id="refused-lately",
        ),
    ],
)  # fmt: skip
def test_memory_only_ever_delays(past: Past, expected: list[str]) -> None:
    decided = decide(cluster([A, B]), past)

    assert expected == ([short(a) for a in decided.actions] or ["hold"])


def remembering(gap: tuple[int, int], since: float = NOW - 1, **changes: Any) -> Past:
    return dataclasses.replace(PAST, gap=gap, gap_since=since, **changes)


@pytest.mark.parametrize(
    ("past", "replicas", "target", "expected"),
    [
        pytest.param(remembering((4, 2)), 4, 2, [], id="upstream-is-at-work"),
        pytest.param(remembering((4, 2), NOW - 60), 4, 2, ["=2"], id="nobody-is-at-work"),
        pytest.param(
            remembering((4, 2), leaving=frozenset({"x", "y"})), 4, 2, ["=2"], id="we-deleted-them"
        ),
        pytest.param(
            remembering((4, 2), leaving=frozenset({"x"})), 4, 2, [], id="we-deleted-one-of-them"
        ),
        pytest.param(
            remembering((3, 2), leaving=frozenset({"x"}), deleted=frozenset({"a"})), 3, 2, [],
            id="another-is-not-yet-seen-gone",
        ),
        pytest.param(remembering((2, 2)), 4, 6, ["=6"], id="more-while-upstream-is-at-work"),
        pytest.param(remembering((4, 2)), 4, 4, [], id="as-many-as-are-on-their-way"),
        pytest.param(
            remembering((4, 2), leaving=frozenset({"x", "y"})), 4, 4, ["=2"],
            id="wanted-again-after-deletion-needs-the-truth-first",
        ),
        pytest.param(
            remembering((5, 2), leaving=frozenset({"x", "y", "z"})), 5, 4, ["=4"],
            id="a-change-downwards-to-more-than-exist-makes-workers",
        ),
        pytest.param(remembering((1, 2)), 1, 2, [], id="somebody-lowers"),
        pytest.param(remembering((1, 2), NOW - 60), 1, 2, ["=2"], id="lowered-and-left-alone"),
    ],
)  # fmt: skip
def test_replicas_follow_the_workers(
    past: Past, replicas: int, target: int, expected: list[str]
) -> None:
    world = cluster([busy("a"), busy("b")], target=target, replicas=replicas)

    assert expected == [short(a) for a in decide(world, past).actions]


def test_replicas_are_not_lowered_while_a_deletion_is_under_way() -> None:
    """Else upstream would make a worker anew for each that is gone before the number is."""
    world = cluster([busy("a"), worker("b", **DRAINED)], target=1, replicas=3)
    past = remembering((3, 2), leaving=frozenset({"c"}))

    assert ["delete b"] == [short(a) for a in decide(world, past).actions]


@pytest.mark.parametrize(
    ("world", "policy", "reason", "expected"),
    [
        pytest.param(ObservedCluster(KEY, found=False), {}, Reason.CLUSTER_NOT_FOUND, [],
                     id="no-cluster"),
        pytest.param(ObservedCluster(KEY), {}, Reason.CLUSTER_NOT_FOUND, [], id="no-group-yet"),
        pytest.param(dataclasses.replace(cluster([A, B]), conflict="another policy"), {},
                     Reason.OWNERSHIP_CONFLICT, [], id="two-owners"),
        pytest.param(cluster([A, B], problem=Reason.SCHEDULER_UNREACHABLE), {},
                     Reason.SCHEDULER_UNREACHABLE, [], id="scheduler-down"),
        pytest.param(cluster([A], problem=Reason.SCHEDULER_UNREACHABLE), {"minimum": 3},
                     Reason.SCHEDULER_UNREACHABLE, ["=3"], id="scheduler-down-below-minimum"),
        pytest.param(cluster([A, B], problem=Reason.PROTOCOL_MISMATCH), {},
                     Reason.PROTOCOL_MISMATCH, [], id="another-protocol"),
        pytest.param(cluster([A, B]), {"mode": Mode.PAUSED}, Reason.PAUSED, [], id="paused"),
        pytest.param(cluster([A, worker("b", **DRAINING)]), {"mode": Mode.PAUSED}, Reason.PAUSED,
                     ["cancel b"], id="paused-returns-workers"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way(
    world: ObservedCluster, policy: dict[str, Any], reason: Reason, expected: list[str]
) -> None:
    decided = decide(world, **policy)

    assert reason is decided.reason
    assert expected == [short(a) for a in decided.actions]


def test_advice_is_the_same_decision_not_carried_out() -> None:
    world = cluster([A, B], target=1)
    acting, advising = decide(world), decide(world, mode=Mode.ADVISE)

    assert acting.actions == advising.advice
    assert () == advising.actions


HELD = Pin("manual", "operator", "note", 590.0)


@pytest.mark.parametrize(
    ("pins", "asked", "expected"),
    [
        pytest.param((), ManualPin(600.0, "note"), ["pin a"], id="new"),
        pytest.param((HELD,), ManualPin(600.0, "note"), [], id="in-step"),
        pytest.param((HELD,), ManualPin(600.0, "other"), ["pin a"], id="another-reason"),
        pytest.param((HELD,), ManualPin(9_999.0, "note"), ["pin a"], id="longer"),
        pytest.param((HELD,), None, ["unpin a"], id="gone"),
        pytest.param((SHUFFLE,), None, [], id="not-ours"),
    ],
)
def test_pins_follow_annotations(
    pins: tuple[Pin, ...], asked: ManualPin | None, expected: list[str]
) -> None:
    world = cluster([busy("a", pins=pins, manual_pin=asked)], target=1)

    assert expected == [short(a) for a in decide(world).actions]


def test_a_blocked_worker_is_named_with_its_reason() -> None:
    world = cluster([worker("a", pins=(SHUFFLE,)), busy("b")])

    blockers = {b.worker: (b.reason, b.message) for b in decide(world).blockers}

    assert (Reason.PINNED, "pinned by shuffle 5f3a") == blockers["a"]
    assert (Reason.BUSY, "has tasks") == blockers["b"]


# --- promises, whatever the world -------------------------------------------------------------

workers = st.builds(
    ObservedWorker,
    name=st.text("abcdefgh", min_size=1, max_size=4),
    uid=st.just("u"),
    group=st.just(GROUP),
    age_s=st.floats(0, 1e4),
    going=st.booleans(),
    waiting=st.sampled_from(["", "Unschedulable: full"]),
    processing=st.integers(0, 2),
    idle_s=st.floats(0, 1e4),
    sole_bytes=st.integers(0, 10**12),
    closable=st.booleans(),
    actors=st.booleans(),
    in_service=st.booleans(),
    pins=st.sampled_from([(), (SHUFFLE,), (HELD,)]),
    manual_pin=st.none() | st.builds(ManualPin, st.floats(1, 1e5), st.just("why")),
    leaving=st.sampled_from(Leaving),
).flatmap(
    lambda w: st.sampled_from([(), (w.name,)]).map(lambda n: dataclasses.replace(w, dask_names=n))
)
worlds = st.builds(
    lambda ws, target, replicas, problem: dataclasses.replace(
        cluster(ws, target=target, replicas=replicas, problem=problem)
    ),
    st.lists(workers, max_size=12, unique_by=lambda w: w.name),
    st.integers(0, 30),
    st.integers(0, 15),
    st.sampled_from([None, None, None, Reason.SCHEDULER_UNREACHABLE]),
)
policies = st.builds(
    lambda low, more, mode, idle, at_once: Policy(
        "etl", low + more, low, mode, idle, retirement=Retirement(max_concurrent=at_once)
    ),
    st.integers(0, 6), st.integers(0, 10), st.sampled_from(Mode), st.sampled_from([0.0, 5.0, 60.0]),
    st.integers(1, 5),
)  # fmt: skip
pasts = st.builds(
    Past,
    session=st.sampled_from(["s", "s", "other"]),
    since=st.none() | st.floats(0, NOW),
    recommendations=st.lists(
        st.builds(Recommendation, st.floats(NOW - 90, NOW), st.integers(0, 15)), max_size=4
    ).map(lambda rs: tuple(sorted(rs))),
    leaving=st.frozensets(st.text("abcdefgh", min_size=1, max_size=2), max_size=4),
    deleted=st.frozensets(st.text("abcdefgh", min_size=1, max_size=2), max_size=2),
    gap=st.tuples(st.integers(0, 15), st.integers(0, 12)),
    gap_since=st.floats(0, NOW),
)


@given(worlds, policies, pasts)
def test_a_worker_leaves_only_if_idle_and_unpinned(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    known = {w.name: w for g in world.groups for w in g.workers}

    for action in plan(world, policy, past, now=NOW).actions:
        if isinstance(action, Retire):
            candidate = known[action.worker]
            assert candidate.processing == 0
            assert not candidate.is_pinned
            assert candidate.closable
            assert candidate.idle_s >= policy.idle_timeout_s
        if isinstance(action, Delete):
            candidate = known[action.worker]
            assert not candidate.is_connected or candidate.leaving is Leaving.DRAINED
            assert candidate.is_connected or candidate.manual_pin is None


@given(worlds, policies, pasts)
def test_bounds_hold(world: ObservedCluster, policy: Policy, past: Past) -> None:
    decided = plan(world, policy, past, now=NOW)
    group = world.groups[0]
    serving = [
        w for w in group.workers
        if not w.going and (not w.is_connected or (w.leaving is Leaving.NO and w.in_service))
    ]  # fmt: skip
    gone = {
        a.worker
        for a in decided.actions
        if isinstance(a, Retire) or (isinstance(a, Delete) and a.reason is Reason.NEVER_CONNECTED)
    }

    if gone:  # never below the minimum
        assert len(serving) - len(gone) >= policy.minimum
    for action in decided.actions:  # never more made than the maximum allows
        if isinstance(action, SetReplicas) and world.scheduler.is_connected:
            made = action.replicas - len(group.workers)
            back = sum(isinstance(a, Cancel) for a in decided.actions)
            assert made <= 0 or len(serving) + back + made <= policy.maximum


@given(worlds, policies, pasts)
def test_replicas_are_never_set_below_what_exists(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    """Else upstream would choose the workers to close."""
    for action in plan(world, policy, past, now=NOW).actions:
        if isinstance(action, SetReplicas) and world.scheduler.is_connected:
            assert action.replicas >= len(world.groups[0].workers)


@given(worlds, policies, pasts)
def test_same_input_same_plan(world: ObservedCluster, policy: Policy, past: Past) -> None:
    assert plan(world, policy, past, now=NOW) == plan(world, policy, past, now=NOW)


@given(worlds, policies, pasts)
def test_nothing_leaves_when_the_scheduler_is_silent(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    silent = dataclasses.replace(
        world, scheduler=ObservedScheduler(problem=Reason.SCHEDULER_UNREACHABLE)
    )

    for action in plan(silent, policy, past, now=NOW).actions:
        assert isinstance(action, SetReplicas | Cancel)
        if isinstance(action, SetReplicas):
            assert action.replicas > world.groups[0].replicas


@given(worlds, policies, pasts)
def test_no_more_leave_at_once_than_the_policy_allows(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    decided = plan(world, policy, past, now=NOW)
    begun = sum(isinstance(a, Retire) for a in decided.actions)
    under_way = sum(
        w.is_connected and not w.going and w.leaving is not Leaving.NO
        for w in world.groups[0].workers
    )

    if begun:
        assert begun + under_way <= policy.retirement.max_concurrent
