"""Which GPUs a pod claims, and which a node has. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

#: Resources one of which is one device, or a slice of one that nobody else gets.
#: Not among them: what device plugins offer by the thousandth (gpu.intel.com/millicores).
GPUS = frozenset({"nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"})
GPU_PREFIXES = ("nvidia.com/mig-",)

#: (resource, number), by name.
Claims = tuple[tuple[str, int], ...]


def gpus_of(pod_spec: Mapping[str, Any] | None) -> Claims:
    """What a pod claims: all its containers together, or the greediest of its init containers."""
    spec = pod_spec or {}
    total: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        total.update(dict(gpus_in((container.get("resources") or {}).get("limits"))))
    for container in spec.get("initContainers") or ():
        for name, number in gpus_in((container.get("resources") or {}).get("limits")):
            total[name] = max(total[name], number)
    return tuple(sorted(total.items()))


def gpus_in(resources: Mapping[str, Any] | None) -> Claims:
    """The GPUs in a list of resources. They come whole: Kubernetes refuses parts of them."""
    found = ((str(name), str(number)) for name, number in (resources or {}).items())
    return tuple(sorted((n, int(number)) for n, number in found if _is_gpu(n) and number.isdigit()))


def _is_gpu(name: str) -> bool:
    return name in GPUS or name.startswith(GPU_PREFIXES)


def at_most(claims: Iterable[Claims]) -> dict[str, int]:
    """The most of each resource that one of them claims."""
    most: dict[str, int] = {}
    for claim in claims:
        for name, number in claim:
            most[name] = max(most.get(name, 0), number)
    return most
