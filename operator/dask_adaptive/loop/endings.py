"""Which Dask workers are in pods that are being deleted. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dask_adaptive.loop.names import host, named
from dask_adaptive.model.observed import Ending, PlatformView, SchedulerWorker

#: What is said of a process in such a pod until the scheduler says more.
_UNTOLD = "the scheduler has not been told yet"


def find_endings(
    view: PlatformView, processes: Sequence[SchedulerWorker]
) -> tuple[tuple[Ending, ...], tuple[SchedulerWorker, ...]]:
    """
    Match Dask workers to the pods that are being deleted.

    Returns:
        The endings, with the Dask workers that are still connected and what the scheduler knows of
        their time; and all processes, those in such pods marked as departing.
    """
    if not view.ending:
        return (), tuple(processes)
    by_host: dict[str, list[SchedulerWorker]] = defaultdict(list)
    for process in processes:
        by_host[host(process)].append(process)
    found, inside = [], set[str]()
    for ending in view.ending:
        mine = _inside(ending, view, processes, by_host)
        inside |= {p.address for p in mine}
        told_left_s = max((p.departing_left_s for p in mine), default=math.inf)
        names = tuple(sorted(p.address for p in mine))
        found.append(replace(ending, dask_names=names, told_left_s=told_left_s))
    marked = tuple(
        replace(p, departing=_UNTOLD) if p.address in inside and not p.departing else p
        for p in processes
    )
    return tuple(found), marked


def _inside(
    ending: Ending,
    view: PlatformView,
    processes: Iterable[SchedulerWorker],
    by_host: Mapping[str, Sequence[SchedulerWorker]],
) -> list[SchedulerWorker]:
    if ending.addresses:
        return [p for ip in ending.addresses for p in by_host.get(ip, ())]
    # Pods that share an IP (hostNetwork) are told apart by name, as long as the process of that
    # name cannot be the replacement's.
    mine = [p for p in processes if named(p.name, (ending.worker,))]
    if _may_have_a_replacement(ending, view):
        return [p for p in mine if p.departing]
    return mine


def _may_have_a_replacement(ending: Ending, view: PlatformView) -> bool:
    return any(
        w.name == ending.worker and w.pod != ending.pod and not w.waiting and not w.going
        for w in view.workers
    )
