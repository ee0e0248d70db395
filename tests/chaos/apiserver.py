"""
A Kubernetes API server over HTTP that misbehaves on command: enough of it for the operator, and for
kopf. `test_server.py` holds it to the answers of a real one. It knows who asks by their token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from chaos.store import (
    CLUSTER_SCOPED,
    KINDS,
    WITH_SCALE,
    WITH_STATUS,
    Json,
    Refused,
    Store,
    scale_of,
)
from dask_adaptive.kube.api import Resource

#: How often a stream says up to where it has told everything.
BOOKMARK_S = 60.0

#: No list is longer, whatever the client would take: so lists come in pages here, too.
PAGE = 2

_KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u, namespace: {namespace}}}}}]
clusters: [{{name: k, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: {token}}}}}]
"""

_WRITES = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def kubeconfig_of(port: int, token: str, namespace: str = "default") -> str:
    """For a server of this machine."""
    return _KUBECONFIG.format(port=port, token=token, namespace=namespace)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    who: str
    verb: str
    kind: Resource
    namespace: str  # empty: all, or none
    name: str = ""
    part: str = ""  # status, scale
    query: Mapping[str, str] = field(default_factory=dict)
    body: Json = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        return self.verb in _WRITES.values()

    def __str__(self) -> str:
        name = self.name or (self.body.get("metadata") or {}).get("name", "")
        where = "/".join(p for p in (self.namespace, name, self.part) if p)
        return f"{self.verb} {self.kind.plural} {where}".rstrip()


def asked(who: str, method: str, path: str, query: Mapping[str, str], body: Json) -> Ask | None:
    """What a request is about; None: nothing that there is."""
    parts = path.strip("/").split("/")
    if len(parts) < (3 if parts[0] == "api" else 4):
        return Ask(who, "discover", Resource("", "", path, ""), "")
    group, version, *rest = ["", *parts[1:]] if parts[0] == "api" else parts[1:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        _, namespace, *rest = rest
    plural, name, part = [*rest, "", ""][:3]
    kind = KINDS.get((group, version, plural))
    parts_of = {"status": WITH_STATUS, "scale": WITH_SCALE}
    if kind is None or (part and kind not in parts_of.get(part, ())):
        return None
    verb = _WRITES.get(method, "get" if name else "list")
    if verb == "list" and query.get("watch", "") in ("1", "true"):
        verb = "watch"
    return Ask(who, verb, kind, namespace, name, part, query, body)


class Cut(Exception):
    """The connection breaks instead of an answer."""


class Trouble:
    """A fault, as far as it shows in answers. What it does not override goes well."""

    async def before(self, ask: Ask) -> None:
        """Before a request is looked at; may wait, or raise `Refused` or `Cut`."""

    async def after(self, ask: Ask) -> None:
        """When it is done and not yet answered; the same."""

    def late_s(self, ask: Ask) -> float:
        """By how much events of a stream come too late; infinite: there are none."""
        return 0.0

    def ends(self, ask: Ask) -> None:
        """Raise `Refused` or `Cut` to end a stream that is open."""


Judge = Callable[[Ask, Json | None, Json], None]


class ApiServer:
    """
    Args:
        users: Names of clients by their bearer tokens.
        judge: Told of each write that was carried out, with the object before, and the answer.
        refused: Told of each request that was refused.
    """

    def __init__(
        self, store: Store, users: Mapping[str, str], judge: Judge,
        refused: Callable[[Ask, Refused], None] = lambda ask, no: None,
    ) -> None:  # fmt: skip
        self.store, self._users, self._judge, self._refused = store, users, judge, refused
        self.troubles: list[Trouble] = []
        self.bugs: list[str] = []  # of our own
        self.port = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield
        finally:
            await runner.cleanup()

    def stir(self) -> None:
        """The troubles have changed: every open stream looks at them."""
        for kind in KINDS.values():
            self.store.stir(kind)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._reply(request)
        except Refused as no:
            after = {} if no.after_s is None else {"Retry-After": str(no.after_s)}
            return web.json_response(no.status(), status=no.code, headers=after)
        except Cut:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        except (web.HTTPException, ConnectionResetError):
            raise
        except Exception as exc:
            self.bugs.append(f"{request.method} {request.path_qs}: {exc!r}")
            raise

    async def _reply(self, request: web.Request) -> web.StreamResponse:
        ask = await self._read(request)
        try:
            for trouble in list(self.troubles):
                await trouble.before(ask)
            if ask.verb == "watch":
                return await self._watch(ask, request)
            answer = self.answer(ask)
            for trouble in list(self.troubles):
                await trouble.after(ask)
        except Refused as no:
            self._refused(ask, no)
            raise
        return web.json_response(answer, status=201 if ask.verb == "create" else 200)

    async def _read(self, request: web.Request) -> Ask:
        token = request.headers.get("Authorization", "").partition(" ")[2]
        if token not in self._users:
            raise Refused(401, "Unauthorized", "Unauthorized")
        body: Any = {}
        if request.method != "GET" and request.can_read_body:
            body = await request.json()
        query = dict(request.query)
        ask = asked(self._users[token], request.method, request.path, query, body)
        if ask is None:
            raise web.HTTPNotFound(text="404 page not found")
        if ask.verb == "patch" and request.content_type != "application/merge-patch+json":
            raise Refused(415, "UnsupportedMediaType", "only merge patches are understood here")
        return ask

    def answer(self, ask: Ask) -> Json:
        """Carry out what is no stream. Raises `Refused`."""
        kind, namespace, name, store = ask.kind, ask.namespace, ask.name, self.store
        if ask.verb == "discover":
            return _discovery(kind.plural)
        if ask.verb == "get":
            return _part(store.get(kind, namespace, name), ask)
        if ask.verb == "list":
            return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, **self._list(ask)}
        before = store.find(kind, namespace, name or ask.body["metadata"]["name"])
        if ask.verb == "create":
            answer = store.create(kind, namespace, ask.body)
        elif ask.verb == "delete":
            grace_s = {k: int(v) for k, v in ask.query.items() if k == "gracePeriodSeconds"}
            answer = store.delete(kind, namespace, name, {**grace_s, **ask.body})
        elif ask.verb == "update":
            answer = _part(store.replace(kind, namespace, name, ask.body, ask.part), ask)
        else:
            answer = store.patch(kind, namespace, name, ask.body, ask.part)
        self._judge(ask, before, answer)
        return answer

    def _list(self, ask: Ask) -> Json:
        limit = int(ask.query.get("limit", 0))
        limit = limit and min(limit, PAGE)
        found = [body for body in self.store.all(ask.kind) if _selected(ask, body)]
        return self.store.page(found, limit, ask.query.get("continue", ""))

    async def _watch(self, ask: Ask, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)

        async def send(event: str, body: Json) -> None:
            line = json.dumps({"type": event, "object": body})
            await answer.write(line.encode() + b"\n")

        with contextlib.suppress(ConnectionResetError):  # nobody is there any more
            try:
                async for event, body in self._events(ask):
                    await send(event, body)
            except Refused as no:
                await send("ERROR", no.status())
        return answer

    async def _events(self, ask: Ask) -> AsyncIterator[tuple[str, Json]]:
        clock, store, query = asyncio.get_running_loop().time, self.store, ask.query
        ends_at = clock() + float(query.get("timeoutSeconds", 1800))
        marks = query.get("allowWatchBookmarks") in ("1", "true")
        mark_at = clock() + BOOKMARK_S if marks else math.inf
        version = began_with = int(query["resourceVersion"])
        while clock() < ends_at:
            grew, late_s = store.grew[ask.kind], self._late_s(ask)
            ready, due_at = store.since(ask.kind, version, until=clock() - late_s)
            for event in ready:
                version = event.version
                if _selected(ask, event.body):
                    yield event.type, event.body
            if clock() >= mark_at:
                mark_at = clock() + BOOKMARK_S
                # Of a kind that nobody has written since there is none (Cacher.dispatchEvents).
                if not late_s and store.latest(ask.kind) > began_with:
                    head = {"kind": ask.kind.kind, "apiVersion": ask.kind.api_version}
                    meta = {"resourceVersion": str(store.latest(ask.kind))}
                    yield "BOOKMARK", {**head, "metadata": meta}
            left_s = min(ends_at, mark_at, due_at + late_s) - clock()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(grew.wait(), max(left_s, 0.05))

    def _late_s(self, ask: Ask) -> float:
        """By how much a stream is late; raises what ends it."""
        for trouble in self.troubles:
            trouble.ends(ask)
        return max((trouble.late_s(ask) for trouble in self.troubles), default=0.0)


def _part(body: Json, ask: Ask) -> Json:
    return scale_of(body) if ask.part == "scale" else body


def _selected(ask: Ask, body: Json) -> bool:
    if ask.namespace not in ("", body["metadata"].get("namespace")):
        return False
    labels = body["metadata"].get("labels") or {}
    for term in filter(None, ask.query.get("labelSelector", "").split(",")):
        name, is_value, value = term.partition("=")
        if (labels.get(name) != value) if is_value else (name not in labels):
            return False
    for term in filter(None, ask.query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        found: Any = body
        for key in path.rstrip("!").split("."):
            found = (found or {}).get(key)
        if ((found or "") == value) == path.endswith("!"):
            return False
    return True


def _discovery(path: str) -> Json:
    """What tells of kinds, and not of objects."""
    root, *where = path.strip("/").split("/")
    if root == "version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    if root == "api" and not where:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if not where:
        groups = {g: {"groupVersion": f"{g}/{v}", "version": v} for g, v, _ in KINDS if g}
        rows = [{"name": g, "versions": [v], "preferredVersion": v} for g, v in groups.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": rows}
    rows, here = [], tuple(where if root == "apis" else ["", *where])
    for kind in (kind for (*group, _), kind in KINDS.items() if tuple(group) == here):
        row = {"namespaced": kind not in CLUSTER_SCOPED, "kind": kind.kind, "singularName": ""}
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        rows.append({"name": kind.plural, "verbs": verbs, **row})
        if kind in WITH_STATUS:
            rows.append({"name": f"{kind.plural}/status", "verbs": ["get", "patch"], **row})
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "/".join(where)}
    return {**head, "resources": rows}
