"""
Registers kopf's handlers for objects that people and dask-kubernetes write. No handler decides or
writes.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from dask_adaptive.controller.kopf_watch import kopf
from dask_adaptive.kube.cache.world import KINDS, Kind

_KINDS = {kind.resource.plural: kind for kind in KINDS if kind.by_people}


@kopf.on.event("dask-adaptive.dev", "v1alpha1", "adaptivepolicies")
@kopf.on.event("kubernetes.dask.org", "v1", "daskclusters")
@kopf.on.event("kubernetes.dask.org", "v1", "daskworkergroups")
@kopf.on.event("kubernetes.dask.org", "v1", "daskautoscalers")
async def changed(event: Any, resource: kopf.Resource, memo: kopf.Memo, **_: Any) -> None:
    """Put the object into the cache (`World`), which wakes the visitor of its cluster."""
    memo.world.take(_KINDS[resource.plural], event["type"], event["object"])


@kopf.on.login()
async def login(memo: kopf.Memo, **_: Any) -> kopf.ConnectionInfo:
    """Connect kopf as `memo.api` is connected."""
    scheme, _space, token = (await memo.api.authorization()).partition(" ")
    settings = memo.api.configuration
    return kopf.ConnectionInfo(
        server=settings.host,
        ca_path=settings.ssl_ca_cert,
        insecure=not settings.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=settings.cert_file,
        private_key_path=settings.key_file,
        # Pod tokens expire; log in with a new one before the old one ends.
        expiration=datetime.now(UTC) + timedelta(minutes=10) if token else None,
    )


def registry_for(kinds: Collection[Kind]) -> kopf.OperatorRegistry:
    """Return handlers of these kinds only: a forbidden watch would end kopf."""
    every, readable = kopf.get_default_registry(), kopf.OperatorRegistry()
    readable._activities = every._activities
    named = {kind.resource[:3] for kind in kinds}
    for handler in every._watching.get_all_handlers():
        selector = handler.selector
        if selector and (selector.group, selector.version, selector.any_name) in named:
            readable._watching.append(handler)
    return readable
