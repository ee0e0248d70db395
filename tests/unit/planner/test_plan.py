"""What the planner decides, case by case, and what it promises for every case."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.observed import (
    Closing,
    Deleting,
    ManualPin,
    ObservedCluster,
    ObservedScheduler,
    ObservedWorker,
    Pending,
    Pin,
    Retiring,
    SchedulerWorker,
    Serving,
    TerminatingPod,
)
from dask_adaptive.model.past import GroupPast, Past, Recommendation
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    Retire,
    SetReplicas,
    Unpin,
)
from dask_adaptive.model.policy import ClusterRef, Disruption, Mode, Policy, Retirement
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.plan import plan
from support.worlds import (
    DRAINED,
    DRAINING,
    GOING,
    GROUP,
    KEY,
    NOW,
    PAST,
    SHUFFLE,
    busy,
    cluster,
    decide,
    past_of,
    pending,
    worker,
)
from support.worlds import short as word


def short(action: Action) -> str:
    is_drain = isinstance(action, Retire) and action.busy_ok
    return f"drain {action.worker}" if is_drain else word(action)


A, B, C = worker("a"), worker("b"), worker("c")


@pytest.mark.parametrize(
    ("world", "policy", "expected"),
    [
        pytest.param(cluster([busy("a")], target=99), {}, ["=10"], id="clamped-to-the-maximum"),
        pytest.param(cluster([]), {"min_replicas": 2}, ["=2"], id="up-to-the-minimum"),
        pytest.param(cluster([A, B]), {}, ["retire a", "retire b"], id="to-zero"),
        pytest.param(cluster([worker("a", sole_bytes=9), worker("b", sole_bytes=5), C], target=1),
                     {}, ["retire c", "retire b"], id="least-data-first"),
        pytest.param(cluster([worker("a"), worker("b", idle_s=200.0)], target=1), {}, ["retire b"],
                     id="then-longest-idle"),
        pytest.param(cluster([busy("a"), pending("p"), B], target=1), {}, ["delete p", "retire b"],
                     id="pending-goes-first"),
        pytest.param(
            cluster([pending("old", age_s=90.0), pending("new", age_s=3.0), busy("a")], target=2),
            {}, ["delete new"], id="youngest-pending-first",
        ),
        pytest.param(
            cluster([pending("new", age_s=3.0), pending("stuck", waiting="Unschedulable: full"),
                     busy("a")], target=2),
            {}, ["delete stuck"], id="stuck-before-starting",
        ),
        pytest.param(cluster([A, worker("b", **DRAINING)], target=2), {}, ["cancel b"],
                     id="wanted-again"),
        pytest.param(cluster([A, worker("b", **DRAINING)], target=1), {}, [],
                     id="draining-is-waited-for"),
        pytest.param(cluster([A, worker("b", in_service=False)], target=2), {}, ["=3"],
                     id="closed-by-somebody-else-is-replaced"),
    ],
)  # fmt: skip
def test_plan(world: ObservedCluster, policy: dict[str, Any], expected: list[str]) -> None:
    assert expected == [short(a) for a in decide(world, **policy).actions]


@pytest.mark.parametrize(
    ("world", "policy", "expected"),
    [
        pytest.param(cluster([busy("a", **GOING), busy("b")], target=2), {}, ["=3", "drain a"],
                     id="replaced-first-then-drained"),
        pytest.param(cluster([busy("a", **GOING), busy("b")], target=2), {"max_replicas": 2},
                     ["=3", "drain a"], id="beyond-the-maximum-while-it-drains"),
        pytest.param(cluster([worker("a", idle_s=0.0, **GOING), busy("b")], target=1), {},
                     ["drain a"], id="idle-for-however-short"),
        pytest.param(cluster([busy("a", **GOING), worker("b", **DRAINING)], target=1), {},
                     ["cancel b", "drain a"], id="one-that-was-leaving-replaces-it"),
        pytest.param(cluster([busy(n, **GOING) for n in "abc"], target=3),
                     {"retirement": Retirement(max_concurrent=1)},
                     ["=6", "drain a", "drain b", "drain c"], id="all-at-once"),
        pytest.param(cluster([busy("a", **GOING), busy("b")], target=2, replicas=3), {},
                     ["drain a"], id="the-replacement-is-on-its-way"),
        pytest.param(cluster([worker("a", **DRAINING, **GOING), busy("b")], target=2), {}, ["=3"],
                     id="not-called-back"),
        pytest.param(cluster([pending("a", terminating="3 tasks", **GOING), busy("b")], target=2),
                     {}, ["=3"], id="it-ends-once-others-have-what-it-has"),
        pytest.param(cluster([pending("a", terminating="3 tasks"), busy("b")], target=2), {}, [],
                     id="its-next-pod-comes-by-itself"),
        pytest.param(cluster([worker("a", **DRAINING), busy("b")], target=2), {}, ["cancel a"],
                     id="called-back-once-its-node-stays"),
        pytest.param(cluster([worker("a", **DRAINED, **GOING), busy("b"), pending("c")], target=2),
                     {}, ["delete a"], id="drained-and-replaced"),
        pytest.param(cluster([worker("a", **GOING), B, C], target=1), {},
                     ["drain a", "retire b"], id="others-leave-too"),
        pytest.param(cluster([busy("a", **GOING), busy("b")], target=2),
                     {"disruption": Disruption(node_signals=False)}, [], id="not-heeded"),
    ],
)  # fmt: skip
def test_workers_on_a_node_that_goes(
    world: ObservedCluster, policy: dict[str, Any], expected: list[str]
) -> None:
    past = past_of(gap=(3, 2), gap_since=NOW - 1)

    assert expected == [short(a) for a in decide(world, past, **policy).actions]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        pytest.param({}, ["leave a"], id="the-scheduler-does-not-know"),
        pytest.param({"known_left_s": 105.1}, ["leave a"], id="it-believes-in-more-time"),
        pytest.param({"known_left_s": 105.0}, [], id="it-knows"),
        pytest.param({"known_left_s": 95.0}, [], id="or-nearly"),
        pytest.param({"known_left_s": 94.9}, ["leave a"], id="it-may-not-be-sure-of-the-end"),
        pytest.param({"known_left_s": 80.0, "dask_names": ("tcp://told",)}, [],
                     id="its-hook-wants-it-earlier"),
        pytest.param({"dask_names": ()}, [], id="nobody-is-in-it-any-more"),
        pytest.param({"dask_names": ("tcp://d",)}, [], id="it-has-drained"),
    ],
)  # fmt: skip
def test_ends_of_pods_are_told(ending: dict[str, Any], expected: list[str], mode: Mode) -> None:
    told = TerminatingPod("a", "a-x", ("10.0.0.1",), 100.0, ("tcp://10.0.0.1:1",))
    world = dataclasses.replace(
        cluster([busy("b"), worker("d", **DRAINED)], target=1),
        terminating=(dataclasses.replace(told, **ending),),
    )

    past = dataclasses.replace(PAST, told=frozenset({"tcp://told"}))
    actions = [short(a) for a in decide(world, past, mode=mode).actions]
    assert expected == [a for a in actions if a.startswith("leave")]


HELD = Pin("manual", "operator", "note", 590.0)


@pytest.mark.parametrize(
    ("connected", "pin", "expected"),
    [
        pytest.param((), None, ("tcp://old", "a"), id="its-pin-is-by-name-still"),
        pytest.param(("a",), None, ("tcp://old",), id="the-name-is-the-next-ones"),
        pytest.param((), ManualPin(60.0, ""), None, id="still-pinned"),
    ],
)
def test_a_pin_that_was_lifted_does_not_hold_up_the_end_of_its_pod(
    connected: tuple[str, ...], pin: ManualPin | None, expected: tuple[str, ...] | None
) -> None:
    old = SchedulerWorker("a", "tcp://old", "closing_gracefully", 1, 0, 0.0, 0, pins=(HELD,))
    world = cluster([worker("a", dask_names=connected), busy("b")], target=1)
    workers = (*world.scheduler.workers, old)
    world = dataclasses.replace(
        world,
        scheduler=dataclasses.replace(world.scheduler, workers=workers),
        terminating=(TerminatingPod("a", "a-x", (), 100.0, ("tcp://old",), 100.0, manual_pin=pin),),
    )

    lifted = [a.dask_names for a in decide(world).actions if isinstance(a, Unpin)]
    assert ([expected] if expected else []) == lifted


def remembering(gap: tuple[int, int], since: float = NOW - 1, **changes: Any) -> Past:
    return past_of(gap=gap, gap_since=since, **changes)


@pytest.mark.parametrize(
    ("past", "replicas", "target", "expected"),
    [
        pytest.param(remembering((4, 2)), 4, 2, [], id="upstream-is-at-work"),
        pytest.param(remembering((4, 2), leaving=frozenset({"x", "y"})), 4, 2, ["=2"],
                     id="we-deleted-them"),
        pytest.param(remembering((3, 2), leaving=frozenset({"x"}), deleted=frozenset({"a"})), 3, 2,
                     [], id="another-is-not-yet-seen-gone"),
        pytest.param(remembering((2, 2)), 4, 6, ["=6"], id="more-while-upstream-is-at-work"),
        pytest.param(remembering((4, 2), leaving=frozenset({"x", "y"})), 4, 4, ["=2"],
                     id="wanted-again-after-deletion-needs-the-truth-first"),
        pytest.param(remembering((5, 2), leaving=frozenset({"x", "y", "z"})), 5, 4, ["=4"],
                     id="a-change-downwards-to-more-than-exist-makes-workers"),
    ],
)  # fmt: skip
def test_replicas_follow_the_workers(
    past: Past, replicas: int, target: int, expected: list[str]
) -> None:
    world = cluster([busy("a"), busy("b")], target=target, replicas=replicas)

    assert expected == [short(a) for a in decide(world, past).actions]


@pytest.mark.parametrize(
    ("handled", "past", "replicas", "target", "expected"),
    [
        pytest.param(3, {}, 2, 3, [], id="upstream-would-see-no-change"),
        pytest.param(3, {}, 2, 4, ["=4"], id="it-sees-this-one"),
        pytest.param(3, {}, 3, 3, [], id="has-handled-it-and-all-is-not-seen-yet"),
        pytest.param(3, {"gap": (3, 2, 3), "gap_since": NOW - 2}, 3, 3, ["=2"],
                     id="has-handled-it-so-the-truth-first"),
        pytest.param(3, {"gap": (3, 2, 3), "gap_since": NOW - 2}, 3, 2, ["=2"],
                     id="has-handled-it-and-fewer-are-needed"),
        pytest.param(2, {"gap": (4, 2, 2), "gap_since": NOW - 60}, 4, 2, [],
                     id="is-at-work-the-number-is-not-flipped"),
        pytest.param(2, {"gap": (4, 2, 2), "gap_since": NOW - 150}, 4, 2, ["=2"],
                     id="nobody-is-at-work-for-long"),
        pytest.param(2, {"leaving": frozenset({"x", "y"})}, 4, 2, [],
                     id="we-deleted-them-and-it-is-about-to-make-others"),
    ],
)  # fmt: skip
def test_what_upstream_has_handled_is_heeded(
    handled: int, past: dict[str, Any], replicas: int, target: int, expected: list[str]
) -> None:
    world = cluster([busy("a"), busy("b")], target=target, replicas=replicas)
    group = dataclasses.replace(world.groups[0], handled=handled)
    world = dataclasses.replace(world, groups=(group,))

    decided = decide(world, past_of(**past))

    assert expected == [short(a) for a in decided.actions]


@pytest.mark.parametrize(
    ("world", "policy", "reason", "expected"),
    [
        pytest.param(ObservedCluster(KEY), {}, Reason.CLUSTER_NOT_FOUND, [], id="no-group-yet"),
        pytest.param(dataclasses.replace(cluster([A, B]), conflict="another policy"), {},
                     Reason.OWNERSHIP_CONFLICT, [], id="two-owners"),
        pytest.param(cluster([A, B], problem=Reason.AGENT_MISSING), {},
                     Reason.AGENT_MISSING, [], id="another-protocol"),
        pytest.param(cluster([A, B]), {"mode": Mode.PAUSED}, Reason.PAUSED, [], id="paused"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way(
    world: ObservedCluster, policy: dict[str, Any], reason: Reason, expected: list[str]
) -> None:
    decided = decide(world, **policy)

    assert reason is decided.reason
    assert expected == [short(a) for a in decided.actions]


# --- promises, whatever the world -------------------------------------------------------------

LIFECYCLES = [
    Pending(), Serving(), Retiring(), Retiring(is_drained=True), Closing(),
    Deleting(),
]  # fmt: skip
workers = st.builds(
    ObservedWorker,
    name=st.text("abcdefgh", min_size=1, max_size=4),
    uid=st.just("u"),
    group=st.just(GROUP),
    made_at=st.floats(-1e4, 0),
    waiting=st.sampled_from(["", "Unschedulable: full"]),
    processing=st.integers(0, 2),
    idle_since=st.floats(-1e4, 0),
    sole_bytes=st.integers(0, 10**12),
    closable=st.booleans(),
    actors=st.booleans(),
    pins=st.sampled_from([(), (SHUFFLE,), (HELD,)]),
    manual_pin=st.none() | st.builds(ManualPin, st.floats(1, 1e5), st.just("why")),
    node_terminating=st.sampled_from(["", "", "node n1: cordoned"]),
).flatmap(
    lambda w: st.sampled_from(LIFECYCLES).map(
        lambda at: dataclasses.replace(
            w, lifecycle=at, dask_names=() if isinstance(at, Pending) else (w.name,)
        )
    )
)
endings = st.builds(
    TerminatingPod,
    worker=st.text("abcdefgh", min_size=1, max_size=2),
    pod=st.just("pod"),
    addresses=st.just(()),
    left_s=st.floats(0, 600),
    dask_names=st.sampled_from([(), ("tcp://a",)]),
    known_left_s=st.floats(0, 600) | st.just(float("inf")),
)
worlds = st.builds(
    lambda ws, target, replicas, problem, ending: dataclasses.replace(
        cluster(ws, target=target, replicas=replicas, problem=problem), terminating=tuple(ending)
    ),
    st.lists(workers, max_size=12, unique_by=lambda w: w.name),
    st.integers(0, 30),
    st.integers(0, 15),
    st.sampled_from([None, None, None, Reason.SCHEDULER_UNREACHABLE]),
    st.lists(endings, max_size=2),
)
policies = st.builds(
    lambda low, more, mode, idle, at_once: Policy(
        ClusterRef("etl"), low + more, low, mode, idle,
        retirement=Retirement(max_concurrent=at_once),
    ),
    st.integers(0, 6), st.integers(0, 10), st.sampled_from(Mode), st.sampled_from([0.0, 5.0, 60.0]),
    st.integers(1, 5),
)  # fmt: skip
group_pasts = st.builds(
    GroupPast,
    since=st.none() | st.floats(0, NOW),
    recommendations=st.lists(
        st.builds(Recommendation, st.floats(NOW - 90, NOW), st.integers(0, 15)), max_size=4
    ).map(lambda rs: tuple(sorted(rs))),
    gap=st.tuples(st.integers(0, 15), st.integers(0, 12)),
    gap_since=st.floats(0, NOW),
)
pasts = st.builds(
    Past,
    session=st.sampled_from(["s", "s", "other"]),
    since=st.none() | st.floats(0, NOW),
    groups=st.dictionaries(st.just(GROUP), group_pasts),
    leaving=st.frozensets(st.text("abcdefgh", min_size=1, max_size=2), max_size=4),
    deleted=st.frozensets(st.text("abcdefgh", min_size=1, max_size=2), max_size=2),
)


@given(worlds, policies, pasts)
def test_a_worker_leaves_only_if_idle_and_unpinned(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    known = {w.name: w for g in world.groups for w in g.workers}

    for action in plan(world, policy, past, now=NOW).actions:
        if isinstance(action, Retire):
            candidate = known[action.worker]
            assert not candidate.is_pinned
            assert not candidate.actors
            if action.busy_ok:
                assert candidate.node_terminating
                assert action.reason is Reason.NODE_GOING
                continue
            assert candidate.processing == 0
            assert candidate.closable
            assert world.clocks.idle_s(candidate) >= policy.idle_timeout_s
        if isinstance(action, Delete):
            candidate = known[action.worker]
            assert not candidate.is_connected or candidate.is_drained
            assert candidate.is_connected or candidate.manual_pin is None


def _is_doomed(w: ObservedWorker) -> bool:
    is_free = isinstance(w.lifecycle, Serving) and not w.is_pinned and not w.actors
    return is_free and bool(w.node_terminating)


@given(worlds, policies, pasts)
def test_none_is_called_back_to_a_node_that_goes(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    known = {w.name: w for g in world.groups for w in g.workers}
    acting = dataclasses.replace(policy, mode=Mode.AUTO)

    for action in plan(world, acting, past, now=NOW).actions:
        if isinstance(action, Cancel):
            assert not known[action.worker].node_terminating


@given(worlds, policies, pasts)
def test_replacements_are_asked_for_before_anybody_leaves_for_its_node(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    actions = plan(world, policy, past, now=NOW).actions
    drains = [i for i, a in enumerate(actions) if isinstance(a, Retire) and a.busy_ok]
    rises = [
        i for i, a in enumerate(actions)
        if isinstance(a, SetReplicas) and a.replicas > world.groups[0].replicas
    ]  # fmt: skip

    assert not drains or all(i < drains[0] for i in rises)


@given(worlds, policies, pasts)
def test_bounds_hold(world: ObservedCluster, policy: Policy, past: Past) -> None:
    decided = plan(world, policy, past, now=NOW)
    group = world.groups[0]
    # A scheduler that started anew has no past: deletions that were sent are not remembered.
    deleted = past.deleted if past.session == world.scheduler.session else ()
    serving = [
        w for w in group.workers
        if isinstance(w.lifecycle, Pending | Serving)
        and not _is_doomed(w) and w.name not in deleted
    ]  # fmt: skip
    gone = {
        a.worker
        for a in decided.actions
        if (isinstance(a, Retire) and not a.busy_ok)
        or (isinstance(a, Delete) and a.reason is Reason.NEVER_CONNECTED)
    }

    for each in decided.groups:  # the last step has made the number
        assert each.is_frozen or each.desired == each.steps[-1].replicas
    if gone:  # never below the minimum
        assert len(serving) - len(gone) >= policy.min_replicas
    for action in decided.actions:  # never more made than the maximum allows
        if isinstance(action, SetReplicas) and world.scheduler.is_connected:
            made = action.replicas - len(group.workers)
            back = sum(isinstance(a, Cancel) for a in decided.actions)
            assert made <= 0 or len(serving) + back + made <= policy.max_replicas


@given(worlds, policies, pasts)
def test_replicas_are_never_set_below_what_exists(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    """Else upstream would choose the workers to close."""
    for action in plan(world, policy, past, now=NOW).actions:
        if isinstance(action, SetReplicas) and world.scheduler.is_connected:
            assert action.replicas >= len(world.groups[0].workers)


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
