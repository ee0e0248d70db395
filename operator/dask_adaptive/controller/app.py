"""
The whole operator, put together and run until it is told to stop: watches by kopf, whose handlers
neither decide nor write, probes and metrics on one HTTP port, webhooks, and a task for each policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import kopf
from aiohttp import web

from dask_adaptive import DOMAIN
from dask_adaptive.controller.annotated_policies import AnnotatedPolicies
from dask_adaptive.controller.compose import Composer, Connect
from dask_adaptive.controller.evictions import EvictionReviewer
from dask_adaptive.controller.lease import LeaderLease
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.controller.visits import Visitor, Visits
from dask_adaptive.controller.webhook import Certificate, Injector, webhook_app
from dask_adaptive.kube.agent_config import AgentConfig, Consent
from dask_adaptive.kube.agent_zip import bundle
from dask_adaptive.kube.annotated import Adopt
from dask_adaptive.kube.api import KubeApi, KubeError
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.kube.world import KINDS, Kind, World, kinds_within
from dask_adaptive.scheduler.link import connect


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one operator process."""

    identity: str  # unique among replicas: the pod's name
    namespaces: tuple[str, ...] = ()  # empty: all
    lease_namespace: str = "default"
    lease: bool = True  # without it, this process takes itself for the only one
    deployment: str = ""  # of the operator itself; owns the Lease, so that uninstalling removes it
    address: str = "0.0.0.0"
    http_port: int = 8080  # probes and metrics
    webhook_port: int = 8443
    certificates: Path | None = None  # folder with tls.crt and tls.key; None: no webhook
    grace_s: int = 300  # of workers' pods where nobody set one; the webhook writes it
    hints: bool = True  # whether workers' pods may be annotated
    adopt: Adopt = Adopt.ANNOTATED  # which DaskAutoscalers are taken over
    kubeconfig: str | None = None  # None: the pod's service account, or the user's
    context: str | None = None  # of the kubeconfig
    resync_s: float = 300.0


logger = logging.getLogger(__name__)

#: How long to wait before the API server is asked again for something that was not there.
RETRY_S = 5.0

#: Who leads reads all lists when it begins to: the first time that is enough, if it is soon.
HEAD_START_S = 3.0

#: How long the webhook is served after the end of everything else; the pod's grace is 30 s.
LINGER_S = 3.0


def registry_of(world: World, api: KubeApi, kinds: Iterable[Kind]) -> kopf.OperatorRegistry:
    """Handlers that tell the world what changed, over connections like that of `api`."""
    registry = kopf.OperatorRegistry()
    login: Any = kopf.on.login(id="login", registry=registry)
    login(_login(api))
    for kind in kinds:
        resource = kind.resource
        watch: Any = kopf.on.event(
            resource.group,
            resource.version,
            resource.plural,
            id=f"watch-{resource.plural}",
            registry=registry,
        )
        watch(_handler(world, kind))
    return registry


def _login(api: KubeApi) -> Callable[..., Any]:
    async def login(**_: Any) -> kopf.ConnectionInfo:
        found = await api.credentials()
        scheme, _space, token = (found.authorization or "").partition(" ")
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_file,
            insecure=not found.verify,
            scheme=scheme or None,
            token=token or None,
            certificate_path=found.certificate_file,
            private_key_path=found.key_file,
            # Tokens of pods are renewed; a login with a new one must come before the old one ends.
            expiration=datetime.now(timezone.utc) + timedelta(minutes=10) if token else None,
        )

    return login


def _handler(world: World, kind: Kind) -> Callable[..., Any]:
    async def take(event: Mapping[str, Any], **_: Any) -> None:
        world.take(kind, event["type"], event["object"])

    return take


class _NoDiffs(kopf.AnnotationsDiffBaseStorage):
    """
    Spares kopf half of its work: for each event it would copy the object and compare it with what
    was handled last (`_detect_causes`), for handlers of a sort that we have none of.
    """

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> None:
        return None


def kopf_settings() -> kopf.OperatorSettings:
    """
    Settings under which kopf only watches.

    With `on.event` alone it writes nothing: no finalizers, no annotations. The names are set all
    the same, so that no change here can ever make us collide with dask-kubernetes' own kopf.
    """
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # needs no right to watch CRDs and namespaces
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{DOMAIN}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=DOMAIN)
    settings.persistence.diffbase_storage = _NoDiffs(prefix=DOMAIN)
    # A connection can die without a word; see kopf#204 and kopf#698.
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    # A first list of 50,000 pods must not be in memory at once, nor a task be kept for each.
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 0.5
    for kind in KINDS:
        if kind.selector:
            where = (kind.resource.group, kind.resource.version, kind.resource.plural)
            settings.watching.label_selectors[where] = kind.selector
    return settings


class Operator:
    """One replica. Probes, webhook and watches run always; passes only while it leads."""

    def __init__(self, settings: Settings, api: KubeApi, *, connect: Connect = connect) -> None:
        self._settings, self._api, self._connect = settings, api, connect
        self._kinds = kinds_within(settings.namespaces)
        self._metrics = Metrics()
        self._world = World()
        self._composer = Composer(api, self._world, connect=connect, hints=settings.hints)
        self._waits_for = "starting"
        self._stop = asyncio.Event()
        self._listing, self._listed_at = asyncio.Lock(), -math.inf
        #: Set once all that is watched has been read.
        self.has_seen = asyncio.Event()
        self.visits = Visits(self._world, self._make_visitor, metrics=self._metrics)
        self._annotated = AnnotatedPolicies(
            self._world, api, self._composer.events, adopt=settings.adopt
        )
        self._world.listen(self.visits.on_change)
        self._world.listen(self._annotated.on_change)

    def stop(self) -> None:
        """Stop acting, give the lease back, end."""
        self._stop.set()

    async def run(self) -> None:
        """Run until `stop` is called. Raises what ended a part that should have gone on."""
        async with contextlib.AsyncExitStack() as stack:
            probes = probes_app(self._metrics, lambda: self._waits_for)
            where = (self._settings.address, self._settings.http_port)
            await stack.enter_async_context(_served(probes, *where))
            await stack.enter_async_context(self._serve_webhook())
            await _until_one_ends(self._work(), self._stop.wait())

    async def _work(self) -> None:
        await self._wait_for_kinds()
        await _until_one_ends(self._watch(), self._lead_when_possible(), self._resync_forever())
        if not self._stop.is_set():
            raise RuntimeError("kopf ended unexpectedly")

    async def _wait_for_kinds(self) -> None:
        """Kinds that are not installed can't be watched, and kopf would not notice their coming."""
        scope = self._settings.namespaces[0] if self._settings.namespaces else None
        for kind in self._kinds:
            while True:
                try:
                    # One object is enough to know: all of them, whole, may not fit into memory.
                    await self._api.get(kind.resource.path(scope), {"limit": "1"})
                    break
                except KubeError as exc:
                    self._waits_for = f"{kind.resource.plural}.{kind.resource.group}: {exc}"
                    logger.warning("Waiting for %s", self._waits_for)
                    await asyncio.sleep(RETRY_S)
        self._waits_for = "the first list of all objects"

    async def _watch(self) -> None:
        # Not kopf.operator(): when that ends, it cancels every task of the loop that it finds.
        tasks = await kopf.spawn_tasks(
            registry=registry_of(self._world, self._api, self._kinds),
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
        )
        self.take_signals()  # kopf took them; we need them, to give the lease back first
        await _until_one_ends(*tasks)

    def take_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, self.stop)

    async def _resync_forever(self) -> None:
        await asyncio.sleep(HEAD_START_S)
        while True:
            rest_s = self._listed_at + self._settings.resync_s - time.monotonic()
            if rest_s <= 0:
                try:
                    await self._resync()
                except KubeError as exc:
                    logger.warning("Lists can't be read: %s", exc)
                    rest_s = RETRY_S if self._waits_for else self._settings.resync_s
            await asyncio.sleep(max(0.0, rest_s))

    async def _resync(self) -> None:
        """Read all lists, which are long: never two at a time. Raises `KubeError`."""
        async with self._listing:
            await self._world.resync(self._api, self._settings.namespaces)
            self._listed_at, self._waits_for = time.monotonic(), ""
            self.has_seen.set()

    async def _lead_when_possible(self) -> None:
        if not self._settings.lease:
            return await self._lead()
        await LeaderLease(
            self._api,
            namespace=self._settings.lease_namespace,
            identity=self._settings.identity,
            owner=self._settings.deployment,
            lead=self._lead,
        ).run()

    async def _lead(self) -> None:
        # Never act on half a picture, nor on one that another leader has changed meanwhile.
        while True:
            try:
                await self._resync()
                break
            except KubeError as exc:
                logger.warning("Nothing is done before all lists are read: %s", exc)
                await asyncio.sleep(RETRY_S)
        self._metrics.leader.set(1)
        try:
            await _until_one_ends(self.visits.run(), self._annotated.run())
        finally:
            self._metrics.leader.set(0)

    def _make_visitor(self, policy: PolicyObject) -> Visitor:
        return Visitor(policy, world=self._world, composer=self._composer, metrics=self._metrics)

    @contextlib.asynccontextmanager
    async def _serve_webhook(self) -> AsyncIterator[None]:
        if self._settings.certificates is None:
            yield
            return
        certificate = Certificate(self._settings.certificates)
        evictions = EvictionReviewer(
            self._world, self._composer.events, self._metrics, connect=self._connect
        )
        watching = asyncio.create_task(certificate.watch())
        where = (self._settings.address, self._settings.webhook_port)
        try:
            async with _served(webhook_app(self._injector(), evictions), *where, certificate):
                yield
                # Of two replicas in an upgrade this is the old one: kube-proxy may go on sending
                # requests here, and a scheduler whose request is refused starts without the agent.
                await asyncio.sleep(LINGER_S)
        finally:
            await _end([watching])
            await evictions.close()

    def _injector(self) -> Injector:
        return Injector(
            self._api,
            self._world,
            AgentConfig(self._api, bundle()),
            Consent(self._api, asyncio.get_running_loop().time),
            self._metrics,
            grace_s=self._settings.grace_s,
        )


@contextlib.asynccontextmanager
async def _served(
    app: web.Application, address: str, port: int, certificate: Certificate | None = None
) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2)
    await runner.setup()
    context = certificate.context if certificate else None
    await web.TCPSite(runner, address, port, ssl_context=context).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def _until_one_ends(*parts: Awaitable[Any]) -> None:
    """Run all until one ends, end the others; raises what that one raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _end(tasks)


async def _end(tasks: Collection[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def serve(
    settings: Settings, *, api: KubeApi | None = None, connect: Connect = connect
) -> None:
    """Run one operator until SIGTERM or SIGINT. Raises `KubeError` if it can't even begin."""
    api = api or await KubeApi.connect(kubeconfig=settings.kubeconfig, context=settings.context)
    operator = Operator(settings, api, connect=connect)
    operator.take_signals()
    sparing = asyncio.create_task(_spare_the_collector(operator.has_seen))
    try:
        await operator.run()
    finally:
        await _end([sparing])
        await api.close()


async def _spare_the_collector(has_seen: asyncio.Event) -> None:
    """What is watched is there to stay, a million objects where there are 50,000 workers. Walking
    them again and again for cycles, which they have none of, stops everything for a second."""
    await has_seen.wait()
    gc.collect()
    gc.freeze()


def probes_app(metrics: Metrics, not_ready: Callable[[], str]) -> web.Application:
    """Serve `/healthz` (the event loop turns), `/readyz` (nothing is waited for), `/metrics`."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=metrics.render(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    return app
