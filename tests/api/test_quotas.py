"""
ResourceQuotas of a real API server, whose admission plugin counts: our sums are its sums.

No controller runs here, so the tests say in the quota's status what is hard, as the controller
would; from then on the admission plugin itself keeps `status.used`.
"""

from __future__ import annotations

import json
from typing import Any

from dask_adaptive.kube.api import QUOTAS, KubeApi
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.resource_quotas import QuotaObject, room
from dask_adaptive.kube.worker_pods import pod_costs, shape_of
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformView
from support.kube_bodies import body, cluster_of_one, labels_of, pod
from support.kube_objects import platform_of, resync
from support.kube_server import Kubectl
from support.tables import table


def container(name: str = "worker", **resources: Any) -> dict[str, Any]:
    return {"name": name, "image": "x", "resources": resources}


def sidecar(name: str, **resources: Any) -> dict[str, Any]:
    return {**container(name, **resources), "restartPolicy": "Always"}


PLAIN = {
    "containers": [
        container(requests={"cpu": "500m", "memory": "1Gi"}, limits={"cpu": "1", "memory": "1.5Gi"})
    ]
}


def set_quota(kubectl: Kubectl, hard: dict[str, Any], **spec: Any) -> None:
    """A quota that is counted from now on."""
    kubectl.apply(body(QUOTAS, "team", {"hard": hard, **spec}))
    status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
    kubectl("patch", "resourcequota", "team", *patch)


async def quotas_of(api: KubeApi, namespace: str) -> list[QuotaObject]:
    world = World()
    await resync(world, api, [namespace])
    return world.of(QuotaObject, ClusterKey(namespace, ""))


RESOURCES = ("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu")


@table(
    "spec",
    requests_and_limits=PLAIN,
    limits_only={"containers": [container(limits={"cpu": "250m"})]},
    gpus={"containers": [container(limits={"nvidia.com/gpu": 2, "cpu": 3})]},
    the_greediest_init_container={
        "containers": [container(requests={"cpu": 1}), container("b", requests={"cpu": 2})],
        "initContainers": [
            container("c", requests={"cpu": 2}),
            container("d", requests={"cpu": 4}),
        ],
    },
    init_containers_that_stay={
        "containers": [container(requests={"cpu": 1})],
        "initContainers": [
            container("c", requests={"cpu": 3}),
            sidecar("d", requests={"cpu": 2, "ephemeral-storage": "1G"}),
            container("e", requests={"cpu": "1500m"}),
            sidecar("f", requests={"cpu": "100m"}),
        ],
    },
)
async def test_a_pod_costs_what_the_server_counts(
    api: KubeApi, kubectl: Kubectl, spec: dict[str, Any]
) -> None:
    names = [f"requests.{name}" for name in RESOURCES] + ["limits.cpu", "limits.memory"]
    costs = dict(pod_costs(spec))
    set_quota(kubectl, {name: "1000G" for name in names if name in costs})
    kubectl.apply(pod("a", spec))

    (quota,) = await quotas_of(api, kubectl.namespace)
    assert costs
    assert {name: costs[name] for name in costs if name in names} == dict(quota.used)


@table(
    "hard, more",
    requests_of_cpu=({"requests.cpu": "1600m"}, {}),
    cpu=({"cpu": "1", "limits.cpu": "3"}, {}),
    limits_of_memory=({"limits.memory": "4Gi"}, {}),
    memory=({"memory": "2100Mi"}, {}),
    pods=({"pods": "2", "count/pods": "3"}, {}),
    scope_that_is_met=({"pods": "1"}, {"scopes": ["NotTerminating"]}),
    scope_of_others=({"pods": "1"}, {"scopes": ["Terminating"]}),
    scope_of_best_effort=({"pods": "0"}, {"scopes": ["BestEffort"]}),
    not_best_effort=({"pods": "0"}, {"scopes": ["NotBestEffort"]}),
    scope_of_priorities=(
        {"pods": "1"},
        {
            "scopeSelector": {
                "matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]
            }
        },
    ),
)
async def test_as_many_pods_are_let_in_as_there_is_room_for(
    api: KubeApi, kubectl: Kubectl, hard: dict[str, str], more: dict[str, Any]
) -> None:
    """Pods are made until one is refused; with no word from any quota, five are."""
    set_quota(kubectl, hard, **more)
    before = room(await quotas_of(api, kubectl.namespace), shape_of(PLAIN))
    let_in = 0
    while let_in < 5 and not _refused(kubectl, f"p{let_in}"):
        let_in += 1

    assert let_in == (5 if before is None else before.workers)
    after = room(await quotas_of(api, kubectl.namespace), shape_of(PLAIN))
    assert (None if before is None else 0) == (None if after is None else after.workers)


def _refused(kubectl: Kubectl, name: str) -> bool:
    done = kubectl.run("create", "-f", "-", stdin=json.dumps(pod(name, PLAIN)))
    assert done.returncode == 0 or "exceeded quota: team" in done.stderr
    return done.returncode != 0


async def look(api: KubeApi, namespace: str) -> PlatformView:
    world = World()
    await resync(world, api, [namespace])
    return await platform_of(ClusterKey(namespace, "etl"), world, api).look()


async def test_what_a_limit_range_adds_counts_once_a_pod_was_made(
    api: KubeApi, kubectl: Kubectl
) -> None:
    bare = {"containers": [{"name": "worker", "image": "x"}]}
    limits = [{"type": "Container", "defaultRequest": {"cpu": "1"}, "default": {"cpu": "2"}}]
    ranges = {"kind": "LimitRange", "metadata": {"name": "r"}, "spec": {"limits": limits}}
    kubectl.apply({"apiVersion": "v1", **ranges}, *cluster_of_one("w1", bare))
    set_quota(kubectl, {"requests.cpu": "3"})
    (group,) = (await look(api, kubectl.namespace)).groups
    assert group.room is None, "its template says nothing of CPUs"

    kubectl.apply(pod("w1-ab-x", bare, of="w1", labels=labels_of("worker")))
    (group,) = (await look(api, kubectl.namespace)).groups
    assert group.room is not None
    assert 2 == group.room.workers
    assert "requests.cpu: 1 of 3 used" in group.room.message


async def test_a_worker_that_is_refused_says_by_whom(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl.apply(*cluster_of_one("w1", PLAIN))
    set_quota(kubectl, {"pods": "0"})
    said = kubectl.run("create", "-f", "-", stdin=json.dumps(pod("w1-ab-x", PLAIN))).stderr
    words = said.split(": ", 1)[1].strip()  # what the ReplicaSet controller is told
    _set_status(
        kubectl, "deployment", "w1", type="ReplicaFailure", status="True", reason="FailedCreate",
        message=words,
    )  # fmt: skip
    seen = await look(api, kubectl.namespace)

    (worker,) = seen.workers
    assert "exceeded quota: team" in worker.refused
    assert worker.waiting == worker.refused
    assert seen.groups[0].room is not None
    assert 0 == seen.groups[0].room.workers
    assert "1 still without a pod" in seen.groups[0].room.message


def _set_status(kubectl: Kubectl, kind: str, name: str, **condition: str) -> None:
    patch = json.dumps({"status": {"conditions": [condition]}})
    kubectl("patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)
