"""
Assembles the operator and runs it until it is stopped: watches, which neither decide nor write;
probes and metrics on one HTTP port; webhooks; and a task for each policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import signal
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from dask_adaptive.backoff import begun_anew, end, until_one_ends
from dask_adaptive.controller.annotated_policies import AnnotatedPolicies
from dask_adaptive.controller.budget_keeper import BudgetKeeper
from dask_adaptive.controller.certificate import CertificateKeeper, WebhookSettings
from dask_adaptive.controller.compose import Composer, Connect
from dask_adaptive.controller.handlers import registry_for
from dask_adaptive.controller.kopf_watch import KopfWatch
from dask_adaptive.controller.lease import LEASE_NAMESPACE, LeaderLease, Timing
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.controller.visits import Visitor, Visits
from dask_adaptive.controller.webhook import Injector, webhook_app
from dask_adaptive.kube.agent_config import AgentConfig, Consent, bundle
from dask_adaptive.kube.annotated import Adopt
from dask_adaptive.kube.api import KubeApi, Rate
from dask_adaptive.kube.cache.informer import Informer
from dask_adaptive.kube.cache.world import Scope, World, scopes_of
from dask_adaptive.kube.route import Routes
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from dask_adaptive.scheduler.link import connect


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one operator process."""

    identity: str  # unique among replicas: the pod's name
    controller_name: str = DEFAULT_CONTROLLER  # serves policies of this controllerName
    namespaces: tuple[str, ...] = ()  # empty: all
    namespace_selector: str = ""  # labels of served namespaces; empty: all
    nodes: bool = False  # watch nodes even if `namespaces` is set
    budgets: str | None = None  # the same of AdaptiveBudgets, by their CRD's scope (`scopes_of`)
    lease_namespace: str = LEASE_NAMESPACE
    address: str = "0.0.0.0"
    http_port: int = 8080  # probes and metrics
    webhook_port: int = 8443
    webhook: WebhookSettings | None = None  # None: there is none
    certificate_namespace: str = "default"  # of the webhook's Secret
    grace_s: int = 300  # default grace period of worker pods, set by the webhook
    hints: bool = True  # the webhook may annotate worker pods for node autoscalers
    scheduler_tls_secret: str = ""  # for clusters whose policies name none; empty: no TLS
    adopt: Adopt = Adopt.ANNOTATED  # which DaskAutoscalers are adopted
    kubeconfig: str | None = None  # None: the pod's service account, or the user's
    context: str | None = None  # of the kubeconfig
    longest_sleep_s: float = 60.0  # maximum interval between passes over a quiet cluster
    resync_s: float = 300.0
    qps: float = 200.0  # calls per second to the API server
    burst: int = 300  # and at once, after a pause
    timing: Timing = Timing()  # noqa: RUF009 (frozen)


logger = logging.getLogger(__name__)

#: Time to serve the webhook after all else has ended; the pod's grace period is 30 s.
LINGER_S = 3.0


class Operator:
    """One replica. Probes, webhook and watches run always; passes only while it leads."""

    def __init__(self, settings: Settings, api: KubeApi, *, connect: Connect = connect) -> None:
        self._settings, self._api = settings, api
        self._scopes = scopes_of(
            settings.namespaces, nodes=settings.nodes, budgets=settings.budgets,
            selector=settings.namespace_selector,
        )  # fmt: skip
        self._metrics = Metrics()
        self._world = World()
        self._world.expect(self._scopes)
        for kind in {kind.type: kind for kind, _ in self._scopes}.values():
            self._metrics.unreadable(kind.resource.kind, partial(self._world.faults, kind))
        self._certificate = self._keeper(settings.webhook) if settings.webhook else None
        self._lease = LeaderLease(
            api,
            namespace=settings.lease_namespace,
            controller=settings.controller_name,
            identity=settings.identity,
            lead=self._lead,
            timing=settings.timing,
        )
        leading = api.checked(self._lease.check)
        self._budgets = BudgetKeeper(
            self._world, leading, self._metrics, wake=lambda key: self.visits.on_change(key),
            controller=settings.controller_name,
        )  # fmt: skip
        self._composer = Composer(
            leading, self._world, connect=connect, budgets=self._budgets,
            routes=Routes(api, self._world, secret=settings.scheduler_tls_secret),
        )  # fmt: skip
        self._stop = asyncio.Event()
        make_visitor = partial(
            Visitor, world=self._world, composer=self._composer, metrics=self._metrics,
            longest_sleep_s=settings.longest_sleep_s,
        )  # fmt: skip
        self.visits = Visits(
            self._world, make_visitor, controller=settings.controller_name, metrics=self._metrics
        )
        self._world.listen(self._budgets.on_change)
        self._annotated = AnnotatedPolicies(
            self._world, leading, self._composer.events, adopt=settings.adopt,
            controller=settings.controller_name,
        )  # fmt: skip
        self._world.listen(self.visits.on_change)
        self._world.listen(self._annotated.on_change)

    def waits_for(self) -> str:
        """Name the objects that must be read before the operator is ready; empty: none."""
        return self._world.waits_for() or (
            self._certificate.waits_for() if self._certificate else ""
        )

    def stop(self) -> None:
        """Stop acting, release the lease, and end."""
        self._stop.set()

    async def run(self) -> None:
        """Run until `stop` is called. Raises the error of a part that ended unexpectedly."""
        async with contextlib.AsyncExitStack() as stack:
            probes = probes_app(self._metrics, self.waits_for)
            where = (self._settings.address, self._settings.http_port)
            await stack.enter_async_context(_served(probes, *where))
            await stack.enter_async_context(self._serve_webhook())
            going_on = [watch.run() for watch in self._watches()]
            if self._certificate:
                going_on.append(begun_anew("the certificate", self._certificate.run))
            await until_one_ends(*going_on, self._lease.run(), self._stop.wait())

    def _watches(self) -> Iterator[Informer | KopfWatch]:
        """Start the independent tasks that keep the cache in step."""
        by_people: dict[str | None, list[Scope]] = {}
        for scope in self._scopes:
            kind, namespace = scope
            if kind.by_people:
                by_people.setdefault(namespace, []).append(scope)
            else:
                yield Informer(scope, api=self._api, world=self._world)
        for scopes in by_people.values():
            yield KopfWatch(
                scopes, api=self._api, world=self._world, registry_for=registry_for,
                began=self.take_signals, resync_s=self._settings.resync_s,
            )  # fmt: skip

    def take_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, self.stop)

    async def _lead(self) -> None:
        # No second list: where the previous leader has just changed an object unseen, our write
        # conflicts, and is retried.
        while self._world.waits_for():  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        self._metrics.leader.set(1)
        try:
            parts = {
                "visits": self.visits.run, "the watch over visits": self.visits.watch,
                "annotated policies": self._annotated.run, "budgets": self._budgets.run,
            }  # fmt: skip
            await until_one_ends(*(begun_anew(what, part) for what, part in parts.items()))
        finally:
            self._metrics.leader.set(0)

    def _keeper(self, webhook: WebhookSettings) -> CertificateKeeper:
        ends_at = self._metrics.certificate.labels(webhook.secret)
        return CertificateKeeper(self._api, self._settings.certificate_namespace, webhook, ends_at)

    @contextlib.asynccontextmanager
    async def _serve_webhook(self) -> AsyncIterator[None]:
        if self._certificate is None:
            yield
            return
        where = (self._settings.address, self._settings.webhook_port)
        config = AgentConfig(self._api, bundle())
        consent = Consent(self._api, asyncio.get_running_loop().time)
        injector = Injector(
            self._api, self._world, config, consent, self._metrics,
            grace_s=self._settings.grace_s, hints=self._settings.hints,
        )  # fmt: skip
        async with _served(webhook_app(injector), *where, self._certificate.context):
            yield
            # Of two replicas in an upgrade this is the old one: kube-proxy may go on sending
            # requests here, and a scheduler whose request is refused starts without the agent.
            await asyncio.sleep(LINGER_S)


@contextlib.asynccontextmanager
async def _served(
    app: web.Application, address: str, port: int, context: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2)
    await runner.setup()
    await web.TCPSite(runner, address, port, ssl_context=context).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def serve(
    settings: Settings, *, api: KubeApi | None = None, connect: Connect = connect
) -> None:
    """Run one operator until SIGTERM or SIGINT. Raises `KubeError` if it cannot start."""
    api = api or await KubeApi.connect(
        kubeconfig=settings.kubeconfig, context=settings.context,
        rate=Rate(settings.qps, settings.burst),
    )  # fmt: skip
    operator = Operator(settings, api, connect=connect)
    operator.take_signals()
    sparing = asyncio.create_task(_spare_the_collector(operator.waits_for))
    try:
        await operator.run()
    finally:
        await end([sparing])
        await api.close()


async def _spare_the_collector(waits_for: Callable[[], str]) -> None:
    """
    Keep the garbage collector away from the cache. Watched objects are long-lived and free of
    cycles, but a million of them (50,000 workers) stop the process for a third of a second on each
    full collection. So it scans objects of the last seconds only, and all of them once an hour.
    """
    gc.set_threshold(20_000)  # a page of a list, and a pass over many workers, make no cycles
    while waits_for():
        gc.collect()
        gc.freeze()
        await asyncio.sleep(0.5)
    for turn in itertools.count():
        if turn % 360 == 0:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        await asyncio.sleep(10.0)


def probes_app(metrics: Metrics, not_ready: Callable[[], str]) -> web.Application:
    """Serve `/healthz` (the event loop runs), `/readyz` (all objects are read) and `/metrics`."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=await asyncio.to_thread(metrics.render),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    return app
