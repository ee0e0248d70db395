"""A cluster as the loop sees it, out of what the API server sent."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dask_adaptive.kube.view import view
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedGroup, PlatformView, PlatformWorker
from support import kube_objects as ko
from support.tables import table


def test_a_cluster_that_is_not_there_or_is_being_deleted_is_not_found() -> None:
    assert PlatformView(found=False) == ko.look(ko.policy(), ko.group(), ko.deployment())
    assert not ko.look(ko.cluster(deletionTimestamp=ko.CREATED)).found


def test_groups_and_workers_with_their_pods() -> None:
    seen = ko.look(ko.cluster(), ko.group(replicas=3), ko.deployment(), ko.pod())

    (worker,) = seen.workers
    assert (ObservedGroup("etl-default", 3),) == seen.groups
    assert "uid-etl" == seen.uid
    assert worker == PlatformWorker(
        "w1", "uid-w1", "etl-default", ko.CREATED_AT, pod="w1-hash-x", addresses=("10.0.0.1",),
        pod_uid="uid-w1-hash-x", pod_made_at=ko.CREATED_AT,
    )  # fmt: skip


def test_a_pod_that_stays_stands_for_its_worker() -> None:
    going = ko.pod("w1-hash-old", metadata={"deletionTimestamp": ko.CREATED})
    seen = ko.look(ko.cluster(), ko.deployment(), going, ko.pod("w1-hash-new"))

    assert "w1-hash-new" == seen.workers[0].pod


@table("more, said", yet=({}, "not created"), at_all=({"spec": {"replicas": 0}}, "ScaledToZero"))
def test_a_worker_that_has_no_pod_says_so(more: dict[str, Any], said: str) -> None:
    (seen,) = ko.look(ko.cluster(), ko.deployment(**more)).workers

    assert said in seen.waiting


def unplaced(reason: str = "Unschedulable", at: str = ko.CREATED, **more: str) -> dict[str, Any]:
    """The status of a pod that has no node."""
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason, **more}
    return {"phase": "Pending", "conditions": [{**scheduled, "lastTransitionTime": at}]}


@table(
    "pod, seconds",
    no_node=(ko.pod(status=unplaced()), 60.0),
    not_looked_for_yet=(ko.pod(status=unplaced("SchedulingGated")), 0.0),
    clocks_differ=(ko.pod(status=unplaced(at="2026-02-01T00:05:00Z")), 0.0),
    runs=(ko.pod(), 0.0),
    going=(ko.pod(status=unplaced(), metadata={"deletionTimestamp": ko.CREATED}), 0.0),
)
def test_how_long_a_worker_has_found_no_node(pod: dict[str, Any], seconds: float) -> None:
    seen = ko.look(ko.cluster(), ko.deployment(), pod)
    since = seen.workers[0].unscheduled_at

    assert seconds == (0.0 if since is None else max(0.0, seen.at - since))


def test_a_pod_that_is_to_be_admitted_says_by_whom() -> None:
    gates = [{"name": "kueue.x-k8s.io/admission"}, {"name": "example.com/other"}]
    pod = ko.pod(status=unplaced("SchedulingGated"), spec={"schedulingGates": gates})
    (seen,) = ko.look(ko.cluster(), ko.deployment(), pod).workers

    assert (True, None) == (seen.gated, seen.unscheduled_at)
    assert "SchedulingGated: kueue.x-k8s.io/admission, example.com/other" == seen.waiting


def test_a_worker_whose_pod_is_there_is_not_refused_any_more() -> None:
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    said = {**failed, "message": 'admission webhook "w" denied the request: no'}
    refused = ko.deployment(status={"conditions": [said]})

    (without,) = ko.look(ko.cluster(), refused).workers
    assert f"FailedCreate: {said['message']}" == without.refused == without.waiting
    (made,) = ko.look(ko.cluster(), refused, ko.pod()).workers
    assert "" == made.refused


@table(
    "bodies, words",
    one_policy=([ko.policy("a")], []),
    two_policies=([ko.policy("a"), ko.policy("b")], ["a, b"]),
    for_another_cluster=([ko.policy("a"), ko.policy("b", "other")], []),
    going_away=([ko.policy("a"), ko.policy("b", deletionTimestamp=ko.CREATED)], []),
    autoscaler=([ko.policy(), ko.autoscaler("x")], ["DaskAutoscaler x"]),
)
def test_conflict(bodies: list[dict[str, Any]], words: list[str]) -> None:
    conflict = ko.look(ko.cluster(), *bodies).conflict

    assert bool(words) == bool(conflict)
    assert all(word in conflict for word in words)


def waiting_container(reason: str, **more: Any) -> dict[str, Any]:
    waiting = {"waiting": {"reason": reason, **more.pop("waiting", {})}}
    return {"phase": "Pending", "containerStatuses": [{"state": waiting, **more}]}


@table(
    "status, expected",
    runs=({"phase": "Running"}, ""),
    new=({}, "Pending"),
    no_room=(unplaced(message="0/1 nodes are available"), "Unschedulable: 0/1 nodes are available"),
    bad_image=(
        waiting_container("ImagePullBackOff", waiting={"message": "Back-off pulling x"}),
        "ImagePullBackOff: Back-off pulling x",
    ),
    creating=(waiting_container("ContainerCreating"), "ContainerCreating"),
    crashes=(
        {
            **waiting_container(
                "CrashLoopBackOff",
                lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            ),
            "phase": "Running",
        },
        "CrashLoopBackOff: OOMKilled, exit code 137",
    ),
    evicted=(
        {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
        "Evicted: low on memory",
    ),
    ended=(
        {"phase": "Running", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]},
        "Error: exit code 1",
    ),
)
def test_what_a_pod_waits_for(status: dict[str, Any], expected: str) -> None:
    (seen,) = ko.look(ko.cluster(), ko.deployment(), ko.pod(status=status)).workers

    assert expected == seen.waiting


def test_listeners_hear_only_of_what_matters() -> None:
    world = ko.world_of(ko.cluster(), ko.policy())
    heard: list[ClusterKey] = []
    world.listen(heard.append)

    ko.take(world, "MODIFIED", ko.cluster(resourceVersion="2"))
    assert [] == heard
    ko.take(world, "ADDED", ko.group())
    ko.take(world, "MODIFIED", ko.group(replicas=2, resourceVersion="2"))
    ko.take(world, "DELETED", ko.group())
    ko.take(world, "MODIFIED", ko.policy(**ko.noted(paused="true"), resourceVersion="2"))
    assert [ko.KEY] * 4 == heard


@pytest.mark.parametrize(
    ("event", "late", "replicas"),
    [
        ("MODIFIED", ko.group(replicas=1, resourceVersion="6"), 5),
        ("DELETED", ko.group(uid="of-an-older-namesake"), 5),
    ],
)
def test_what_comes_late_changes_nothing(event: str, late: dict[str, Any], replicas: int) -> None:
    world = ko.world_of(ko.cluster(), ko.group(replicas=5, resourceVersion="7"))
    ko.take(world, event, late)

    (seen,) = view(world, ko.KEY, now=0).groups
    assert replicas == seen.replicas


# --- what is read so that workers can be replaced ----------------------------------------------

HOUR = 3600.0
NOW = ko.CREATED_AT + 2 * HOUR


def worker(*bodies: dict[str, Any]) -> PlatformWorker:
    (only,) = ko.look(ko.cluster(), ko.group(), *bodies, now=NOW).workers
    return only


def annotated(**names: str) -> dict[str, Any]:
    return ko.noted(at="2026-02-01T01:00:00Z", **names)


def started(**spec: Any) -> dict[str, Any]:
    """A pod that was taken on by its node half an hour after it was made."""
    status = {"phase": "Running", "startTime": "2026-02-01T00:30:00Z", "podIP": "10.0.0.1"}
    return ko.pod(spec=spec, status=status)


def test_a_pods_life_begins_when_its_node_takes_it_on() -> None:
    found = [worker(ko.deployment(), *pods) for pods in ([started()], [ko.pod()], [])]

    assert [
        ("uid-w1-hash-x", ko.CREATED_AT + HOUR / 2), ("uid-w1-hash-x", ko.CREATED_AT),
        ("", ko.CREATED_AT),
    ] == [(w.pod_uid, w.pod_made_at) for w in found]  # fmt: skip
    assert NOW == ko.look(ko.cluster(), now=NOW).at


@table(
    "pod, ends_in_s",
    no_end=(ko.pod(), math.inf),
    its_deadline=(started(activeDeadlineSeconds=7200), HOUR / 2),
    overdue=(started(activeDeadlineSeconds=60), 0.0),
    not_started_yet=(ko.pod(spec={"activeDeadlineSeconds": 60}), math.inf),
    an_annotation=(ko.pod(metadata=annotated(expires_at="2026-02-01T03:00:00Z")), HOUR),
)
def test_when_a_worker_ends(pod: dict[str, Any], ends_in_s: float) -> None:
    assert ends_in_s == max(0.0, worker(ko.deployment(), pod).ends_at - NOW)


@pytest.mark.parametrize("holder", [ko.pod, ko.deployment, ko.cluster, ko.policy])
@pytest.mark.parametrize(
    ("notes", "in_s"),
    [
        ({"recycle": "2026-02-01T03:00:00Z"}, HOUR),
        ({"paused_scale_in": "90m", "paused_replicas": "3"}, HOUR / 2),
        ({"paused": "2026-02-01T02:30:00Z", "paused_scale_in": "3h"}, HOUR / 2),
        ({"pin": "true", "recycle": "2026-02-01T01:00:00Z"}, math.inf),
    ],
)
def test_when_an_annotation_means_something_else(
    holder: Any, notes: dict[str, str], in_s: float
) -> None:
    named = annotated(**notes)
    noted = holder(metadata=named) if holder in (ko.pod, ko.deployment) else holder(**named)
    others = (ko.cluster(), ko.deployment())

    assert in_s == ko.look(*others, noted, now=NOW).changes_in_s


@pytest.mark.parametrize("kind", ["pod", "deployment", "group", "template", "cluster"])
def test_wishes_from_near_and_far(kind: str) -> None:
    notes = annotated(recycle="now")
    group = ko.group()
    if kind == "template":  # nobody notes when that was set
        group["spec"]["worker"]["metadata"] = annotated(recycle="2026-02-01T01:00:00Z")
    bodies = {
        "cluster": ko.cluster(**(notes if kind == "cluster" else {})),
        "group": ko.group(**notes) if kind == "group" else group,
        "deployment": ko.deployment(metadata=notes if kind == "deployment" else {}),
        "pod": ko.pod(metadata=notes if kind == "pod" else {}),
    }
    (found,) = ko.look(*bodies.values(), now=NOW).workers

    assert "dask-adaptive.dev/recycle" in found.recycle_request


def test_a_wish_counts_from_when_the_caller_says_that_it_was_set() -> None:
    world = ko.world_of(ko.cluster(**annotated(recycle="now")), ko.deployment(), ko.pod())

    def asked(since: float) -> str:
        seen = view(world, ko.KEY, now=NOW, since=lambda note: since)
        return seen.workers[0].recycle_request

    assert asked(ko.CREATED_AT + 1)
    assert not asked(ko.CREATED_AT - 1)


def specs(image: str, *, changed_at: str = "2026-02-01T01:00:00Z") -> list[dict[str, Any]]:
    """A group whose image was changed an hour after it and its worker had been made; and scaled."""
    group, deployment = ko.group(), ko.deployment()
    group["spec"]["worker"]["spec"] = {"containers": [{"name": "worker", "image": image}]}
    entries = [(changed_at, "f:spec"), ("2026-02-01T01:30:00Z", "f:replicas")]
    group["metadata"]["managedFields"] = [
        {"time": at, "fieldsV1": {"f:spec": {"f:worker": {field: {}}}}} for at, field in entries
    ]
    old = {"containers": [{"name": "worker", "image": "dask:1"}]}
    deployment["spec"] = {"template": {"spec": old}}
    return [ko.cluster(), group, deployment]


CLUSTER, CHANGED, MADE = specs("dask:2")


@pytest.mark.parametrize(
    ("bodies", "drift"),
    [
        ([CLUSTER, CHANGED, MADE], "container worker: image is dask:1"),
        (specs("dask:1"), ""),
        (specs("dask:2", changed_at=ko.CREATED), ""),
        ([CLUSTER, MADE], ""),
    ],
)
def test_drift_is_between_a_worker_and_its_group(bodies: list[dict[str, Any]], drift: str) -> None:
    (worker,) = ko.look(*bodies, now=NOW).workers

    assert worker.drift.startswith(drift)
    assert bool(drift) == bool(worker.drift)
