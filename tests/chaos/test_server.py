"""The same requests to our API server and to a real one: the same answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from api.conftest import admin, kubeconfig, kubectl  # noqa: F401
from chaos.apiserver import ApiServer, kubeconfig_of
from chaos.store import Store
from dask_adaptive.kube.api import GROUPS, LEASES, MERGE, NAMESPACES, PODS, KubeApi, Resource
from support import kube_bodies
from support.kube_operator import connected
from support.kube_server import Kubectl

pytestmark = pytest.mark.k8s

Json = dict[str, Any]

NAME = "etl-default"


class Client:
    """Notes of each answer what clients go by."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api, self.namespace = api, namespace
        self.noted: list[Any] = []
        self.last: Json = {}
        self._versions: dict[str, str] = {}  # by name, as seen last

    def path(self, kind: Resource, name: str = "", part: str = "") -> str:
        return kind.path(self.namespace, name, part)

    async def ask(
        self, method: str, path: str, body: Json | None = None, content: str = "application/json",
        **query: str,
    ) -> Json:  # fmt: skip
        answer = await self._api._opened(method, path, query, body, content, 10.0)
        try:
            self.last = json.loads(await answer.read())
        except ValueError:
            self.last = {}
        self.noted.append((method, answer.status, self._essence(self.last)))
        return self.last

    async def patch(self, path: str, body: Json) -> Json:
        return await self.ask("PATCH", path, body, MERGE)

    async def watch(self, kind: Resource, version: str, **query: str) -> None:
        """Note the events of a stream that ends by itself."""
        query |= {"watch": "true", "resourceVersion": version, "timeoutSeconds": "2"}
        answer = await self._api._opened("GET", self.path(kind), query)
        events = [json.loads(line) for line in (await answer.read()).splitlines()]
        # Bookmarks come when they come: "we don't provide any guarantees" (Cacher.dispatchEvents).
        events = [e for e in events if e["type"] != "BOOKMARK"]
        said = [(e["type"], self._essence(e["object"], is_event=True)) for e in events]
        self.noted.append(("WATCH", answer.status, said))

    def _essence(self, body: Json, *, is_event: bool = False) -> Any:
        meta = body.get("metadata") or {}
        if body.get("kind") == "Status":
            return body["status"], body.get("reason"), body.get("code")
        if "items" in body:
            names = [item["metadata"]["name"] for item in body["items"]]
            return names, bool(meta.get("continue")), meta.get("remainingItemCount")
        if not meta.get("name"):
            return body.get("kind")
        before = self._versions.get(meta["name"])
        if not is_event:
            self._versions[meta["name"]] = meta["resourceVersion"]
        kept = ["name", "annotations", "deletionGracePeriodSeconds"]
        if body.get("kind") != "Pod":  # they have one only in newer Kubernetes
            kept.append("generation")
        return (
            body.get("kind"),
            {field: meta[field] for field in kept if field in meta},
            sorted({"uid", "creationTimestamp", "deletionTimestamp"} & set(meta)),
            is_event or before == meta["resourceVersion"],
            (body.get("spec") or {}).get("replicas"),
            ((body.get("spec") or {}).get("worker") or {}).get("replicas"),
            (body.get("status") or {}).get("replicas"),
        )


def group(name: str = "etl") -> Json:
    return kube_bodies.group(name, 2)


async def objects(c: Client) -> None:
    one = c.path(GROUPS, NAME)
    await c.ask("GET", one)
    await c.ask("POST", c.path(GROUPS), group())
    await c.ask("POST", c.path(GROUPS), group())
    old = await c.ask("GET", one)
    await c.patch(one, {"metadata": {"annotations": {"a": "1"}}})
    await c.patch(one, {"metadata": {"annotations": {"a": "1"}}})
    await c.patch(one, {})
    await c.patch(one, {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}})
    await c.patch(one, {"metadata": {"uid": "another", "annotations": {"a": "2"}}})
    await c.patch(one, {"spec": {"worker": {"replicas": 3}}})
    await c.ask("PUT", one, group())
    new = await c.ask("GET", one)
    await c.ask("PUT", one, old)
    new["metadata"]["annotations"] = {"b": "1"}
    await c.ask("PUT", one, new)
    await c.ask("PATCH", one, {}, "application/json")
    await c.ask("POST", GROUPS.path("not-there"), group())


async def scale(c: Client) -> None:
    await c.ask("POST", c.path(GROUPS), group())
    path = c.path(GROUPS, NAME, "scale")
    old = await c.ask("GET", path)
    version = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}}
    await c.patch(path, {**version, "spec": {"replicas": 4}})
    await c.patch(path, {**version, "spec": {"replicas": 5}})
    await c.patch(path, {"spec": {"replicas": 4}})
    await c.ask("GET", c.path(GROUPS, NAME))
    await c.patch(c.path(GROUPS, "not-there", "scale"), {"spec": {"replicas": 4}})


async def deletion(c: Client) -> None:
    made = await c.ask("POST", c.path(GROUPS), group())
    path, uid = c.path(GROUPS, NAME), made["metadata"]["uid"]
    await c.ask("DELETE", path, {"preconditions": {"uid": "another"}})
    await c.ask("DELETE", path, {"preconditions": {"resourceVersion": "1"}})
    await c.ask("DELETE", path, {"preconditions": {"uid": uid}})
    await c.ask("DELETE", path, {"preconditions": {"uid": uid}})
    spec = {**kube_bodies.WORKER, "terminationGracePeriodSeconds": 60}
    for name, node in (("pending", {}), ("running", {"nodeName": "node-1"})):
        await c.ask("POST", c.path(PODS), kube_bodies.pod(name, {**spec, **node}))
        await c.ask("DELETE", c.path(PODS, name))
        await c.ask("GET", c.path(PODS, name))
    await c.ask("DELETE", c.path(PODS, "running"))
    await c.ask("DELETE", c.path(PODS, "running"), gracePeriodSeconds="0")
    await c.ask("GET", c.path(PODS, "running"))


async def lists(c: Client) -> None:
    for name in "abc":
        labelled = {**group(name), "metadata": {"name": name, "labels": {"for": name}}}
        await c.ask("POST", c.path(GROUPS), labelled)
    await c.ask("GET", c.path(GROUPS))
    first = await c.ask("GET", c.path(GROUPS), limit="2")
    token = first["metadata"]["continue"]
    await c.ask("DELETE", c.path(GROUPS, "c"))
    await c.ask("GET", c.path(GROUPS), limit="2", **{"continue": token})
    await c.ask("GET", c.path(GROUPS), labelSelector="for=b")
    await c.ask("GET", c.path(GROUPS), fieldSelector="metadata.name=a")
    await c.ask("GET", c.path(Resource("kubernetes.dask.org", "v1", "nonsense", "Nonsense")))


async def streams(c: Client) -> None:
    made = await c.ask("POST", c.path(GROUPS), group())
    await c.patch(c.path(GROUPS, NAME), {"metadata": {"annotations": {"a": "1"}}})
    other = {**group("other"), "metadata": {"name": "other", "labels": {"x": "y"}}}
    await c.ask("POST", c.path(GROUPS), other)
    await c.ask("DELETE", c.path(GROUPS, NAME))
    version = made["metadata"]["resourceVersion"]
    await c.watch(GROUPS, version)
    await c.watch(GROUPS, version, labelSelector="x=y")
    await c.watch(GROUPS, "1")
    await c.watch(GROUPS, str(10 * int(version)))  # etcd was restored
    now = (await c.ask("GET", c.path(GROUPS)))["metadata"]["resourceVersion"]
    await c.watch(GROUPS, now, allowWatchBookmarks="true")


async def leases(c: Client) -> None:
    body = kube_bodies.body(LEASES, "l", {"holderIdentity": "a", "leaseDurationSeconds": 15})
    made = await c.ask("POST", c.path(LEASES), body)
    await c.ask("PUT", c.path(LEASES, "l"), body)
    taken = {**made, "spec": {**made["spec"], "holderIdentity": "b"}}
    await c.ask("PUT", c.path(LEASES, "l"), taken)
    await c.ask("PUT", c.path(LEASES, "l"), taken)


@contextlib.asynccontextmanager
async def ours(folder: Path) -> AsyncIterator[Client]:
    store = Store(time.time)
    server = ApiServer(store, {"test": "test"}, lambda ask, before, after: None)
    store.create(NAMESPACES, "", {"metadata": {"name": "team"}})
    async with server.serving():
        path = folder / "kubeconfig"
        path.write_text(kubeconfig_of(server.port, "test"))
        async with connected(kubeconfig=str(path)) as api:
            yield Client(api, "team")


@pytest.mark.parametrize("scenario", [objects, scale, deletion, lists, streams, leases])
async def test_our_server_answers_as_a_real_one(
    scenario: Callable[[Client], Awaitable[None]],
    kubectl: Kubectl,  # noqa: F811
    tmp_path: Path,
) -> None:
    async with connected(kubeconfig=kubectl.kubeconfig) as api, ours(tmp_path) as own:
        real = Client(api, kubectl.namespace)
        await asyncio.gather(scenario(real), scenario(own))

    assert real.noted == own.noted
