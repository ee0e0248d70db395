"""
Informers: each keeps one kind in one namespace, or in all, in step with the API server. It lists
once, follows a watch, and after any error waits a little and lists again. None waits for another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dask_adaptive.backoff import Backoff
from dask_adaptive.kube.api import SILENCE_S, KubeApi, KubeError
from dask_adaptive.kube.cache.world import Scope, World
from dask_adaptive.kube.objects import text_at

logger = logging.getLogger(__name__)

#: The first wait after an error, and the longest; each is twice the one before.
FIRST_S, LONGEST_S = 0.5, 30.0

#: A watch that lasted so long was a good one: the next error is the first again.
GOOD_S = 30.0


class Informer:
    """
    One scope of the cache.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(
        self, scope: Scope, *, api: KubeApi, world: World, clock: Callable[[], float]
    ) -> None:
        self._scope, self._api, self._world = scope, api, world
        self._clock = clock
        self._backoff = Backoff(FIRST_S, LONGEST_S)

    async def run(self) -> None:
        """Until it is cancelled. Never raises: what goes wrong is told, and tried again."""
        while True:
            began = self._clock()
            try:
                version = await self._world.read(self._api, self._scope)
                self._world.sees(self._scope)
                began = self._clock()
                await self._follow(version)
            except Exception as exc:  # a border: other scopes must go on
                if self._clock() - began >= GOOD_S:
                    self._backoff.good()
                wait_s = self._backoff.next_s(getattr(exc, "retry_after_s", 0.0))
                self._missed(exc, wait_s)
            await asyncio.sleep(wait_s)

    async def _follow(self, version: str) -> None:
        """Take events; when the API server ends a watch, go on where it ended."""
        kind, namespace = self._scope
        path = kind.resource.path(namespace)
        while True:
            began = self._clock()
            async for event, body in self._api.watch(
                path, version=version, selector=kind.selector, silence_s=SILENCE_S
            ):
                version = text_at(body, "metadata", "resourceVersion") or version
                if event != "BOOKMARK":
                    self._world.take(kind, event, body)
            if self._clock() - began < FIRST_S:
                raise KubeError("watches end as soon as they begin")

    def _missed(self, exc: Exception, wait_s: float) -> None:
        kind, namespace = self._scope
        why = str(exc) if isinstance(exc, KubeError) else repr(exc)
        self._world.misses(self._scope, why)
        where = f" in namespace {namespace}" if namespace is not None else ""
        logger.warning("%s%s can't be read, again in %.1f s: %s", kind, where, wait_s, why)
