"""
Objects as an API server keeps them: one version for all writes, events that can be read again until
they are forgotten, preconditions, deletion with grace. No HTTP, no faults: see `apiserver`.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import math
import uuid
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dask_adaptive.kube import api
from dask_adaptive.kube.api import Resource

Json = dict[str, Any]

KINDS = {(k.group, k.version, k.plural): k for k in vars(api).values() if isinstance(k, Resource)}
CLUSTER_SCOPED = {api.NODES, api.NAMESPACES}

#: Kinds whose `spec` a patch of their status leaves alone, and the other way round.
WITH_STATUS = {api.POLICIES, api.CLUSTERS, api.GROUPS, api.DEPLOYMENTS, api.PODS}

#: Their `replicas` are `spec.worker.replicas`.
WITH_SCALE = {api.CLUSTERS, api.GROUPS}

#: Kinds whose specs are counted.
WITH_GENERATION = WITH_STATUS | {api.AUTOSCALERS}

#: Kinds that may not be replaced without saying which version is replaced.
CONDITIONAL = {api.LEASES, api.POLICIES, api.CLUSTERS, api.GROUPS, api.AUTOSCALERS}

#: A pod's grace period where nobody says another one.
GRACE_S = 30


class Refused(Exception):
    """An answer of 4xx or 5xx."""

    def __init__(self, code: int, reason: str, message: str, after_s: int | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.after_s = code, reason, after_s

    def status(self) -> Json:
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": str(self), "reason": self.reason, "code": self.code,
        }  # fmt: skip


def conflict(kind: Resource, name: str, why: str) -> Refused:
    what = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    return Refused(409, "Conflict", f'Operation cannot be fulfilled on {what} "{name}": {why}')


def expired() -> Refused:
    return Refused(410, "Expired", "too old resource version: list again")


@dataclass(frozen=True, slots=True)
class Event:
    version: int
    type: str
    body: Json
    at: float  # on the clock of the event loop


@dataclass(frozen=True, slots=True)
class Backup:
    """All that there was at one instant."""

    version: int
    objects: dict[Resource, dict[tuple[str, str], Json]]


class Store:
    """
    Bodies are never changed in place: each write puts a new one.

    Args:
        now: Seconds since 1970, by the API server's clock.
        clock: By which events are old; None: that of the event loop.
    """

    def __init__(
        self, now: Callable[[], float], clock: Callable[[], float] | None = None
    ) -> None:  # fmt: skip
        self._now, self._clock = now, clock
        self.version = self.forgotten = 1000
        self._objects: dict[Resource, dict[tuple[str, str], Json]] = defaultdict(dict)
        self._events: dict[Resource, list[Event]] = defaultdict(list)
        self._pages: dict[str, tuple[int, list[Json]]] = {}
        self._tokens = itertools.count(1)
        self.grew: dict[Resource, asyncio.Event] = defaultdict(asyncio.Event)

    # Reading.

    def find(self, kind: Resource, namespace: str, name: str) -> Json | None:
        return self._objects[kind].get((namespace, name))

    def get(self, kind: Resource, namespace: str, name: str) -> Json:
        found = self.find(kind, namespace, name)
        if found is None:
            what = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
            raise Refused(404, "NotFound", f'{what} "{name}" not found')
        return found

    def all(self, kind: Resource, namespace: str = "", **labels: str) -> list[Json]:
        """By namespace and name, as etcd has them."""
        return [
            body
            for (where, _), body in sorted(self._objects[kind].items())
            if namespace in ("", where)
            and labels.items() <= (body["metadata"].get("labels") or {}).items()
        ]

    def page(self, bodies: list[Json], limit: int, token: str = "") -> Json:
        """The first objects of a list, or the next ones by a token, and a token for the rest."""
        if token and token not in self._pages:
            raise expired()
        version, bodies = self._pages[token] if token else (self.version, bodies)
        meta: Json = {"resourceVersion": str(version)}
        if limit and len(bodies) > limit:
            token = base64.urlsafe_b64encode(b"%d" % next(self._tokens)).decode()
            self._pages[token] = (version, bodies[limit:])
            meta |= {"continue": token, "remainingItemCount": len(bodies) - limit}
            bodies = bodies[:limit]
        return {"metadata": meta, "items": bodies}

    def since(self, kind: Resource, version: int, until: float) -> tuple[list[Event], float]:
        """
        Events after a version that are as old as that, and when the next one was.

        Raises:
            Refused: With 410: they are forgotten.
        """
        if version < self.forgotten:
            raise expired()
        events = self._events[kind]
        events = events[bisect_right(events, version, key=lambda e: e.version) :]
        ready = list(itertools.takewhile(lambda e: e.at <= until, events))
        return ready, events[len(ready)].at if len(events) > len(ready) else math.inf

    def latest(self, kind: Resource) -> int:
        """The version of the last write to any object of a kind."""
        events = self._events[kind]
        return events[-1].version if events else 0

    # Writing.

    def create(self, kind: Resource, namespace: str, body: Json) -> Json:
        meta = body.get("metadata") or {}
        if kind not in CLUSTER_SCOPED:
            self.get(api.NAMESPACES, "", namespace)
        name = meta["name"]
        if self.find(kind, namespace, name) is not None:
            raise Refused(409, "AlreadyExists", f'{kind.plural} "{name}" already exists')
        meta = {**meta, "uid": str(uuid.uuid4()), "creationTimestamp": self.stamp()}
        meta |= {} if kind in CLUSTER_SCOPED else {"namespace": namespace}
        meta |= {"generation": 1} if kind in WITH_GENERATION else {}
        head = {"apiVersion": kind.api_version, "kind": kind.kind}
        return self._put(kind, "ADDED", {**body, **head, "metadata": meta})

    def patch(
        self, kind: Resource, namespace: str, name: str, change: Json, part: str = ""
    ) -> Json:
        """A merge patch of an object, or of its `part`: status or scale."""
        old = self.get(kind, namespace, name)
        if part == "scale":
            return scale_of(self.replace(kind, namespace, name, merge(scale_of(old), change), part))
        return self.replace(kind, namespace, name, merge(old, change), part)

    def replace(
        self, kind: Resource, namespace: str, name: str, body: Json, part: str = ""
    ) -> Json:
        old = self.get(kind, namespace, name)
        meta, known = body["metadata"], old["metadata"]
        if meta.get("uid", known["uid"]) != known["uid"] and not part:  # of parts it is ignored
            raise Refused(422, "Invalid", f"metadata.uid: {meta['uid']}: field is immutable")
        if meta.get("resourceVersion", known["resourceVersion"]) != known["resourceVersion"]:
            said = "the object has been modified; please apply your changes to the latest version"
            raise conflict(kind, name, f"{said} and try again")
        if "resourceVersion" not in meta and kind in CONDITIONAL and not part:
            raise Refused(422, "Invalid", "metadata.resourceVersion: must be specified")
        new = _replaced(kind, old, body, part)
        if new == old:
            return old
        if new.get("spec") != old.get("spec") and "generation" in known:
            generation = known["generation"] + 1
            new = {**new, "metadata": {**new["metadata"], "generation": generation}}
        return self._put(kind, "MODIFIED", new)

    def delete(self, kind: Resource, namespace: str, name: str, options: Json) -> Json:
        """Returns the object where its deletion has but begun, else what became of it."""
        old = self.get(kind, namespace, name)
        meta, wanted = old["metadata"], options.get("preconditions") or {}
        for field, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if wanted.get(field, meta[field]) != meta[field]:
                said = f"the {word} in the precondition ({wanted[field]}) does not match the {word}"
                raise conflict(kind, name, f"{said} in record ({meta[field]})")
        if kind is api.PODS:
            return self._end_pod(old, options.get("gracePeriodSeconds"))
        self.remove(kind, namespace, name)
        details = {"name": name, "kind": kind.plural, "uid": meta["uid"]}
        details |= {"group": kind.group} if kind.group else {}
        done: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return {**done, "details": details}

    def _end_pod(self, old: Json, grace_s: int | None) -> Json:
        """A pod without a node goes at once, others when the kubelet has ended them."""
        meta, spec = old["metadata"], old.get("spec") or {}
        wanted_s = spec.get("terminationGracePeriodSeconds", GRACE_S)
        grace_s = wanted_s if grace_s is None else grace_s
        grace_s = grace_s if spec.get("nodeName") else 0
        if grace_s and meta.get("deletionTimestamp"):
            return old
        ends = {
            "deletionTimestamp": self.stamp(grace_s), "deletionGracePeriodSeconds": grace_s,
            "generation": meta["generation"] + ("deletionTimestamp" not in meta),
        }  # fmt: skip
        body = self._put(api.PODS, "MODIFIED", {**old, "metadata": {**meta, **ends}})
        if not grace_s:
            self.remove(api.PODS, meta["namespace"], meta["name"])
        return body

    def put(self, *bodies: Json) -> None:
        """As somebody else has made them."""
        for body in bodies:
            kind = next(kind for kind in KINDS.values() if kind.kind == body["kind"])
            self._put(kind, "ADDED", body)

    def remove(self, kind: Resource, namespace: str, name: str) -> None:
        """At once, whatever grace there was."""
        old = self._objects[kind].pop((namespace, name), None)
        if old is not None:
            self._note(kind, "DELETED", old)

    def backup(self) -> Backup:
        return Backup(self.version, {kind: dict(found) for kind, found in self._objects.items()})

    def restore(self, backup: Backup) -> None:
        """etcd is what it was then: versions are given out once more. All streams must be cut."""
        self.version = backup.version
        self._objects = defaultdict(dict, {k: dict(v) for k, v in backup.objects.items()})
        self._events.clear()
        self._pages.clear()
        self.forgotten = self.version

    def stamp(self, in_s: float = 0.0) -> str:
        at = datetime.fromtimestamp(self._now() + in_s, UTC)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _put(self, kind: Resource, event: str, body: Json) -> Json:
        new = self._note(kind, event, body)
        meta = new["metadata"]
        self._objects[kind][meta.get("namespace", ""), meta["name"]] = new
        return new

    def _note(self, kind: Resource, event: str, body: Json) -> Json:
        self.version += 1
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        at = (self._clock or asyncio.get_running_loop().time)()
        self._events[kind].append(Event(self.version, event, body, at))
        self.stir(kind)
        return body

    def stir(self, kind: Resource) -> None:
        """Let streams of a kind look whether there is anything to send."""
        self.grew.pop(kind, asyncio.Event()).set()


def _replaced(kind: Resource, old: Json, body: Json, part: str) -> Json:
    """What is stored when `body` is sent for an object, or for a part of it."""
    if part == "scale":
        worker = {**old["spec"]["worker"], "replicas": body["spec"]["replicas"]}
        return {**old, "spec": {**old["spec"], "worker": worker}}
    if part == "status":
        return {**old, "status": body["status"]} if "status" in body else old
    kept = {"status": old["status"]} if kind in WITH_STATUS and "status" in old else {}
    rest = {k: v for k, v in body.items() if k != "status" or kind not in WITH_STATUS}
    fixed = {k: v for k, v in old["metadata"].items() if k in _OURS}
    return {**rest, **kept, "metadata": {**body["metadata"], **fixed}}


#: Metadata that only the API server writes.
_OURS = (
    "uid", "name", "namespace", "creationTimestamp", "generation", "resourceVersion",
    "deletionTimestamp", "deletionGracePeriodSeconds",
)  # fmt: skip


def scale_of(body: Json) -> Json:
    fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    meta = {field: body["metadata"][field] for field in fields}
    return {
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta,
        "spec": {"replicas": body["spec"]["worker"]["replicas"]},
        "status": {"replicas": (body.get("status") or {}).get("replicas", 0)},
    }  # fmt: skip


def merge(old: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    kept = old if isinstance(old, dict) else {}
    merged = {key: value for key, value in kept.items() if key not in change}
    news = ((key, merge(kept.get(key), value)) for key, value in change.items())
    return merged | {key: value for key, value in news if value is not None}
