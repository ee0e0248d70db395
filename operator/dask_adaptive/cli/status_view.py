"""Parses AdaptivePolicies and their status once, for all commands that show them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from dask_adaptive.cli.errors import NOTHING, fail
from dask_adaptive.kube.api import POLICIES
from dask_adaptive.kube.status_json import read_status
from dask_adaptive.model.keys import default_group_of
from dask_adaptive.model.policy import InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.scaling import AUTO_S, GroupBounds

if TYPE_CHECKING:
    from dask_adaptive.kube.api import Json, KubeApi

NOT_LOOKED = "the operator has not processed it yet; is it running?"


def most_first(workers: Mapping[str, int]) -> list[str]:
    """Render numbers of workers by reason, the highest first."""
    return [f"{n} {why}" for why, n in sorted(workers.items(), key=lambda row: (-row[1], row[0]))]


class PolicyView:
    """An AdaptivePolicy, with its status."""

    def __init__(self, body: Json) -> None:
        spec, meta, status = body["spec"], body["metadata"], body.get("status")
        self.body = body
        self.namespace: str = meta["namespace"]
        self.name: str = meta["name"]
        self.cluster: str = spec["clusterRef"]["name"]
        self.mode: str = spec.get("mode", "Auto")
        self.rules: Policy | None = None  # None: invalid for this version
        with contextlib.suppress(InvalidPolicy):
            self.rules = parse_policy(spec)
        #: None: the operator has not processed it.
        self.status = read_status(status) if status else None

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Minimum and maximum workers by group, the default one first."""
        return {row.name: (row.minimum, row.maximum) for row in self._rows}

    @property
    def _rows(self) -> tuple[GroupBounds, ...]:
        return self.rules.bounds(default_group_of(self.cluster)) if self.rules else ()

    def idle_s(self, group: str) -> float:
        """Return the idle time after which a worker of a group may leave."""
        fixed = next((row.idle_timeout_s for row in self._rows if row.name == group), 0.0)
        if fixed != AUTO_S:
            return fixed
        auto = self.status.idle_times.get(group) if self.status else None
        return auto.seconds if auto else 0.0


async def list_policies(
    api: KubeApi, namespace: str | None, name: str | None = None, labels: str = ""
) -> list[PolicyView]:
    """List policies by namespace, labels and name: all, or a cluster's. Raises `KubeError`."""
    return views_of(await api.list(POLICIES.path(namespace), selector=labels), name)


def fail_without_policy(namespace: str | None, name: str | None, labels: str = "") -> NoReturn:
    place = f"namespace {namespace}" if namespace else "any namespace"
    these = f" with labels {labels}" if labels else ""
    fail(f"no AdaptivePolicy{these} for {name or 'any cluster'} in {place}", NOTHING)


def views_of(bodies: Iterable[Json], name: str | None = None) -> list[PolicyView]:
    chosen = (p for p in map(PolicyView, bodies) if name in (None, p.name, p.cluster))
    return sorted(chosen, key=lambda p: (p.namespace, p.name))
