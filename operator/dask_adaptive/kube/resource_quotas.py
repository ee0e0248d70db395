"""Computes from ResourceQuotas how many more workers a namespace has room for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_adaptive.kube.objects import Meta, OfNoCluster, as_text, parse_meta
from dask_adaptive.kube.worker_pods import Costs, Shape, as_list, thousandths
from dask_adaptive.model.amounts import format_bytes
from dask_adaptive.model.scaling import Room

_ONE = 1000  # thousandths

#: Objects that a worker needs besides its pod, counted once its Deployment exists.
_OBJECTS = frozenset({"count/deployments.apps", "count/replicasets.apps"})

_PODS = frozenset({"pods", "count/pods"})

#: Short for requests.
_BARE = frozenset({"cpu", "memory", "ephemeral-storage"})


@dataclass(frozen=True, slots=True)
class Scope:
    """Selects the pods of a quota; all of its scopes must match."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuotaObject(OfNoCluster):
    """A ResourceQuota by its status, which is what the API server enforces."""

    meta: Meta
    hard: Costs = ()  # by name of the resource, in thousandths
    used: Costs = ()
    scopes: tuple[Scope, ...] = ()

    def counts(self, shape: Shape) -> bool:
        return all(_holds(scope, shape) for scope in self.scopes)


def parse_quota(body: Mapping[str, Any]) -> QuotaObject:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    plain = [Scope(as_text(name)) for name in as_list(spec.get("scopes"))]
    selected = [
        Scope(as_text(t["scopeName"]), as_text(t["operator"]), tuple(as_list(t.get("values"))))
        for t in as_list((spec.get("scopeSelector") or {}).get("matchExpressions"))
    ]
    return QuotaObject(
        parse_meta(body),
        hard=_amounts(status.get("hard")),
        used=_amounts(status.get("used")),
        scopes=(*plain, *selected),
    )


def room(quotas: Iterable[QuotaObject], shape: Shape, unmade: Sequence[Shape] = ()) -> Room | None:
    """
    Return for how many more workers there is room; None if no quota limits them.

    Args:
        shape: Of the pod of one more worker.
        unmade: Of workers that are there, and whose pods are not made yet.
    """
    found = [
        _room(quota, name, hard, shape, unmade)
        for quota in quotas
        if quota.counts(shape)
        for name, hard in quota.hard
    ]
    return min(filter(None, found), key=lambda r: (r.workers, r.message), default=None)


def _room(
    quota: QuotaObject, name: str, hard: int, shape: Shape, unmade: Sequence[Shape]
) -> Room | None:
    each, used = cost(name, shape), dict(quota.used).get(name)
    if not each or used is None:  # not counted yet: the API server refuses everything for a moment
        return None
    unmade_costs = [] if name in _OBJECTS else [cost(name, s) for s in unmade if quota.counts(s)]
    unmade_costs = [one for one in unmade_costs if one]
    workers = max(hard - used - sum(unmade_costs), 0) // each
    has = f"has room for {workers} more" if workers else "has no room for one more"
    message = (
        f"ResourceQuota {quota.meta.name} {has} ({name}: {_amount(name, used)} of"
        f" {_amount(name, hard)} used, one takes {_amount(name, each)}"
    )
    waiting = f", {len(unmade_costs)} still without a pod" if unmade_costs else ""
    return Room(workers, f"{message}{waiting})")


def cost(name: str, shape: Shape) -> int:
    """A worker's cost of a quota's resource, in thousandths."""
    if name in _OBJECTS or name in _PODS:
        return _ONE
    if name in _BARE or name.startswith("hugepages-"):
        name = f"requests.{name}"
    return dict(shape.costs).get(name, 0)


def _holds(scope: Scope, shape: Shape) -> bool:
    """
    True if a scope applies to a pod.

    An unknown scope applies to none: then the API server may refuse a worker, which is noticed.

    Source:
        `podMatchesScopeFunc` of Kubernetes' quota evaluator for pods.
    """
    if scope.name == "PriorityClass":
        return _holds_priority(scope, shape.priority_class)
    return {
        "Terminating": shape.ends,
        "NotTerminating": not shape.ends,
        "BestEffort": shape.best_effort,
        "NotBestEffort": not shape.best_effort,
    }.get(scope.name, False)


def _holds_priority(scope: Scope, name: str) -> bool:
    return {
        "In": name in scope.values,
        "NotIn": name not in scope.values,
        "Exists": bool(name),
        "DoesNotExist": not name,
    }.get(scope.operator, False)


def _amounts(found: Mapping[str, Any] | None) -> Costs:
    return tuple(sorted((str(name), thousandths(text)) for name, text in (found or {}).items()))


def _amount(name: str, amount: int) -> str:
    words = name.split(".")
    if words[-1].startswith(("memory", "ephemeral-storage", "hugepages-")):
        return format_bytes(amount / _ONE)
    return f"{amount / _ONE:g}"
