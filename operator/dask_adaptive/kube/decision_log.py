"""Keeps the decisions of one policy in a ConfigMap that goes with it; see `kube.history`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import (
    AlreadyExists,
    ApiUnreachable,
    Conflict,
    KubeError,
    NotFound,
)
from dask_adaptive.kube.events import EventPoster, News, Subject
from dask_adaptive.kube.history import (
    HISTORY_LABEL,
    KEY,
    history_body,
    history_name,
    history_of,
    merged,
    unreadable,
)
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.kube.resources import CONFIG_MAPS, POLICIES
from dask_adaptive.loop.ports import EventType
from dask_adaptive.model.history import KEPT, Decision
from dask_adaptive.model.reason import Reason

logger = logging.getLogger(__name__)


class DecisionLog:
    """
    Reads once, then writes once for each call. Nobody's scaling depends on it: what only people
    can mend they are told, and it is kept in memory until it can be written.
    """

    def __init__(self, policy: PolicyObject, api: KubeApi, events: EventPoster) -> None:
        self._policy, self._api, self._events = policy, api, events
        name, namespace = history_name(policy.meta.name), policy.meta.namespace
        self._name, self._path = name, CONFIG_MAPS.path(namespace, name)
        self._kept: tuple[Decision, ...] = ()  # as written
        self._left: tuple[Decision, ...] = ()  # could not be written
        self._read: Json | None = None  # as last seen; None: read it first
        self._told = ""  # of what people were told last

    async def add(self, decisions: Sequence[Decision]) -> None:
        """
        Keep these too, oldest first.

        Raises:
            KubeError: Only time can help (somebody else wrote, the API server is away): say the
                same again, in a later pass.
        """
        if not decisions:
            return
        new = merged(self._left, decisions)[-KEPT:]
        try:
            problem = await self._write(new)
        except (Conflict, ApiUnreachable):
            self._read = None
            raise
        except KubeError as exc:
            problem = f"ConfigMap {self._name} can't be written: {exc}"
        self._left = new if problem else ()
        if problem:
            self._read = None
            await self._complain(problem)

    async def _write(self, new: tuple[Decision, ...]) -> str:
        """Returns what keeps it from being written."""
        if self._read is None:
            self._read = await self._look()
        if not self._is_ours(self._read):
            return (
                f"ConfigMap {self._name} is somebody else's; the history of decisions is not kept"
                " until it is deleted"
            )
        kept = merged(self._kept, new)[-KEPT:]
        body = history_body(self._policy, kept)
        try:
            self._read = await self._put(body, self._read)
        except NotFound:  # somebody deleted it
            self._read = await self._create(body)
        self._kept = kept
        return ""

    async def _look(self) -> Json:
        """
        The ConfigMap as it is; empty if there is none. By a patch that changes nothing, which
        answers with the object: so the operator needs no right to read ConfigMaps.
        """
        try:
            found = await self._api.patch(self._path, {})
        except NotFound:
            return {}
        if self._owner_uid(found) != self._policy.meta.uid:
            return found  # of an earlier policy of this name: not this one's history
        lost = unreadable(found)
        if lost:
            await self._complain(
                f"lines in ConfigMap {self._name} that are no decisions are dropped: {lost}"
            )
        self._kept = merged(history_of(found), self._kept)
        return found

    async def _put(self, body: Json, seen: Json) -> Json:
        if not seen:
            return await self._create(body)
        meta = {**body["metadata"], "resourceVersion": seen["metadata"]["resourceVersion"]}
        strange = {key: None for key in seen.get("data") or {} if key != KEY}
        change = {"metadata": meta, "data": {**strange, **body["data"]}, "binaryData": None}
        return await self._api.patch(self._path, change)

    async def _create(self, body: Json) -> Json:
        try:
            path = CONFIG_MAPS.path(self._policy.meta.namespace)
            return await self._api.create(path, body)
        except AlreadyExists as exc:
            raise Conflict(str(exc), status=exc.status) from exc

    def _is_ours(self, found: Json) -> bool:
        if not found or self._owner_uid(found) == self._policy.meta.uid:
            return True
        return HISTORY_LABEL in (found["metadata"].get("labels") or {})

    @staticmethod
    def _owner_uid(found: Json) -> str:
        owners = found["metadata"].get("ownerReferences") or [{}]
        return str(owners[0].get("uid", ""))

    async def _complain(self, message: str) -> None:
        if message == self._told:
            return
        self._told = message
        logger.warning("AdaptivePolicy %s: %s", self._policy.key, message)
        meta = self._policy.meta
        about = Subject(POLICIES, meta.namespace, meta.name, meta.uid)
        try:
            news = News(EventType.WARNING, str(Reason.HISTORY_LOST), message)
            await self._events.post(about, news)
        except KubeError as exc:
            logger.warning("Nor can people be told: %s", exc)
