"""The mutating webhook: AdmissionReview in, patch out. `kube.inject` decides what to change."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.agent_config import AgentConfig, Consent
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import KubeError
from dask_adaptive.kube.inject import Injection, Skip, inject, refusal
from dask_adaptive.kube.objects import CLUSTER_LABEL
from dask_adaptive.kube.resources import CLUSTERS
from dask_adaptive_agent import __version__

logger = logging.getLogger(__name__)

#: How often the certificate's files are looked at.
RELOAD_S = 30.0


class Injector:
    """Answers AdmissionReviews. Fails open: a pod that can't be changed safely is left as it is."""

    def __init__(
        self, api: KubeApi, config: AgentConfig, consent: Consent, metrics: Metrics
    ) -> None:
        self._api, self._config, self._consent, self._metrics = api, config, consent, metrics

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
        else:
            # Shown in the API server's audit log.
            response["auditAnnotations"] = {"not-injected": outcome.why}
            logger.info("Scheduler pod in %s left as it is: %s", _where(request), outcome.why)
        return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}

    async def _decide(self, request: Mapping[str, Any]) -> Injection | Skip:
        pod, namespace = request["object"], request["namespace"]
        outcome = inject(pod, self._config.bundle.name, version=__version__)
        if isinstance(outcome, Skip):
            return outcome
        name = pod["metadata"]["labels"].get(CLUSTER_LABEL, "")
        try:
            cluster = await self._api.get(CLUSTERS.path(namespace, name))
            metadata = cluster["metadata"]
            refused = refusal(f"DaskCluster {name}", metadata.get("annotations"))
            refused = refused or await self._consent.refused_by_namespace(namespace)
            if refused:
                return Skip(refused)
            if not request.get("dryRun"):
                await self._config.ensure(namespace, name, metadata["uid"])
        except KubeError as exc:
            return Skip(f"its ConfigMap can't be made sure of: {exc}")
        return outcome


def _where(request: Mapping[str, Any]) -> str:
    pod = request.get("object") or {}
    cluster = (pod.get("metadata", {}).get("labels") or {}).get(CLUSTER_LABEL, "?")
    return f"{request.get('namespace')}/{cluster}"


def webhook_app(injector: Injector) -> web.Application:
    async def mutate(request: web.Request) -> web.Response:
        try:
            answer = await injector.review(await request.json())
        except (KeyError, TypeError, ValueError) as exc:
            return web.Response(status=400, text=f"not an AdmissionReview of a pod: {exc!r}")
        return web.json_response(answer)

    app = web.Application(client_max_size=8 * 1024**2)
    app.router.add_post("/mutate", mutate)
    return app


class Certificate:
    """The webhook's certificate, loaded anew when its files change: the Secret may be renewed."""

    def __init__(self, folder: Path) -> None:
        self._files = (folder / "tls.crt", folder / "tls.key")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._stamp: tuple[float, ...] = ()
        self.reload()

    def reload(self) -> bool:
        """Load the files if they are others than before. Raises `OSError` (SSL errors are some)."""
        stamp = tuple(f.stat().st_mtime for f in self._files)
        if stamp == self._stamp:
            return False
        # The context is shared: connections made from now on get the new certificate.
        self.context.load_cert_chain(*self._files)
        self._stamp = stamp
        return True

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_S)
            try:
                if self.reload():
                    logger.info("The webhook's certificate was loaded anew")
            except OSError as exc:
                logger.warning("The webhook goes on with its old certificate: %s", exc)
