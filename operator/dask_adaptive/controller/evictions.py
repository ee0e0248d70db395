"""
The validating webhook on evictions: a worker's pod is evicted once the worker has drained.

Fails open: what can't be judged in time is allowed, and the pod's own hook does the rest. Nothing
is delayed for longer than the policy's `evictionGuard.maxDelay`: this process counts from the first
eviction that it put off, and the agent counts, too. It keeps the earliest deadline that it was
told, and is asked for it, so another replica, or this one after a restart, does not start anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_adaptive.controller.compose import ClosableLink, Connect
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.api import PODS, POLICIES, Json, KubeError
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import PodObject, PolicyObject
from dask_adaptive.kube.reporter import EventPoster, News, Subject
from dask_adaptive.kube.route import Route, Routes
from dask_adaptive.kube.view import conflict
from dask_adaptive.loop.join import host
from dask_adaptive.loop.ports import EventType, LinkError, Retired, SchedulerLink
from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.policy import InvalidPolicy, Mode, Policy, parse_policy
from dask_adaptive.model.reason import Reason

logger = logging.getLogger(__name__)

#: For each call to a scheduler, and for the whole answer; the API server waits 5 s.
LINK_TIMEOUT_S, ANSWER_S = 3.0, 4.0

#: For what is good to know, but not worth an eviction that does not wait.
EXTRA_S = 1.0

#: Who has not asked again for so long has given up: the agent puts a worker back to service after
#: 300 s (wire.LeaveRequest), and the next eviction is a new one.
FORGET_S = 600.0

_SCHEDULERS = 32  # connections that are kept


class Verdict(str, enum.Enum):
    """What became of an eviction; the label of a metric."""

    NOT_GUARDED = "not-guarded"
    DELAYED = "delayed"
    DRAINED = "drained"
    EXPIRED = "expired"  # it was put off for as long as the policy allows
    FAILED = "failed"  # allowed, because nothing could be found out


@dataclass(frozen=True, slots=True)
class Guarded:
    """A worker's pod whose policy wants evictions to wait."""

    pod: PodObject
    about: PolicyObject
    policy: Policy


@dataclass(slots=True)
class _Delay:
    """Of one pod's eviction, by our own clock."""

    since: float
    asked_at: float
    is_told: bool = False  # people are
    is_agreed: bool = False  # what the agent knows of it has been taken into account

    def left_s(self, policy: Policy) -> float:
        return policy.eviction_guard.max_delay_s - (self.asked_at - self.since)

    def agree(self, policy: Policy, agents_left_s: float) -> None:
        """The agent may have been told earlier, by another process."""
        self.is_agreed = True
        earlier = self.left_s(policy) - agents_left_s
        if 0 < earlier < math.inf:
            self.since -= earlier


class EvictionReviewer:
    """Answers AdmissionReviews of `pods/eviction`. Every replica does, not only the leader."""

    def __init__(
        self,
        world: World,
        events: EventPoster,
        metrics: Metrics,
        *,
        routes: Routes,
        connect: Connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world, self._events, self._metrics = world, events, metrics
        self._routes, self._links, self._clock = routes, _Links(connect), clock
        self._delays: dict[str, _Delay] = {}  # by the pod's uid
        self._posting: set[asyncio.Task[None]] = set()

    async def review(self, review: Mapping[str, Any]) -> Json:
        """Answer one AdmissionReview."""
        verdict, message = await self._judge(review["request"])
        self._metrics.evictions.labels(verdict.value).inc()
        if verdict is not Verdict.DELAYED:
            return answer_to(review, allowed=True)
        # As for a PodDisruptionBudget: kubectl drain, autoscalers and Karpenter ask again.
        status = {"code": 429, "reason": "TooManyRequests", "message": message}
        return answer_to(review, allowed=False, status=status)

    async def close(self) -> None:
        for task in self._posting:
            task.cancel()
        await asyncio.gather(*self._posting, return_exceptions=True)
        await self._links.close()

    async def _judge(self, request: Mapping[str, Any]) -> tuple[Verdict, str]:
        guarded = self._guarded(request["namespace"], request["name"])
        if guarded is None or is_dry_run(request):  # to ask would be to begin
            return Verdict.NOT_GUARDED, ""
        delay = self._delay(guarded.pod.meta.uid)
        if delay.left_s(guarded.policy) <= 0:
            return Verdict.EXPIRED, ""
        try:
            async with asyncio.timeout(ANSWER_S):
                waiting = await self._ask(guarded, delay)
        except (TimeoutError, LinkError) as exc:
            logger.warning("Eviction of %s not delayed: %s", guarded.pod.meta.name, exc)
            return Verdict.FAILED, ""
        if not waiting:
            return Verdict.DRAINED, ""
        left_s = delay.left_s(guarded.policy)
        if left_s <= 0:
            return Verdict.EXPIRED, ""
        self._tell(guarded, delay, waiting)
        return Verdict.DELAYED, (
            f"worker {guarded.pod.worker} is draining: {waiting}; evict again in some seconds"
            f" (evictionGuard, at most {format_duration(left_s)} more)"
        )

    def _guarded(self, namespace: str, name: str) -> Guarded | None:
        pod = self._world.get(PodObject, namespace, name)
        if pod is None or pod.meta.deleting or conflict(self._world, pod.key, now=time.time()):
            return None
        about = [p for p in self._world.of(PolicyObject, pod.key) if not p.meta.deleting]
        if len(about) != 1:
            return None
        try:
            policy = parse_policy(about[0].spec)
        except InvalidPolicy:
            return None
        acts = policy.mode is Mode.AUTO and policy.eviction_guard.enabled
        return Guarded(pod, about[0], policy) if acts else None

    def _delay(self, uid: str) -> _Delay:
        now = self._clock()
        self._delays = {u: d for u, d in self._delays.items() if now - d.asked_at < FORGET_S}
        delay = self._delays.setdefault(uid, _Delay(now, now))
        delay.asked_at = now
        return delay

    async def _ask(self, guarded: Guarded, delay: _Delay) -> str:
        """What the pod's workers still wait for; empty if they are drained, or not connected."""
        pod, left_s = guarded.pod, delay.left_s(guarded.policy)
        route = await self._routes.to(pod.key, guarded.policy)
        link = await self._links.of(route)
        try:
            answers = await _leave(link, [pod.worker] if pod.worker else [], left_s)
            if all(a.state == "gone" for a in answers) and not pod.host_network:
                # Started without `--name`, a worker has its address as name.
                seen = await link.observe(guarded.policy)
                names = [w.name for w in seen.workers if host(w) in pod.addresses]
                answers = await _leave(link, names, left_s) if names else []
            draining = [a for a in answers if a.state == "draining"]
            if draining and not delay.is_agreed:
                await _agree(link, guarded.policy, delay, {a.name for a in draining})
        except LinkError:
            await self._links.drop(route)
            raise
        return "; ".join(dict.fromkeys(a.message or "it hands over its work" for a in draining))

    def _tell(self, guarded: Guarded, delay: _Delay, waiting: str) -> None:
        pod, about = guarded.pod, guarded.about
        if delay.is_told:
            return
        delay.is_told = True
        limit = format_duration(guarded.policy.eviction_guard.max_delay_s)
        text = f"its eviction waits, at most {limit}, for the worker to drain: {waiting}"
        task = asyncio.create_task(self._post(pod, about, text))  # the answer must not wait for it
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)

    async def _post(self, pod: PodObject, about: PolicyObject, text: str) -> None:
        reason = str(Reason.EVICTION_DELAYED)
        subjects = {
            Subject.of(PODS, pod.meta): text,
            Subject.of(POLICIES, about.meta): f"{pod.worker}: {text}",
        }
        for subject, message in subjects.items():
            with contextlib.suppress(KubeError):  # an event that is lost changes nothing
                await self._events.post(subject, News(EventType.NORMAL, reason, message))


def answer_to(review: Mapping[str, Any], **response: Any) -> Json:
    """The AdmissionReview that answers another."""
    response = {"uid": review["request"]["uid"], **response}
    return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}


def is_dry_run(request: Mapping[str, Any]) -> bool:
    """`kubectl drain --dry-run=server` says so in the Eviction itself, not in the query."""
    options = (request.get("object") or {}).get("deleteOptions") or {}
    return bool(request.get("dryRun") or options.get("dryRun"))


async def _leave(link: SchedulerLink, names: Sequence[str], left_s: float) -> list[Retired]:
    return await link.leave(names, left_s=left_s, reason=Reason.EVICTION_DELAYED, ending=False)


async def _agree(link: SchedulerLink, policy: Policy, delay: _Delay, names: set[str]) -> None:
    try:
        async with asyncio.timeout(EXTRA_S):
            seen = await link.observe(policy)
    except TimeoutError:
        return
    lefts = [
        max(0.0, w.terminates_at - seen.at) for w in seen.workers if {w.name, w.address} & names
    ]
    if lefts:  # else nothing was seen; the next time, perhaps
        delay.agree(policy, min(lefts))


class _Links:
    """Connections to schedulers, the least used of which are closed."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._open: OrderedDict[Route, ClosableLink] = OrderedDict()

    async def of(self, route: Route) -> ClosableLink:
        link = self._open.pop(route, None)
        if link is None:
            # Every replica answers webhooks, and none of them leads by that: it only looks.
            link = self._connect(
                route.address, tls=route.tls, timeout_s=LINK_TIMEOUT_S, attach=False, governs=False
            )
        self._open[route] = link
        while len(self._open) > _SCHEDULERS:
            await self.drop(next(iter(self._open)))
        return link

    async def drop(self, route: Route) -> None:
        link = self._open.pop(route, None)
        if link is not None:
            await link.close()

    async def close(self) -> None:
        for route in list(self._open):
            await self.drop(route)
