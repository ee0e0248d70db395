"""
Runs kopf and restarts it when it fails. kopf ends as a whole on an unknown error in one stream
(nolar/kopf#1276), and some of its streams end silently, so its scopes are also listed here. Once
that is fixed upstream, `kopf.operator()` can replace `KopfWatch`.
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
    """Hide modules while kopf is imported: it would load 67 MiB of models to compare with."""
    fresh = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(fresh))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in fresh:
            del sys.modules[name]


with _hidden("kubernetes.client", "kubernetes_asyncio.client"):
    import kopf as kopf  # for handlers.py, too

# kopf's default login would import a Kubernetes client of 10 MiB.
kopf.set_default_registry(kopf.OperatorRegistry())

#: Interval of checks whether kopf's scopes can still be read.
LOOK_S = 30.0

#: Time that kopf has to end.
_END_S = 5.0


class _NoDiffs(kopf.AnnotationsDiffBaseStorage):
    """
    Disables kopf's diffs. For each event it would copy and compare the object (`_detect_causes`),
    1 ms for a policy with a long status, for kinds of handlers that we do not use.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()


def kopf_settings() -> kopf.OperatorSettings:
    """
    Settings under which kopf only watches.

    With `on.event` alone it writes no finalizers or annotations. Their names are set nevertheless,
    so that we can never collide with dask-kubernetes' own kopf.
    """
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # needs no right to watch CRDs and namespaces
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{DOMAIN}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=DOMAIN)
    settings.persistence.diffbase_storage = _NoDiffs(prefix=DOMAIN)
    # A connection can die silently; see kopf#204 and kopf#698.
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = SILENCE_S
    settings.networking.request_timeout = 30
    settings.queueing.idle_timeout = 0.5
    return settings


class KopfWatch:
    """
    Runs kopf in one namespace, or in all (None). Its failures do not affect other namespaces.

    Args:
        registry_for: Returns the handlers of some kinds.
        began: Called once kopf has started, because it takes over signals.
        resync_s: Full resync interval.
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
        """Run until cancelled. Never raises: failures are reported and retried."""
        await begun_anew("kopf", self._serve, first_s=FIRST_S, longest_s=LONGEST_S)

    async def _serve(self) -> None:
        """Serve until something fails, and raise it. Forbidden optional kinds are left out."""
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
        """Run kopf in a task of its own, because it finds its login through the context."""
        # Not kopf.operator(): at its end it cancels every task of the event loop.
        tasks = await kopf.spawn_tasks(
            registry=self._registry_for(kinds),
            memo=kopf.Memo(api=self._api, world=self._world),
            settings=kopf_settings(),
            standalone=True,
            clusterwide=self._namespace is None,
            namespaces=[] if self._namespace is None else [self._namespace],
        )
        self._began()
        # Bounded: tasks of kopf may wait for each other forever.
        await until_one_ends(*tasks, within_s=_END_S)
        raise KubeError("kopf ended without a reason")

    async def _look_after(self, readable: Collection[Scope]) -> None:
        """
        Check that kopf's scopes can be read, and list them now and then to find missed changes.
        Raises if kopf must restart to watch a scope that has become readable.
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
                    # It worked before, so retry without a long wait.
                    wait_s = wait_s if is_new else min(wait_s, backoff.next_s())
                elif is_new:
                    raise KubeError(f"{scope[0]} can be read now")
            if wait_s == LOOK_S:
                backoff.good()

    async def _can_read(self, scope: Scope, *, whole: bool) -> bool:
        """True if a scope can be listed; marks it in the world."""
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
