"""Sees to it that the ConfigMap with the agent is there before a pod needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from dask_adaptive.kube.agent_zip import ZIP, Bundle
from dask_adaptive.kube.api import (
    CLUSTERS,
    CONFIG_MAPS,
    NAMESPACES,
    STRATEGIC,
    AlreadyExists,
    Json,
    KubeApi,
    KubeError,
    NotFound,
)
from dask_adaptive.kube.inject import MANAGED_LABELS, refusal
from dask_adaptive.kube.objects import INJECT, ClusterObject


class AgentConfig:
    """
    The agent's ConfigMap in each namespace that needs it.

    It is owned by all DaskClusters that use it, so Kubernetes removes it with the last of them. A
    scheduler whose volume is missing would not start, so it is never deleted by us.
    """

    def __init__(self, api: KubeApi, bundle: Bundle) -> None:
        self._api, self.bundle = api, bundle

    async def ensure(self, namespace: str, cluster: str, cluster_uid: str) -> None:
        """Make the ConfigMap or join its owners. Raises `KubeError`: then don't rely on it."""
        body = self._body(namespace, cluster, cluster_uid)
        path = CONFIG_MAPS.path(namespace, self.bundle.name)
        try:
            # A strategic merge adds the owner to those that are there (by uid), and is refused if
            # the content, which is immutable, differs.
            await self._api.patch(path, body, how=STRATEGIC)
        except NotFound:
            try:
                await self._api.create(CONFIG_MAPS.path(namespace), body)
            except AlreadyExists:
                await self._api.patch(path, body, how=STRATEGIC)

    def _body(self, namespace: str, cluster: str, cluster_uid: str) -> Json:
        return {
            **CONFIG_MAPS.head,
            "metadata": {
                "name": self.bundle.name,
                "namespace": namespace,
                "labels": MANAGED_LABELS,
                "ownerReferences": [CLUSTERS.owner(cluster, cluster_uid)],
            },
            "immutable": True,
            "data": dict(self.bundle.texts),
            "binaryData": {ZIP: self.bundle.zip},
        }


class Consent:
    """Permission for the agent in a namespace."""

    def __init__(self, api: KubeApi, clock: Callable[[], float], *, ttl_s: float = 30.0) -> None:
        self._api, self._clock, self._ttl_s = api, clock, ttl_s
        self._namespaces: dict[str, tuple[float, str]] = {}
        self._locks = WeakValueDictionary[str, asyncio.Lock]()  # while somebody waits for one

    async def refused(self, namespace: str, cluster: ClusterObject | None) -> str:
        """
        The object that refuses for a cluster, or an empty text. Raises `KubeError`.

        Args:
            cluster: None: it is not known yet, and only its namespace is asked.
        """
        if cluster is not None:
            own = {INJECT: cluster.note(INJECT) or ""}
            if by_itself := refusal(f"DaskCluster {cluster.meta.name}", own):
                return by_itself
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            known = self._namespaces.get(namespace)
            if known is not None and self._clock() < known[0]:
                return known[1]
            try:
                body = await self._api.get(NAMESPACES.path(name=namespace))
            except KubeError:
                if known is not None:
                    return known[1]
                raise
            answer = refusal(f"namespace {namespace}", body["metadata"].get("annotations"))
            self._namespaces[namespace] = (self._clock() + self._ttl_s, answer)
            return answer
