"""The Platform that is Kubernetes, for one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from dask_adaptive.kube.adoption import SETTLE_S, at_rest
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.errors import Conflict, Forbidden, NotFound
from dask_adaptive.kube.gpus import FreeGpus
from dask_adaptive.kube.objects import GROUP_LABEL, parse_autoscaler
from dask_adaptive.kube.owners import adopted, conflict, is_settling
from dask_adaptive.kube.pauses import PauseNote
from dask_adaptive.kube.pins import PinNote, manual_pin
from dask_adaptive.kube.quotas import QuotaNote
from dask_adaptive.kube.resources import AUTOSCALERS, CLUSTERS, DEPLOYMENTS, GROUPS, PODS
from dask_adaptive.kube.view import gpus_needed, view
from dask_adaptive.kube.world import World
from dask_adaptive.loop.ports import PlatformError
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ManualPin, PlatformView


class _SetTimes:
    """
    When annotations were set.

    A manager's time moves with each of its writes to the object, so the earliest counts: else
    whoever annotates a cluster with anything would say `recycle: now` once more.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], float] = {}
        self._asked: dict[tuple[str, str, str], float] = {}

    def of(self, note: QuotaNote | PauseNote, unnoted: float | None = None) -> float | None:
        """Seconds since 1970; `unnoted` where nobody noted it, and ever after."""
        set_at = unnoted if note.set_at is None else note.set_at
        if set_at is None:
            return None
        name = (note.holder, note.name, note.value)
        self._asked[name] = min(set_at, self._known.get(name, set_at))
        return self._asked[name]

    def forget_others(self) -> None:
        """Forget annotations that nobody has asked about since the last time."""
        self._known, self._asked = self._asked, {}


#: For a DaskAutoscaler that is being taken over: how long to wait, and how often to look.
_PATIENCE_S, _LOOK_S = SETTLE_S + 3.0, 0.5


class KubePlatform:
    """Reads the cache, writes to the API; see `loop.ports.Platform`."""

    def __init__(
        self,
        key: ClusterKey,
        *,
        api: KubeApi,
        world: World,
        wall_clock: Callable[[], float],
        manual_max_s: Callable[[], float],
        gpus: FreeGpus | None = None,
    ) -> None:
        self._key, self._api, self._world = key, api, world
        self._wall_clock, self._manual_max_s = wall_clock, manual_max_s
        self._gpus = gpus or FreeGpus(api, world, wall_clock)
        self._first_seen: dict[PinNote, float] = {}
        self._times = _SetTimes()

    async def look(self) -> PlatformView:
        await self._settle()
        now = self._wall_clock()
        seen: set[PinNote] = set()

        def read_pin(notes: list[PinNote | None]) -> ManualPin | None:
            present = {note for note in notes if note is not None}
            seen.update(present)
            for note in present:
                self._first_seen.setdefault(note, now)
            return manual_pin(
                notes,
                now=now,
                first_seen=min((self._first_seen[n] for n in present), default=now),
                max_s=self._manual_max_s(),
            )

        seen_now = view(
            self._world,
            self._key,
            now=now,
            read_pin=read_pin,
            since=self._times.of,
            paused_since=lambda note: self._times.of(note, now),
        )
        self._first_seen = {n: at for n, at in self._first_seen.items() if n in seen}
        self._times.forget_others()
        needs = gpus_needed(self._world, self._key)
        if not needs:
            return seen_now
        return replace(seen_now, free_gpus=await self._gpus.count(needs))

    async def _settle(self) -> None:
        """Wait for upstream's autoscaler: what lasts some seconds is no conflict to tell of."""
        waited_s = 0.0
        while waited_s < _PATIENCE_S and is_settling(
            self._world, self._key, now=self._wall_clock()
        ):
            await asyncio.sleep(_LOOK_S)
            waited_s += _LOOK_S

    async def set_replicas(self, group: str, replicas: int) -> None:
        exist = await self._count_workers(group)
        if exist > replicas:
            # dask-kubernetes would pick victims (daskworkergroup_replica_update), busy or not.
            raise PlatformError(f"{group} has {exist} workers: not lowered to {replicas} replicas")
        await self._check_owner()
        path = GROUPS.path(self._key.namespace, group, "scale")
        await self._api.patch(path, {"spec": {"replicas": replicas}})

    async def _count_workers(self, group: str) -> int:
        """Deployments of a group as the API has them now; the cache may be behind."""
        path = DEPLOYMENTS.path(self._key.namespace)
        return len(await self._api.list(path, selector=f"{GROUP_LABEL}={group}"))

    async def _check_owner(self) -> None:
        """
        Whether the cluster is still ours, as the cache has it by now; and a DaskAutoscaler that was
        taken over by the API itself: `cluster.scale(3)` deletes it and sets a number.
        """
        now = self._wall_clock()
        problem = conflict(self._world, self._key, now=now)
        if problem:
            raise PlatformError(problem)
        known = adopted(self._world, self._key, now=now)
        if known is None:
            return
        name, path = known.meta.name, AUTOSCALERS.path(self._key.namespace)
        found = map(parse_autoscaler, await self._api.list(path, field=f"metadata.name={name}"))
        if not any(at_rest(a, now) and not a.meta.going for a in found):
            raise PlatformError(f"DaskAutoscaler {name} is gone or awake: nothing is scaled")

    async def delete_cluster(self, uid: str) -> None:
        try:
            await self._api.delete(CLUSTERS.path(self._key.namespace, self._key.name), uid=uid)
        except (NotFound, Conflict):
            return  # gone, or another cluster has its name now: the one that was meant is gone
        except Forbidden as exc:
            raise PlatformError(
                f"the operator may not delete DaskClusters: {exc}; who installed it can allow it"
                " with the chart's value allowDeleteCluster"
            ) from exc

    async def delete_worker(self, worker: str, uid: str) -> None:
        path = DEPLOYMENTS.path(self._key.namespace, worker)
        try:
            await self._api.delete(path, uid=uid)
        except (NotFound, Conflict):
            # Gone, or another Deployment has its name now: the worker that was meant is gone.
            return

    async def restart_worker(self, worker: str, pod: str, pod_uid: str) -> None:
        # Not an Eviction: neither a PodDisruptionBudget nor our own guard (controller/evictions.py)
        # has a say, because what is in the pod has been handed over already.
        try:
            await self._api.delete(PODS.path(self._key.namespace, pod), uid=pod_uid)
        except (NotFound, Conflict):
            return  # as above
