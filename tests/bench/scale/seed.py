"""
Puts clusters and their workers there, as if they had been for a while.

100,000 objects take the API server of a small machine a quarter of an hour. So one Deployment and
one pod are made through the API, and copies of what it has stored are written beside it, into its
etcd; the API server reads these like its own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

import aiohttp

from bench.scale.bodies import Cluster, Json, cluster_objects, deployment, pod, running
from bench.scale.upstream import ip_of
from dask_adaptive.kube.api import (
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    SERVICES,
    AlreadyExists,
    KubeApi,
    Resource,
)
from support.kube_bodies import service

#: Puts in one transaction; etcd takes 128.
BATCH = 100

Workers = dict[str, list[tuple[str, str]]]  # by cluster: name and address


async def seed_clusters(api: KubeApi, clusters: Sequence[Cluster], *, policy: Json) -> None:
    """Namespaces, clusters, groups and policies, through the API."""
    for name in sorted({c.namespace for c in clusters}):
        try:
            await api.create(NAMESPACES.path(), {"metadata": {"name": name}})
        except AlreadyExists:
            continue
    slots = asyncio.Semaphore(30)

    async def make(cluster: Cluster, kind: Resource, body: Json) -> None:
        async with slots:
            await api.create(kind.path(cluster.namespace), body)

    objects = [(c, *one) for c in clusters for one in cluster_objects(c, policy=policy)]
    objects += [(c, SERVICES, service(c.name)) for c in clusters]
    await asyncio.gather(*(make(*one) for one in objects))


async def seed_workers(api: KubeApi, etcd: str, clusters: Sequence[Cluster]) -> Workers:
    """Running workers of all clusters, into etcd; returns who is there."""
    first = clusters[0]
    dep, one_pod = await _stored(api, first)
    workers: Workers = {}
    addresses = iter(range(1, 2**20))

    def objects() -> Iterator[tuple[str, Json]]:
        for cluster in clusters:
            mine = workers[cluster.name] = []
            for number in range(cluster.workers):
                name, ip = cluster.worker(number), ip_of(next(addresses))
                mine.append((name, f"tcp://{ip}:40000"))
                to = _renamed(first, first.worker(0), cluster, name)
                made = to(dep)
                yield f"/registry/deployments/{cluster.namespace}/{name}", made
                of_pod = to(one_pod)
                of_pod["status"] |= {"podIP": ip, "podIPs": [{"ip": ip}]}
                key = f"/registry/pods/{cluster.namespace}/{of_pod['metadata']['name']}"
                yield key, of_pod

    await _put_all(etcd, objects())
    return workers


async def _stored(api: KubeApi, cluster: Cluster) -> tuple[Json, Json]:
    """One Deployment and one pod, as the API server has them, managedFields and all."""
    name = cluster.worker(0)
    made = await api.create(DEPLOYMENTS.path(cluster.namespace), deployment(cluster, name))
    its_pod = await api.create(PODS.path(cluster.namespace), pod(cluster, name))
    path = PODS.path(cluster.namespace, its_pod["metadata"]["name"], "status")
    at = its_pod["metadata"]["creationTimestamp"]
    its_pod = await api.patch(path, {"status": running(ip_of(1), at)})
    for body in (made, its_pod):
        del body["metadata"]["resourceVersion"]  # etcd's own
    return made, its_pod


def _renamed(old: Cluster, old_name: str, new: Cluster, name: str) -> Callable[[Json], Json]:
    """A copy that is another cluster's worker."""

    def copied(body: Json) -> Json:
        text = json.dumps(body).replace(old_name, name)
        text = text.replace(old.name, new.name).replace(old.namespace, new.namespace)
        made: Json = json.loads(text)
        made["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": new.namespace}
        return made

    return copied


async def _put_all(etcd: str, objects: Iterable[tuple[str, Json]]) -> None:
    slots = asyncio.Semaphore(4)
    async with aiohttp.ClientSession() as session:

        async def put(batch: list[Json]) -> None:
            async with session.post(f"{etcd}/v3/kv/txn", json={"success": batch}) as answer:
                text = await answer.text()
                slots.release()
                assert answer.status == 200, text

        waiting: list[asyncio.Task[None]] = []
        batch: list[Json] = []
        for key, body in objects:
            value = json.dumps(body).encode()
            batch.append({"requestPut": {"key": _b64(key.encode()), "value": _b64(value)}})
            if len(batch) == BATCH:
                await slots.acquire()
                waiting.append(asyncio.create_task(put(batch)))
                batch = []
        await slots.acquire()
        waiting.append(asyncio.create_task(put(batch)))
        await asyncio.gather(*waiting)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
