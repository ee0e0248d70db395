"""Join what the platform knows with what the scheduler knows: one `ObservedCluster`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dask_adaptive.loop.endings import find_endings
from dask_adaptive.loop.names import owner
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    Ending,
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
from dask_adaptive.model.recycle import UNUSED, Use

#: Statuses of a worker that nobody is closing.
_IN_SERVICE = frozenset({"running", "paused", "init"})


def join(key: ClusterKey, view: PlatformView, scheduler: ObservedScheduler) -> ObservedCluster:
    """
    Match Dask workers to the platform's workers.

    By name first; then by name less the process number; then by address (workers started without
    `--name` have their address as name). What matches nothing is a stranger: it is counted in the
    load, and never touched.

    A process that is about to end is neither: its worker waits for the next one, which comes by
    itself.
    """
    ending, seen = find_endings(view, scheduler.workers)
    processes, strangers = _match(view.workers, [p for p in seen if not p.departing])
    departing = _departing(view.workers, ending, [p for p in seen if p.departing])
    pods = {e.pod for e in ending}
    workers = defaultdict(list)
    for worker in view.workers:
        mine = processes.get(worker.name, ())
        joined = _joined(worker, mine, at=view.at)
        if worker.pod in pods:  # the next pod is on its way, and on another machine
            joined = replace(joined, node_going="")
        if not mine and worker.name in departing:
            said = departing[worker.name]
            waiting = worker.waiting or f"its pod is ending: {said}"
            joined = replace(joined, ending=said, waiting=waiting)
        workers[worker.group].append(joined)
    return ObservedCluster(
        key=key,
        found=view.found,
        conflict=view.conflict,
        groups=tuple(
            ObservedGroup(
                g.name,
                g.replicas,
                tuple(workers[g.name]),
                g.handled,
                g.room,
                g.threads,
                g.resources,
            )
            for g in view.groups
        ),
        scheduler=replace(scheduler, workers=seen) if ending else scheduler,
        strangers=strangers,
        ending=ending,
        at=view.at,
        free_gpus=view.free_gpus,
        pause=view.pause,
        uid=view.uid,
    )


def _match(
    workers: Iterable[PlatformWorker], processes: Iterable[SchedulerWorker]
) -> tuple[Mapping[str, Sequence[SchedulerWorker]], tuple[str, ...]]:
    names = {w.name for w in workers}
    by_address = {ip: w.name for w in workers for ip in w.addresses}
    matched: dict[str, list[SchedulerWorker]] = defaultdict(list)
    strangers = []
    for process in processes:
        name = owner(process, names, by_address)
        if name is None:
            strangers.append(process.name)
        else:
            matched[name].append(process)
    return matched, tuple(strangers)


def _departing(
    workers: Iterable[PlatformWorker],
    ending: Iterable[Ending],
    processes: Sequence[SchedulerWorker],
) -> Mapping[str, str]:
    """What the processes of a worker that are about to end wait for."""
    if not processes:
        return {}
    names = {w.name for w in workers}
    in_pods = {address: e.worker for e in ending for address in e.dask_names}
    messages: dict[str, set[str]] = defaultdict(set)
    for process in processes:
        name = in_pods.get(process.address) or owner(process, names, {})
        if name is not None:
            messages[name].add(process.departing)
    return {name: "; ".join(sorted(said)) for name, said in messages.items()}


def _joined(
    worker: PlatformWorker, processes: Sequence[SchedulerWorker], *, at: float
) -> ObservedWorker:
    # All workers go through here in each pass, nearly all with one process: it must be quick.
    alone = len(processes) == 1
    one = processes[0] if alone else _as_one(processes)
    return ObservedWorker(
        name=worker.name,
        uid=worker.uid,
        group=worker.group,
        age_s=worker.age_s,
        dask_names=(one.name,) if alone else tuple(sorted(p.name for p in processes)),
        going=worker.going,
        pod=worker.pod,
        waiting=worker.waiting,
        processing=one.processing,
        idle_s=one.idle_s,
        sole_bytes=one.sole_bytes,
        closable=one.closable,
        actors=one.actors,
        in_service=one.status in _IN_SERVICE or (alone and one.is_cordoned),
        pins=_distinct((one.pins,)) if len(one.pins) > 1 else one.pins,
        manual_pin=worker.manual_pin,
        leaving=one.leaving,
        leaving_message=one.leaving_message,
        node_going=worker.node_going,
        mark=worker.mark,
        leaving_reason=one.leaving_reason,
        pod_uid=worker.pod_uid,
        pod_age_s=max(0.0, at - worker.pod_created_at) if worker.pod_created_at else worker.age_s,
        use=one.use,
        ends_in_s=min(worker.ends_in_s, one.lifetime_left_s),
        paused=one.status == "paused",
        stopped=one.stopped,
        stopped_for=one.stopped_for,
        too_short=one.too_short,
        quota_notes=worker.quota_notes,
        recycle_asked=worker.recycle_asked,
        drift=worker.drift,
        gpus=worker.gpus,
        nthreads=one.nthreads,
        unschedulable_s=worker.unschedulable_s,
        refused=worker.refused,
    )


#: What is known of the processes of a worker that has none.
_NOBODY = SchedulerWorker("", "", "init", nthreads=0, processing=0, idle_s=0.0, sole_bytes=0)


def _as_one(processes: Sequence[SchedulerWorker]) -> SchedulerWorker:
    """Several processes of one worker, which come and go together."""
    if not processes:
        return _NOBODY
    serves = all(p.status in _IN_SERVICE or p.is_cordoned for p in processes)
    status = "paused" if all(p.status == "paused" for p in processes) else "running"
    return SchedulerWorker(
        name=processes[0].name,
        address=processes[0].address,
        status=status if serves else "other",
        nthreads=sum(p.nthreads for p in processes),
        processing=sum(p.processing for p in processes),
        idle_s=min(p.idle_s for p in processes),
        sole_bytes=sum(p.sole_bytes for p in processes),
        closable=all(p.closable for p in processes),
        actors=any(p.actors for p in processes),
        pins=_distinct(p.pins for p in processes),
        leaving=_leaving(processes),
        leaving_message=_said(p.leaving_message for p in processes),
        leaving_reason=next((p.leaving_reason for p in processes if p.leaving_reason), None),
        use=highest(p.use for p in processes),
        lifetime_left_s=min(p.lifetime_left_s for p in processes),
        stopped=_said(p.stopped for p in processes),
        stopped_for=next((p.stopped_for for p in processes if p.stopped_for), None),
        too_short=any(p.too_short for p in processes),
    )


def _said(texts: Iterable[str]) -> str:
    return "; ".join(sorted(set(texts) - {""}))


def highest(uses: Iterable[Use]) -> Use:
    """Of several processes in one pod the highest of each: the pod is replaced as a whole."""
    distinct = [use for use in uses if use is not UNUSED]
    if len(distinct) < 2:
        return distinct[0] if distinct else UNUSED
    return Use(
        runs=max(u.runs for u in distinct),
        failures=max(u.failures for u in distinct),
        match=_said(u.match for u in distinct),
        process=max(u.process for u in distinct),
        unmanaged=max(u.unmanaged for u in distinct),
        unmanaged_bytes=max(u.unmanaged_bytes for u in distinct),
        gpu=max(u.gpu for u in distinct),
        mean_s=max(u.mean_s for u in distinct),
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
