"""What a pod asks of its namespace's quotas: out of its spec, as Kubernetes counts it. Pure."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

#: (what, in thousandths), by name: "requests.cpu", "limits.memory", "requests.nvidia.com/gpu".
Costs = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a quota has to know of a pod."""

    costs: Costs = ()
    best_effort: bool = True  # asks for no CPU and no memory
    ends: bool = False  # has a deadline
    priority_class: str = ""


NO_SHAPE = Shape()


def shape_of(pod_spec: Mapping[str, Any] | None) -> Shape:
    """The shape of a pod. Those of equal pods are one object, to save memory."""
    spec = pod_spec or {}
    try:
        costs = pod_costs(spec)
    except (AttributeError, TypeError, ValueError, ArithmeticError):
        costs = ()  # of a shape that nobody knows: the API server will say no, if it must
    counted = {name.partition(".")[2] for name, _ in costs}
    return _one_for_all(
        Shape(
            costs,
            best_effort=not counted & {"cpu", "memory"},
            ends=spec.get("activeDeadlineSeconds") is not None,
            priority_class=str(spec.get("priorityClassName") or ""),
        )
    )


def pod_costs(spec: Mapping[str, Any]) -> Costs:
    """
    Requests and limits of a pod.

    Source:
        `PodRequests` of Kubernetes' resource helpers: containers add up; of init containers, which
        run one after the other, the greediest counts, and those that stay on (`restartPolicy:
        Always`) add up with all that come later. A limit is a request where nothing else is said.
    """
    total = _sum(_container(c) for c in spec.get("containers") or ())
    stay: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        own = _container(container)
        if container.get("restartPolicy") == "Always":
            stay += own
            peak |= stay
        else:
            peak |= stay + own
    total = (total + stay) | peak
    total |= _container(spec)  # of the pod as a whole; never less than those of its containers
    total += _overhead(spec)
    return tuple(sorted(total.items()))


def at_least(template: Shape, made: Shape) -> Shape:
    """
    The shape of a pod made of a template, to go by one that was.

    LimitRanges, priority classes and webhooks change pods when they are made.
    """
    most = Counter(dict(template.costs)) | Counter(dict(made.costs))
    return _one_for_all(replace(made, costs=tuple(sorted(most.items()))))


@functools.lru_cache(maxsize=4096)
def thousandths(quantity: Any) -> int:
    """As `SetDefaults_ResourceList` does, rounded up to thousandths."""
    number: Decimal = parse_quantity(quantity)  # type: ignore[no-untyped-call]
    return math.ceil(number * 1000)


def _sum(costs: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in costs:
        total += each
    return total


def _container(body: Mapping[str, Any]) -> Counter[str]:
    resources = body.get("resources") or {}
    limits = {k: thousandths(v) for k, v in (resources.get("limits") or {}).items()}
    requests = {k: thousandths(v) for k, v in (resources.get("requests") or {}).items()}
    found = Counter({f"limits.{name}": number for name, number in limits.items()})
    found.update({f"requests.{name}": number for name, number in {**limits, **requests}.items()})
    return found


def _overhead(spec: Mapping[str, Any]) -> Counter[str]:
    """Of a RuntimeClass, which the API server writes into each pod."""
    overhead = {k: thousandths(v) for k, v in (spec.get("overhead") or {}).items()}
    return Counter({f"requests.{k}": v for k, v in overhead.items()})


@functools.lru_cache(maxsize=1024)
def _one_for_all(made: Shape) -> Shape:
    return made
