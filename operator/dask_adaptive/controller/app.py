"""The whole operator, put together and run until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import kopf
from aiohttp import web

from dask_adaptive.controller.annotations import AnnotatedPolicies
from dask_adaptive.controller.compose import Composer, Connect
from dask_adaptive.controller.evictions import EvictionReviewer
from dask_adaptive.controller.injector import Injector
from dask_adaptive.controller.lease import LeaderLease
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.controller.probes import probes_app
from dask_adaptive.controller.settings import Settings
from dask_adaptive.controller.visits import Visitor, Visits
from dask_adaptive.controller.watches import kopf_settings, registry_of
from dask_adaptive.controller.webhook import Certificate, webhook_app
from dask_adaptive.kube.agent_config import AgentConfig, Consent
from dask_adaptive.kube.agent_zip import bundle
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.errors import KubeError
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.kube.world import World, kinds_within
from dask_adaptive.scheduler.link import connect

logger = logging.getLogger(__name__)

#: How long to wait before the API server is asked again for something that was not there.
RETRY_S = 5.0

#: Who leads reads all lists when it begins to: the first time that is enough, if it is soon.
HEAD_START_S = 3.0

#: How long the webhook is served after the end of everything else; the pod's grace is 30 s.
LINGER_S = 3.0


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
            await stack.enter_async_context(self._serve_probes())
            await stack.enter_async_context(self._serve_webhook())
            parts = [asyncio.create_task(self._work(), name="work")]
            stopped = asyncio.create_task(self._stop.wait(), name="stop")
            try:
                await asyncio.wait({*parts, stopped}, return_when=asyncio.FIRST_COMPLETED)
                for part in parts:
                    if part.done():
                        part.result()
            finally:
                await _end([*parts, stopped])

    async def _work(self) -> None:
        await self._wait_for_kinds()
        watching = asyncio.create_task(self._watch(), name="kopf")
        leading = asyncio.create_task(self._lead_when_possible(), name="leader")
        resyncing = asyncio.create_task(self._resync_forever(), name="resync")
        try:
            tasks = {watching, leading, resyncing}
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if not self._stop.is_set():
                raise RuntimeError("kopf ended without being asked to")
        finally:
            await _end([leading, resyncing, watching])

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
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _end(tasks)

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
        tasks = [
            asyncio.create_task(self.visits.run(), name="visits"),
            asyncio.create_task(self._annotated.run(), name="annotated policies"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            self._metrics.leader.set(0)
            await _end(tasks)

    def _make_visitor(self, policy: PolicyObject) -> Visitor:
        return Visitor(policy, world=self._world, composer=self._composer, metrics=self._metrics)

    @contextlib.asynccontextmanager
    async def _serve_probes(self) -> AsyncIterator[None]:
        app = probes_app(self._metrics, lambda: self._waits_for)
        async with _served(app, self._settings.address, self._settings.http_port):
            yield

    @contextlib.asynccontextmanager
    async def _serve_webhook(self) -> AsyncIterator[None]:
        if self._settings.certificates is None:
            yield
            return
        certificate = Certificate(self._settings.certificates)
        evictions = EvictionReviewer(
            self._world, self._composer.events, self._metrics, connect=self._connect
        )
        watching = asyncio.create_task(certificate.watch(), name="certificate")
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


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def serve(
    settings: Settings, *, api: KubeApi | None = None, connect: Connect = connect
) -> None:
    """Run one operator until SIGTERM or SIGINT. Raises `KubeError` if it can't even begin."""
    api = api or await KubeApi.connect(context=settings.context)
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
