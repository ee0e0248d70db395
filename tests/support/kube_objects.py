"""Objects as the API server sends them, small; each call says only what differs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.cache.world import KINDS, World, scopes_of
from dask_adaptive.kube.platform import KubePlatform
from dask_adaptive.kube.view import view
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformView
from support.kube_bodies import labels_of

#: Of `cluster()`.
KEY = ClusterKey("ns", "etl")
KIND = {kind.resource.kind: kind for kind in reversed(KINDS)}

#: Seconds since 1970 of CREATED.
CREATED_AT = 1_769_904_000.0
CREATED = "2026-02-01T00:00:00Z"

UPSTREAM = {"f:labels": {"f:dask.org/component": {}}}


def meta(name: str, **more: Any) -> dict[str, Any]:
    base = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "creationTimestamp": CREATED,
    }
    return {**base, **more}


def namespace(name: str = "ns", **labels: str) -> dict[str, Any]:
    return {"kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def cluster(name: str = "etl", **metadata: Any) -> dict[str, Any]:
    return {"kind": "DaskCluster", "metadata": meta(name, **metadata), "spec": {}}


def policy(name: str = "etl", for_: str = "etl", **metadata: Any) -> dict[str, Any]:
    spec = {"clusterRef": {"name": for_}, "maxReplicas": 5}
    return {"kind": "AdaptivePolicy", "metadata": meta(name, **metadata), "spec": spec}


def group(name: str = "etl-default", replicas: int = 1, **metadata: Any) -> dict[str, Any]:
    spec = {"cluster": "etl", "worker": {"replicas": replicas}}
    return {"kind": "DaskWorkerGroup", "metadata": meta(name, **metadata), "spec": spec}


def autoscaler(
    name: str = "etl", *, minimum: int = 0, maximum: int = 3, **metadata: Any
) -> dict[str, Any]:
    spec = {"cluster": "etl", "minimum": minimum, "maximum": maximum}
    return {"kind": "DaskAutoscaler", "metadata": meta(name, **metadata), "spec": spec}


def deployment(name: str = "w1", **more: Any) -> dict[str, Any]:
    metadata, rest = more.pop("metadata", {}), more
    labels = labels_of("worker")
    return {"kind": "Deployment", "metadata": meta(name, labels=labels, **metadata), **rest}


def pod(name: str = "w1-hash-x", worker: str = "w1", **more: Any) -> dict[str, Any]:
    metadata, rest = more.pop("metadata", {}), more
    labels = {**labels_of("worker"), "pod-template-hash": "hash"}
    owners = [{"kind": "ReplicaSet", "name": f"{worker}-hash"}]
    base = {"status": {"phase": "Running", "podIP": "10.0.0.1"}}
    full = meta(name, labels=labels, ownerReferences=owners, **metadata)
    return {"kind": "Pod", "metadata": full, **base, **rest}


def node(name: str = "n1", *taints: str, **more: Any) -> dict[str, Any]:
    metadata, spec = more.pop("metadata", {}), more.pop("spec", {})
    spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints], **spec}
    return {"kind": "Node", "metadata": {**meta(name, **metadata), "namespace": ""}, "spec": spec}


def service(ip: str = "10.96.0.9", **spec: Any) -> dict[str, Any]:
    labels = labels_of("scheduler")
    ports = [{"name": "tcp-comm", "port": 8786}]
    spec = {"clusterIP": ip, "ports": ports, "selector": labels, **spec}
    return {"kind": "Service", "metadata": meta("etl-scheduler", labels=labels), "spec": spec}


def worker_group(name: str = "etl-default", replicas: int = 1, **container: Any) -> dict[str, Any]:
    """A group whose workers have one container."""
    made = group(name, replicas)
    made["spec"]["worker"]["spec"] = {"containers": [{"name": "worker", "image": "x", **container}]}
    return made


def quota(name: str = "team", hard: Any = (), used: Any = (), **spec: Any) -> dict[str, Any]:
    """A ResourceQuota whose controller has counted: what is not in `used` is 0."""
    most = dict(hard)
    status = {"hard": most, "used": {**dict.fromkeys(most, "0"), **dict(used)}}
    return {
        "kind": "ResourceQuota",
        "metadata": meta(name),
        "spec": {"hard": most, **spec},
        "status": status,
    }


def noted(by: str = "kubectl-annotate", at: str = CREATED, **notes: str) -> dict[str, Any]:
    """
    Metadata with annotations of ours: `pin_reason` stands for `pin-reason`.

    By "upstream" they are copies, made with the object.
    """
    named = {f"dask-adaptive.dev/{k.replace('_', '-')}": v for k, v in notes.items()}
    fields = {"f:annotations": {f"f:{name}": {} for name in named}}
    entry = {
        "manager": by,
        "time": at,
        "fieldsV1": {"f:metadata": {**fields, **(UPSTREAM if by == "upstream" else {})}},
    }
    return {"annotations": named, "managedFields": [entry]}


_ONE_OF_EACH = yaml.safe_load(Path(__file__).with_name("one_of_each.yaml").read_text())
POD_SPEC: dict[str, Any] = _ONE_OF_EACH[1]["spec"]["worker"]["spec"]


def one_of_each(key: ClusterKey) -> Iterator[dict[str, Any]]:
    """A cluster with one object of each kind, in all that is read of it."""
    for body in copy.deepcopy(_ONE_OF_EACH):
        known = {"namespace": key.namespace, "uid": f"{key.namespace}-{body['kind']}"}
        yield {**body, "metadata": meta(**{**body["metadata"], **known})}


def world_of(*bodies: dict[str, Any]) -> World:
    world = World()
    for body in bodies:
        take(world, "ADDED", body)
    return world


def platform_of(
    key: ClusterKey, world: World, api: Any = None, *, now: Callable[[], float] = time.time,
    most_s: float = 3600.0,
) -> KubePlatform:  # fmt: skip
    """Without an API: all that is asked is in the cache."""
    return KubePlatform(key, api=api, world=world, wall_clock=now, manual_max_s=lambda: most_s)


def take(world: World, event: str, body: dict[str, Any]) -> None:
    world.take(KIND[body["kind"]], event, body)


def look(*bodies: dict[str, Any], now: float = CREATED_AT + 60) -> PlatformView:
    """The cluster as the loop sees it."""
    return view(world_of(*bodies), KEY, now=now)


async def resync(world: World, api: KubeApi, namespaces: Iterable[str] = ()) -> None:
    """Read all that is watched, one kind after the other."""
    for scope in scopes_of(namespaces):
        await world.read(api, scope)
