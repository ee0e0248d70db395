"""One cluster as the loop wants to see it, out of the cache. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dask_adaptive.kube.nodes import NodeObject
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
from dask_adaptive.model.observed import (
    Ending,
    ManualPin,
    Mark,
    PlatformGroup,
    PlatformView,
    PlatformWorker,
)

#: From the notes on a worker and the objects above it, nearest first, to the pin that holds it.
ReadPin = Callable[[list[PinNote | None]], ManualPin | None]


def view(world: World, key: ClusterKey, *, now: float, read_pin: ReadPin) -> PlatformView:
    """All that Kubernetes knows of a cluster; `now` in seconds since 1970."""
    cluster = world.get(ClusterObject, key.namespace, key.name)
    if cluster is None or cluster.meta.going:
        return PlatformView(found=False)
    groups = {g.meta.name: g for g in world.of(GroupObject, key)}
    deployments = {d.meta.name: d for d in world.of(DeploymentObject, key)}
    pods: dict[str, list[PodObject]] = {}
    for pod in world.of(PodObject, key):
        pods.setdefault(pod.worker, []).append(pod)

    def above(group: str) -> list[PinNote | None]:
        return [groups[group].pin if group in groups else None, cluster.pin]

    def pin_of(pod: PodObject) -> ManualPin | None:
        deployment = deployments.get(pod.worker)
        on_it = deployment.pin if deployment else None
        return read_pin([pod.pin, on_it, *above(deployment.group if deployment else "")])

    return PlatformView(
        found=True,
        conflict=conflict(world, key),
        groups=tuple(PlatformGroup(g.meta.name, g.replicas) for g in groups.values()),
        workers=tuple(
            _worker(
                deployment,
                pods.get(deployment.meta.name, []),
                above=above(deployment.group),
                now=now,
                read_pin=read_pin,
                node_going=lambda pod: node_going(world, pod),
            )
            for deployment in deployments.values()
        ),
        ending=tuple(_endings(world.of(PodObject, key), now=now, pin_of=pin_of)),
    )


def standing(pods: Iterable[PodObject]) -> list[PodObject]:
    """Pods of one worker, first the one that stands for it: it stays, and is the youngest."""
    return sorted(pods, key=lambda p: (p.meta.going, -p.meta.created_at, p.meta.name))


def node_going(world: World, pod: PodObject) -> str:
    """Who says that the machine under a pod is about to go; empty if nobody does."""
    node = world.get(NodeObject, "", pod.node) if pod.node else None
    return node.going if node else ""


def _endings(
    pods: Iterable[PodObject], *, now: float, pin_of: Callable[[PodObject], ManualPin | None]
) -> Iterable[Ending]:
    for pod in pods:
        if pod.ends_at is None or not pod.addresses:
            continue  # it stays, or it never ran
        yield Ending(
            worker=pod.worker,
            pod=pod.meta.name,
            # All pods in a host's network share its address: it says nothing about whose worker.
            addresses=() if pod.host_network else pod.addresses,
            left_s=max(pod.ends_at - now, 0.0),
            manual_pin=pin_of(pod),
        )


def _worker(
    deployment: DeploymentObject,
    pods: list[PodObject],
    *,
    above: list[PinNote | None],
    now: float,
    read_pin: ReadPin,
    node_going: Callable[[PodObject], str],
) -> PlatformWorker:
    ranked = standing(pods)  # all of them may be connected
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
        node_going=node_going(pod) if pod else "",
        mark=pod.mark if pod else Mark(),
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
