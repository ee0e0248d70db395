"""The mutating webhook: AdmissionReview of a pod in, patch out. `kube.inject` says which."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from typing import Any

from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.agent_config import AgentConfig, Consent
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import KubeError
from dask_adaptive.kube.inject import (
    SCHEDULER,
    WORKER,
    Injection,
    Skip,
    component,
    inject,
    inject_worker,
    may_be_default,
    objection,
    refusal,
)
from dask_adaptive.kube.objects import (
    CLUSTER_LABEL,
    GROUP_LABEL,
    INJECT,
    ClusterObject,
    GroupObject,
    parse_cluster,
    parse_group,
)
from dask_adaptive.kube.policies import PolicyFinder
from dask_adaptive.kube.resources import CLUSTERS, GROUPS
from dask_adaptive.kube.world import World
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive_agent import __version__

logger = logging.getLogger(__name__)


class Injector:
    """
    Answers AdmissionReviews. Fails open: a pod that can't be changed safely is left as it is.

    Args:
        grace_s: What pods of workers get as `terminationGracePeriodSeconds` where nobody set one.
    """

    def __init__(
        self,
        api: KubeApi,
        world: World,
        config: AgentConfig,
        consent: Consent,
        metrics: Metrics,
        *,
        grace_s: int,
    ) -> None:
        self._api, self._world, self._metrics = api, world, metrics
        self._config, self._consent, self._grace_s = config, consent, grace_s
        self._policies = PolicyFinder(api, world)

    async def review(self, review: Mapping[str, Any]) -> Json:
        """Answer one AdmissionReview; always allows the pod."""
        request = review["request"]
        outcome = await self._decide(request)
        result = "injected" if isinstance(outcome, Injection) else "skipped"
        self._metrics.injections.labels(result).inc()
        response: Json = {"uid": request["uid"], "allowed": True}
        if isinstance(outcome, Injection):
            patch = json.dumps(list(outcome.patch)).encode()
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
        why = outcome.lacks if isinstance(outcome, Injection) else outcome.why
        if why:
            # Shown in the API server's audit log.
            response["auditAnnotations"] = {"not-injected": why}
            logger.info("Pod in %s left as it is: %s", _where(request), why)
        return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}

    async def _decide(self, request: Mapping[str, Any]) -> Injection | Skip:
        pod, namespace = request["object"], request["namespace"]
        role = component(pod)
        why = objection(pod, role if role in (SCHEDULER, WORKER) else SCHEDULER)
        if why:
            return Skip(why)
        name = pod["metadata"]["labels"].get(CLUSTER_LABEL, "")
        try:
            cluster = await self._cluster(namespace, name, fresh=role == SCHEDULER)
            refused = refusal(f"DaskCluster {name}", {INJECT: cluster.note(_INJECT) or ""})
            refused = refused or await self._consent.refused_by_namespace(namespace)
            key = ClusterKey(namespace, name)
            outcome = Skip(refused) if refused else await self._patch(pod, key, role)
            if isinstance(outcome, Injection) and not request.get("dryRun"):
                ensure = self._config.ensure if role == SCHEDULER else self._config.ensure_lately
                await ensure(namespace, name, cluster.meta.uid)
        except KubeError as exc:
            return Skip(f"its ConfigMap can't be made sure of: {exc}")
        return outcome

    async def _patch(self, pod: Json, key: ClusterKey, role: str) -> Injection | Skip:
        name = self._config.bundle.name
        settings = await self._policies.settings(key, fresh=role == SCHEDULER)
        if role == SCHEDULER:
            return inject(pod, name, version=__version__, settings=settings)
        grace_s = await self._grace(pod, key.namespace)
        return inject_worker(pod, name, version=__version__, grace_s=grace_s, settings=settings)

    async def _cluster(self, namespace: str, name: str, *, fresh: bool) -> ClusterObject:
        """For workers, which come in bursts, what the watch said last is good enough."""
        known = None if fresh else self._world.get(ClusterObject, namespace, name)
        return known or parse_cluster(await self._api.get(CLUSTERS.path(namespace, name)))

    async def _grace(self, pod: Json, namespace: str) -> int | None:
        """The grace period that a worker's pod is to get; None: its own is somebody's wish."""
        name = pod["metadata"]["labels"].get(GROUP_LABEL, "")
        if not may_be_default(pod) or not name:
            return None
        # The pod can't tell whether a person wrote 30 or the API server did; the DaskWorkerGroup
        # can, whose `spec.worker.spec` dask-kubernetes copies (build_worker_deployment_spec).
        try:
            group = self._world.get(GroupObject, namespace, name) or parse_group(
                await self._api.get(GROUPS.path(namespace, name))
            )
        except KubeError as exc:
            logger.info("Grace period of a worker in %s left as it is: %s", namespace, exc)
            return None
        return self._grace_s if group.grace_s is None else None


_INJECT = INJECT.partition("/")[2]


def _where(request: Mapping[str, Any]) -> str:
    pod = request.get("object") or {}
    cluster = (pod.get("metadata", {}).get("labels") or {}).get(CLUSTER_LABEL, "?")
    return f"{request.get('namespace')}/{cluster}"
