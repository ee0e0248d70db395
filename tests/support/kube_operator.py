"""The operator in this process, against a real API server, with schedulers that are stand-ins."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from dask_adaptive.controller.app import Operator, Settings
from dask_adaptive.kube.api import CLUSTERS, SERVICES, AlreadyExists, Json, KubeApi, KubeError
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from support.fake_cluster import FakeCluster
from support.kube_bodies import group, service
from support.kube_server import ROOT, Kubectl
from support.ports import free_port


class QuietLink(FakeCluster):
    """A scheduler without workers or work."""

    def __init__(self, address: str, *, attach: bool, **_: Any) -> None:
        super().__init__(0)
        self.address, self.attach = address, attach

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        if not self.attach:
            return ObservedScheduler(Reason.INJECTION_REFUSED)
        return await super().observe(policy, meters=meters)

    async def changed(self) -> None:
        await asyncio.sleep(3600)

    async def close(self) -> None: ...


async def _serve_schedulers(api: KubeApi, namespace: str) -> None:
    """As dask-kubernetes does: a Service for the scheduler of each cluster."""
    made = set[str]()
    while True:
        with contextlib.suppress(KubeError):  # it is not our right, or not the time
            found = {c["metadata"]["name"] for c in await api.list(CLUSTERS.path(namespace))}
            for name in found - made:
                with contextlib.suppress(AlreadyExists):
                    await api.create(SERVICES.path(namespace), service(name))
                made.add(name)
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def running(api: KubeApi, namespace: str, **more: Any) -> AsyncIterator[Operator]:
    """Run an operator for one namespace; what ends it early fails the test."""
    connect = more.pop("connect", QuietLink)
    settings = Settings(
        identity=more.pop("identity", "test"),
        namespaces=more.pop("namespaces", (namespace,)),
        lease_namespace=namespace,
        certificate_namespace=namespace,
        address="127.0.0.1",
        http_port=more.pop("http_port", None) or free_port(),
        **more,
    )
    operator = Operator(settings, api, connect=connect)
    task = asyncio.create_task(operator.run())
    serving = asyncio.create_task(_serve_schedulers(api, namespace))
    try:
        yield operator
        if task.done():
            task.result()
    finally:
        serving.cancel()
        operator.stop()
        await task


async def until(
    check: Callable[[], Awaitable[bool]] | Callable[[], bool], *, timeout_s: float = 15.0
) -> None:
    """Wait until something is so."""
    end = asyncio.get_running_loop().time() + timeout_s
    while True:
        answer = await asyncio.to_thread(check)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        assert asyncio.get_running_loop().time() < end, f"{check} is still not so"
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def connected(**how: Any) -> AsyncIterator[KubeApi]:
    """To the API server of KUBECONFIG, or of `kubeconfig`."""
    api = await KubeApi.connect(**how)
    try:
        yield api
    finally:
        await api.close()


class Team:
    """One namespace of an API server: what people do there, and what is to be seen of it."""

    def __init__(self, api: KubeApi, kubectl: Kubectl) -> None:
        self.api, self.kubectl, self.namespace = api, kubectl, kubectl.namespace

    def served(self, **settings: Any) -> contextlib.AbstractAsyncContextManager[Operator]:
        """By an operator, for as long as it lasts."""
        return running(self.api, self.namespace, **settings)

    def apply_demo(self, *more: Json) -> None:
        """The cluster of the examples with its default group, as dask-kubernetes makes that."""
        self.kubectl("apply", "-f", str(ROOT / "manifests/examples/cluster.yaml"))
        self.kubectl.apply(group("demo"), *more)

    def edit(self, policy: str, **spec: Any) -> None:
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", "dap", policy, "--type=merge", "-p", patch)

    def annotate(self, what: str, name: str, **notes: str) -> None:
        """Ours, `max_replicas` for `max-replicas`; an empty one is taken away."""
        named = {f"dask-adaptive.dev/{k.replace('_', '-')}": v for k, v in notes.items()}
        words = [f"{k}={v}" if v else f"{k}-" for k, v in named.items()]
        self.kubectl("annotate", "--overwrite", what, name, *words)

    def replicas(self, cluster: str = "demo") -> int:
        found = self.kubectl.json("get", "daskworkergroup", f"{cluster}-default")
        return int(found["spec"]["worker"]["replicas"])

    def policies(self) -> list[Json]:
        return list(self.kubectl.json("get", "dap")["items"])

    def condition(self, policy: str, kind: str) -> dict[str, str]:
        """Nothing also of a policy that is still to be made."""
        found = [p for p in self.policies() if p["metadata"]["name"] == policy]
        conditions = [c for p in found for c in p.get("status", {}).get("conditions", [])]
        return next((c for c in conditions if c["type"] == kind), {})

    def ready(self, policy: str) -> tuple[str, str]:
        found = self.condition(policy, "Ready")
        return found.get("status", ""), found.get("reason", "")

    def events(self) -> dict[str, list[str]]:
        """What events say, by their reason."""
        told: dict[str, list[str]] = {}
        for event in self.kubectl.json("get", "events")["items"]:
            told.setdefault(event["reason"], []).append(event["message"])
        return told
