"""Objects of the API as dask-kubernetes and Kubernetes' own controllers make them."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

from dask_adaptive.kube.api import CLUSTERS, DEPLOYMENTS, GROUPS, POLICIES, Resource
from dask_adaptive.kube.inject import HINTS
from dask_adaptive.kube.objects import HANDLED
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from support import kube_bodies

Json = dict[str, Any]

WORKER = {
    "containers": [
        {
            "name": "worker",
            "image": "ghcr.io/dask/dask:2026.8.0-py3.11",
            "imagePullPolicy": "IfNotPresent",
            "args": ["dask-worker", "--name", "$(DASK_WORKER_NAME)", "--nthreads", "1"],
            "resources": {"requests": {"cpu": "1", "memory": "8Gi"}, "limits": {"memory": "8Gi"}},
            "ports": [{"name": "http-dashboard", "containerPort": 8788, "protocol": "TCP"}],
        }
    ]
}


@dataclass(frozen=True)
class Cluster:
    """One cluster of the bench; its number gives its workers their addresses."""

    name: str
    namespace: str
    workers: int
    controller: str = DEFAULT_CONTROLLER

    @property
    def group(self) -> str:
        return f"{self.name}-default"

    @property
    def address(self) -> str:
        """Where the operator looks for its scheduler, whose Service is headless."""
        return f"tcp://{self.name}-scheduler.{self.namespace}.svc:8786"

    def worker(self, number: int) -> str:
        return f"{self.group}-worker-{number:010x}"


def cluster_objects(cluster: Cluster, *, policy: Json) -> list[tuple[Resource, Json]]:
    """The three objects that people and dask-kubernetes make."""
    worker = {"replicas": cluster.workers, "spec": WORKER}
    scheduler = {"spec": {"containers": WORKER["containers"]}, "service": {"ports": []}}
    group = kube_bodies.body(
        GROUPS, cluster.group, {"cluster": cluster.name, "worker": worker},
        labels={"dask.org/cluster-name": cluster.name}, annotations=handled(cluster.workers),
    )  # fmt: skip
    spec = {"worker": worker, "scheduler": scheduler}
    policy = {**policy, "controllerName": cluster.controller}
    return [
        (CLUSTERS, kube_bodies.body(CLUSTERS, cluster.name, spec)),
        (GROUPS, group),
        (POLICIES, kube_bodies.policy(cluster.name, cluster.name, **policy)),
    ]


def handled(replicas: int) -> dict[str, str]:
    """What kopf notes for dask-kubernetes of the number that it has handled last."""
    return {HANDLED: json.dumps({"spec": {"worker": {"replicas": replicas}}})}


def labels(cluster: Cluster) -> dict[str, str]:
    return {**kube_bodies.labels_of("worker", cluster.name), "sidecar.istio.io/inject": "false"}


def deployment(cluster: Cluster, name: str) -> Json:
    """As dask-kubernetes' `build_worker_deployment_spec`."""
    metadata = {"name": name, "labels": labels(cluster), "annotations": {}}
    owner = {
        "apiVersion": GROUPS.api_version, "kind": GROUPS.kind, "name": cluster.group, "uid": "u",
    }  # fmt: skip
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels(cluster)},
        "template": {"metadata": metadata, "spec": worker_spec(cluster, name)},
    }
    return kube_bodies.body(DEPLOYMENTS, spec=spec, ownerReferences=[owner], **metadata)


def worker_spec(cluster: Cluster, name: str) -> Json:
    spec: Json = copy.deepcopy(WORKER)
    spec["containers"][0]["env"] = [
        {"name": "DASK_WORKER_NAME", "value": name},
        {"name": "DASK_SCHEDULER_ADDRESS", "value": cluster.address},
    ]
    return spec


def pod(cluster: Cluster, name: str) -> Json:
    """As the ReplicaSet of that Deployment would make it, and our webhook annotates it."""
    spec = {**worker_spec(cluster, name), "nodeName": "node-1"}
    return kube_bodies.pod(
        f"{name}-ab-x", spec, of=name, labels=labels(cluster), annotations=dict(HINTS)
    )


def running(ip: str, at: str) -> Json:
    """The status that a kubelet gives a pod whose worker runs."""
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": at}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    container = {
        "name": "worker", "ready": True, "started": True, "restartCount": 0,
        "image": WORKER["containers"][0]["image"], "imageID": "sha256:0",
        "containerID": "containerd://0", "state": {"running": {"startedAt": at}},
    }  # fmt: skip
    return {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "10.255.0.1",
        "startTime": at, "conditions": conditions, "containerStatuses": [container],
    }  # fmt: skip
