"""
Joins the platform's view and the scheduler's into one `ObservedCluster`, and finds the Dask workers
in pods that are being deleted. Pure.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from operator import is_

from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    NOBODY,
    Closing,
    Cordon,
    Deleting,
    Lifecycle,
    ObservedCluster,
    ObservedScheduler,
    ObservedWorker,
    Pending,
    Pin,
    PlacedCluster,
    PlatformView,
    PlatformWorker,
    Retiring,
    SchedulerWorker,
    Serving,
    TerminatingPod,
    WorkerTable,
    differing,
)
from dask_adaptive.model.recycle import UNUSED, LifetimeQuota, Use
from dask_adaptive.planner.quotas import at_walltime

#: `dask worker --nworkers 2 --name x` makes the workers x-0 and x-1.
_PROCESS_SUFFIX = re.compile(r"-\d+$")


def owner(
    process: SchedulerWorker, names: Collection[str], by_address: Mapping[str, str]
) -> str | None:
    """Find the worker that a Dask worker runs in: by name, stem or address, else None."""
    return named(process.name, names) or by_address.get(host(process))


def named(dask_name: str, names: Collection[str]) -> str | None:
    """Find the platform's worker that a Dask worker is named after."""
    if dask_name in names:
        return dask_name
    stem = _PROCESS_SUFFIX.sub("", dask_name)
    return stem if stem in names else None


def owner_in(observed: ObservedCluster, dask_name: str) -> str | None:
    """Find the worker that a Dask worker runs in, or is named after."""
    for group in observed.groups:
        if (worker := group.table.owners.get(dask_name)) is not None:
            return worker
    stem = _PROCESS_SUFFIX.sub("", dask_name)
    return next((name for name in (dask_name, stem) if observed.worker(name)), None)


def host(process: SchedulerWorker) -> str:
    """`tcp://10.0.0.7:4321` → `10.0.0.7`."""
    address = process.address or process.name
    return address.rpartition("//")[2].rpartition(":")[0].strip("[]")


#: Message for a process in such a pod until the scheduler reports more.
_UNTOLD = "the scheduler has not been informed yet"

PENDING, SERVING, CLOSING, DELETING = Pending(), Serving(), Closing(), Deleting()

NO_WORKERS = WorkerTable()

#: The fields that a cluster has before and after it is joined.
_PLACE_OF_CLUSTER = tuple(field.name for field in fields(PlacedCluster))

#: Statuses of a worker that nobody is closing.
_IN_SERVICE = frozenset({"running", "paused", "init"})


#: By group.
Walltimes = Mapping[str, LifetimeQuota]

NO_WALLTIMES: Walltimes = {}


def find_terminating(
    view: PlatformView, scheduler: ObservedScheduler
) -> tuple[tuple[TerminatingPod, ...], tuple[SchedulerWorker, ...]]:
    """
    Match Dask workers to the pods that are being deleted.

    Returns:
        The terminating pods, each with its connected Dask workers and the time that the scheduler
        gives them; and all processes, those in such pods marked as terminating.
    """
    processes = scheduler.workers
    if not view.terminating:
        return (), processes
    by_host: dict[str, list[SchedulerWorker]] = defaultdict(list)
    for process in processes:
        by_host[host(process)].append(process)
    found, inside = [], set[str]()
    for pod in view.terminating:
        mine = _inside(pod, view, processes, by_host)
        inside |= {p.address for p in mine}
        known_left_s = max((p.terminates_at - scheduler.at for p in mine), default=math.inf)
        names = tuple(sorted(p.address for p in mine))
        found.append(replace(pod, dask_names=names, known_left_s=max(0.0, known_left_s)))
    marked = tuple(
        replace(p, terminating=_UNTOLD) if p.address in inside and not p.terminating else p
        for p in processes
    )
    return tuple(found), marked


def _inside(
    pod: TerminatingPod,
    view: PlatformView,
    processes: Iterable[SchedulerWorker],
    by_host: Mapping[str, Sequence[SchedulerWorker]],
) -> list[SchedulerWorker]:
    if pod.addresses:
        return [p for ip in pod.addresses for p in by_host.get(ip, ())]
    # Pods that share an IP (hostNetwork) are told apart by name, as long as the process of that
    # name cannot be the replacement's.
    mine = [p for p in processes if named(p.name, (pod.worker,))]
    if any(  # it may have a replacement already
        w.name == pod.worker and w.pod != pod.pod and not w.waiting and not w.deleting
        for w in view.workers
    ):
        return [p for p in mine if p.terminating]
    return mine


def join(
    key: ClusterKey,
    view: PlatformView,
    scheduler: ObservedScheduler,
    joined: JoinedWorkers | None = None,
    walltimes: Walltimes = NO_WALLTIMES,
) -> ObservedCluster:
    """
    Match Dask workers to the platform's workers.

    By name first; then by name less the process number; then by address (workers started without
    `--name` have their address as name). A Dask worker without a match is a stranger: it counts for
    the load, and is never touched.

    A terminating process is neither: its worker waits for the next process, which starts by itself.

    Args:
        joined: Cache of earlier joins of this cluster; it does not affect the result.
        walltimes: Of groups whose workers end at their `recycle.lifetime.max`.
    """
    joined = joined or JoinedWorkers()
    terminating, seen = find_terminating(view, scheduler)
    workers = joined.join(view.workers, seen, terminating, walltimes)
    return ObservedCluster(
        **{name: getattr(view, name) for name in _PLACE_OF_CLUSTER},
        key=key,
        groups=tuple(replace(g, workers=workers.get(g.name, ())) for g in view.groups),
        scheduler=replace(scheduler, workers=seen) if terminating else scheduler,
        strangers=joined.strangers,
        terminating=terminating,
    )


Workers = Sequence[PlatformWorker]
Processes = Sequence[SchedulerWorker]


class JoinedWorkers:
    """
    Cache of one cluster's joined workers. A worker whose parts have not changed stays the same
    object, so that later stages can skip it by identity.
    """

    def __init__(self) -> None:
        self.strangers: tuple[str, ...] = ()
        self._parts: tuple[Workers, Processes] | None = None
        self._owners: list[str | None] = []  # of the processes, in their order
        self._made: dict[str, tuple[PlatformWorker, Processes, ObservedWorker]] = {}
        self._groups: Mapping[str, WorkerTable] = {}
        self._walltimes = NO_WALLTIMES

    def join(
        self, workers: Workers, processes: Processes, terminating: Sequence[TerminatingPod],
        walltimes: Walltimes,
    ) -> Mapping[str, WorkerTable]:  # fmt: skip
        """Return the workers of each group, in the order of the platform."""
        before, self._parts = self._parts, None  # until all are joined
        if walltimes != self._walltimes:
            before, self._made, self._walltimes = None, {}, walltimes
        is_calm = not terminating
        if not (is_calm and before and self._has_replaced(*before, workers, processes)):
            ending = [p for p in processes if p.terminating]
            self._match(workers, [p for p in processes if not p.terminating], ending, terminating)
            is_calm = is_calm and not ending
        self._parts = (workers, processes) if is_calm else None
        return self._groups

    def _has_replaced(
        self, known: Workers, before: Processes, workers: Workers, processes: Processes
    ) -> bool:
        """Re-join only workers that have changed, if none has come, gone or moved."""
        if len(known) != len(workers) or len(before) != len(processes):
            return False
        placed = [(known[i], workers[i]) for i in differing(known, workers)]
        changed = [(self._owners[i], before[i], processes[i]) for i in differing(before, processes)]
        if any(_place_of(a) != _place_of(b) for a, b in placed):
            return False
        if any(a.name != b.name or a.address != b.address or b.terminating for _, a, b in changed):
            return False
        parts = {new.name: (new, self._made[new.name][1]) for _, new in placed}
        for name, old, new in changed:
            if name is not None:
                worker, several = parts.get(name) or self._made[name][:2]
                parts[name] = worker, [new if p is old else p for p in several]
        groups: dict[str, list[ObservedWorker]] = {}
        for name, (worker, mine) in parts.items():
            joined = self._joined(worker, mine)
            self._made[name] = worker, mine, joined
            table = self._groups[worker.group]
            groups.setdefault(worker.group, list(table))[table.positions[name]] = joined
        self._keep(groups)
        return True

    def _match(
        self, workers: Workers, processes: Processes, ending: Processes,
        terminating: Sequence[TerminatingPod],
    ) -> None:  # fmt: skip
        before, self._made, self._owners = self._made, {}, []
        names = {w.name for w in workers}
        by_address = {ip: w.name for w in workers for ip in w.addresses}
        matched: dict[str, list[SchedulerWorker]] = defaultdict(list)
        strangers = []
        for process in processes:
            name = process.name if process.name in names else owner(process, names, by_address)
            if name is None:
                strangers.append(process.name)
            else:
                matched[name].append(process)
            self._owners.append(name)
        self.strangers = tuple(strangers)
        messages = _terminating_messages(workers, terminating, ending)
        pods = {e.pod for e in terminating}
        for worker in workers:
            name, mine = worker.name, matched.get(worker.name, ())
            known, is_going = before.get(name), name in messages or worker.pod in pods
            if known is None or known[0] is not worker or is_going or not _are_same(known[1], mine):
                placed = worker
                if worker.pod in pods:  # the next pod is on its way, and on another node
                    placed = replace(worker, node="", node_terminating="")
                joined = self._joined(placed, mine, messages.get(name, ""))
                # A terminating worker is never cached, so that it is re-joined afterwards.
                known = worker, (NOBODY,) if is_going else mine, joined
            self._made[name] = known
        groups = defaultdict[str, list[ObservedWorker]](list)
        for worker, _, joined in self._made.values():
            groups[worker.group].append(joined)
        self._groups = {name: self._groups.get(name, NO_WORKERS) for name in groups}
        self._keep(groups)

    def _keep(self, groups: Mapping[str, Sequence[ObservedWorker]]) -> None:
        tables = {name: self._groups[name].after(rows) for name, rows in groups.items()}
        self._groups = {**self._groups, **tables}

    def _joined(
        self, worker: PlatformWorker, processes: Processes, terminating: str = ""
    ) -> ObservedWorker:
        joined = _joined(worker, processes, terminating)
        lifetime = self._walltimes.get(worker.group)
        return joined if lifetime is None else at_walltime(joined, lifetime)


def _place_of(worker: PlatformWorker) -> tuple[object, ...]:
    return worker.name, worker.group, worker.addresses


def _are_same(before: Processes, now: Processes) -> bool:
    return len(before) == len(now) and all(map(is_, before, now))


def _terminating_messages(
    workers: Iterable[PlatformWorker],
    terminating: Iterable[TerminatingPod],
    processes: Sequence[SchedulerWorker],
) -> Mapping[str, str]:
    """Return by worker why its terminating processes have not ended yet."""
    if not processes:
        return {}
    names = {w.name for w in workers}
    in_pods = {address: e.worker for e in terminating for address in e.dask_names}
    messages: dict[str, set[str]] = defaultdict(set)
    for process in processes:
        name = in_pods.get(process.address) or owner(process, names, {})
        if name is not None:
            messages[name].add(process.terminating)
    return {name: "; ".join(sorted(said)) for name, said in messages.items()}


def _lifecycle_of(
    worker: PlatformWorker, processes: Sequence[SchedulerWorker], terminating: str
) -> Lifecycle:
    if worker.deleting:
        return DELETING
    if not processes:
        return Pending(terminating) if terminating else PENDING
    if any(p.retiring for p in processes):
        return _retiring(processes)
    is_serving = all(p.status in _IN_SERVICE or p.is_cordoned for p in processes)
    return SERVING if is_serving else CLOSING


def _joined(worker: PlatformWorker, processes: Processes, terminating: str = "") -> ObservedWorker:
    # A new operator joins all workers here, nearly all with one process: be quick.
    alone = len(processes) == 1 and len(processes[0].pins) < 2
    return ObservedWorker(
        worker.name,
        worker,
        process=processes[0] if alone else _as_one(processes),
        dask_names=(processes[0].name,) if alone else tuple(sorted(p.name for p in processes)),
        lifecycle=_lifecycle_of(worker, processes, terminating),
    )


def _as_one(processes: Sequence[SchedulerWorker]) -> SchedulerWorker:
    """Merge the processes of one worker, which come and go together."""
    if not processes:
        return NOBODY
    return SchedulerWorker(
        name=processes[0].name,
        address=processes[0].address,
        status="paused" if all(p.is_paused for p in processes) else "running",
        nthreads=sum(p.nthreads for p in processes),
        joined_at=processes[0].joined_at,
        processing=sum(p.processing for p in processes),
        idle_since=max(p.idle_since for p in processes),
        sole_bytes=sum(p.sole_bytes for p in processes),
        closable=all(p.closable for p in processes),
        actors=any(p.actors for p in processes),
        pins=_distinct(p.pins for p in processes),
        use=highest(p.use for p in processes),
        lifetime_ends_at=min(p.lifetime_ends_at for p in processes),
        cordon=_cordon(processes),
        too_short=any(p.too_short for p in processes),
        stuck=sum(p.stuck for p in processes),
    )


def _cordon(processes: Sequence[SchedulerWorker]) -> Cordon | None:
    cordons = [p.cordon for p in processes if p.cordon is not None]
    if not cordons:
        return None
    return Cordon(cordons[0].quota, _texts_of(c.message for c in cordons))


def _texts_of(texts: Iterable[str]) -> str:
    return "; ".join(sorted(set(texts) - {""}))


def highest(uses: Iterable[Use]) -> Use:
    """Take the highest figures of a pod's processes: the pod is replaced as a whole."""
    distinct = [use for use in uses if use is not UNUSED]
    if len(distinct) < 2:
        return distinct[0] if distinct else UNUSED
    most = {field.name: max(getattr(u, field.name) for u in distinct) for field in fields(Use)}
    return Use(**{**most, "match": _texts_of(u.match for u in distinct)})


def _retiring(processes: Sequence[SchedulerWorker]) -> Retiring:
    known = [p.retiring for p in processes if p.retiring]
    return Retiring(
        next((r.reason for r in known if r.reason), None),
        _texts_of(r.message for r in known),
        is_drained=len(known) == len(processes) and all(r.is_drained for r in known),
    )


def _distinct(pins: Iterable[tuple[Pin, ...]]) -> tuple[Pin, ...]:
    """Merge the pins of all processes: the longest of each owner."""
    longest: dict[tuple[str, str], Pin] = {}
    for pin in (p for each in pins for p in each):
        known = longest.get((pin.source, pin.owner))
        if known is None or known.until < pin.until:
            longest[pin.source, pin.owner] = pin
    return tuple(longest.values())
