"""A cluster as the loop sees it, out of what the API server sent."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive.kube.view import scheduler_address, view
from dask_adaptive.kube.waiting import deployment_waiting, pod_waiting
from dask_adaptive.kube.world import KINDS
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformGroup, PlatformView
from support import kube_objects as ko

KEY = ClusterKey("ns", "etl")
NOW = ko.CREATED_AT + 60
KIND = {k.resource.kind: k for k in KINDS}


def look(*bodies: dict[str, Any]) -> PlatformView:
    return view(ko.world_of(*bodies), KEY, now=NOW, read_pin=lambda notes: None)


def test_a_cluster_that_is_not_there_is_not_found() -> None:
    assert PlatformView(found=False) == look(ko.policy(), ko.group(), ko.deployment())


def test_a_cluster_that_is_being_deleted_is_not_found() -> None:
    assert not look(ko.cluster(deletionTimestamp=ko.CREATED)).found


def test_groups_and_workers_with_their_pods() -> None:
    seen = look(ko.cluster(), ko.group(replicas=3), ko.deployment(), ko.pod())

    (worker,) = seen.workers
    assert (PlatformGroup("etl-default", 3),) == seen.groups
    assert ("w1", "uid-w1", "etl-default", 60.0) == (
        worker.name,
        worker.uid,
        worker.group,
        worker.age_s,
    )
    assert ("w1-hash-x", ("10.0.0.1",), "") == (worker.pod, worker.addresses, worker.waiting)


def test_a_pod_that_stays_stands_for_its_worker() -> None:
    going = ko.pod("w1-hash-old", metadata={"deletionTimestamp": ko.CREATED})
    seen = look(ko.cluster(), ko.deployment(), going, ko.pod("w1-hash-new"))

    assert "w1-hash-new" == seen.workers[0].pod


def test_a_worker_without_a_pod_says_so() -> None:
    quota = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    seen = look(
        ko.cluster(),
        ko.deployment("w1"),
        ko.deployment("w2", status={"conditions": [{**quota, "message": "exceeded quota: q"}]}),
    )

    assert ["its pod is not created yet", "FailedCreate: exceeded quota: q"] == [
        w.waiting for w in seen.workers
    ]


def unplaced(reason: str = "Unschedulable", at: str = ko.CREATED) -> dict[str, Any]:
    """The status of a pod that has no node."""
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason}
    return {"phase": "Pending", "conditions": [{**scheduled, "lastTransitionTime": at}]}


@pytest.mark.parametrize(
    ("pod", "seconds"),
    [
        pytest.param(ko.pod(status=unplaced()), 60.0, id="no-node"),
        pytest.param(ko.pod(status=unplaced("SchedulingGated")), 0.0, id="not-looked-for-yet"),
        pytest.param(ko.pod(status=unplaced(at="2026-02-01T00:05:00Z")), 0.0, id="clocks-differ"),
        pytest.param(ko.pod(), 0.0, id="runs"),
        pytest.param(
            ko.pod(status=unplaced(), metadata={"deletionTimestamp": ko.CREATED}), 0.0, id="going"
        ),
    ],
)
def test_how_long_a_worker_has_found_no_node(pod: dict[str, Any], seconds: float) -> None:
    (worker,) = look(ko.cluster(), ko.deployment(), pod).workers

    assert seconds == worker.unschedulable_s


def test_a_worker_whose_pod_is_there_is_not_refused_any_more() -> None:
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    said = {**failed, "message": 'admission webhook "w" denied the request: no'}
    refused = ko.deployment(status={"conditions": [said]})

    (without,) = look(ko.cluster(), refused).workers
    assert 'FailedCreate: admission webhook "w" denied the request: no' == without.refused
    (made,) = look(ko.cluster(), refused, ko.pod()).workers
    assert "" == made.refused


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        pytest.param([ko.policy("a")], [], id="one-policy"),
        pytest.param([ko.policy("a"), ko.policy("b")], ["a, b"], id="two-policies"),
        pytest.param([ko.policy("a"), ko.policy("b", "other")], [], id="for-another-cluster"),
        pytest.param(
            [ko.policy("a"), ko.policy("b", deletionTimestamp=ko.CREATED)], [], id="going-away"
        ),
        pytest.param([ko.policy(), ko.autoscaler("x")], ["DaskAutoscaler x"], id="autoscaler"),
    ],
)
def test_conflict(bodies: list[dict[str, Any]], words: list[str]) -> None:
    conflict = look(ko.cluster(), *bodies).conflict

    assert bool(words) == bool(conflict)
    assert all(word in conflict for word in words)


@pytest.mark.parametrize(
    ("bodies", "address"),
    [
        ([ko.service()], "tcp://10.96.0.9:8786"),
        ([ko.service("fd00::1")], "tcp://[fd00::1]:8786"),
        ([ko.service("None")], "tcp://etl-scheduler.ns.svc:8786"),
        ([], "tcp://etl-scheduler.ns.svc:8786"),
    ],
)
def test_scheduler_address(bodies: list[dict[str, Any]], address: str) -> None:
    assert address == scheduler_address(ko.world_of(*bodies), KEY)


def waiting_container(reason: str, **more: Any) -> dict[str, Any]:
    waiting = {"waiting": {"reason": reason, **more.pop("waiting", {})}}
    return {"phase": "Pending", "containerStatuses": [{"state": waiting, **more}]}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({"phase": "Running"}, "", id="runs"),
        pytest.param({}, "Pending", id="new"),
        pytest.param(
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available: 1 Insufficient cpu.",
                    }
                ],
            },
            "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.",
            id="no-room",
        ),
        pytest.param(
            waiting_container("ImagePullBackOff", waiting={"message": "Back-off pulling x"}),
            "ImagePullBackOff: Back-off pulling x",
            id="bad-image",
        ),
        pytest.param(waiting_container("ContainerCreating"), "ContainerCreating", id="creating"),
        pytest.param(
            {
                **waiting_container(
                    "CrashLoopBackOff",
                    lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
                ),
                "phase": "Running",
            },
            "CrashLoopBackOff: OOMKilled, exit code 137",
            id="crashes",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            "Evicted: low on memory",
            id="evicted",
        ),
        pytest.param(
            {
                "phase": "Running",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}],
            },
            "Error: exit code 1",
            id="ended",
        ),
    ],
)
def test_what_a_pod_waits_for(status: dict[str, Any], expected: str) -> None:
    assert expected == pod_waiting({"status": status})


def test_a_deployment_scaled_to_nothing_says_so() -> None:
    assert deployment_waiting({"spec": {"replicas": 0}}).startswith("ScaledToZero")


def test_listeners_hear_only_of_what_matters() -> None:
    world = ko.world_of(ko.cluster())
    heard: list[ClusterKey] = []
    world.listen(heard.append)

    world.take(KIND["DaskCluster"], "MODIFIED", ko.cluster(resourceVersion="2"))
    assert [] == heard
    world.take(KIND["DaskWorkerGroup"], "ADDED", ko.group())
    world.take(KIND["DaskWorkerGroup"], "MODIFIED", ko.group(replicas=2, resourceVersion="2"))
    world.take(KIND["DaskWorkerGroup"], "DELETED", ko.group())
    assert [KEY] * 3 == heard


def test_a_late_echo_changes_nothing() -> None:
    world = ko.world_of(ko.cluster(), ko.group(replicas=5, resourceVersion="7"))
    world.take(KIND["DaskWorkerGroup"], "MODIFIED", ko.group(replicas=1, resourceVersion="6"))

    seen = view(world, KEY, now=NOW, read_pin=lambda notes: None)
    assert 5 == seen.groups[0].replicas


def test_a_late_deletion_of_an_older_namesake_changes_nothing() -> None:
    world = ko.world_of(ko.cluster(), ko.group(uid="new"))
    world.take(KIND["DaskWorkerGroup"], "DELETED", ko.group(uid="old"))

    assert 1 == len(view(world, KEY, now=NOW, read_pin=lambda notes: None).groups)
