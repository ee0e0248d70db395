"""Names objects. Keys are built once at the edge and passed around whole."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

#: How the name of a cluster's first group ends.
DEFAULT = "-default"


def default_group_of(cluster: str) -> str:
    """Return the worker group that dask-kubernetes creates for every cluster."""
    return cluster + DEFAULT


def hashed(name: str) -> str:
    """Return an opaque name, stable for each name; empty and "…" stay."""
    if name in ("", "…"):
        return name
    return hashlib.blake2s(name.encode(), digest_size=5).hexdigest()


class ClusterKey(NamedTuple):
    """A DaskCluster; also the key of every task, cache and history about it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def default_group(self) -> str:
        return default_group_of(self.name)
