"""
Keeps one kind in one namespace, or in all, in step with the API server: lists once, follows a
watch, and lists again after any error. Informers do not wait for each other.
"""

from __future__ import annotations

import asyncio

from dask_adaptive.backoff import begun_anew, error_text
from dask_adaptive.kube.api import SILENCE_S, KubeApi, KubeError
from dask_adaptive.kube.cache.world import Scope, World
from dask_adaptive.kube.objects import text_at

#: First and longest wait after an error; it doubles.
FIRST_S, LONGEST_S = 0.5, 30.0


class Informer:
    """Keeps one scope of the cache in step."""

    def __init__(self, scope: Scope, *, api: KubeApi, world: World) -> None:
        self._scope, self._api, self._world = scope, api, world

    async def run(self) -> None:
        """Run until cancelled. Never raises: failures are reported and retried."""
        kind, namespace = self._scope
        where = f" in namespace {namespace}" if namespace is not None else ""
        what = f"the watch of {kind}{where}"
        await begun_anew(what, self._serve, first_s=FIRST_S, longest_s=LONGEST_S)

    async def _serve(self) -> None:
        """List and watch until something fails, and raise it."""
        try:
            version = await self._world.read(self._api, self._scope)
            self._world.sees(self._scope)
            await self._follow(version)
        except Exception as exc:
            self._world.misses(self._scope, error_text(exc))
            raise

    async def _follow(self, version: str) -> None:
        """Take events; resume when the API server ends a watch."""
        kind, namespace = self._scope
        clock = asyncio.get_running_loop().time
        path = kind.resource.path(namespace)
        while True:
            began = clock()
            async for event, body in self._api.watch(
                path, version=version, selector=kind.selector, silence_s=SILENCE_S
            ):
                version = text_at(body, "metadata", "resourceVersion") or version
                if event != "BOOKMARK":
                    self._world.take(kind, event, body)
            if clock() - began < FIRST_S:
                raise KubeError("watches end as soon as they begin")
