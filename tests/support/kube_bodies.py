"""Whole objects, as tests write them to a real API server; each call says only what differs."""

from __future__ import annotations

from typing import Any

from dask_adaptive.kube.api import AUTOSCALERS, GROUPS, PODS, POLICIES, Resource

#: A pod's spec whose container is a worker that nobody will ever start.
WORKER: dict[str, Any] = {"containers": [{"name": "worker", "image": "x"}]}


def body(kind: Resource, name: str, spec: Any = None, **metadata: Any) -> dict[str, Any]:
    made = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, **metadata},
    }
    return made if spec is None else {**made, "spec": spec}


def policy(name: str = "p", cluster: str = "etl", **spec: Any) -> dict[str, Any]:
    return body(POLICIES, name, {"clusterRef": {"name": cluster}, "maxReplicas": 5, **spec})


def group(cluster: str, replicas: int = 0, **pod: Any) -> dict[str, Any]:
    """The default one; `pod` are further fields of its workers' pods."""
    spec = {"cluster": cluster, "worker": {"replicas": replicas, "spec": {**WORKER, **pod}}}
    return body(GROUPS, f"{cluster}-default", spec)


def autoscaler(cluster: str, **annotations: str) -> dict[str, Any]:
    spec = {"cluster": cluster, "minimum": 0, "maximum": 3}
    return body(AUTOSCALERS, cluster, spec, annotations=annotations)


def pod(name: str, spec: Any = WORKER, *, of: str = "", **metadata: Any) -> dict[str, Any]:
    """With `of`, a worker's name: as the ReplicaSet of its Deployment makes it."""
    if of:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "x", "name": f"{of}-ab"}
        labels = {**metadata.pop("labels", {}), "pod-template-hash": "ab"}
        metadata |= {"labels": labels, "ownerReferences": [owner]}
    return body(PODS, name, spec, **metadata)


def dask_pod(component: str, container: Any = None, **spec: Any) -> dict[str, Any]:
    """As a webhook is asked about it, of cluster `etl`: its container runs `dask COMPONENT`."""
    labels = {
        "dask.org/component": component,
        "dask.org/cluster-name": "etl",
        "dask.org/workergroup-name": "etl-default",
    }
    metadata = {"labels": labels, **spec.pop("metadata", {})}
    one = {"name": component, "args": ["dask", component], **(container or {})}
    return {"metadata": metadata, "spec": {"containers": [one], **spec}}
