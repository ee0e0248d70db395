"""For how many more workers a namespace's quotas have room."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.kube.resource_quotas import QuotaObject, parse_quota, room
from dask_adaptive.kube.view import view
from dask_adaptive.kube.worker_pods import NO_SHAPE, pod_costs, shape_of
from dask_adaptive.model.scaling import Room
from support import kube_objects as ko
from support.tables import table
from support.worlds import facts

CPU = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
GPU = {"limits": {"nvidia.com/gpu": 1, "cpu": 2}}


def pod(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"containers": [{"resources": c} for c in containers or [CPU]], **more}


def room_in(
    hard: dict[str, Any], used: Any = (), *, spec: Any = None, **scopes: Any
) -> Room | None:
    return room([parse_quota(ko.quota(hard=hard, used=used, **scopes))], shape_of(spec or pod()))


@table(
    "hard, used, workers",
    objects=({"count/deployments.apps": 4}, {"count/deployments.apps": 4}, 0),
    tightest_counts=({"requests.cpu": "4", "limits.cpu": "4"}, {}, 4),
    lowered_below_what_is_used=({"pods": 3}, {"pods": 5}, 0),
    about_other_things=({"services": 1, "configmaps": 1, "requests.storage": "1Gi"}, {}, None),
    claims_none_of_it=({"requests.nvidia.com/gpu": 4}, {}, None),
)
def test_room(hard: dict[str, Any], used: dict[str, Any], workers: int | None) -> None:
    found = room_in(hard, used)

    assert workers == (None if found is None else found.workers)


def test_a_room_names_the_quota_and_the_figures() -> None:
    some = room_in({"requests.cpu": "4"}, {"requests.cpu": "2500m"})
    none = room_in({"limits.memory": "2Gi"}, {"limits.memory": "1Gi"})

    assert [(3, "3 requests.cpu 2.5 4 0.5"), (0, "limits.memory 1.0 2.0 2.0")] == [
        (room.workers, facts(room.message)) for room in (some, none) if room
    ]


def test_without_quotas_nothing_is_known() -> None:
    assert room([], shape_of(pod())) is None
    assert (
        room([parse_quota({"metadata": ko.meta("q"), "spec": {"hard": {"pods": 1}}})], NO_SHAPE)
        is None
    ), "nobody has counted yet"


def of_class(operator: str, *values: str) -> dict[str, Any]:
    one = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [one]}}


LOW, HIGH = pod(priorityClassName="low"), pod(priorityClassName="high")


@pytest.mark.parametrize(
    ("scopes", "spec", "counts"),
    [
        ({"scopes": ["Terminating"]}, pod(activeDeadlineSeconds=5), True),
        ({"scopes": ["BestEffort"]}, pod({}), True),
        ({"scopes": ["BestEffort"]}, pod({"limits": {"nvidia.com/gpu": 1}}), True),
        ({"scopes": ["NotBestEffort", "Terminating"]}, pod(), False),
        ({"scopes": ["CrossNamespacePodAffinity"]}, pod(), False),
        (of_class("In", "low", "high"), LOW, True),
        (of_class("In", "high"), LOW, False),
        (of_class("NotIn", "high"), LOW, True),
        (of_class("NotIn", "high"), HIGH, False),
        (of_class("Exists"), LOW, True),
        (of_class("Exists"), pod(priorityClassName=""), False),
        (of_class("DoesNotExist"), pod(priorityClassName=""), True),
        (of_class("DoesNotExist"), LOW, False),
        (of_class("SomeNewOne"), LOW, False),
    ],
)
def test_scopes(scopes: dict[str, Any], spec: dict[str, Any], counts: bool) -> None:
    assert counts == (room_in({"pods": 3}, spec=spec, **scopes) is not None)


def quota(namespace: str = "ns", **amounts: Any) -> dict[str, Any]:
    """Each amount: how much there is, and how much is used."""
    names = {
        "cpu": "requests.cpu",
        "gpu": "requests.nvidia.com/gpu",
        "made": "count/deployments.apps",
    }
    found = ko.quota(
        hard={names.get(k, k): hard for k, (hard, _) in amounts.items()},
        used={names.get(k, k): used for k, (_, used) in amounts.items()},
    )
    found["metadata"]["namespace"] = namespace
    return found


CPUS, GIVEN = ko.worker_group(resources=CPU), {"requests": {"cpu": 2}}


@table(
    "bodies, expected",
    each_group_by_what_its_own_workers_take=(
        [CPUS, ko.worker_group("etl-gpu", resources=GPU), quota(cpu=("4", "0"), gpu=(1, 0))],
        {"etl-default": 8, "etl-gpu": 1}),
    pods_that_are_not_made_yet_take_their_part=(
        [CPUS, quota(cpu=("2", "500m")), ko.deployment("w1"), ko.pod(), ko.deployment("w2")],
        {"etl-default": 2}),
    deployments_are_counted_when_they_are_made=(
        [CPUS, quota(made=(3, 1)), ko.deployment("w1")], {"etl-default": 2}),
    what_pods_are_made_into_counts_more_than_their_template=(
        # A LimitRange, or a webhook, gives them more.
        [CPUS, quota(cpu=("4", 2)), ko.deployment(), ko.pod(spec=pod(GIVEN))],
        {"etl-default": 1}),
    another_namespaces=([CPUS, quota("other", pods=(0, 0))], {"etl-default": None}),
)  # fmt: skip
def test_room_of_groups(bodies: list[dict[str, Any]], expected: dict[str, int | None]) -> None:
    groups = ko.look(ko.cluster(), *bodies).groups

    assert expected == {g.name: g.room and g.room.workers for g in groups}


def test_workers_without_a_pod_are_told_of() -> None:
    (group,) = ko.look(ko.cluster(), CPUS, quota(cpu=("2", "500m")), ko.deployment("w2")).groups

    assert group.room is not None
    assert facts(group.room.message).endswith(" 0.5 1")


def test_clusters_are_visited_when_a_quota_changes_and_not_when_it_is_used() -> None:
    world = ko.world_of(ko.policy("a", for_="a"), ko.policy("b", for_="b"))
    told: list[str] = []
    world.listen(lambda key: told.append(key.name))

    def take(event: str, **quota: Any) -> list[str]:
        told.clear()
        ko.take(world, event, ko.quota(**quota))
        return sorted(told)

    assert ["a", "b"] == take("ADDED", hard={"pods": 3})
    assert [] == take("MODIFIED", hard={"pods": 3}, used={"pods": 2})
    assert ["a", "b"] == take("MODIFIED", hard={"pods": 4}, used={"pods": 2})
    assert ["a", "b"] == take("DELETED", hard={"pods": 4})


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"containers": [{"resources": {"requests": {"cpu": "lots"}}}]},
        {"containers": "x"},
        {"containers": [{"resources": []}]},
    ],
)
def test_a_pod_of_no_known_shape_costs_nothing(spec: Any) -> None:
    assert () == shape_of(spec).costs


amounts = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 8), max_size=2)
containers = st.builds(
    lambda limits, requests: {"resources": {"limits": limits, "requests": requests}},
    amounts,
    amounts,
)


@given(st.lists(containers, max_size=3), st.lists(containers, max_size=2), st.integers(0, 40))
def test_as_many_workers_as_there_is_room_for_fit_and_no_more(
    main: list[Any], first: list[Any], hard: int
) -> None:
    spec = {"containers": main, "initContainers": first}
    each = dict(pod_costs(spec)).get("requests.cpu", 0)
    quota = QuotaObject(
        parse_quota(ko.quota()).meta, hard=(("cpu", hard * 1000),), used=(("cpu", 1000),)
    )
    found = room([quota], shape_of(spec))

    assert (found is None) == (each == 0)
    if found is not None:
        free = max(hard * 1000 - 1000, 0)
        assert found.workers * each <= free < (found.workers + 1) * each


def test_a_quota_that_goes_leaves_no_bound() -> None:
    quota = ko.quota(hard={"pods": 1})
    world = ko.world_of(ko.cluster(), ko.worker_group(resources=CPU), quota)
    ko.take(world, "DELETED", quota)
    seen = view(world, ko.KEY, now=ko.CREATED_AT)

    assert [None] == [g.room for g in seen.groups]
