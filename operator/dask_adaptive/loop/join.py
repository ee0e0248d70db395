"""Join what the platform knows with what the scheduler knows: one `ObservedCluster`. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    Leaving,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
    Pin,
    PlatformView,
    PlatformWorker,
    SchedulerWorker,
)

#: `dask worker --nworkers 2 --name x` makes the workers x-0 and x-1 (facts 9b).
_PROCESS_SUFFIX = re.compile(r"-\d+$")

#: Statuses of a worker that nobody is closing.
_IN_SERVICE = frozenset({"running", "paused", "init"})


def join(key: ClusterKey, view: PlatformView, scheduler: ObservedScheduler) -> ObservedCluster:
    """
    Match Dask workers to the platform's workers.

    By name first; then by name less the process number; then by address (workers started without
    `--name` have their address as name). What matches nothing is a stranger: it is counted in the
    load, and never touched.
    """
    processes, strangers = _match(view.workers, scheduler.workers)
    workers = defaultdict(list)
    for worker in view.workers:
        workers[worker.group].append(_joined(worker, processes.get(worker.name, ())))
    return ObservedCluster(
        key=key,
        found=view.found,
        conflict=view.conflict,
        groups=tuple(
            ObservedGroup(g.name, g.replicas, tuple(workers[g.name])) for g in view.groups
        ),
        scheduler=scheduler,
        strangers=strangers,
    )


def _match(
    workers: Iterable[PlatformWorker], processes: Iterable[SchedulerWorker]
) -> tuple[Mapping[str, Sequence[SchedulerWorker]], tuple[str, ...]]:
    names = {w.name for w in workers}
    by_address = {ip: w.name for w in workers for ip in w.addresses}
    matched: dict[str, list[SchedulerWorker]] = defaultdict(list)
    strangers = []
    for process in processes:
        name = _owner(process, names, by_address)
        if name is None:
            strangers.append(process.name)
        else:
            matched[name].append(process)
    return matched, tuple(strangers)


def _owner(process: SchedulerWorker, names: set[str], by_address: Mapping[str, str]) -> str | None:
    if process.name in names:
        return process.name
    stem = _PROCESS_SUFFIX.sub("", process.name)
    if stem in names:
        return stem
    return by_address.get(_host(process.address or process.name))


def _host(address: str) -> str:
    """`tcp://10.0.0.7:4321` → `10.0.0.7`."""
    return address.rpartition("//")[2].rpartition(":")[0].strip("[]")


def _joined(worker: PlatformWorker, processes: Sequence[SchedulerWorker]) -> ObservedWorker:
    return ObservedWorker(
        name=worker.name,
        uid=worker.uid,
        group=worker.group,
        age_s=worker.age_s,
        dask_names=tuple(sorted(p.name for p in processes)),
        going=worker.going,
        pod=worker.pod,
        waiting=worker.waiting,
        processing=sum(p.processing for p in processes),
        idle_s=min((p.idle_s for p in processes), default=0.0),
        sole_bytes=sum(p.sole_bytes for p in processes),
        closable=bool(processes) and all(p.closable for p in processes),
        actors=any(p.actors for p in processes),
        in_service=all(p.status in _IN_SERVICE for p in processes),
        pins=_distinct(p.pins for p in processes),
        manual_pin=worker.manual_pin,
        leaving=_leaving(processes),
        leaving_message="; ".join(sorted({p.leaving_message for p in processes} - {""})),
    )


def _leaving(processes: Sequence[SchedulerWorker]) -> Leaving:
    states = {p.leaving for p in processes}
    if states == {Leaving.DRAINED}:
        return Leaving.DRAINED
    return Leaving.NO if states <= {Leaving.NO} else Leaving.DRAINING


def _distinct(pins: Iterable[tuple[Pin, ...]]) -> tuple[Pin, ...]:
    """Pins of all processes, one of each owner: the longest."""
    longest: dict[tuple[str, str], Pin] = {}
    for pin in (p for each in pins for p in each):
        known = longest.get((pin.source, pin.owner))
        if known is None or known.left_s < pin.left_s:
            longest[pin.source, pin.owner] = pin
    return tuple(longest.values())
