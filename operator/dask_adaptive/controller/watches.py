"""kopf's side: which kinds are watched, and how. No handler here decides or writes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import kopf

from dask_adaptive import DOMAIN
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.world import KINDS, Kind, World


def registry_of(world: World, api: KubeApi, kinds: Iterable[Kind]) -> kopf.OperatorRegistry:
    """Handlers that tell the world what changed, over connections like that of `api`."""
    registry = kopf.OperatorRegistry()
    login: Any = kopf.on.login(id="login", registry=registry)
    login(_login(api))
    for kind in kinds:
        resource = kind.resource
        watch: Any = kopf.on.event(
            resource.group,
            resource.version,
            resource.plural,
            id=f"watch-{resource.plural}",
            registry=registry,
        )
        watch(_handler(world, kind))
    return registry


def _login(api: KubeApi) -> Callable[..., Any]:
    async def login(**_: Any) -> kopf.ConnectionInfo:
        found = await api.credentials()
        scheme, _space, token = (found.authorization or "").partition(" ")
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_file,
            insecure=not found.verify,
            scheme=scheme or None,
            token=token or None,
            certificate_path=found.certificate_file,
            private_key_path=found.key_file,
            # Tokens of pods are renewed; a login with a new one must come before the old one ends.
            expiration=datetime.now(timezone.utc) + timedelta(minutes=10) if token else None,
        )

    return login


def _handler(world: World, kind: Kind) -> Callable[..., Any]:
    async def take(event: Mapping[str, Any], **_: Any) -> None:
        world.take(kind, event["type"], event["object"])

    return take


class _NoDiffs(kopf.AnnotationsDiffBaseStorage):
    """
    Spares kopf half of its work: for each event it would copy the object and compare it with what
    was handled last (`_detect_causes`), for handlers of a sort that we have none of.
    """

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> None:
        return None


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
    settings.networking.request_timeout = 30
    # A first list of 50,000 pods must not be in memory at once, nor a task be kept for each.
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 0.5
    for kind in KINDS:
        if kind.selector:
            where = (kind.resource.group, kind.resource.version, kind.resource.plural)
            settings.watching.label_selectors[where] = kind.selector
    return settings
