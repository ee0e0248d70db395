"""
Packs the agent into files for schedulers, keeps them in a ConfigMap, and checks permission to use
it.

The same sources give the same bytes, and the name of the ConfigMap says which.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from weakref import WeakValueDictionary

from dask_adaptive.kube import api as kube
from dask_adaptive.kube.api import Json, KubeApi, KubeError
from dask_adaptive.kube.objects import INJECT, MANAGED_LABELS, ClusterObject
from dask_adaptive_agent import importer

MOUNT = "/opt/dask-adaptive"
SOURCES = "agent.json.zlib"
BOOT = "dask_adaptive_boot.py"

BOOT_PATH = f"{MOUNT}/{BOOT}"
PRELOAD = "DASK_DISTRIBUTED__SCHEDULER__PRELOAD"

#: What a scheduler preloads. By path, so that PYTHONPATH, which the image may set itself, is left
#: alone; and guarded, because an error at import would end the scheduler (exit 1). Dask executes a
#: preload that is a path twice: import and reload (distributed.utils.import_file).
BOOT_SOURCE = f'''\
"""Bring the dask-adaptive agent into this scheduler. Must never raise."""
import logging
import os

_log = logging.getLogger("distributed.dask_adaptive")


def _preloads_of_image():
    """What the image's own Dask configuration files preload: our variable outranks them."""
    from dask.config import collect
    from distributed.preloading import process_preloads

    if os.environ.get("{PRELOAD}") != "{BOOT_PATH}":
        return []  # the user's own variable, joined with ours, outranked them before
    env = {{k: v for k, v in os.environ.items() if k != "{PRELOAD}"}}
    scheduler = collect(env=env).get("distributed", {{}}).get("scheduler", {{}})
    return list(process_preloads(None, scheduler.get("preload") or [], []))


if "_others" not in globals():
    _others, _agent = [], None
    try:
        _others = _preloads_of_image()
    except Exception:
        _log.exception("Preloads of the image's own configuration can't be loaded")
    try:
        with open("{MOUNT}/{SOURCES}", "rb") as _file:
            _space = {{"given": _file.read()}}
        exec({importer.UNPACK!r}, _space)
        _space["importer"]["lend"](_space["sources"])  # a copy in the image comes first
        from dask_adaptive_agent import preload as _agent
    except Exception:
        _log.exception("The dask-adaptive agent can't be loaded; this scheduler runs without it")


async def dask_setup(scheduler):
    for other in _others:
        try:
            other.dask_object = scheduler
            await other.start()
        except Exception:
            _log.exception("Preload %s failed", other.name)
    if _agent is not None:
        await _agent.dask_setup(scheduler)


async def dask_teardown(scheduler):
    for other in reversed(_others):
        try:
            await other.teardown()
        except Exception:
            _log.exception("Preload %s failed", other.name)
'''


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files that are mounted into a scheduler."""

    name: str  # of the ConfigMap; it depends on the content
    sources: str  # the agent's, compressed, base64
    texts: tuple[tuple[str, str], ...]  # other files: name, content


@functools.lru_cache(maxsize=1)
def bundle() -> Bundle:
    """Return the agent that this operator brings."""
    content = importer.packed()
    texts = ((BOOT, BOOT_SOURCE),)
    digest = hashlib.sha256(content + str(texts).encode()).hexdigest()[:8]
    return Bundle(f"dask-adaptive-agent-{digest}", base64.b64encode(content).decode(), texts)


class AgentConfig:
    """
    The agent's ConfigMap in each namespace that needs it.

    It is owned by all DaskClusters that use it, so Kubernetes removes it with the last of them. A
    scheduler whose volume is missing would not start, so it is never deleted by us.
    """

    def __init__(self, api: KubeApi, bundle: Bundle) -> None:
        self._api, self.bundle = api, bundle

    async def ensure(self, namespace: str, cluster: str, cluster_uid: str) -> None:
        """Create the ConfigMap or join its owners. On `KubeError` do not rely on it."""
        body = self._body(namespace, cluster, cluster_uid)
        path = kube.CONFIG_MAPS.path(namespace, self.bundle.name)
        try:
            # A strategic merge adds the owner to the existing ones (by uid). It is refused if the
            # content, which is immutable, differs.
            await self._api.patch(path, body, how=kube.STRATEGIC)
        except kube.NotFound:
            try:
                await self._api.create(kube.CONFIG_MAPS.path(namespace), body)
            except kube.AlreadyExists:
                await self._api.patch(path, body, how=kube.STRATEGIC)

    def _body(self, namespace: str, cluster: str, cluster_uid: str) -> Json:
        return {
            **kube.CONFIG_MAPS.head,
            "metadata": {
                "name": self.bundle.name,
                "namespace": namespace,
                "labels": MANAGED_LABELS,
                "ownerReferences": [kube.CLUSTERS.owner(cluster, cluster_uid)],
            },
            "immutable": True,
            "data": dict(self.bundle.texts),
            "binaryData": {SOURCES: self.bundle.sources},
        }


def refusal(holder: str, annotations: Mapping[str, str] | None) -> str:
    """Name the object whose annotations forbid injection, or return an empty text."""
    word = (annotations or {}).get(INJECT, "").strip().lower()
    return f"{holder} is annotated {INJECT}={word}" if word in ("false", "no", "off") else ""


class Consent:
    """Permission for the agent in a namespace."""

    def __init__(self, api: KubeApi, clock: Callable[[], float], *, ttl_s: float = 30.0) -> None:
        self._api, self._clock, self._ttl_s = api, clock, ttl_s
        self._namespaces: dict[str, tuple[float, str]] = {}
        self._locks = WeakValueDictionary[str, asyncio.Lock]()  # while a reader waits for one

    async def refused(self, namespace: str, cluster: ClusterObject | None) -> str:
        """
        Name the object that refuses the agent for a cluster, or return "". Raises `KubeError`.

        Args:
            cluster: None: it is not known yet, and only its namespace is asked.
        """
        if cluster is not None:
            own = {INJECT: cluster.note(INJECT) or ""}
            if by_itself := refusal(f"DaskCluster {cluster.meta.name}", own):
                return by_itself
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            known = self._namespaces.get(namespace)
            if known is not None and self._clock() < known[0]:
                return known[1]
            try:
                body = await self._api.get(kube.NAMESPACES.path(name=namespace))
            except KubeError:
                if known is not None:
                    return known[1]
                raise
            answer = refusal(f"namespace {namespace}", body["metadata"].get("annotations"))
            self._namespaces[namespace] = (self._clock() + self._ttl_s, answer)
            return answer
