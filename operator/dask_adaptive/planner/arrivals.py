"""How long workers take to come, measured: from their Deployment to their connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.recycle import RecyclePast

#: One that connects so long after it was made had other reasons than being slow to start.
TOO_LONG_S = 3600.0

#: So much of the number is what the newest worker took: asked for too late, a replacement costs
#: capacity or lets quotas be overrun; asked for early it only costs its own idle seconds.
SLOWER, FASTER = 0.6, 0.15

#: What passes before the Deployment is made, and after its worker has connected: a pass of ours,
#: upstream's turn, another pass.
OVERHEAD_S = 3.0

#: What is assumed where nothing was measured (`RecyclePast.ready_s`).
ASSUMED_S = RecyclePast().ready_s

_Known = TypeVar("_Known", float, "float | None")


def arrival_s(known_s: _Known, past: Past, workers: Iterable[ObservedWorker]) -> _Known:
    """
    How long until a worker that is asked for serves; only first pods that were waited for count.

    Args:
        known_s: What was measured so far; None: nothing was.
        workers: Those that the number is about.
    """
    if not past.seen:
        return known_s
    for worker in workers:
        if worker.is_connected and worker.name not in past.seen and worker.age_s < TOO_LONG_S:
            took_s = worker.age_s + OVERHEAD_S
            if known_s is None:
                known_s = took_s
            else:
                known_s += (SLOWER if took_s > known_s else FASTER) * (took_s - known_s)
    return known_s


def at_least(known_s: float | None, past: Past, workers: Iterable[ObservedWorker]) -> float | None:
    """
    The same, and no less than those on their way have taken already.

    Workers that take longer than anybody has measured would otherwise be given up again and again
    before the first of them has come.
    """
    ages = [w.age_s for w in workers if _is_first_start(w, past) and w.age_s < TOO_LONG_S]
    longest_s = max(ages, default=0.0) + OVERHEAD_S
    return longest_s if longest_s > (ASSUMED_S if known_s is None else known_s) else known_s


def _is_first_start(worker: ObservedWorker, past: Past) -> bool:
    is_on_its_way = not (worker.is_connected or worker.going or worker.name in past.seen)
    return is_on_its_way and not (worker.refused or worker.unschedulable_s)
