"""What the planner decides, case by case, and what it promises for every case."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.observed import (
    Ending,
    Leaving,
    ManualPin,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
    Pin,
    SchedulerWorker,
)
from dask_adaptive.model.past import GroupPast, Past, Recommendation, Refusal
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    Leave,
    Plan,
    Retire,
    SetPin,
    SetReplicas,
    Unpin,
)
from dask_adaptive.model.policy import Disruption, Mode, Policy, Retirement
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
    past_of,
    pending,
    worker,
)

DRAINING = {"leaving": Leaving.DRAINING, "in_service": False}
DRAINED = {"leaving": Leaving.DRAINED, "in_service": False}


def short(action: Action) -> str:
    """An action as a word, so that a table stays readable."""
    if isinstance(action, SetReplicas):
        return f"={action.replicas}"
    if isinstance(action, Retire) and action.busy_ok:
        return f"drain {action.worker}"
    return f"{VERBS[type(action)]} {action.worker}"


VERBS = {
    Retire: "retire", Leave: "leave", Cancel: "cancel", Delete: "delete", SetPin: "pin",
    Unpin: "unpin",
}  # fmt: skip


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


GOING = {"node_going": "node n1: cordoned"}


@pytest.mark.parametrize(
    ("world", "policy", "expected"),
    [
        pytest.param(cluster([busy("a", **GOING), busy("b")], target=2), {}, ["=3", "drain a"],
                     id="replaced-first-then-drained"),
        pytest.param(cluster([busy("a", **GOING), busy("b")], target=2), {"maximum": 2},
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
        pytest.param(cluster([busy("a", pins=(SHUFFLE,), **GOING), busy("b")], target=2), {}, [],
                     id="a-pin-holds"),
        pytest.param(cluster([busy("a", actors=True, **GOING), busy("b")], target=2), {}, [],
                     id="actors-hold"),
        pytest.param(cluster([pending("a", **GOING), busy("b")], target=2), {}, [],
                     id="never-connected"),
        pytest.param(cluster([worker("a", **DRAINING, **GOING), busy("b")], target=2), {}, ["=3"],
                     id="not-called-back"),
        pytest.param(cluster([pending("a", ending="3 tasks", **GOING), busy("b")], target=2), {},
                     ["=3"], id="its-eviction-is-put-off-until-others-have-what-it-has"),
        pytest.param(cluster([pending("a", ending="3 tasks"), busy("b")], target=2), {}, [],
                     id="its-next-pod-comes-by-itself"),
        pytest.param(cluster([worker("a", **DRAINING), busy("b")], target=2), {}, ["cancel a"],
                     id="called-back-once-its-node-stays"),
        pytest.param(cluster([worker("a", **DRAINED, **GOING), busy("b")], target=2), {}, ["=3"],
                     id="drained-and-to-be-replaced"),
        pytest.param(cluster([worker("a", **DRAINED, **GOING), busy("b"), pending("c")], target=2),
                     {}, ["delete a"], id="drained-and-replaced"),
        pytest.param(cluster([worker("a", **DRAINED, **GOING), busy("b")], target=1), {},
                     ["delete a"], id="drained-and-not-needed"),
        pytest.param(cluster([worker("a", **GOING), B, C], target=1), {},
                     ["drain a", "retire b"], id="others-leave-too"),
        pytest.param(cluster([busy("a", **GOING), busy("b")], target=2),
                     {"disruption": Disruption(node_signals=False)}, [], id="not-heeded"),
        pytest.param(cluster([worker("a", **DRAINING, **GOING), busy("b")], target=2),
                     {"disruption": Disruption(node_signals=False)}, ["cancel a"],
                     id="not-heeded-called-back"),
        pytest.param(cluster([busy("a", **GOING), busy("b")], target=2), {"mode": Mode.PAUSED}, [],
                     id="paused"),
    ],
)  # fmt: skip
def test_workers_on_a_node_that_goes(
    world: ObservedCluster, policy: dict[str, Any], expected: list[str]
) -> None:
    past = past_of(gap=(3, 2), gap_since=NOW - 1)

    assert expected == [short(a) for a in decide(world, past, **policy).actions]


def test_who_is_held_on_a_node_that_goes_is_named() -> None:
    world = cluster([busy("a", pins=(SHUFFLE,), **GOING), busy("b", **GOING)], target=2)
    past = dataclasses.replace(PAST, refusals={"b": Refusal(NOW + 1, Reason.NO_RECIPIENT, "no")})

    blockers = {b.worker: (b.reason, b.message) for b in decide(world, past).blockers}

    assert {
        "a": (Reason.PINNED, "node n1: cordoned; pinned by shuffle 5f3a"),
        "b": (Reason.NO_RECIPIENT, "no"),
    } == blockers


def test_a_rise_that_only_replaces_says_so() -> None:
    decided = decide(cluster([busy("a", **GOING), busy("b")], target=2))

    assert Reason.NODE_GOING is decided.reason
    assert "1 workers are on nodes that are about to go: 1 more are needed" == decided.message


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        pytest.param({}, ["leave a"], id="the-scheduler-does-not-know"),
        pytest.param({"told_left_s": 300.0}, ["leave a"], id="it-believes-in-more-time"),
        pytest.param({"told_left_s": 104.0}, [], id="it-knows"),
        pytest.param({"told_left_s": 80.0}, ["leave a"], id="it-may-not-be-sure-of-the-end"),
        pytest.param(
            {"told_left_s": 80.0, "dask_names": ("tcp://told",)}, [], id="its-hook-wants-it-earlier"
        ),
        pytest.param({"dask_names": ()}, [], id="nobody-is-in-it-any-more"),
        pytest.param({"dask_names": ("tcp://d",)}, [], id="it-has-drained"),
    ],
)
def test_ends_of_pods_are_told(ending: dict[str, Any], expected: list[str], mode: Mode) -> None:
    told = Ending("a", "a-x", ("10.0.0.1",), 100.0, ("tcp://10.0.0.1:1",))
    world = dataclasses.replace(
        cluster([busy("b"), worker("d", **DRAINED)], target=1),
        ending=(dataclasses.replace(told, **ending),),
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
        ending=(Ending("a", "a-x", (), 100.0, ("tcp://old",), 100.0, manual_pin=pin),),
    )

    lifted = [a.dask_names for a in decide(world).actions if isinstance(a, Unpin)]
    assert ([expected] if expected else []) == lifted


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
            past_of(recommendations=(Recommendation(NOW - 25, 0),)), ["hold"],
            id="blind-until-now",
        ),
        pytest.param(
            past_of(
                recommendations=(Recommendation(NOW - 29, 2), Recommendation(NOW - 1, 0))
            ),
            ["hold"], id="a-dip-in-the-window",
        ),
        pytest.param(
            past_of(
                recommendations=(Recommendation(NOW - 30, 2), Recommendation(NOW - 1, 0))
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
    return past_of(gap=gap, gap_since=since, **changes)


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


@pytest.mark.parametrize(
    ("handled", "past", "replicas", "target", "expected"),
    [
        pytest.param(2, {}, 2, 3, ["=3"], id="more"),
        pytest.param(3, {}, 2, 3, [], id="upstream-would-see-no-change"),
        pytest.param(3, {}, 2, 4, ["=4"], id="it-sees-this-one"),
        pytest.param(3, {}, 3, 3, [], id="has-handled-it-and-all-is-not-seen-yet"),
        pytest.param(3, {"gap": (3, 2, 3), "gap_since": NOW - 2}, 3, 3, ["=2"],
                     id="has-handled-it-so-the-truth-first"),
        pytest.param(3, {"gap": (3, 2, 3), "gap_since": NOW - 2}, 3, 2, ["=2"],
                     id="has-handled-it-and-fewer-are-needed"),
        pytest.param(2, {"gap": (4, 2, 2), "gap_since": NOW - 60}, 4, 4, [],
                     id="is-at-work-or-tries-again"),
        pytest.param(2, {"gap": (4, 2, 2), "gap_since": NOW - 60}, 4, 2, [],
                     id="is-at-work-the-number-is-not-flipped"),
        pytest.param(2, {"gap": (4, 2, 2), "gap_since": NOW - 150}, 4, 2, ["=2"],
                     id="nobody-is-at-work-for-long"),
        pytest.param(4, {"gap": (4, 2, 2), "gap_since": NOW - 60}, 4, 4, [],
                     id="has-just-handled-it"),
        pytest.param(4, {"leaving": frozenset({"x", "y"})}, 4, 2, ["=2"], id="we-deleted-them"),
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
    node_going=st.sampled_from(["", "", "node n1: cordoned"]),
).flatmap(
    lambda w: st.sampled_from([(), (w.name,)]).map(lambda n: dataclasses.replace(w, dask_names=n))
)
endings = st.builds(
    Ending,
    worker=st.text("abcdefgh", min_size=1, max_size=2),
    pod=st.just("pod"),
    addresses=st.just(()),
    left_s=st.floats(0, 600),
    dask_names=st.sampled_from([(), ("tcp://a",)]),
    told_left_s=st.floats(0, 600) | st.just(float("inf")),
)
worlds = st.builds(
    lambda ws, target, replicas, problem, ending: dataclasses.replace(
        cluster(ws, target=target, replicas=replicas, problem=problem), ending=tuple(ending)
    ),
    st.lists(workers, max_size=12, unique_by=lambda w: w.name),
    st.integers(0, 30),
    st.integers(0, 15),
    st.sampled_from([None, None, None, Reason.SCHEDULER_UNREACHABLE]),
    st.lists(endings, max_size=2),
)
policies = st.builds(
    lambda low, more, mode, idle, at_once: Policy(
        "etl", low + more, low, mode, idle, retirement=Retirement(max_concurrent=at_once)
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
                assert candidate.node_going
                assert action.reason is Reason.NODE_GOING
                continue
            assert candidate.processing == 0
            assert candidate.closable
            assert candidate.idle_s >= policy.idle_timeout_s
        if isinstance(action, Delete):
            candidate = known[action.worker]
            assert not candidate.is_connected or candidate.leaving is Leaving.DRAINED
            assert candidate.is_connected or candidate.manual_pin is None


def _is_doomed(w: ObservedWorker) -> bool:
    is_free = w.is_connected and w.leaving is Leaving.NO and not w.is_pinned and not w.actors
    return is_free and bool(w.node_going)


@given(worlds, policies, pasts)
def test_none_is_called_back_to_a_node_that_goes(
    world: ObservedCluster, policy: Policy, past: Past
) -> None:
    known = {w.name: w for g in world.groups for w in g.workers}
    acting = dataclasses.replace(policy, mode=Mode.AUTO)

    for action in plan(world, acting, past, now=NOW).actions:
        if isinstance(action, Cancel):
            assert not known[action.worker].node_going


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
    serving = [
        w for w in group.workers
        if not w.going and not _is_doomed(w) and w.name not in past.deleted
        and (not w.is_connected or (w.leaving is Leaving.NO and w.in_service))
    ]  # fmt: skip
    gone = {
        a.worker
        for a in decided.actions
        if (isinstance(a, Retire) and not a.busy_ok)
        or (isinstance(a, Delete) and a.reason is Reason.NEVER_CONNECTED)
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
    begun = sum(isinstance(a, Retire) and not a.busy_ok for a in decided.actions)
    under_way = sum(
        w.is_connected and not w.going and w.leaving is not Leaving.NO
        for w in world.groups[0].workers
    )

    if begun:
        assert begun + under_way <= policy.retirement.max_concurrent
