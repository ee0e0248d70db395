"""
All that we react to of what people and dask-kubernetes write, as kopf hands it over. A handler only
puts the object into the cache (`World`), which wakes whoever decides about its cluster.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from dask_adaptive.controller.kopf_watch import kopf
from dask_adaptive.kube.cache.world import KINDS, Kind
from dask_adaptive.kube.objects import (
    AutoscalerObject,
    ClusterObject,
    GroupObject,
    PolicyObject,
    Watched,
)

_KINDS = {kind.type: kind for kind in KINDS}


@kopf.on.event("dask-adaptive.dev", "v1alpha1", "adaptivepolicies")
async def policy(**change: Any) -> None:
    _keep(PolicyObject, **change)


@kopf.on.event("kubernetes.dask.org", "v1", "daskclusters")
async def cluster(**change: Any) -> None:
    _keep(ClusterObject, **change)


@kopf.on.event("kubernetes.dask.org", "v1", "daskworkergroups")
async def worker_group(**change: Any) -> None:
    _keep(GroupObject, **change)


@kopf.on.event("kubernetes.dask.org", "v1", "daskautoscalers")
async def autoscaler(**change: Any) -> None:
    _keep(AutoscalerObject, **change)


def _keep(kind: type[Watched], *, event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.world.take(_KINDS[kind], event["type"], event["object"])


@kopf.on.login()
async def login(memo: kopf.Memo, **_: Any) -> kopf.ConnectionInfo:
    """kopf's connections are like those of `memo.api`."""
    found = await memo.api.credentials()
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
        expiration=datetime.now(UTC) + timedelta(minutes=10) if token else None,
    )


def registry_for(kinds: Collection[Kind]) -> kopf.OperatorRegistry:
    """The handlers of these kinds only: by a watch that is forbidden kopf would end."""
    every, readable = kopf.get_default_registry(), kopf.OperatorRegistry()
    readable._activities = every._activities
    named = {kind.resource[:3] for kind in kinds}
    for handler in every._watching.get_all_handlers():
        selector = handler.selector
        if selector and (selector.group, selector.version, selector.any_name) in named:
            readable._watching.append(handler)
    return readable
