"""Figures as people read them, and names as people give them; what these say of workers."""

from __future__ import annotations

import re
from typing import NamedTuple

from distributed.scheduler import WorkerState

#: `dask worker --nworkers` names its processes so, after their common name.
PROCESS = re.compile(r"-\d{1,3}\Z")

#: What tells a worker from others of its group: dask-kubernetes' `-worker-0123456789`, or a number
#: (`SLURMCluster-3`), each with that of a process (`--nworkers`); and that it leaves its name.
OWN_PART = re.compile(r"(-worker-\w+(-\d+)?|[-_. \d]+)?( \(leaving\))?$")


def common_name(own: str) -> str:
    """The name that a worker called `own` was started under, if it is one of several processes."""
    return PROCESS.sub("", own)


class Group(NamedTuple):
    """Workers of one are likely to have the same hardware, image and environment."""

    stem: str  # of their names; with dask-kubernetes the name of their DaskWorkerGroup
    resources: frozenset[tuple[str, float]]


def group_of(ws: WorkerState) -> Group:
    name = "" if ws.name == ws.address else str(ws.name)
    return Group(OWN_PART.sub("", name, count=1), frozenset(ws.resources.items()))


def duration(seconds: float) -> str:
    """Short and exact enough to decide by: 95 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def size_of(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def plural(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
