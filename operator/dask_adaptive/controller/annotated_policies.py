"""
Keeps policies in step with the annotations of DaskClusters, and with adopted DaskAutoscalers;
`kube.annotated` decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from dask_adaptive.backoff import heard
from dask_adaptive.kube import annotated
from dask_adaptive.kube import api as kube
from dask_adaptive.kube.annotated import Adopt, Complain
from dask_adaptive.kube.api import Json, KubeApi, KubeError
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import MANAGED_BY, AutoscalerObject, ClusterObject, PolicyObject
from dask_adaptive.kube.reporter import EventPoster
from dask_adaptive.loop.ports import Event, EventType
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from dask_adaptive.model.reason import Reason

logger = logging.getLogger(__name__)

#: Wait before a cluster is retried after an error.
RETRY_S = 10.0

#: Interval of checks whether upstream must stay suspended for longer.
LOOK_S = 20.0


class AnnotatedPolicies:
    """Runs while this process leads."""

    def __init__(
        self,
        world: World,
        api: KubeApi,
        events: EventPoster,
        *,
        adopt: Adopt = Adopt.ANNOTATED,
        controller: str = DEFAULT_CONTROLLER,
    ) -> None:
        self._world, self._api, self._events = world, api, events
        self._adopt, self._controller = adopt, controller
        self._dirty: set[ClusterKey] = set()
        self._changed = asyncio.Event()
        self._complaints: dict[ClusterKey, frozenset[Complain]] = {}

    def on_change(self, key: ClusterKey) -> None:
        self._dirty.add(key)
        self._changed.set()

    async def run(self) -> None:
        self._dirty.update(c.key for c in self._world.all(ClusterObject))
        looked_at = time.monotonic()
        while True:
            self._changed.clear()
            if not await self._settle_all():
                await asyncio.sleep(RETRY_S)
            left_s = looked_at + LOOK_S - time.monotonic()
            if not self._dirty:
                await heard(self._changed, within_s=left_s)
            if left_s <= 0:  # no event announces the end of a suspension
                looked_at = time.monotonic()
                self._dirty.update(a.key for a in self._world.all(AutoscalerObject))

    async def _settle_all(self) -> bool:
        """Return True if all went well; a failed cluster is marked dirty again."""
        failed: set[ClusterKey] = set()
        while self._dirty:
            key = self._dirty.pop()
            try:
                await self._settle(key)
            except KubeError as exc:
                logger.warning("Can't update the policy of %s: %s", key, exc)
                failed.add(key)
                if isinstance(exc, kube.ApiUnreachable):
                    break  # each of the others would wait as long
            except Exception:  # one cluster's error must not affect others
                logger.exception("Can't update the policy of %s", key)
                failed.add(key)
        self._dirty |= failed
        return not failed

    async def _settle(self, key: ClusterKey) -> None:
        cluster = self._world.get(ClusterObject, *key)
        if cluster is None or cluster.meta.deleting or not self._world.serves(key.namespace):
            self._complaints.pop(key, None)
            return  # its policy is deleted with it, or left to the operator of the namespace
        if self._world.fault(key, PolicyObject, AutoscalerObject):
            return  # create, remove and wake nothing that cannot be read
        todo = annotated.steps(
            cluster,
            self._world.of(PolicyObject, key),
            self._world.of(AutoscalerObject, key),
            adopt=self._adopt,
            controller=self._controller,
            now=time.time(),
        )
        complaints = [step for step in todo if isinstance(step, Complain)]
        try:
            for step in todo:
                if not isinstance(step, Complain):
                    await self._take(cluster, step)
        except kube.AlreadyExists as exc:
            complaints += self._name_taken(cluster, exc)
        except kube.Invalid as exc:  # the CRD may be another release's, with other checks
            complaints.append(Complain(f"the API server refuses the policy: {exc}"))
        except (kube.NotFound, kube.Conflict):
            pass  # already done, or changed: that change triggers another look
        await self._complain(cluster, frozenset(complaints))

    def _name_taken(self, cluster: ClusterObject, error: kube.AlreadyExists) -> list[Complain]:
        """Complain if a policy for another cluster already has the name."""
        there = self._world.get(PolicyObject, cluster.meta.namespace, cluster.meta.name)
        if there is None:
            raise error  # created a moment ago: the watch will trigger another look
        if there.key == cluster.key:
            return []  # another operator created it first
        taken = f"AdaptivePolicy {cluster.meta.name} exists already, for another cluster"
        return [Complain(f"{taken}; rename it, or write a policy of your own")]

    async def _take(self, cluster: ClusterObject, step: annotated.Step) -> None:
        namespace = cluster.meta.namespace
        match step:
            case annotated.Make(body):
                made = await self._api.create(kube.POLICIES.path(namespace), body)
                self._heard(PolicyObject, made)
                logger.info("Created the AdaptivePolicy of DaskCluster %s", cluster.key)
            case annotated.Mend(name, spec, by):
                change = {"metadata": {"labels": {MANAGED_BY: by}}, "spec": spec}
                await self._api.patch(kube.POLICIES.path(namespace, name), change)
                logger.info("Updated the AdaptivePolicy of DaskCluster %s", cluster.key)
            case annotated.Remove(name, uid):
                # Already gone, or replaced by another of its name: upstream may still be woken.
                await kube.remove(self._api, kube.POLICIES.path(namespace, name), uid)
                logger.info("Deleted the AdaptivePolicy of DaskCluster %s", cluster.key)
            case annotated.Suspend(autoscaler, until, since, news):
                await self._annotate(autoscaler, annotated.suspension_notes(until, since))
                if news:
                    await self._tell(cluster, autoscaler, Reason.ADOPTED, news)
            case annotated.Wake(autoscaler):
                await self._annotate(autoscaler, annotated.woken_notes())
                name = autoscaler.meta.name
                given_back = f"DaskAutoscaler {name} was released: it scales the cluster again"
                await self._tell(cluster, autoscaler, Reason.RELEASED, given_back)
            case annotated.Tell(reason, message):
                await self._tell(cluster, None, reason, message)

    async def _annotate(self, autoscaler: AutoscalerObject, notes: Mapping[str, Any]) -> None:
        meta = autoscaler.meta
        path = kube.AUTOSCALERS.path(meta.namespace, meta.name)
        body = {"metadata": {"uid": meta.uid, "annotations": notes}}
        self._heard(AutoscalerObject, await self._api.patch(path, body))

    def _heard(self, kind: type[PolicyObject] | type[AutoscalerObject], body: Json) -> None:
        """Update the cache before the watch does; otherwise the write might be repeated."""
        if (found := self._world.parsed(kind, body)) is not None:
            self._world.put(found)

    async def _tell(
        self,
        cluster: ClusterObject,
        autoscaler: AutoscalerObject | None,
        reason: Reason,
        message: str,
    ) -> None:
        """Post an event on the cluster, and on the autoscaler if it exists."""
        logger.info("DaskCluster %s: %s", cluster.key, message)
        news = Event(EventType.NORMAL, reason, message)
        await self._events.post(kube.CLUSTERS, cluster.meta, news)
        if autoscaler is not None:
            await self._events.post(kube.AUTOSCALERS, autoscaler.meta, news)

    async def _complain(self, cluster: ClusterObject, complaints: frozenset[Complain]) -> None:
        new = complaints - self._complaints.get(cluster.key, frozenset())
        for complaint in sorted(new, key=lambda c: c.message):
            logger.warning("DaskCluster %s: %s", cluster.key, complaint.message)
            news = Event(EventType.WARNING, Reason.INVALID_SPEC, complaint.message)
            await self._events.post(kube.CLUSTERS, cluster.meta, news)
        if complaints:
            self._complaints[cluster.key] = complaints
        else:
            self._complaints.pop(cluster.key, None)
