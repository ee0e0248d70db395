"""Worker groups as those who do the work: what is there, what comes when, what may be added."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.scaling import GroupBounds
from dask_adaptive.planner.target import serving_elsewhere

#: Of a worker's threads, so much may be missing at no cost that anybody notices.
SLACK = 0.25

#: Threads that are needed at an instant, from (seconds from now, thread-seconds there until then).
Need = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Supply:
    """One worker group that is scaled."""

    name: str
    maximum: int
    priority: int
    threads: float  # of one worker
    connected: int  # in service
    busy: int  # of them: those that have tasks
    pending: tuple[float, ...]  # seconds until each is expected, the soonest first
    arrival_s: float  # that one takes which is asked for now
    grows: bool = True  # whether workers are added, or only kept

    @property
    def serving(self) -> int:
        return self.connected + len(self.pending)


def supplies(observed: ObservedCluster, policy: Policy, past: Past) -> tuple[Supply, ...]:
    """The groups that are scaled, in the order in which they grow."""
    default = observed.key.default_group
    pairs = [(b, observed.group(b.name)) for b in policy.bounds(default)]
    every = [_supply(b, g, past) for b, g in pairs if g is not None]
    return tuple(sorted(every, key=lambda s: (-s.priority, s.name != default, s.name)))


def other_threads(observed: ObservedCluster, every: Sequence[Supply]) -> int:
    """Threads of connected workers that belong to no group that is scaled."""
    scaled = {s.name for s in every}
    groups = [g for g in observed.groups if g.name in scaled]
    return sum(w.nthreads for w in serving_elsewhere(observed, groups))


def fill(every: Sequence[Supply], need: Need, *, other: float) -> dict[str, int]:
    """
    How many workers of each group are needed: those that are there first, then those on their way,
    then new ones, each kind by the order of the groups.

    A worker counts from the instant on at which it is expected: what those before it have done by
    then is done, and if nothing is left for it, it is not needed.
    """
    connected = other + sum(s.connected * s.threads for s in every)
    coming = sorted((at, s.threads, s.name) for s in every for at in s.pending)
    needs = _needs(every, need, connected, coming)

    wanted: dict[str, int] = {}
    left = max(needs.values()) - other
    for one in every:
        wanted[one.name] = min(one.connected, _workers(left, one.threads))
        left -= wanted[one.name] * one.threads
    there = connected
    for at, threads, name in coming:
        needed = max(n for t, n in needs.items() if t >= at)
        # However little there is to do: where nobody is, the first is kept until it has come.
        if not _workers(needed - there, threads, or_one=not there):
            break
        wanted[name] += 1
        there += threads
    for one in every:
        if not one.grows or wanted[one.name] < one.serving:
            continue
        more = _workers(needs[one.arrival_s] - there, one.threads, or_one=not there)
        more = max(0, min(more, one.maximum - wanted[one.name]))
        wanted[one.name] += more
        there += more * one.threads
    return wanted


def _needs(
    every: Sequence[Supply],
    need: Need,
    connected: float,
    coming: Sequence[tuple[float, float, str]],
) -> Mapping[float, float]:
    """Threads that are needed at each instant that matters."""
    instants = {0.0, *(at for at, _, _ in coming), *(s.arrival_s for s in every)}
    return {
        t: need(t, connected * t + sum(max(0.0, t - at) * n for at, n, _ in coming))
        for t in instants
    }


def _workers(threads: float, each: float, *, or_one: bool = False) -> int:
    if threads <= 0:
        return 0
    return max(math.ceil(threads / each - SLACK), int(or_one))


def _supply(bounds: GroupBounds, group: ObservedGroup, past: Past) -> Supply:
    there = [w for w in group.workers if _serves(w)]
    connected = [w for w in there if w.is_connected]
    measured = past.of(group.name).arrival_s
    arrival_s = max(0.0, past.recycle.ready_s if measured is None else measured)
    pending = [_comes_in_s(w, arrival_s) for w in there if not w.is_connected]
    return Supply(
        name=group.name,
        maximum=bounds.maximum,
        priority=bounds.priority,
        threads=threads_of(group),
        connected=len(connected),
        busy=sum(w.processing > 0 for w in connected),
        pending=tuple(sorted(pending)),
        arrival_s=arrival_s,
    )


def threads_of(group: ObservedGroup) -> float:
    """Threads of one worker: as measured, or else as it is to be started, or else one."""
    known = [w.nthreads for w in group.workers if w.nthreads > 0]
    return sum(known) / len(known) if known else float(max(group.threads, 1))


def _serves(worker: ObservedWorker) -> bool:
    return not worker.going and worker.leaving is Leaving.NO and worker.in_service


def _comes_in_s(worker: ObservedWorker, arrival_s: float) -> float:
    """Whole seconds, so that thousands that were asked for together are one instant."""
    if worker.unschedulable_s or worker.refused:
        return arrival_s  # as good as one that is asked for now
    age_s = worker.pod_age_s or worker.age_s
    # One that is late is as late again: there is no telling, and no reason to ask for another.
    return float(round(min(abs(arrival_s - age_s), arrival_s)))
