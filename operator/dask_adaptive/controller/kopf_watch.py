"""
kopf, imported, set and watched over. It ends as a whole when one of its streams meets an error that
it does not know (nolar/kopf#1276), and some of its streams end without a word: so it is begun anew,
and what it watches is looked at beside it. With that mended, `kopf.operator()` can take the place
of `KopfWatch`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.backoff import Backoff, begun_anew, error_text, until_one_ends
from dask_adaptive.kube.api import SILENCE_S, KubeApi, KubeError
from dask_adaptive.kube.cache.informer import FIRST_S, LONGEST_S
from dask_adaptive.kube.cache.world import Kind, Scope, World


@contextmanager
def _hidden(*modules: str) -> Iterator[None]:
    """While kopf is imported: it would load thousands of models, 67 MiB, to compare with them."""
    fresh = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(fresh))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in fresh:
            del sys.modules[name]


with _hidden("kubernetes.client", "kubernetes_asyncio.client"):
    import kopf as kopf  # for handlers.py, too

# kopf's own default would import a client of Kubernetes, 10 MiB, to see whether it can log in.
kopf.set_default_registry(kopf.OperatorRegistry())

#: How often it is looked whether what kopf watches can still be read.
LOOK_S = 30.0

#: How long kopf may take to end.
_END_S = 5.0


class _NoDiffs(kopf.AnnotationsDiffBaseStorage):
    """
    Spares kopf half of its work: for each event it would copy the object, which takes 1 ms for a
    policy with a long status, to compare it with what was handled last (`_detect_causes`); that is
    for handlers of a sort that we have none of.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()


def kopf_settings() -> kopf.OperatorSettings:
    """
    Settings under which kopf only watches.

    With `on.event` alone it writes nothing: no finalizers, no annotations. The names are set all
    the same, so that no change here can ever make us collide with dask-kubernetes' own kopf.
    """
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # needs no right to watch CRDs and namespaces
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{DOMAIN}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=DOMAIN)
    settings.persistence.diffbase_storage = _NoDiffs(prefix=DOMAIN)
    # A connection can die without a word; see kopf#204 and kopf#698.
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = SILENCE_S
    settings.networking.request_timeout = 30
    settings.queueing.idle_timeout = 0.5
    return settings


class KopfWatch:
    """
    kopf in one namespace, or in all (None). What can't be read there concerns no other.

    Args:
        registry_for: Returns the handlers of some kinds.
        began: Called when kopf has begun: it takes signals for itself.
        resync_s: How often all is listed again, against what watches miss.
    """

    def __init__(
        self, scopes: Collection[Scope], *, api: KubeApi, world: World,
        registry_for: Callable[[Collection[Kind]], kopf.OperatorRegistry],
        began: Callable[[], None] = lambda: None, resync_s: float = 300.0,
    ) -> None:  # fmt: skip
        self._scopes, self._api, self._world = scopes, api, world
        self._registry_for, self._began, self._resync_s = registry_for, began, resync_s
        (self._namespace,) = {namespace for _, namespace in scopes}

    async def run(self) -> None:
        """Until it is cancelled. Never raises: what goes wrong is told, and tried again."""
        await begun_anew("kopf", self._serve, first_s=FIRST_S, longest_s=LONGEST_S)

    async def _serve(self) -> None:
        """Until something is wrong: raises it. What is optional, and forbidden, is left out."""
        readable = [scope for scope in self._scopes if await self._can_read(scope, whole=True)]
        for kind, _ in set(self._scopes) - set(readable):
            if not kind.lost:
                raise KubeError(f"{kind} can't be read")
        watching = self._watch([kind for kind, _ in readable])
        try:
            await until_one_ends(watching, self._look_after(readable), within_s=2 * _END_S)
        except Exception as exc:
            for scope in readable:
                self._world.misses(scope, error_text(exc))
            raise

    async def _watch(self, kinds: Collection[Kind]) -> None:
        """Run kopf. In a task of its own: its login is found by way of the context."""
        # Not kopf.operator(): when that ends, it cancels every task of the loop that it finds.
        tasks = await kopf.spawn_tasks(
            registry=self._registry_for(kinds),
            memo=kopf.Memo(api=self._api, world=self._world),
            settings=kopf_settings(),
            standalone=True,
            clusterwide=self._namespace is None,
            namespaces=[] if self._namespace is None else [self._namespace],
        )
        self._began()
        # Bounded: tasks of kopf's wait for each other, and may do so for ever.
        await until_one_ends(*tasks, within_s=_END_S)
        raise KubeError("kopf ended without a reason")

    async def _look_after(self, readable: Collection[Scope]) -> None:
        """
        Look whether what kopf watches can be read, and now and then whether it has missed anything.
        Raises when kopf has to begin anew, to watch what can be read by now.
        """
        clock = asyncio.get_running_loop().time
        listed_at, wait_s, backoff = clock(), LOOK_S, Backoff(FIRST_S, LOOK_S)
        while True:
            await asyncio.sleep(wait_s)
            is_due = clock() - listed_at >= self._resync_s
            listed_at, wait_s = clock() if is_due else listed_at, LOOK_S
            for scope in self._scopes:
                is_new = scope not in readable
                if not await self._can_read(scope, whole=is_due or is_new):
                    # One that was well may be so again at once: it is no reason to wait for long.
                    wait_s = wait_s if is_new else min(wait_s, backoff.next_s())
                elif is_new:
                    raise KubeError(f"{scope[0]} can be read by now")
            if wait_s == LOOK_S:
                backoff.good()

    async def _can_read(self, scope: Scope, *, whole: bool) -> bool:
        """True if a scope can be listed; the world is informed."""
        kind, namespace = scope
        try:
            if whole:
                await self._world.read(self._api, scope)
            else:
                await self._api.get(kind.resource.path(namespace), {"limit": "1"})
        except KubeError as exc:
            self._world.misses(scope, str(exc))
            return False
        self._world.sees(scope)
        return True
