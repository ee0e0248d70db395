"""Whole objects, as tests write them to a real API server; each call says only what differs."""

from __future__ import annotations

from typing import Any

from dask_adaptive.kube import api

#: A pod's spec whose container is a worker that nobody will ever start.
WORKER: dict[str, Any] = {"containers": [{"name": "worker", "image": "x"}]}


def body(kind: api.Resource, name: str, spec: Any = None, **metadata: Any) -> dict[str, Any]:
    made = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, **metadata},
    }
    return made if spec is None else {**made, "spec": spec}


def labels_of(component: str, cluster: str = "etl") -> dict[str, str]:
    """As dask-kubernetes gives them to what it makes of a cluster's default group."""
    group = {"dask.org/workergroup-name": f"{cluster}-default"} if component == "worker" else {}
    return {"dask.org/cluster-name": cluster, "dask.org/component": component, **group}


def policy(name: str = "p", cluster: str = "etl", **spec: Any) -> dict[str, Any]:
    return body(api.POLICIES, name, {"clusterRef": {"name": cluster}, "maxReplicas": 5, **spec})


def group(cluster: str, replicas: int = 0, **pod: Any) -> dict[str, Any]:
    """The default one; `pod` are further fields of its workers' pods."""
    spec = {"cluster": cluster, "worker": {"replicas": replicas, "spec": {**WORKER, **pod}}}
    return body(api.GROUPS, f"{cluster}-default", spec)


def service(cluster: str, ip: str = "None", port: int = 8786) -> dict[str, Any]:
    """A scheduler's, as dask-kubernetes makes it; without an IP it is found by DNS."""
    labels = labels_of("scheduler", cluster)
    ports = [{"name": "tcp-comm", "port": port}]
    spec = {"clusterIP": ip, "ports": ports, "selector": labels}
    return body(api.SERVICES, f"{cluster}-scheduler", spec, labels=labels)


def cluster_of_one(
    worker: str, spec: Any = WORKER, *, name: str = "etl", replicas: int = 1, **annotations: str
) -> list[dict[str, Any]]:
    """
    A DaskCluster, its default group and the Deployment of a worker, as dask-kubernetes makes them.

    Annotations of the cluster are copied to all that it makes.
    """
    group = f"{name}-default"
    labels = labels_of("worker", name)
    workers = {"replicas": replicas, "spec": spec}
    scheduler = {"service": {"ports": [{"port": 8786}]}, "spec": spec}
    template = {
        "metadata": {"labels": {"app": worker, **labels}, "annotations": annotations}, "spec": spec,
    }  # fmt: skip
    whole = {"selector": {"matchLabels": {"app": worker}}, "template": template}
    of_group = labels_of("workergroup", name)
    made = [
        body(api.CLUSTERS, name, {"worker": workers, "scheduler": scheduler}),
        body(api.GROUPS, group, {"cluster": name, "worker": workers}, labels=of_group),
        body(api.DEPLOYMENTS, worker, whole, labels=labels),
    ]
    for one in made:
        one["metadata"]["annotations"] = annotations
    return made


def autoscaler(cluster: str, **annotations: str) -> dict[str, Any]:
    spec = {"cluster": cluster, "minimum": 0, "maximum": 3}
    return body(api.AUTOSCALERS, cluster, spec, annotations=annotations)


def pod(name: str, spec: Any = WORKER, *, of: str = "", **metadata: Any) -> dict[str, Any]:
    """With `of`, a worker's name: as the ReplicaSet of its Deployment makes it."""
    if of:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "x", "name": f"{of}-ab"}
        labels = {**metadata.pop("labels", {}), "pod-template-hash": "ab"}
        metadata |= {"labels": labels, "ownerReferences": [owner]}
    return body(api.PODS, name, spec, **metadata)


def dask_pod(
    component: str, container: Any = None, *, cluster: str = "etl", **spec: Any
) -> dict[str, Any]:
    """As a webhook is asked about it: its container runs `dask COMPONENT`."""
    metadata = {"labels": labels_of(component, cluster), **spec.pop("metadata", {})}
    one = {"name": component, "image": "x", "args": ["dask", component], **(container or {})}
    return {"metadata": metadata, "spec": {"containers": [one], **spec}}
