"""Composes the real adapters of one policy's loop. No other module knows them all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from dask_adaptive.controller.budget_keeper import BudgetKeeper
from dask_adaptive.kube.agent_config import Consent
from dask_adaptive.kube.api import KubeApi, KubeError
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import ClusterObject, DeploymentObject, PolicyObject
from dask_adaptive.kube.platform import KubePlatform
from dask_adaptive.kube.reporter import EventPoster, KubeReporter
from dask_adaptive.kube.route import Route, Routes
from dask_adaptive.kube.status_json import read_status
from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.loop.ports import LinkError, PageContent, Ports, Retired, SchedulerLink, Tls
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import ClusterRef, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive.scheduler.link import POLL_S, connect

#: Deadline of each call to a scheduler.
SCHEDULER_TIMEOUT_S = 5.0


class ClosableLink(SchedulerLink, Protocol):
    async def close(self) -> None: ...


class Connect(Protocol):
    """Makes a link; nothing is sent before its first call."""

    def __call__(
        self, address: str, *, tls: Tls | None, timeout_s: float, attach: bool, governs: bool,
        workers: Callable[[], int],
    ) -> ClosableLink: ...  # fmt: skip


class FollowingLink:
    """
    A `SchedulerLink` that follows changes of its cluster: address, certificate, consent to the
    agent. If an object refuses the agent, the answer names that object.

    Args:
        check: Called before each request that changes something; it may raise a `LinkError`.
    """

    def __init__(
        self, key: ClusterKey, *, world: World, routes: Routes, consent: Consent,
        connect: Connect = connect, check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._key, self._world, self._routes = key, world, routes
        self._consent, self._connect, self._check = consent, connect, check
        self._link: ClosableLink | None = None
        self._made_for: tuple[Route, bool] | None = None

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        refused = await self._refusal()
        try:
            route = await self._routes.to(self._key, policy)
            link = await self._follow(route, attach=not refused)
        except LinkError as exc:
            return ObservedScheduler(problem=Reason.SCHEDULER_UNREACHABLE, message=str(exc))
        observed = await link.observe(policy, meters=meters)
        if route.secret:
            observed = replace(observed, tls_secret=route.secret)
        if observed.problem is Reason.INJECTION_REFUSED:
            return replace(observed, message=refused)
        return observed

    async def changed(self) -> None:
        if self._link is None:
            await asyncio.sleep(POLL_S)
        else:
            await self._link.changed()

    async def retire(
        self, names: Sequence[str], policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False, ends: str = "",
    ) -> list[Retired]:  # fmt: skip
        link = await self._same()
        how = {"busy_ok": busy_ok, "over_pins": over_pins}
        return await link.retire(names, policy, reason, ends=ends, **how)

    async def limit(self, limits: Limits) -> None:
        await (await self._same()).limit(limits)

    async def announce(self, arriving: Sequence[Arriving], content: PageContent) -> None:
        await (await self._same()).announce(arriving, content)

    async def leave(self, names: Sequence[str], *, left_s: float, reason: Reason) -> list[Retired]:
        link = await self._same()
        return await link.leave(names, left_s=left_s, reason=reason)

    async def cancel(self, names: Sequence[str]) -> list[Retired]:
        return await (await self._same()).cancel(names)

    async def pin(self, names: Sequence[str], *, ttl_s: float, note: str) -> None:
        await (await self._same()).pin(names, ttl_s=ttl_s, note=note)

    async def unpin(self, names: Sequence[str]) -> None:
        await (await self._same()).unpin(names)

    async def close(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    async def _same(self) -> ClosableLink:
        """Return the link to the observed scheduler, which the decisions are about."""
        self._check()
        if self._made_for is None:
            raise LinkError("the scheduler has not been reached yet")
        return await self._follow(*self._made_for)

    async def _follow(self, route: Route, attach: bool) -> ClosableLink:
        if self._link is None or self._made_for != (route, attach):
            await self.close()
            self._link = self._connect(
                route.address, tls=route.tls, timeout_s=SCHEDULER_TIMEOUT_S,
                attach=attach, governs=True,
                workers=lambda: len(self._world.of(DeploymentObject, self._key)),
            )  # fmt: skip
            self._made_for = (route, attach)
        return self._link

    async def _refusal(self) -> str:
        cluster = self._world.get(ClusterObject, *self._key)
        try:
            return await self._consent.refused(self._key.namespace, cluster)
        except KubeError as exc:
            return f"can't read whether namespace {self._key.namespace} allows it ({exc})"


@dataclass(frozen=True)
class Governed:
    """One served policy: its loop, and the resources to close at its end."""

    loop: ClusterLoop
    link: FollowingLink
    reporter: KubeReporter


class Composer:
    """Builds the adapters of one policy from shared resources."""

    def __init__(
        self,
        api: KubeApi,
        world: World,
        *,
        routes: Routes,
        connect: Connect = connect,
        budgets: BudgetKeeper,
    ) -> None:
        self._budgets = budgets
        self._api, self._world, self._connect = api, world, connect
        self._routes = routes
        self._consent = Consent(api, time.monotonic)
        self.events = EventPoster(api, time.time)

    def govern(self, policy: PolicyObject, current: Callable[[], Policy | None]) -> Governed:
        """Set up one policy; `current` returns its spec, None while it is invalid."""
        platform = KubePlatform(
            policy.key,
            api=self._api,
            world=self._world,
            wall_clock=time.time,
            manual_max_s=lambda: (current() or _DEFAULTS).pins.manual.max_duration_s,
            allowance=partial(self._budgets.allowed, policy.key),
        )
        reporter = KubeReporter(
            policy, api=self._api, world=self._world, events=self.events, wall_clock=time.time
        )
        link = FollowingLink(
            policy.key, world=self._world, routes=self._routes, consent=self._consent,
            connect=self._connect, check=self._api.check,
        )  # fmt: skip
        ports = Ports(
            platform=platform,
            link=link,
            reporter=reporter,
            clock=time.monotonic,
            claim=partial(self._budgets.want, policy.key),
        )
        before = read_status(policy.status)
        loop = ClusterLoop(policy.key, ports, before, name=policy.meta.name)
        return Governed(loop, link, reporter)


_DEFAULTS = Policy(ClusterRef(""), max_replicas=0)
