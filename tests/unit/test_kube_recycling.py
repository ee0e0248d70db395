"""What is read of pods, groups and nodes so that workers can be replaced, and what is told."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dask_adaptive.kube.claims import gpus_of
from dask_adaptive.kube.handled import ANNOTATION, handled_replicas
from dask_adaptive.kube.nodes import parse_node
from dask_adaptive.kube.status_json import recycles_of, status_json
from dask_adaptive.kube.view import gpus_needed, view
from dask_adaptive.loop.status import Status
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformView, PlatformWorker
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import QuotaNotes, Replacing
from support import kube_objects as ko

KEY = ClusterKey("ns", "etl")
HOUR = 3600.0
NOW = ko.CREATED_AT + 2 * HOUR


def look(*bodies: dict[str, Any]) -> PlatformView:
    return view(ko.world_of(*bodies), KEY, now=NOW, read_pin=lambda notes: None)


def worker(*bodies: dict[str, Any]) -> PlatformWorker:
    (only,) = look(ko.cluster(), ko.group(), *bodies).workers
    return only


def annotated(at: str = "2026-02-01T01:00:00Z", **names: str) -> dict[str, Any]:
    notes = {f"dask-adaptive.dev/{k.replace('_', '-')}": v for k, v in names.items()}
    fields = {"f:metadata": {"f:annotations": {f"f:{k}": {} for k in notes}}}
    return {"annotations": notes, "managedFields": [{"time": at, "fieldsV1": fields}]}


def started(**spec: Any) -> dict[str, Any]:
    """A pod that was taken on by its node half an hour after it was made."""
    status = {"phase": "Running", "startTime": "2026-02-01T00:30:00Z", "podIP": "10.0.0.1"}
    return ko.pod(spec=spec, status=status)


def test_a_pods_life_begins_when_its_node_takes_it_on() -> None:
    assert ("uid-w1-hash-x", ko.CREATED_AT + HOUR / 2) == (
        worker(ko.deployment(), started()).pod_uid,
        worker(ko.deployment(), started()).pod_created_at,
    )
    assert ko.CREATED_AT == worker(ko.deployment(), ko.pod()).pod_created_at
    assert ("", 0.0) == (
        worker(ko.deployment()).pod_uid,
        worker(ko.deployment()).pod_created_at,
    )
    assert NOW == look(ko.cluster()).at


@pytest.mark.parametrize(
    ("pod", "ends_in_s"),
    [
        pytest.param(ko.pod(), math.inf, id="no-end"),
        pytest.param(started(activeDeadlineSeconds=7200), HOUR / 2, id="its-deadline"),
        pytest.param(started(activeDeadlineSeconds=60), 0.0, id="overdue"),
        pytest.param(ko.pod(spec={"activeDeadlineSeconds": 60}), math.inf, id="not-started-yet"),
        pytest.param(
            ko.pod(metadata=annotated(expires_at="2026-02-01T03:00:00Z")), HOUR, id="an-annotation"
        ),
    ],
)
def test_when_a_worker_ends(pod: dict[str, Any], ends_in_s: float) -> None:
    assert ends_in_s == worker(ko.deployment(), pod).ends_in_s


@pytest.mark.parametrize("kind", ["pod", "deployment", "group", "template", "cluster"])
def test_quotas_and_wishes_from_near_and_far(kind: str) -> None:
    notes = annotated(recycle="now", recycle_tasks="7")
    group = ko.group()
    if kind == "template":  # nobody notes when that was set
        group["spec"]["worker"]["metadata"] = annotated(
            recycle="2026-02-01T01:00:00Z", recycle_tasks="7"
        )
    bodies = {
        "cluster": ko.cluster(**(notes if kind == "cluster" else {})),
        "group": ko.group(**notes) if kind == "group" else group,
        "deployment": ko.deployment(metadata=notes if kind == "deployment" else {}),
        "pod": ko.pod(metadata=notes if kind == "pod" else {}),
    }
    (found,) = look(*bodies.values()).workers

    assert QuotaNotes(tasks=7) == found.quota_notes
    assert "dask-adaptive.dev/recycle" in found.recycle_asked


def test_a_wish_counts_from_when_the_caller_says_that_it_was_set() -> None:
    world = ko.world_of(ko.cluster(**annotated(recycle="now")), ko.deployment(), ko.pod())

    def asked(since: float) -> str:
        seen = view(world, KEY, now=NOW, read_pin=lambda n: None, since=lambda note: since)
        return seen.workers[0].recycle_asked

    assert asked(ko.CREATED_AT + 1)
    assert not asked(ko.CREATED_AT - 1)


def specs(image: str, *, changed_at: str = "2026-02-01T01:00:00Z") -> list[dict[str, Any]]:
    """A group whose image was changed an hour after it and its worker had been made."""
    group, deployment = ko.group(), ko.deployment()
    group["spec"]["worker"]["spec"] = {"containers": [{"name": "worker", "image": image}]}
    fields = {"f:spec": {"f:worker": {"f:spec": {}}}}
    group["metadata"]["managedFields"] = [{"time": changed_at, "fieldsV1": fields}]
    old = {"containers": [{"name": "worker", "image": "dask:1"}]}
    deployment["spec"] = {"template": {"spec": old}}
    return [ko.cluster(), group, deployment]


def test_drift_is_between_a_worker_and_its_group() -> None:
    assert ["container worker: image is dask:1, its group says dask:2"] == [
        w.drift for w in look(*specs("dask:2")).workers
    ]
    assert [""] == [w.drift for w in look(*specs("dask:1")).workers]
    assert [""] == [w.drift for w in look(*specs("dask:2", changed_at=ko.CREATED)).workers]
    cluster, _, deployment = specs("dask:2")
    assert [""] == [w.drift for w in look(cluster, deployment).workers]


@pytest.mark.parametrize(
    ("noted", "replicas"),
    [
        (None, None),
        (json.dumps({"spec": {"worker": {"replicas": 4}}}) + "\n", 4),
        (json.dumps({"spec": {"worker": {}}}), None),
        (json.dumps({"spec": {"worker": {"replicas": True}}}), None),
        (json.dumps([1]), None),
        ("{", None),
    ],
)
def test_what_upstream_has_acted_on_last(noted: str | None, replicas: int | None) -> None:
    metadata = {"annotations": {ANNOTATION: noted} if noted else {}}

    assert replicas == handled_replicas(metadata)
    assert replicas == look(ko.cluster(), ko.group(**metadata)).groups[0].handled


def claiming(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    def made(limits: dict[str, Any]) -> dict[str, Any]:
        return {"resources": {"limits": limits}}

    return {"containers": [*map(made, containers)], "initContainers": [*map(made, init)]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, (), id="nothing"),
        pytest.param(claiming({"cpu": "1", "memory": "1Gi"}), (), id="no-gpu"),
        pytest.param(claiming({"nvidia.com/gpu": "1"}), (("nvidia.com/gpu", 1),), id="one"),
        pytest.param(
            claiming({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": "2"}, init=({"nvidia.com/gpu": 1},)),
            (("nvidia.com/gpu", 3),),
            id="containers-together-with-init-containers-before-them",
        ),
        pytest.param(claiming({"amd.com/gpu": "2"}), (("amd.com/gpu", 2),), id="amd"),
        pytest.param(
            claiming({"nvidia.com/mig-1g.5gb": "1"}), (("nvidia.com/mig-1g.5gb", 1),), id="a-slice"
        ),
        pytest.param(
            claiming({"gpu.intel.com/i915": 1, "gpu.intel.com/millicores": 500}),
            (("gpu.intel.com/i915", 1),),
            id="intel-without-its-thousandths",
        ),
        pytest.param(claiming({"nvidia.com/gpu": "0"}), (("nvidia.com/gpu", 0),), id="none-of-it"),
    ],
)
def test_gpus_that_a_pod_claims(spec: dict[str, Any], expected: Any) -> None:
    assert expected == gpus_of(spec)


def test_the_gpus_of_a_worker_and_of_the_greediest() -> None:
    def deployment(name: str, number: int) -> dict[str, Any]:
        return ko.deployment(name, spec={"template": {"spec": claiming({"amd.com/gpu": number})}})

    world = ko.world_of(ko.cluster(), deployment("a", 2), deployment("b", 1), ko.deployment("c"))
    seen = view(world, KEY, now=NOW, read_pin=lambda notes: None)

    assert [2, 1, 0] == [w.gpus for w in seen.workers]
    assert {"amd.com/gpu": 2} == gpus_needed(world, KEY)
    assert {} == gpus_needed(ko.world_of(ko.cluster(), ko.deployment()), KEY)


@pytest.mark.parametrize(
    ("more", "takes_pods"),
    [
        ({}, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, False),
        ({"spec": {"unschedulable": True}}, False),
    ],
)
def test_nodes_that_take_pods(more: dict[str, Any], takes_pods: bool) -> None:
    body = {**ko.node("n1", spec=more.get("spec", {})), "status": more.get("status", {})}
    body["status"] |= {"allocatable": {"cpu": "4", "nvidia.com/gpu": "8"}}
    node = parse_node(body)

    assert takes_pods == node.takes_pods
    assert (("nvidia.com/gpu", 8),) == node.gpus


def test_a_status_goes_round() -> None:
    row = Replacing("w1", Reason.TASK_QUOTA, "20 of 20 tasks run", "Surging")
    status = Status(
        recycled=((Reason.TASK_QUOTA, 3),), recent=(ko.CREATED_AT, NOW), replacing=(row,)
    )
    written = status_json(status, generation=1, before={}, now=ko.CREATED)

    assert [
        {
            "worker": "w1",
            "reason": "TaskQuota",
            "state": "Surging",
            "message": "20 of 20 tasks run",
        }
    ] == written["replacing"]
    assert ({"TaskQuota": 3}, (ko.CREATED_AT, NOW)) == recycles_of(written)
    assert ({}, ()) == recycles_of({})
    assert ({}, ()) == recycles_of({"recycled": None, "recentRecycles": ["soon"]})
