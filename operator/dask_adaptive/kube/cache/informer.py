"""
Informers: each keeps one kind in one namespace, or in all, in step with the API server. It lists
once, follows a watch, and after any error waits a little and lists again. None waits for another.
"""

from __future__ import annotations

import asyncio

from dask_adaptive.backoff import begun_anew, error_text
from dask_adaptive.kube.api import SILENCE_S, KubeApi, KubeError
from dask_adaptive.kube.cache.world import Scope, World
from dask_adaptive.kube.objects import text_at

#: The first wait after an error, and the longest; each is twice the one before.
FIRST_S, LONGEST_S = 0.5, 30.0


class Informer:
    """One scope of the cache."""

    def __init__(self, scope: Scope, *, api: KubeApi, world: World) -> None:
        self._scope, self._api, self._world = scope, api, world

    async def run(self) -> None:
        """Until it is cancelled. Never raises: what goes wrong is told, and tried again."""
        kind, namespace = self._scope
        where = f" in namespace {namespace}" if namespace is not None else ""
        what = f"the watch of {kind}{where}"
        await begun_anew(what, self._serve, first_s=FIRST_S, longest_s=LONGEST_S)

    async def _serve(self) -> None:
        """Until something is wrong: raises it."""
        try:
            version = await self._world.read(self._api, self._scope)
            self._world.sees(self._scope)
            await self._follow(version)
        except Exception as exc:
            self._world.misses(self._scope, error_text(exc))
            raise

    async def _follow(self, version: str) -> None:
        """Take events; when the API server ends a watch, go on where it ended."""
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
