"""Several worker groups: each follows what it is needed for, and no other group is touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.model.demand import Demand, Need, PrefixWork, Want
from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import GroupPast, Past, Recommendation
from dask_adaptive.model.plan import (
    Action,
    Arriving,
    Cancel,
    Delete,
    Plan,
    Restart,
    Retire,
    SetReplicas,
)
from dask_adaptive.model.policy import Disruption, Mode, Policy, Retirement
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, TaskQuota, Use
from dask_adaptive.model.scaling import Behavior, Direction, GroupBounds, Scaling
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.remember import remember
from support.worlds import GROUP, NOW, POLICY, busy, pending, worker
from support.worlds import cluster as cluster_of

GPU, BIG = "etl-gpu", "etl-big"
SINCE = GroupPast(recommendations=(Recommendation(NOW - 5, 0),), since=0.0)
PAST = Past(session="s", since=0.0, groups={GROUP: SINCE, GPU: SINCE})
DRAINING = {"leaving": Leaving.DRAINING, "in_service": False}
GOING = {"node_going": "node n1: cordoned"}


def group(
    name: str, workers: Sequence[ObservedWorker], *, replicas: int | None = None, **changes: Any
) -> ObservedGroup:
    rows = tuple(dataclasses.replace(w, group=name) for w in workers)
    return ObservedGroup(name, len(rows) if replicas is None else replicas, rows, **changes)


def cluster(workers: Sequence[ObservedWorker], **changes: Any) -> ObservedCluster:
    """With an agent that says that there is no work, but for what runs."""
    return cluster_of(workers, **{"demand": Demand(), **changes})


def policy_of(*groups: GroupBounds, maximum: int = 10, scaling: Any = None, **more: Any) -> Policy:
    rest = scaling or {}
    return dataclasses.replace(
        POLICY, maximum=maximum, scaling=Scaling(groups=groups, **rest), **more
    )


TWO = policy_of(GroupBounds(GPU, 4))


def want(workers: int, of: str = "") -> Want:
    return Want(workers, 60.0, "client nb", of)


def decide(world: ObservedCluster, policy: Policy = TWO, past: Past = PAST) -> Plan:
    return plan(world, policy, past, now=NOW)


def short(action: Action) -> str:
    if isinstance(action, SetReplicas):
        return f"{action.group}={action.replicas}"
    verbs = {Retire: "retire", Cancel: "cancel", Delete: "delete", Restart: "restart"}
    return f"{verbs[type(action)]} {action.worker}"  # type: ignore[index,union-attr]


def actions(decided: Plan) -> list[str]:
    return [short(a) for a in decided.actions]


A, B = worker("a"), worker("b")
G, H = worker("g"), worker("h")


@pytest.mark.parametrize(
    ("world", "policy", "expected"),
    [
        pytest.param(
            cluster([busy("a")], wants=(want(2, GPU),), others=[group(GPU, [])]), TWO,
            [f"{GPU}=2"], id="from-zero",
        ),
        pytest.param(
            cluster([busy("a")], wants=(want(3), want(9, GPU)), others=[group(GPU, [busy("g")])]),
            TWO, [f"{GROUP}=3", f"{GPU}=4"], id="both-grow-to-what-each-may",
        ),
        pytest.param(
            cluster([A, B], others=[group(GPU, [G, H])]), TWO,
            ["retire a", "retire b", "retire g", "retire h"], id="both-to-zero",
        ),
        pytest.param(
            cluster([A, B], others=[group(GPU, [G, H]), group(BIG, [worker("x"), worker("y")])]),
            TWO, ["retire a", "retire b", "retire g", "retire h"], id="the-third-is-not-touched",
        ),
        pytest.param(
            cluster([A, B], others=[group(GPU, [G, H], replicas=5), group(BIG, [A], replicas=4)]),
            TWO, ["retire a", "retire b", "retire g", "retire h"], id="nor-its-replicas",
        ),
        pytest.param(
            cluster([A], wants=(want(1),), others=[group(GPU, [G, H])]),
            policy_of(GroupBounds(GPU, 4, minimum=1)), ["retire g"], id="its-own-minimum",
        ),
        pytest.param(
            cluster([A], wants=(want(1),), others=[group(GPU, [G, H])]),
            policy_of(GroupBounds(GPU, 4, minimum=3)), [f"{GPU}=3"], id="up-to-its-own-minimum",
        ),
        pytest.param(
            cluster([worker("a", idle_s=40.0)], others=[group(GPU, [worker("g", idle_s=40.0)])]),
            policy_of(GroupBounds(GPU, 4, idle_timeout_s=60.0)), ["retire a"],
            id="its-own-idle-timeout",
        ),
        pytest.param(
            cluster([A, B], others=[group(GPU, [G, H])]),
            dataclasses.replace(TWO, retirement=Retirement(max_concurrent=3)),
            ["retire a", "retire b", "retire g"], id="max-concurrent-is-of-the-cluster",
        ),
        pytest.param(
            cluster([A], others=[group(GPU, [G, worker("h", **DRAINING)])]),
            dataclasses.replace(TWO, retirement=Retirement(max_concurrent=1)), [],
            id="those-of-other-groups-count",
        ),
        pytest.param(
            cluster([A], wants=(want(1), want(2, GPU)),
                    others=[group(GPU, [G, worker("h", **DRAINING)])]),
            TWO, ["cancel h"], id="called-back",
        ),
        pytest.param(
            cluster([A], wants=(want(1),), others=[group(GPU, [pending("p"), busy("g")])]),
            TWO, ["delete p"], id="pending-first",
        ),
        pytest.param(
            cluster([A], wants=(want(1), want(2, GPU)),
                    others=[group(GPU, [busy("g", **GOING), busy("h")])]),
            TWO, [f"{GPU}=3", "retire g"], id="its-machine-goes",
        ),
        pytest.param(
            cluster([A], wants=(want(1),), others=[group(BIG, [busy("x", **GOING)])]),
            TWO, [], id="nobody-replaces-those-of-a-group-that-is-not-scaled",
        ),
        pytest.param(
            cluster([A], wants=(want(1),)), TWO, [], id="a-group-that-is-not-there-yet"
        ),
    ],
)  # fmt: skip
def test_groups(world: ObservedCluster, policy: Policy, expected: list[str]) -> None:
    assert expected == actions(decide(world, policy))


def test_work_that_needs_resources_makes_its_group_grow_and_no_other() -> None:
    demand = Demand(
        prefixes=(PrefixWork("train", 10.0, running=0, ready=3, waiting=0, bound=3),),
        needs=(Need(tasks=3, stuck=3, seconds=30.0, resources={"GPU": 1.0}),),
    )
    gpus = group(GPU, [], threads=1, resources=(("GPU", 1.0),))
    world = cluster([busy("a")], demand=demand, others=[gpus, group(BIG, [])])

    asked = [a for a in decide(world).actions if isinstance(a, SetReplicas)]
    assert [GPU] == [a.group for a in asked]
    assert 1 <= asked[0].replicas <= 3


def test_a_surge_makes_room_in_the_group_of_its_worker() -> None:
    spent = busy("g", use=Use(runs=99))
    world = cluster(
        [busy("a")], wants=(want(1), want(2, GPU)), others=[group(GPU, [spent, busy("h")])]
    )
    policy = dataclasses.replace(TWO, recycle=Recycle(tasks=TaskQuota(20)))

    assert [f"{GPU}=3"] == actions(decide(world, policy))
    left_alone = dataclasses.replace(policy, scaling=Scaling())
    assert ["retire g"] == actions(decide(world, left_alone))  # in place: its number is the user's


# --- the cluster's limit ----------------------------------------------------------------------

BOTH = (GroupBounds(GROUP, 8), GroupBounds(GPU, 8))


def limited(*bounds: GroupBounds, maximum: int) -> Policy:
    return policy_of(*bounds, maximum=maximum)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        pytest.param(BOTH, {GROUP: 3, GPU: 3}, id="equals-alike"),
        pytest.param(
            (GroupBounds(GROUP, 8), GroupBounds(GPU, 8, priority=1)), {GROUP: 1, GPU: 5},
            id="the-higher-priority-first",
        ),
    ],
)  # fmt: skip
def test_the_clusters_limit_is_shared(
    bounds: tuple[GroupBounds, ...], expected: dict[str, int]
) -> None:
    world = cluster([busy("a")], wants=(want(5), want(6, GPU)), others=[group(GPU, [busy("g")])])
    decided = decide(world, limited(*bounds, maximum=6))

    assert expected == {g.group: g.desired for g in decided.groups}
    assert 6 == decided.desired
    words = {g.limited.reason for g in decided.groups if g.limited}
    assert {Reason.CLUSTER_LIMIT} == words


def test_nobody_is_taken_away_for_a_group_of_higher_priority() -> None:
    there = [worker(n) for n in "abcd"]
    world = cluster(there, wants=(want(4), want(4, GPU)), others=[group(GPU, [])])
    policy = limited(GroupBounds(GROUP, 8), GroupBounds(GPU, 8, priority=9), maximum=5)

    assert [f"{GPU}=1"] == actions(decide(world, policy))


def test_what_is_beyond_the_clusters_limit_goes_the_lowest_priority_first() -> None:
    """The limit was lowered."""
    world = cluster(
        [worker("a"), worker("b")], wants=(want(2), want(2, GPU)), others=[group(GPU, [G, H])]
    )
    policy = limited(GroupBounds(GROUP, 8, priority=1), GroupBounds(GPU, 8), maximum=3)

    assert ["retire g"] == actions(decide(world, policy))


def test_without_bounds_of_its_own_the_default_group_has_the_policys() -> None:
    world = cluster([busy("a")], wants=(want(9), want(4, GPU)), others=[group(GPU, [])])

    assert [f"{GROUP}=9", f"{GPU}=4"] == actions(decide(world, policy_of(GroupBounds(GPU, 4))))


# --- what is told of several ------------------------------------------------------------------


def test_sums_and_the_most_telling_reason() -> None:
    world = cluster([A], wants=(want(1), want(6, GPU)), others=[group(GPU, [busy("g")])])
    decided = decide(world)

    assert (7, 5) == (decided.wanted, decided.desired)
    assert Reason.CLIENT_WANTS is decided.reason
    assert decided.message.startswith(f"{GPU}: ")
    at_rest = decide(cluster([A], wants=(want(1), want(1, GPU)), others=[group(GPU, [busy("g")])]))
    assert 2 == at_rest.desired


def test_steps_lead_from_the_load_to_the_number() -> None:
    scaling = {"behavior": Behavior(up=Direction(window_s=0.0))}
    policy = policy_of(GroupBounds(GPU, 2), scaling=scaling)
    world = cluster([A], wants=(want(1), want(6, GPU)), others=[group(GPU, [busy("g")])])
    (_, gpu) = decide(world, policy).groups

    assert [1, 6, 2] == [s.replicas for s in gpu.steps]
    assert ["load", "bounds"] == [gpu.steps[0].stage, gpu.steps[-1].stage]
    assert 2 == gpu.inputs["maxReplicas"]
    assert gpu.asked_by.startswith("client")


def test_who_is_on_the_way_and_when() -> None:
    late, young = pending("p", age_s=100.0), pending("q", age_s=4.0)
    stuck = pending("s", age_s=4.0, unschedulable_s=50.0)
    past = dataclasses.replace(
        PAST, groups={**PAST.groups, GPU: dataclasses.replace(SINCE, arrival_s=20.0)}
    )
    world = cluster([A], wants=(want(1), want(4, GPU)), others=[group(GPU, [late, young, stuck])])

    assert (Arriving(1, 16.0), Arriving(1, 20.0)) == decide(world, TWO, past).arriving


def test_advice_is_for_each_group() -> None:
    world = cluster([A], wants=(want(1), want(2, GPU)), others=[group(GPU, [])])
    decided = decide(world, dataclasses.replace(TWO, mode=Mode.ADVISE))

    assert () == decided.actions
    assert [f"{GPU}=2"] == [short(a) for a in decided.advice]


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.PAUSED])
def test_all_come_back_when_nothing_is_enforced_any_more(mode: Mode) -> None:
    world = cluster([worker("a", **DRAINING)], others=[group(GPU, [worker("g", **DRAINING)])])

    assert ["cancel a", "cancel g"] == actions(decide(world, dataclasses.replace(TWO, mode=mode)))


# --- what is remembered of each ---------------------------------------------------------------


def after(world: ObservedCluster, past: Past, *, now: float = NOW, policy: Policy = TWO) -> Past:
    return remember(past, world, policy, plan(world, policy, past, now=now), (), now=now)


def test_a_group_that_is_scaled_from_now_on_is_watched_first() -> None:
    world = cluster([busy("a")], others=[group(GPU, [G, H])])
    known = Past(session="s", since=0.0, groups={GROUP: SINCE})
    first = after(world, known)
    later = after(world, first, now=NOW + 5)

    assert [] == actions(decide(world, TWO, known))
    assert [] == actions(plan(world, TWO, first, now=NOW + 5))
    assert (NOW, NOW) == (first.of(GPU).since, later.of(GPU).since)
    for i in range(2, 8):
        later = after(world, later, now=NOW + 5 * i)
    assert ["retire g", "retire h"] == actions(plan(world, TWO, later, now=NOW + 35))


def test_who_is_missing_is_missing_from_its_own_group() -> None:
    """A worker that we took from one group explains nothing about another."""
    world = cluster([busy("a")], replicas=2, others=[group(GPU, [busy("g")], replicas=2)])
    gone = dataclasses.replace(PAST, leaving=frozenset({"x"}), homes={"x": GPU})

    asked = [a for a in decide(world, TWO, gone).actions if isinstance(a, SetReplicas)]
    assert [GPU] == [a.group for a in asked]
    assert [1] == [a.replicas for a in asked]


def test_an_operator_that_starts_anew_knows_whose_it_was_by_its_name() -> None:
    world = cluster([busy("a")], replicas=2, others=[group(GPU, [busy("g")], replicas=2)])
    fresh = Past(leaving=frozenset({f"{GPU}-worker-0a1b2c"}))

    asked = [a for a in decide(world, TWO, fresh).actions if isinstance(a, SetReplicas)]
    assert [GPU] == [a.group for a in asked]


def test_arrival_is_measured_for_each_group() -> None:
    known = dataclasses.replace(PAST, seen=frozenset({"a"}))
    world = cluster([busy("a"), busy("b", age_s=7.0)], others=[group(GPU, [busy("g", age_s=97.0)])])
    past = after(world, known)

    assert (10.0, 100.0) == (past.of(GROUP).arrival_s, past.of(GPU).arrival_s)
    assert 10.0 < past.recycle.ready_s
    anew = dataclasses.replace(
        world, scheduler=dataclasses.replace(world.scheduler, session="next")
    )
    assert 100.0 == after(anew, past).of(GPU).arrival_s


def test_node_signals_are_heeded_in_scaled_groups_only() -> None:
    world = cluster(
        [busy("a")], wants=(want(1), want(1, GPU)),
        others=[group(GPU, [busy("g", **GOING)]), group(BIG, [busy("x", **GOING)])],
    )  # fmt: skip

    assert [f"{GPU}=2", "retire g"] == actions(decide(world))
    deaf = dataclasses.replace(TWO, disruption=Disruption(node_signals=False))
    assert [] == actions(decide(world, deaf))
