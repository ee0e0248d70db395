"""Serves the webhook on Dask pods. `kube.inject` decides which of them get the agent."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube import objects
from dask_adaptive.kube.agent_config import AgentConfig, Consent
from dask_adaptive.kube.api import CLUSTERS, GROUPS, POLICIES, Json, KubeApi, KubeError
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.inject import (
    SCHEDULER,
    WORKER,
    Injection,
    component,
    inject,
    inject_worker,
    may_be_default,
    objection,
)
from dask_adaptive.kube.objects import ClusterObject, GroupObject, PolicyObject
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.policy import InvalidPolicy, disruption_of
from dask_adaptive.model.scheduler_settings import SchedulerSettings, scheduler_settings
from dask_adaptive_agent import __version__

#: Longest wait for a list; the API server waits 5 s for the webhook.
PATIENCE_S = 2.0

#: A file often holds a cluster and its policy; dask-kubernetes may be faster than the latter.
SECOND_LOOK_S = 0.5

logger = logging.getLogger(__name__)


class Injector:
    """
    Answers AdmissionReviews. Fails open: a pod that cannot be changed safely stays as it is.

    Args:
        grace_s: Default `terminationGracePeriodSeconds` of worker pods.
        hints: Whether they may be annotated for node autoscalers.
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
        hints: bool = True,
    ) -> None:
        self._api, self._world, self._metrics = api, world, metrics
        self._config, self._consent, self._grace_s, self._hints = config, consent, grace_s, hints

    async def review(self, review: Mapping[str, Any]) -> Json:
        """Answer one AdmissionReview; always allows the pod."""
        request = review["request"]
        outcome = await self._decide(request)
        self._metrics.injections.labels("injected" if outcome.patch else "skipped").inc()
        response: Json = {"uid": request["uid"], "allowed": True}
        if outcome.patch:
            patch = json.dumps(list(outcome.patch)).encode()
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
        if why := outcome.lacks:
            # Shown in the API server's audit log.
            response["auditAnnotations"] = {"not-injected": why}
            logger.info("Pod in %s not changed: %s", _where(request), why)
        kind = {"apiVersion": review["apiVersion"], "kind": "AdmissionReview"}
        return {**kind, "response": response}

    async def _decide(self, request: Mapping[str, Any]) -> Injection:
        pod, namespace = request["object"], request["namespace"]
        role = component(pod)
        if why := objection(pod, role if role in (SCHEDULER, WORKER) else SCHEDULER):
            return Injection(lacks=why)
        name = pod["metadata"]["labels"].get(objects.CLUSTER_LABEL, "")
        try:
            cluster = await self._cluster(namespace, name, fresh=role == SCHEDULER)
            if refused := await self._consent.refused(namespace, cluster):
                return Injection(lacks=refused)
            outcome = await self._patch(pod, ClusterKey(namespace, name), role)
            if outcome.patch and role == SCHEDULER and not request.get("dryRun"):
                await self._config.ensure(namespace, name, cluster.meta.uid)
        except KubeError as exc:
            return Injection(lacks=f"its ConfigMap can't be created or checked: {exc}")
        return outcome

    async def _patch(self, pod: Json, key: ClusterKey, role: str) -> Injection:
        settings, hints = await self._wishes(key, fresh=role == SCHEDULER)
        if role == SCHEDULER:
            name = self._config.bundle.name
            return inject(pod, name, version=__version__, settings=settings)
        return inject_worker(
            pod, version=__version__, grace_s=await self._grace(pod, key.namespace),
            settings=settings, hints=hints and self._hints,
        )  # fmt: skip

    async def _cluster(self, namespace: str, name: str, *, fresh: bool) -> ClusterObject:
        """Return the cached cluster; for bursts of workers that is recent enough."""
        known = None if fresh else self._world.get(ClusterObject, namespace, name)
        return known or objects.parse_cluster(await self._api.get(CLUSTERS.path(namespace, name)))

    async def _grace(self, pod: Json, namespace: str) -> int | None:
        """Return the grace period to set on a worker's pod; None if its group sets one."""
        name = pod["metadata"]["labels"].get(objects.GROUP_LABEL, "")
        if not may_be_default(pod) or not name:
            return None
        # The pod can't tell whether a person wrote 30 or the API server did; the DaskWorkerGroup
        # can, whose `spec.worker.spec` dask-kubernetes copies (build_worker_deployment_spec).
        try:
            group = self._world.get(GroupObject, namespace, name) or objects.parse_group(
                await self._api.get(GROUPS.path(namespace, name))
            )
        except KubeError as exc:
            logger.info("Grace period of a worker in %s not changed: %s", namespace, exc)
            return None
        return self._grace_s if group.grace_s is None else None

    async def _wishes(self, key: ClusterKey, *, fresh: bool) -> tuple[SchedulerSettings, bool]:
        """
        Return the settings of a cluster's pods, and whether its worker pods get hints for node
        autoscalers. Fails open: without a readable policy the defaults apply until the scheduler's
        next pod, and the policy's status reports the difference.

        Args:
            fresh: Read policies from the API server if the cache has none: a policy may be applied
                together with its cluster, and a scheduler starts only once.
        """
        policies: Sequence[PolicyObject] = self._world.of(PolicyObject, key)
        if fresh and not policies:
            policies = await self._read_policies(key)
        chosen = _chosen(policies)
        try:
            if chosen is not None:
                return scheduler_settings(chosen.spec), disruption_of(chosen.spec).hints
        except InvalidPolicy as exc:
            logger.warning("Pod of %s gets default settings: %s", key, exc)
        return SchedulerSettings(), False

    async def _read_policies(self, key: ClusterKey) -> list[PolicyObject]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                found = await self._listed(key)
                if not found:
                    await asyncio.sleep(SECOND_LOOK_S)
                    found = await self._listed(key)
        except (TimeoutError, KubeError) as exc:
            logger.warning("Pod of %s gets default settings; can't list policies: %r", key, exc)
            return []
        return found

    async def _listed(self, key: ClusterKey) -> list[PolicyObject]:
        found = await self._api.list(POLICIES.path(key.namespace))
        return [policy for policy in map(objects.parse_policy_object, found) if policy.key == key]


def _where(request: Mapping[str, Any]) -> str:
    pod = request.get("object") or {}
    cluster = (pod.get("metadata", {}).get("labels") or {}).get(objects.CLUSTER_LABEL, "?")
    return f"{request.get('namespace')}/{cluster}"


def _chosen(policies: Sequence[PolicyObject]) -> PolicyObject | None:
    """Choose a policy: the only one that people wrote; none while they wrote several."""
    staying = [p for p in policies if not p.meta.deleting]
    written = [p for p in staying if not p.managed] or staying
    return written[0] if len(written) == 1 else None


def webhook_app(injector: Injector) -> web.Application:
    """Serve `/mutate`."""

    async def mutate(request: web.Request) -> web.Response:
        try:
            body = await injector.review(await request.json())
        except (KeyError, TypeError, ValueError) as exc:
            # The webhook has the failurePolicy Ignore: this counts as a yes.
            return web.Response(status=400, text=f"not an AdmissionReview: {exc!r}")
        return web.json_response(body)

    app = web.Application(client_max_size=8 * 1024**2)
    app.router.add_post("/mutate", mutate)
    return app
