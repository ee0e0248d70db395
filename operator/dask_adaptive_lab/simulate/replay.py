"""One policy against one trace: passes of the operator's loop in simulated time, and figures."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dask_adaptive.loop.one_pass import POLL_S, SHORTEST_S, ClusterLoop, PassResult
from dask_adaptive.model.keys import DEFAULT, ClusterKey, default_group_of
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.scaling import AUTO_S, MOST_S
from dask_adaptive_lab.simulate.cluster import SimulatedCluster, Startup, startup_of
from dask_adaptive_lab.simulate.simulated_ports import SimulatedPorts, completed
from dask_adaptive_lab.simulate.workload import Workload, workload_of
from dask_adaptive_lab.trace import Trace

#: Time from a worker's creation to its connection where the trace has measured none.
STARTUP_S = 20.0

#: The time between two passes while workers are on their way in or out.
BRISK_S = 1.0

#: Workload that is not done so long after the trace has ended is not waited for.
LONGEST_S = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Point:
    """One instant."""

    t: float
    present: int  # workers that exist, connected or not
    connected: int
    leaving: int
    unfinished: int  # tasks: queued, waiting or running
    running: int
    desired: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The sums of a run, or of the recording itself. Times in seconds; None: not known."""

    peak: int  # workers that existed at once
    worker_s: float  # sum over all workers of the time that each existed
    makespan_s: float  # from the first task to the end of the last
    lasted_s: float
    turns: int  # how often the number of workers went the other way
    mean_wait_s: float | None = None  # of a task that could have run, in the queue
    redone: int | None = None
    unfinished: int = 0  # tasks that were not done when it ended


@dataclass(frozen=True, slots=True)
class Run:
    title: str
    points: tuple[Point, ...]
    figures: Figures
    finished: int = 0  # tasks


def recorded(trace: Trace) -> Run:
    """The recording, in the form of a run."""
    points = tuple(
        Point(
            t=s.t,
            present=s.present,
            connected=sum(g.connected for g in s.groups),
            leaving=0,
            unfinished=s.unfinished,
            running=sum(p.running for p in s.prefixes),
            desired=sum(g.replicas for g in s.groups),
        )
        for s in trace.samples
    )
    at_work = [n for n, point in enumerate(points) if point.unfinished]
    makespan_s = 0.0
    if at_work:  # both the beginning and the end are seen half a sample late
        end = points[min(at_work[-1] + 1, len(points) - 1)]
        makespan_s = end.t - points[at_work[0]].t
    return Run("as recorded", points, _figures(points, makespan_s))


def replay(
    trace: Trace, policy: Policy, startup_s: float | None = None, *, title: str = "",
    work: Workload | None = None,
) -> Run:  # fmt: skip
    """
    Run the trace's work under a policy. The same input gives the same run.

    Args:
        startup_s: How long each worker takes to come; None: as measured.
        work: To be done instead of what the trace tells of.
    """
    ports = _ports(trace, policy, startup_s, workload_of(trace) if work is None else work)
    points = _passes(trace, policy, ports)
    cluster = ports.cluster
    first_at = min((a.at for a in cluster.workload.arrivals), default=0.0)
    figures = _figures(points, max(0.0, cluster.last_work_at - first_at))
    figures = replace(
        figures,
        mean_wait_s=cluster.waited_s / cluster.finished if cluster.finished else 0.0,
        redone=cluster.redone,
        unfinished=points[-1].unfinished + cluster.lost + cluster.to_come,
    )
    return Run(title, points, figures, cluster.finished)


def worker_seconds(points: Sequence[Point], until: float) -> float:
    """Each worker counts from the pass that saw it first to the one that saw it gone."""
    spans = pairwise([*(min(p.t, until) for p in points), until])
    return sum(p.present * (b - a) for p, (a, b) in zip(points, spans, strict=True))


def _figures(points: Sequence[Point], makespan_s: float) -> Figures:
    return Figures(
        peak=max(p.present for p in points),
        worker_s=worker_seconds(points, points[-1].t),
        makespan_s=makespan_s,
        lasted_s=points[-1].t,
        turns=turns([p.present - p.leaving for p in points]),
        unfinished=points[-1].unfinished,
    )


def turns(numbers: Sequence[int]) -> int:
    """Count how often a number that went up goes down next, or the other way round."""
    steps = [b - a for a, b in pairwise(numbers) if b != a]
    return sum(a * b < 0 for a, b in pairwise(steps))


def _ports(trace: Trace, policy: Policy, startup_s: float | None, work: Workload) -> SimulatedPorts:
    """The cluster as it was when the trace began."""
    default = trace.origin.default_group or default_group_of(policy.cluster)
    key, first = ClusterKey("simulated", default.removesuffix(DEFAULT)), trace.samples[0]
    came, startup = _arrivals(trace, startup_s)
    cluster = SimulatedCluster(work, startup, _threads(trace, policy, key))
    cluster.advance(first.t)
    for group in first.groups:
        cluster.replicas[group.name] = cluster.handled[group.name] = group.replicas
        at = itertools.chain(itertools.repeat(first.t, group.connected), came[group.name])
        for _ in range(group.present):
            cluster.add(group.name, connects_at=next(at, None))
    return SimulatedPorts(cluster, key, started=trace.origin.started)


def _arrivals(
    trace: Trace, startup_s: float | None
) -> tuple[Mapping[str, Sequence[float]], Startup]:
    """
    Arrivals of the workers that were on their way when the trace began, by group; start-up times
    of others.

    The first of a cluster may have waited for its scheduler: without others they count.
    """
    if startup_s is not None:
        return defaultdict(list), startup_of({}, startup_s)
    came, early, later = (defaultdict[str, list[float]](list) for _ in range(3))
    for sample in trace.samples:
        for name, seconds in sample.arrived:
            if sample.t - seconds < trace.samples[0].t:
                came[name].append(sample.t)
                early[name].append(seconds)
            else:
                later[name].append(seconds)
    return came, startup_of(later or early, STARTUP_S)


def _threads(trace: Trace, policy: Policy, key: ClusterKey) -> dict[str, int]:
    known = {g.name: g.threads for s in trace.samples for g in s.groups if g.threads}
    bounds = policy.bounds(key.default_group)
    names = (
        key.default_group,
        *(b.name for b in bounds),
        *(g.name for g in trace.samples[0].groups),
    )
    usual = max(known.values(), default=1)
    return {name: known.get(name, usual) for name in dict.fromkeys(names)}


def _passes(trace: Trace, policy: Policy, ports: SimulatedPorts) -> tuple[Point, ...]:
    times, cluster = [s.t for s in trace.samples], ports.cluster
    loop = ClusterLoop(ports.key, ports.ports())
    ports.recorded = trace.samples[0]
    # Workers of whom none has connected are those of a cluster that has only just been made.
    if not cluster.workers or any(w.is_here for w in cluster.workers.values()):
        _warm_up(loop, policy, ports)
    now, quiet_s, points = times[0], 0.0, list[Point]()
    while True:
        cluster.advance(now)
        end = times[-1] + max(0.0, cluster.shift_s)
        recorded_at = now - cluster.shift_s
        ports.recorded = trace.samples[max(bisect.bisect_right(times, recorded_at) - 1, 0)]
        result = completed(loop.one_pass(policy))
        points.append(_point(cluster, result))
        # Workload that nobody does may stay for ever: no worker is allowed, or comes.
        is_astir = _is_astir(cluster, result)
        step_s = min(result.again_in_s, BRISK_S if is_astir else POLL_S)  # nobody tells of changes
        if not cluster.unfinished:  # the agent tells of work that comes
            step_s = min(step_s, max(cluster.next_event_at - now, SHORTEST_S))
        is_quiet = now >= end and not is_astir and not cluster.running() and not cluster.awaits_work
        quiet_s = quiet_s + step_s if is_quiet else 0.0
        if quiet_s > _settle_s(result.policy) or now > end + LONGEST_S:
            return tuple(points)
        now += step_s


def _warm_up(loop: ClusterLoop, policy: Policy, ports: SimulatedPorts) -> None:
    """
    Let the loop watch the cluster as it stands for as long as any rule looks back, so that it
    judges like an operator that has been there. Nothing is carried out.
    """
    behavior = policy.behavior
    windows = (
        behavior.scale_up.stabilization_window_s,
        behavior.scale_down.stabilization_window_s,
        *(_longest_s(b.idle_timeout_s) for b in policy.bounds(ports.key.default_group)),
    )
    for n in range(math.ceil(max(w or 0.0 for w in windows) / POLL_S) + 1, 0, -1):
        ports.lead_s = n * POLL_S
        completed(loop.one_pass(replace(policy, mode=Mode.ADVISE)))
    ports.lead_s = 0.0


def _longest_s(idle_timeout_s: float) -> float:
    return MOST_S if idle_timeout_s == AUTO_S else idle_timeout_s


def _is_astir(cluster: SimulatedCluster, result: PassResult) -> bool:
    """Tells whether anything changes, or is about to."""
    if result.outcomes or any(g.desired > g.serving for g in result.plan.groups):
        return True
    workers = cluster.workers.values()
    return any((not w.is_here and not w.is_stuck) or w.retiring is not None for w in workers)


def _settle_s(policy: Policy) -> float:
    """The time without any change after which a run is over."""
    windows = (
        policy.behavior.scale_down.stabilization_window_s or 0.0,
        _longest_s(policy.idle_timeout_s),
        *(g.idle_timeout_s for g in policy.own_bounds),
        policy.idle.after_s or 0.0,
    )
    return min(max(windows) + 2 * POLL_S, LONGEST_S)


def _point(cluster: SimulatedCluster, result: PassResult) -> Point:
    workers = cluster.workers.values()
    groups = result.plan.groups
    return Point(
        t=cluster.now,
        present=len(workers),
        connected=sum(w.is_here for w in workers),
        leaving=sum(w.deleting or w.retiring is not None for w in workers),
        unfinished=cluster.unfinished,
        running=sum(len(w.running) for w in workers),
        desired=sum(g.desired for g in groups) if groups else result.plan.desired,
    )
