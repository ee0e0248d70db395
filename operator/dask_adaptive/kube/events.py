"""Events: things that happened, as `kubectl describe` tells them. The same news is one object."""

from __future__ import annotations

import hashlib
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import AlreadyExists, NotFound
from dask_adaptive.kube.resources import EVENTS, Resource
from dask_adaptive.loop.ports import EventType
from dask_adaptive.model.pins import instant

_REMEMBERED = 1000  # events whose count we know
_LONGEST = 1000  # characters; the API server refuses more than 1,024

COMPONENT = "dask-adaptive-operator"


class Subject(NamedTuple):
    """The object that an event is about."""

    resource: Resource
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class News:
    """What to tell of a subject."""

    type: EventType
    reason: str
    message: str


class EventPoster:
    """
    Writes events. The same news about the same object is one Event whose count goes up.

    Raises `KubeError`, as all that writes to the API.
    """

    def __init__(self, api: KubeApi, wall_clock: Callable[[], float]) -> None:
        self._api, self._wall_clock = api, wall_clock
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._instance = socket.gethostname()

    async def post(self, about: Subject, news: News) -> None:
        name = self._name(about, news)
        count = self._counts.pop(name, 0) + 1
        if count > 1:
            try:
                await self._raise_count(about, name, count)
            except NotFound:  # the API server drops events after an hour
                count = 1
        if count == 1:
            try:
                await self._api.create(EVENTS.path(about.namespace), self._body(about, news, name))
            except AlreadyExists:  # from before the cache forgot it
                await self._raise_count(about, name, count := 2)
        self._counts[name] = count
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    async def _raise_count(self, about: Subject, name: str, count: int) -> None:
        at = instant(self._wall_clock())
        path = EVENTS.path(about.namespace, name)
        await self._api.patch(path, {"count": count, "lastTimestamp": at})

    def _name(self, about: Subject, news: News) -> str:
        what = "\n".join([about.uid, self._instance, news.type.value, news.reason, news.message])
        return f"{about.name[:200]}.{hashlib.sha256(what.encode()).hexdigest()[:12]}"

    def _body(self, about: Subject, news: News, name: str) -> Json:
        at = instant(self._wall_clock())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": about.namespace},
            "involvedObject": {
                "apiVersion": about.resource.api_version,
                "kind": about.resource.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "type": news.type.value,
            "reason": news.reason,
            "message": news.message[:_LONGEST],
            "count": 1,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }
