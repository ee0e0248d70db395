"""The Platform that is Kubernetes, for one cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.errors import Conflict, NotFound
from dask_adaptive.kube.gpus import FreeGpus
from dask_adaptive.kube.objects import GROUP_LABEL
from dask_adaptive.kube.pins import PinNote, manual_pin
from dask_adaptive.kube.quotas import QuotaNote
from dask_adaptive.kube.resources import DEPLOYMENTS, GROUPS, PODS
from dask_adaptive.kube.view import gpus_needed, view
from dask_adaptive.kube.world import World
from dask_adaptive.loop.ports import PlatformError
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ManualPin, PlatformView


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
        self._set_at: dict[tuple[str, str, str], float] = {}  # of notes, when first seen

    async def look(self) -> PlatformView:
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

        asked_for: dict[tuple[str, str, str], float] = {}

        def since(note: QuotaNote) -> float | None:
            # A manager's time moves with each of its writes to the object, so the earliest counts:
            # else whoever annotates a cluster with anything would say `recycle: now` once more.
            if note.set_at is None:
                return None
            name = (note.holder, note.name, note.value)
            asked_for[name] = min(note.set_at, self._set_at.get(name, note.set_at))
            return asked_for[name]

        seen_now = view(self._world, self._key, now=now, read_pin=read_pin, since=since)
        self._first_seen = {n: at for n, at in self._first_seen.items() if n in seen}
        self._set_at = asked_for
        needs = gpus_needed(self._world, self._key)
        if not needs:
            return seen_now
        return replace(seen_now, free_gpus=await self._gpus.count(needs))

    async def set_replicas(self, group: str, replicas: int) -> None:
        exist = await self._count_workers(group)
        if exist > replicas:
            # dask-kubernetes would pick victims (daskworkergroup_replica_update), busy or not.
            raise PlatformError(f"{group} has {exist} workers: not lowered to {replicas} replicas")
        path = GROUPS.path(self._key.namespace, group, "scale")
        await self._api.patch(path, {"spec": {"replicas": replicas}})

    async def _count_workers(self, group: str) -> int:
        """Deployments of a group as the API has them now; the cache may be behind."""
        path = DEPLOYMENTS.path(self._key.namespace)
        return len(await self._api.list(path, selector=f"{GROUP_LABEL}={group}"))

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
