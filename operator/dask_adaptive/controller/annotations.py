"""Keeps policies in step with the annotations of DaskClusters; `kube.annotated` decides."""

from __future__ import annotations

import asyncio
import logging

from dask_adaptive.kube.annotated import Complain, Make, Mend, Remove, Step, steps
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from dask_adaptive.kube.events import EventPoster, News, Subject
from dask_adaptive.kube.objects import ClusterObject, PolicyObject
from dask_adaptive.kube.resources import CLUSTERS, POLICIES
from dask_adaptive.kube.world import World
from dask_adaptive.loop.ports import EventType
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.reason import Reason

logger = logging.getLogger(__name__)

#: After an error, a cluster is looked at again so much later.
RETRY_S = 10.0


class AnnotatedPolicies:
    """Runs while this process leads."""

    def __init__(self, world: World, api: KubeApi, events: EventPoster) -> None:
        self._world, self._api, self._events = world, api, events
        self._dirty: set[ClusterKey] = set()
        self._changed = asyncio.Event()
        self._complaints: dict[ClusterKey, str] = {}

    def on_change(self, key: ClusterKey) -> None:
        self._dirty.add(key)
        self._changed.set()

    async def run(self) -> None:
        self._dirty.update(c.key for c in self._world.all(ClusterObject))
        while True:
            self._changed.clear()
            failed = False
            while self._dirty:
                key = self._dirty.pop()
                try:
                    await self._settle(key)
                except KubeError as exc:
                    logger.warning("Policy of %s can't be kept in step: %s", key, exc)
                    self._dirty.add(key)
                    failed = True
                    break
            if failed:
                await asyncio.sleep(RETRY_S)
            else:
                await self._changed.wait()

    async def _settle(self, key: ClusterKey) -> None:
        cluster = self._world.get(ClusterObject, *key)
        if cluster is None or cluster.meta.going:
            self._complaints.pop(key, None)
            return  # its policy goes with it
        todo = steps(cluster, self._world.of(PolicyObject, key))
        if not any(isinstance(step, Complain) for step in todo):
            self._complaints.pop(key, None)
        for step in todo:
            await self._take(cluster, step)

    async def _take(self, cluster: ClusterObject, step: Step) -> None:
        namespace = cluster.meta.namespace
        try:
            match step:
                case Make(body):
                    await self._api.create(POLICIES.path(namespace), body)
                    logger.info("AdaptivePolicy for DaskCluster %s made", cluster.key)
                case Mend(name, spec):
                    await self._api.patch(POLICIES.path(namespace, name), {"spec": spec})
                    logger.info("AdaptivePolicy for DaskCluster %s kept in step", cluster.key)
                case Remove(name, uid):
                    await self._api.delete(POLICIES.path(namespace, name), uid=uid)
                    logger.info("AdaptivePolicy for DaskCluster %s removed", cluster.key)
                case Complain(message):
                    await self._complain(cluster, message)
        except AlreadyExists:
            taken = f"AdaptivePolicy {cluster.meta.name} exists already, for another cluster"
            await self._complain(cluster, f"{taken}; rename it, or write a policy of your own")
        except (NotFound, Conflict):
            return  # done already, or changed: what changed it brings us back here

    async def _complain(self, cluster: ClusterObject, message: str) -> None:
        if self._complaints.get(cluster.key) == message:
            return
        logger.warning("DaskCluster %s: %s", cluster.key, message)
        about = Subject(CLUSTERS, cluster.meta.namespace, cluster.meta.name, cluster.meta.uid)
        news = News(EventType.WARNING, str(Reason.INVALID_POLICY), message)
        await self._events.post(about, news)
        self._complaints[cluster.key] = message
