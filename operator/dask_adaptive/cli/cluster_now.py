"""One cluster as it is now, Kubernetes and scheduler joined: what the planner would see."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from dask_adaptive.cli.from_here import lookout
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import NotFound
from dask_adaptive.kube.objects import CLUSTER_LABEL, COMPONENT_LABEL, GROUP_LABEL
from dask_adaptive.kube.resources import CLUSTERS, DEPLOYMENTS, GROUPS, PODS
from dask_adaptive.kube.view import view
from dask_adaptive.kube.world import KINDS, World
from dask_adaptive.loop.join import join
from dask_adaptive.loop.tracing import Tracer
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformView
from dask_adaptive.model.pins import read_instant
from dask_adaptive.model.trace import Trace


async def platform_view(api: KubeApi, key: ClusterKey) -> PlatformView:
    """What Kubernetes knows of a cluster, pins by annotation left out. Raises `KubeError`."""
    objects = [body for bodies in (await _objects(api, key)).values() for body in bodies]
    world = World()
    for kind in KINDS:
        for body in objects:
            if body["kind"] == kind.resource.kind:
                world.take(kind, "ADDED", body)
    return view(world, key, now=time.time(), read_pin=lambda _: None)


async def _objects(api: KubeApi, key: ClusterKey) -> Mapping[str, list[Json]]:
    selector = f"{CLUSTER_LABEL}={key.name},{COMPONENT_LABEL}=worker"
    groups = await api.list(GROUPS.path(key.namespace))
    found = {
        "DaskCluster": await _cluster(api, key),
        "DaskWorkerGroup": [g for g in groups if g["spec"].get("cluster") == key.name],
        "Deployment": await api.list(DEPLOYMENTS.path(key.namespace), selector=selector),
        "Pod": await api.list(PODS.path(key.namespace), selector=selector),
    }
    # The objects of a list do not say of which kind they are.
    return {kind: [{**body, "kind": kind} for body in bodies] for kind, bodies in found.items()}


async def _cluster(api: KubeApi, key: ClusterKey) -> list[Json]:
    try:
        return [await api.get(CLUSTERS.path(key.namespace, key.name))]
    except NotFound:
        return []


async def trace_of_now(
    api: KubeApi, namespace: str, cluster: str, *, context: str | None, now: float
) -> Trace | str:
    """
    What a cluster has to do now, as a trace of one sample; or why that is not known.

    How long its workers take to come is guessed from how long their pods took to be ready.
    """
    key = ClusterKey(namespace, cluster)
    seen = await platform_view(api, key)
    if not seen.found:
        return f"there is no DaskCluster {cluster} in namespace {namespace}"
    try:
        async with lookout(key, context) as there:
            scheduler = await there.look(demand=True)
    except ConnectionError as exc:
        return f"the scheduler can't be reached: {exc}"
    observed, tracer = join(key, seen, scheduler), Tracer()
    sample = tracer.sample(observed, t=0.0)
    if sample is None:
        return scheduler.message or "its agent is too old to say what work there is"
    arrived = await _ready_after(api, key)
    origin = tracer.origin(observed, started=now, every_s=1.0)
    return Trace(origin, (replace(sample, arrived=arrived),))


async def _ready_after(api: KubeApi, key: ClusterKey) -> tuple[tuple[str, float], ...]:
    """Of each worker's pod how long it took from its creation until it was ready, by group."""
    selector = f"{CLUSTER_LABEL}={key.name},{COMPONENT_LABEL}=worker"
    took = []
    for pod in await api.list(PODS.path(key.namespace), selector=selector):
        meta = pod["metadata"]
        made = read_instant(meta.get("creationTimestamp") or "")
        conditions = (pod.get("status") or {}).get("conditions") or []
        ready = [c for c in conditions if c.get("type") == "Ready" and c.get("status") == "True"]
        at = read_instant(ready[0].get("lastTransitionTime") or "") if ready else None
        if made is not None and at is not None and at >= made:
            group = (meta.get("labels") or {}).get(GROUP_LABEL, "")
            took.append((group, at - made))
    return tuple(took)
