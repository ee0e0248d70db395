"""How the names and addresses of Dask workers tell whose they are. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from dask_adaptive.model.observed import SchedulerWorker

#: `dask worker --nworkers 2 --name x` makes the workers x-0 and x-1 (facts 9b).
_PROCESS_SUFFIX = re.compile(r"-\d+$")


def owner(
    process: SchedulerWorker, names: Collection[str], by_address: Mapping[str, str]
) -> str | None:
    """The platform's worker that a Dask worker runs in: by name, by stem, by address, or None."""
    return named(process.name, names) or by_address.get(host(process))


def named(dask_name: str, names: Collection[str]) -> str | None:
    """The platform's worker that a Dask worker is named after."""
    if dask_name in names:
        return dask_name
    stem = _PROCESS_SUFFIX.sub("", dask_name)
    return stem if stem in names else None


def host(process: SchedulerWorker) -> str:
    """`tcp://10.0.0.7:4321` → `10.0.0.7`."""
    address = process.address or process.name
    return address.rpartition("//")[2].rpartition(":")[0].strip("[]")
