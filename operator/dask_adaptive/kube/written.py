"""
Who wrote an annotation, and when: out of `metadata.managedFields`. Pure.

dask-kubernetes copies a DaskCluster's annotations to its children when it creates them, and nobody
removes the copies. A copy is told from a person's own annotation by who owns it: the manager who
owns a copy also owns the label `dask.org/component`, which only dask-kubernetes sets, in the same
write. (The ReplicaSet controller makes pods of templates: the same holds there.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask_adaptive.model.pins import read_instant

#: Set by dask-kubernetes on all that it makes: `build_worker_deployment_spec` and its siblings.
_CREATION_LABEL = "f:dask.org/component"

#: In a DaskWorkerGroup: the pod spec of its workers.
_WORKER_SPEC = ("f:spec", "f:worker", "f:spec")


@dataclass(frozen=True, slots=True)
class Writing:
    """The last write of one annotation."""

    at: float | None  # seconds since 1970; None: nobody knows
    at_creation: bool = False  # by who made the object, in the same write


def writing(metadata: Mapping[str, Any], annotation: str) -> Writing:
    """When and how an annotation that an object has was written."""
    name = f"f:{annotation}"
    owners = [
        entry
        for entry in metadata.get("managedFields") or []
        if name in _metadata_fields(entry).get("f:annotations", {})
    ]
    if not owners:
        return Writing(None)
    last = max(owners, key=lambda entry: str(entry.get("time", "")))
    made = _CREATION_LABEL in _metadata_fields(last).get("f:labels", {})
    return Writing(read_instant(str(last.get("time") or "")), made)


def worker_spec_written_at(metadata: Mapping[str, Any]) -> float | None:
    """When the pod spec in a DaskWorkerGroup was last written; None: nobody knows."""
    times = [
        read_instant(str(entry.get("time") or ""))
        for entry in metadata.get("managedFields") or []
        if _owns(entry, _WORKER_SPEC)
    ]
    return max((at for at in times if at is not None), default=None)


def _owns(entry: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    node: Any = entry.get("fieldsV1") or {}
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return False
        node = node[key]
    return True


def _metadata_fields(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = (entry.get("fieldsV1") or {}).get("f:metadata") or {}
    return fields
