"""Which workers are alike. Nobody tells a scheduler of worker groups: resources and names do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: What tells a worker from others of its group: dask-kubernetes' `-worker-0123456789`, or a number
#: (`SLURMCluster-3`), each with that of a process (`--nworkers`); and that it leaves its name.
OWN_PART = re.compile(r"(-worker-\w+(-\d+)?|[-_. \d]+)?( \(leaving\))?$")


class Group(NamedTuple):
    """Workers of one are likely to have the same hardware, image and environment."""

    stem: str  # of their names; with dask-kubernetes the name of their DaskWorkerGroup
    resources: frozenset[tuple[str, float]]


def group_of(ws: WorkerState) -> Group:
    name = "" if ws.name == ws.address else str(ws.name)
    return Group(OWN_PART.sub("", name, count=1), frozenset(ws.resources.items()))
