"""
Plays dask-kubernetes, Kubernetes' controllers and the kubelet: a group's `replicas` becomes
Deployments and running pods, and these join their simulated scheduler. Written in one place so that
the bench can run on an API server alone.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.scale.bodies import Cluster, Json, deployment, handled, pod, running
from dask_adaptive.kube.api import DEPLOYMENTS, GROUPS, PODS, KubeApi, KubeError, NotFound

#: How long an image, a process and Dask's own handshake take; short, for the bench is not of these.
START_S = 1.0


Told = Callable[..., Any]

_addresses = itertools.count(2**20)


def ip_of(number: int) -> str:
    return f"10.{(number >> 16) & 255}.{(number >> 8) & 255}.{number & 255}"


class Upstream:
    """
    Watches groups and Deployments and does what upstream does.

    Args:
        join: Called with a cluster's name and (worker, address) pairs that are there now.
        leave: Called with a cluster's name and workers that are gone.
    """

    def __init__(
        self, api: KubeApi, clusters: Iterable[Cluster], *, join: Told, leave: Told,
    ) -> None:  # fmt: skip
        self._api, self._join, self._leave = api, join, leave
        self._by_group = {(c.namespace, c.group): c for c in clusters}
        self._workers: dict[str, set[str]] = {c.name: set() for c in self._by_group.values()}
        self._numbers = itertools.count(2**32)
        self._tasks: set[asyncio.Task[None]] = set()
        self.replicas = {c.name: c.workers for c in self._by_group.values()}
        self.problems: list[str] = []
        #: Cluster, replicas before and after, when the watch told it.
        self.changes: list[tuple[str, int, int, float]] = []

    def seeded(self, workers: Mapping[str, Iterable[str]]) -> None:
        """These are there already."""
        for cluster, names in workers.items():
            self._workers[cluster] |= set(names)

    async def run(self, namespace: str | None = None) -> None:
        """Until cancelled."""
        await asyncio.gather(
            self._watch(GROUPS.path(namespace), self._on_group),
            self._watch(DEPLOYMENTS.path(namespace), self._on_deployment),
        )

    async def _watch(self, path: str, on: Callable[[str, Json], None]) -> None:
        version = (await self._api.get(path, {"limit": "1"}))["metadata"]["resourceVersion"]
        while True:
            async for kind, body in self._api.watch(path, version=version, seconds=3600):
                version = body["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    on(kind, body)

    def _on_group(self, kind: str, body: Json) -> None:
        at = time.monotonic()
        cluster = self._by_group.get((body["metadata"]["namespace"], body["metadata"]["name"]))
        if cluster is None or kind == "DELETED":
            return
        now = int(body["spec"]["worker"].get("replicas") or 0)
        before = self.replicas[cluster.name]
        if now == before:
            return
        self.replicas[cluster.name] = now
        self.changes.append((cluster.name, before, now, at))
        self._start(self._make(cluster, now))

    def _on_deployment(self, kind: str, body: Json) -> None:
        meta = body["metadata"]
        group = (meta.get("labels") or {}).get("dask.org/workergroup-name", "")
        cluster = self._by_group.get((meta["namespace"], group))
        if kind == "DELETED" and cluster and meta["name"] in self._workers[cluster.name]:
            self._workers[cluster.name].discard(meta["name"])
            self._start(self._end(cluster, meta["name"]))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Any) -> None:
        try:
            await work
        except KubeError as exc:
            self.problems.append(str(exc))

    async def _make(self, cluster: Cluster, replicas: int) -> None:
        mine = self._workers[cluster.name]
        names = [cluster.worker(next(self._numbers)) for _ in range(replicas - len(mine))]
        mine |= set(names)
        path = DEPLOYMENTS.path(cluster.namespace)
        await _some_at_once(self._api.create(path, deployment(cluster, name)) for name in names)
        group = GROUPS.path(cluster.namespace, cluster.group)
        await self._api.patch(group, {"metadata": {"annotations": handled(replicas)}})
        joined = await _some_at_once(self._run_pod(cluster, name) for name in names)
        if joined:
            await asyncio.sleep(START_S)
            await self._join(cluster.name, joined)

    async def _run_pod(self, cluster: Cluster, name: str) -> tuple[str, str]:
        ip = ip_of(next(_addresses))
        body = pod(cluster, name)
        made = await self._api.create(PODS.path(cluster.namespace), body)
        path = PODS.path(cluster.namespace, made["metadata"]["name"], "status")
        status = running(ip, made["metadata"]["creationTimestamp"])
        await self._api.patch(path, {"status": status})
        return name, f"tcp://{ip}:40000"

    async def _end(self, cluster: Cluster, name: str) -> None:
        await self._leave(cluster.name, [name])
        path = PODS.path(cluster.namespace, pod(cluster, name)["metadata"]["name"])
        try:
            await self._api.delete(f"{path}?gracePeriodSeconds=0")
        except NotFound:
            return


async def _some_at_once(work: Iterable[Any]) -> list[Any]:
    slots = asyncio.Semaphore(20)

    async def one(each: Any) -> Any:
        async with slots:
            return await each

    return await asyncio.gather(*(one(each) for each in work))
