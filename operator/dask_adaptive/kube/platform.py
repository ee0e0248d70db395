"""Implements Platform for Kubernetes: reads and changes one cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from dask_adaptive.kube import api as kube
from dask_adaptive.kube.annotated import SETTLE_S, is_suspended
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.notes import Note
from dask_adaptive.kube.objects import GROUP_LABEL, DeploymentObject, GroupObject, parse_autoscaler
from dask_adaptive.kube.view import ClusterLook, adopted, conflict, is_settling, view
from dask_adaptive.loop.ports import PlatformError, PlatformUnread
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformView
from dask_adaptive.model.scaling import Allowance

logger = logging.getLogger(__name__)


class _SetTimes:
    """
    Instants at which annotations were set.

    A manager's time moves with each of its writes to the object, so the earliest counts: else
    whoever annotates a cluster with anything would say `recycle: now` once more.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str, bool], float] = {}
        self._seen: dict[tuple[str, str, str, bool], float] = {}

    def of(self, note: Note, now: float) -> float:
        """Return seconds since 1970: as recorded, else when it was first seen."""
        set_at = now if note.set_at is None else note.set_at
        # A person's own annotation differs from its copy from above.
        name = (note.holder, note.name, note.value, note.is_copy)
        self._seen[name] = min(set_at, self._known.get(name, set_at))
        return self._seen[name]

    def forget_others(self) -> None:
        """Forget annotations that were not read since the last call."""
        self._known, self._seen = self._seen, {}


#: Wait for a DaskAutoscaler that is being adopted, and interval of checks.
_PATIENCE_S, _LOOK_S = SETTLE_S + 3.0, 0.5


class KubePlatform:
    """
    Reads the cache, writes to the API; see `loop.ports.Platform`.

    Args:
        allowance: What a group may have of what clusters share; None: it shares nothing.
    """

    def __init__(
        self, key: ClusterKey, *, api: KubeApi, world: World, wall_clock: Callable[[], float],
        manual_max_s: Callable[[], float],
        allowance: Callable[[str], Allowance | None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._key, self._api, self._world = key, api, world
        self._wall_clock, self._manual_max_s = wall_clock, manual_max_s
        self._allowance = allowance
        self._times, self._look = _SetTimes(), ClusterLook()

    async def look(self) -> PlatformView:
        unread = self._world.unread(self._key.namespace) or self._world.fault(self._key)
        if unread:
            raise PlatformUnread(f"nothing is changed: {unread}")
        await self._settle()
        now = self._wall_clock()
        seen = view(
            self._world,
            self._key,
            now=now,
            since=lambda note: self._times.of(note, now),
            manual_max_s=self._manual_max_s(),
            look=self._look,
        )
        self._times.forget_others()
        groups = (replace(g, allowance=self._allowance(g.name)) for g in seen.groups)
        losses = self._world.losses(self._key.namespace)
        return replace(seen, groups=tuple(groups), losses=losses)

    async def _settle(self) -> None:
        """Wait for upstream's autoscaler: a conflict of some seconds is not reported."""
        waited_s = 0.0
        while waited_s < _PATIENCE_S and is_settling(
            self._world, self._key, now=self._wall_clock()
        ):
            await asyncio.sleep(_LOOK_S)
            waited_s += _LOOK_S

    async def set_replicas(self, group: str, replicas: int) -> None:
        known = self._world.get(GroupObject, self._key.namespace, group)
        if known is None:
            raise PlatformError(f"DaskWorkerGroup {group} is gone")
        exist = sum(d.group == group for d in self._world.of(DeploymentObject, self._key))
        if replicas < known.replicas:
            # The cache may be behind. Of a rise dask-kubernetes removes no worker that it would
            # not have removed for the number that was there.
            path, selector = kube.DEPLOYMENTS.path(self._key.namespace), f"{GROUP_LABEL}={group}"
            exist = await self._api.total(path, selector=selector)
        if exist > replicas:
            # dask-kubernetes would choose workers itself (daskworkergroup_replica_update), busy or
            # not.
            raise PlatformError(f"{group} has {exist} workers: not lowered to {replicas} replicas")
        await self._check_owner()
        # A later writer may have requested another number.
        body = {
            "metadata": {"resourceVersion": str(known.meta.version)},
            "spec": {"replicas": replicas},
        }
        try:
            path = kube.GROUPS.path(self._key.namespace, group, "scale")
            scale = await self._api.patch(path, body)
        except kube.Conflict as exc:
            await self._read_again(group)
            raise PlatformError(f"another client has changed {group}: {exc}") from exc
        meta = replace(known.meta, version=int(scale["metadata"]["resourceVersion"]))
        self._world.put(replace(known, replicas=replicas, meta=meta))

    async def _read_again(self, group: str) -> None:
        """Read objects that the watch has not reported yet, or never will if it is broken."""
        try:
            body = await self._api.get(kube.GROUPS.path(self._key.namespace, group))
        except kube.NotFound:
            return
        if (found := self._world.parsed(GroupObject, body)) is not None:
            self._world.put(found, is_read=True)

    async def _check_owner(self) -> None:
        """
        Check in the cache that the cluster is still ours, and in the API that an adopted
        DaskAutoscaler still exists: `cluster.scale(3)` deletes it and sets a number.
        """
        now = self._wall_clock()
        problem = conflict(self._world, self._key, now=now)
        if problem:
            raise PlatformError(problem)
        known = adopted(self._world, self._key, now=now)
        if known is None:
            return
        name, path = known.meta.name, kube.AUTOSCALERS.path(self._key.namespace)
        found = map(parse_autoscaler, await self._api.list(path, field=f"metadata.name={name}"))
        if not any(is_suspended(a, now) and not a.meta.deleting for a in found):
            raise PlatformError(f"DaskAutoscaler {name} is gone or active: nothing is scaled")

    async def delete_cluster(self, uid: str) -> None:
        try:
            await kube.remove(self._api, kube.CLUSTERS.path(*self._key), uid)
        except kube.Forbidden as exc:
            raise PlatformError(
                f"the operator may not delete DaskClusters: {exc}; who installed it can allow it"
                " with the chart's value allowDeleteCluster"
            ) from exc

    async def delete_worker(self, worker: str, uid: str) -> None:
        await kube.remove(self._api, kube.DEPLOYMENTS.path(self._key.namespace, worker), uid)

    async def restart_worker(self, worker: str, pod: str, pod_uid: str) -> None:
        # Not an Eviction: no PodDisruptionBudget applies, because the pod's work is already handed
        # over.
        await kube.remove(self._api, kube.PODS.path(self._key.namespace, pod), pod_uid)
