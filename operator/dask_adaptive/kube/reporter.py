"""
Implements Reporter for Kubernetes: the status of one AdaptivePolicy; events, gathered by kind and
counted if they repeat; and decisions, kept in a ConfigMap.
"""

from __future__ import annotations

import hashlib
import logging
import math
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from dask_adaptive.backoff import Backoff
from dask_adaptive.kube import api as kube
from dask_adaptive.kube.api import Json, KubeApi, KubeError
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import BY_ADOPTION, Meta, PolicyObject
from dask_adaptive.kube.status_json import (
    HISTORY_LABEL,
    history_body,
    history_name,
    history_of,
    merged,
    status_json,
    unable_json,
)
from dask_adaptive.kube.view import adopted
from dask_adaptive.loop.ports import Event, EventType
from dask_adaptive.loop.status import Condition, Status
from dask_adaptive.loop.words import sentence
from dask_adaptive.model.amounts import instant
from dask_adaptive.model.plan import KEPT, Decision
from dask_adaptive.model.reason import Reason
from dask_adaptive.text import plain

logger = logging.getLogger(__name__)


class DecisionLog:
    """
    Reads the ConfigMap once, then makes one write for each call. Scaling does not depend on it.
    """

    def __init__(self, policy: PolicyObject, api: KubeApi) -> None:
        self._policy, self._api = policy, api
        name, namespace = history_name(policy.meta.name), policy.meta.namespace
        self._name, self._path = name, kube.CONFIG_MAPS.path(namespace, name)
        self._kept: tuple[Decision, ...] = ()  # as written
        # As last seen; empty: there is none, as for a new policy; None: not read yet.
        self._read: Json | None = None if policy.status.get("lastDecision") else {}

    async def add(self, decisions: Sequence[Decision]) -> None:
        """
        Append decisions, oldest first.

        Raises:
            KubeError: Say the same again later. What only people can mend is logged.
        """
        try:
            if self._read is None:
                self._read = await self._look()
            if not self._is_ours(self._read):
                raise kube.Invalid(
                    "it belongs to somebody else; delete it to have the history of decisions kept"
                )
            await self._write(self._read, merged(self._kept, decisions)[-KEPT:])
        except KubeError as exc:
            self._read = None
            if not isinstance(exc, kube.ApiUnreachable | kube.Conflict | kube.NotLeading):
                logger.warning("ConfigMap %s of %s: %s", self._name, self._policy.key, exc)
            raise

    async def _write(self, seen: Json, kept: tuple[Decision, ...]) -> None:
        body = history_body(self._policy, kept)
        try:
            self._read = await self._put(body, seen)
        except kube.NotFound:  # it was deleted meanwhile
            self._read = await self._put(body, {})
        self._kept = kept

    async def _look(self) -> Json:
        """
        Read the ConfigMap; empty if there is none. Uses an empty patch, which returns the object,
        so that the operator needs no right to read ConfigMaps.
        """
        try:
            found = await self._api.patch(self._path, {})
        except kube.NotFound:
            return {}
        if self._owner_uid(found) != self._policy.meta.uid:
            return found  # of an earlier policy of this name
        self._kept = merged(history_of(found), self._kept)
        return found

    async def _put(self, body: Json, seen: Json) -> Json:
        if seen:
            meta = {**body["metadata"], "resourceVersion": seen["metadata"]["resourceVersion"]}
            return await self._api.patch(self._path, {**body, "metadata": meta})
        try:
            return await self._api.create(kube.CONFIG_MAPS.path(self._policy.meta.namespace), body)
        except kube.AlreadyExists as exc:
            raise kube.Conflict(str(exc), status=exc.status) from exc

    def _is_ours(self, found: Json) -> bool:
        if not found or self._owner_uid(found) == self._policy.meta.uid:
            return True
        return HISTORY_LABEL in (found["metadata"].get("labels") or {})

    @staticmethod
    def _owner_uid(found: Json) -> str:
        owners = found["metadata"].get("ownerReferences") or [{}]
        return str(owners[0].get("uid", ""))


_REMEMBERED = 1000  # events whose count we know
_LONGEST = 1000  # characters; the API server refuses more than 1,024

COMPONENT = "dask-adaptive-operator"


class EventPoster:
    """
    Writes events. A repeated event about the same object increases its count.

    Raises `KubeError`, as all that writes to the API.
    """

    def __init__(self, api: KubeApi, wall_clock: Callable[[], float]) -> None:
        self._api, self._wall_clock = api, wall_clock
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._instance = socket.gethostname()

    async def post(self, resource: kube.Resource, about: Meta, event: Event) -> None:
        body = self._body(resource, about, event)
        name = body["metadata"]["name"]
        count = self._counts.pop(name, 0) + 1
        if count > 1:
            try:
                await self._raise_count(about, name, count)
            except kube.NotFound:  # the API server drops events after an hour
                count = 1
        if count == 1:
            try:
                await self._api.create(kube.EVENTS.path(about.namespace), body)
            except kube.AlreadyExists:  # from before the cache forgot it
                await self._raise_count(about, name, count := 2)
        self._counts[name] = count
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    async def _raise_count(self, about: Meta, name: str, count: int) -> None:
        at = instant(self._wall_clock())
        path = kube.EVENTS.path(about.namespace, name)
        await self._api.patch(path, {"count": count, "lastTimestamp": at})

    def _body(self, resource: kube.Resource, about: Meta, event: Event) -> Json:
        at = instant(self._wall_clock())
        reason = f"Would{event.reason}" if event.would else str(event.reason)
        news = "\n".join([about.uid, self._instance, event.type.value, reason, event.message])
        digest = hashlib.sha256(news.encode()).hexdigest()[:12]
        return {
            **kube.EVENTS.head,
            "metadata": {"name": f"{about.name[:200]}.{digest}", "namespace": about.namespace},
            "involvedObject": {
                **resource.head,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "type": event.type.value,
            "reason": reason,
            "message": plain(event.message)[:_LONGEST],
            "count": 1,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }


#: Events of one policy: a burst, then one per interval. Excess ones wait and join the next of their
#: kind. client-go's EventSourceObjectSpamFilter has 25, and five minutes.
BURST, EVERY_S = 10, 30.0

#: Time that normal events wait after the last one: workers leave one after another.
GATHER_S = 10.0

#: Waiting events of one policy; beyond these the oldest are dropped, and remain only in the
#: history.
MOST_WAITING = 200

#: Reasons of actions that only continue a reported decision.
_UNTOLD = frozenset({Reason.DRAINED, Reason.REPLICAS_CORRECTED})

#: Type of the condition that exists while a DaskAutoscaler is adopted.
ADOPTED = "Adopted"


class EventQueue:
    """
    The unposted events of one policy, with a limit on their rate.

    Args:
        clock: Seconds on any clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: list[Event] = []
        self._next_at = -math.inf  # when the next one would be due if they were spaced evenly
        self._last_at = -math.inf

    def add(self, events: Iterable[Event]) -> None:
        is_told = (e for e in events if e.type is EventType.WARNING or e.reason not in _UNTOLD)
        self._waiting = [*self._waiting, *is_told][-MOST_WAITING:]

    def take(self) -> tuple[Event, ...]:
        """
        Return the events of one type and reason that fit into one message; none if none may be
        posted now.

        Warnings come first; what there is no room for comes the next time.
        """
        now = self._clock()
        due_at = max(self._next_at, now - EVERY_S * (BURST - 1))
        if not self._waiting or due_at > now:
            return ()
        first = min(self._waiting, key=lambda e: e.type is not EventType.WARNING)
        if first.type is not EventType.WARNING and now - self._last_at < GATHER_S:
            return ()
        self._next_at, self._last_at = due_at + EVERY_S, now
        alike = [e for e in self._waiting if _kind(e) == _kind(first)]
        count = 1
        while count < len(alike) and len(sentence(alike[: count + 1])) <= _LONGEST:
            count += 1
        taken = alike[:count]
        self._waiting = [e for e in self._waiting if e not in taken]
        return tuple(taken)


def _kind(event: Event) -> tuple[object, ...]:
    return (event.type, event.reason, event.would)


#: First and longest wait after a failed write of the status.
FIRST_S, LONGEST_S = 1.0, 30.0


class KubeReporter:
    """Reports on one policy."""

    def __init__(
        self, policy: PolicyObject, *, api: KubeApi, world: World, events: EventPoster,
        wall_clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._policy, self._api, self._world = policy, api, world
        self._events, self._wall_clock = events, wall_clock
        self._news, self._tell_at = EventQueue(wall_clock), -math.inf
        self._written: bytes | None = None
        self._backoff, self._again_at, self._why = Backoff(FIRST_S, LONGEST_S), -math.inf, ""
        self._log = DecisionLog(policy, api)

    async def status(self, status: Status) -> None:
        status, now = self._with_adoption(status), instant(self._wall_clock())
        await self._write(status_json(status, before=self._before(), now=now))

    async def unable(self, ready: Condition, generation: int) -> None:
        """Report that no pass could be made; the rest of the status stays."""
        now = instant(self._wall_clock())
        before = self._before()
        await self._write(unable_json(ready, generation=generation, before=before, now=now))

    def _now(self) -> PolicyObject:
        meta = self._policy.meta
        return self._world.get(PolicyObject, meta.namespace, meta.name) or self._policy

    def _before(self) -> Json:
        before = self._now().status_json if self._written is None else self._written
        found: Json = msgspec.json.decode(before)
        return found

    async def _write(self, new: Json) -> None:
        meta = self._policy.meta
        if new == self._before():
            return
        left_s = self._again_at - time.monotonic()
        if left_s > 0:
            raise KubeError(f"the next try to write the status is in {left_s:.0f} s: {self._why}")
        path = kube.POLICIES.path(meta.namespace, meta.name, "status")
        try:
            await self._api.patch(path, {"metadata": {"uid": meta.uid}, "status": new})
        except (kube.NotFound, kube.Conflict):
            return  # deleted or recreated a moment ago: there is no reader left
        except KubeError as exc:
            self._again_at = time.monotonic() + self._backoff.next_s(exc.retry_after_s)
            self._why = str(exc)
            raise
        self._written = msgspec.json.encode(new)
        self._backoff.good()

    def _with_adoption(self, status: Status) -> Status:
        found = adopted(self._world, self._policy.key, now=self._wall_clock())
        if found is None:
            return status
        has = "has its bounds" if self._now().managed_by == BY_ADOPTION else "has bounds of its own"
        name = found.meta.name
        message = f"DaskAutoscaler {name} was adopted and is suspended; this policy {has}"
        condition = Condition(ADOPTED, True, Reason.ADOPTED, message)
        return replace(status, conditions=(*status.conditions, condition))

    async def tell(self, events: Sequence[Event]) -> None:
        self._news.add(events)
        while time.monotonic() >= self._tell_at and (some := self._news.take()):
            event = replace(some[0], message=sentence(some))
            # An event that cannot be posted (a quota, a terminating namespace) is dropped; the
            # status repeats it and must not be lost with it.
            try:
                await self._events.post(kube.POLICIES, self._policy.meta, event)
            except KubeError as exc:
                self._tell_at = time.monotonic() + exc.retry_after_s

    async def history(self, decisions: Sequence[Decision]) -> None:
        await self._log.add(decisions)
