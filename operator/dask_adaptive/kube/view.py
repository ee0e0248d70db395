"""One cluster as the loop wants to see it, out of the cache. Pure."""

from __future__ import annotations

from collections.abc import Callable

from dask_adaptive.kube.objects import (
    AutoscalerObject,
    ClusterObject,
    DeploymentObject,
    GroupObject,
    PodObject,
    PolicyObject,
    ServiceObject,
)
from dask_adaptive.kube.pins import PinNote
from dask_adaptive.kube.world import World
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ManualPin, PlatformGroup, PlatformView, PlatformWorker

#: From the notes on a worker and the objects above it, nearest first, to the pin that holds it.
ReadPin = Callable[[list[PinNote | None]], ManualPin | None]


def view(world: World, key: ClusterKey, *, now: float, read_pin: ReadPin) -> PlatformView:
    """All that Kubernetes knows of a cluster; `now` in seconds since 1970."""
    cluster = world.get(ClusterObject, key.namespace, key.name)
    if cluster is None or cluster.meta.going:
        return PlatformView(found=False)
    groups = {g.meta.name: g for g in world.of(GroupObject, key)}
    pods: dict[str, list[PodObject]] = {}
    for pod in world.of(PodObject, key):
        pods.setdefault(pod.worker, []).append(pod)
    return PlatformView(
        found=True,
        conflict=conflict(world, key),
        groups=tuple(PlatformGroup(g.meta.name, g.replicas) for g in groups.values()),
        workers=tuple(
            _worker(
                deployment,
                pods.get(deployment.meta.name, []),
                above=[group.pin if (group := groups.get(deployment.group)) else None, cluster.pin],
                now=now,
                read_pin=read_pin,
            )
            for deployment in world.of(DeploymentObject, key)
        ),
    )


def _worker(
    deployment: DeploymentObject,
    pods: list[PodObject],
    *,
    above: list[PinNote | None],
    now: float,
    read_pin: ReadPin,
) -> PlatformWorker:
    # The one that stays, and of those the youngest, stands for the worker; all may be connected.
    ranked = sorted(pods, key=lambda p: (p.meta.going, -p.meta.created_at, p.meta.name))
    pod = ranked[0] if ranked else None
    return PlatformWorker(
        name=deployment.meta.name,
        uid=deployment.meta.uid,
        group=deployment.group,
        age_s=max(now - deployment.meta.created_at, 0.0),
        going=deployment.meta.going,
        pod=pod.meta.name if pod else "",
        addresses=tuple(a for p in ranked for a in p.addresses),
        waiting=pod.waiting if pod else deployment.waiting or "its pod is not created yet",
        manual_pin=read_pin([pod.pin if pod else None, deployment.pin, *above]),
    )


def conflict(world: World, key: ClusterKey) -> str:
    """Who else scales the cluster, and how to mend it; empty if nobody does."""
    policies = [p.meta.name for p in world.of(PolicyObject, key) if not p.meta.going]
    if len(policies) > 1:
        return (
            f"AdaptivePolicies {', '.join(policies)} are all for DaskCluster {key.name};"
            " nothing is touched until all but one are deleted"
        )
    autoscalers = [a.meta.name for a in world.of(AutoscalerObject, key) if not a.meta.going]
    if autoscalers:
        return (
            f"DaskAutoscaler {autoscalers[0]} scales DaskCluster {key.name} as well; nothing is"
            f" touched until it is deleted: kubectl delete daskautoscaler {autoscalers[0]}"
        )
    return ""


def scheduler_address(world: World, key: ClusterKey) -> str:
    """Where the cluster's scheduler listens: its Service by IP, which needs no DNS."""
    name = f"{key.name}-scheduler"
    service = world.get(ServiceObject, key.namespace, name)
    if service is None:
        return f"tcp://{name}.{key.namespace}.svc:8786"
    if not service.ip:
        return f"tcp://{name}.{key.namespace}.svc:{service.port}"
    host = f"[{service.ip}]" if ":" in service.ip else service.ip
    return f"tcp://{host}:{service.port}"
