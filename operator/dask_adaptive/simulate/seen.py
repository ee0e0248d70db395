"""What the platform and the scheduler of a simulated cluster would show, joined as in real life."""

from __future__ import annotations

import math

from dask_adaptive.loop.join import join
from dask_adaptive.model.demand import Demand, PrefixWork, Quiet
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    ObservedCluster,
    ObservedScheduler,
    Pin,
    PlatformGroup,
    PlatformView,
    PlatformWorker,
    SchedulerWorker,
)
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.recycle import Use
from dask_adaptive.model.trace import Sample
from dask_adaptive.planner.walltime import with_walltimes
from dask_adaptive.simulate.load import UNKNOWN_S
from dask_adaptive.simulate.world import Worker, World

#: A recorded pin goes on for so long, as far as the planner can see.
_PIN_S = 60.0


def observed(
    world: World, key: ClusterKey, policy: Policy, recorded: Sample,
    *, started: float, quiet_s: float,
) -> ObservedCluster:  # fmt: skip
    """
    The cluster as the planner sees it.

    Args:
        recorded: The sample of this time: its pins, and what clients asked for.
        started: When the trace began, in seconds since 1970.
        quiet_s: For how long there has been no task.
    """
    seen = join(key, _view(world, started), _scheduler(world, policy, recorded, quiet_s))
    return with_walltimes(seen, policy)


def _view(world: World, started: float) -> PlatformView:
    return PlatformView(
        found=not world.is_deleted,
        groups=tuple(
            PlatformGroup(name, replicas, handled=replicas)
            for name, replicas in world.replicas.items()
        ),
        workers=tuple(_platform_worker(w, world.now, started) for w in world.workers.values()),
        at=started + world.now,
        uid="simulated",
    )


def _platform_worker(worker: Worker, now: float, started: float) -> PlatformWorker:
    is_stuck = worker.is_stuck and not worker.going
    return PlatformWorker(
        name=worker.name,
        uid=worker.uid,
        group=worker.group,
        age_s=now - worker.made_at,
        going=worker.going,
        pod=f"{worker.name}-{worker.life}",
        pod_uid=f"{worker.uid}-{worker.life}",
        pod_created_at=started + worker.made_at,
        waiting="Unschedulable: the simulated cluster is full" if is_stuck else "",
        unschedulable_s=now - worker.made_at if is_stuck else 0.0,
    )


def _scheduler(world: World, policy: Policy, recorded: Sample, quiet_s: float) -> ObservedScheduler:
    here = [w for w in world.workers.values() if w.is_here]
    running = world.running()
    world.lots.forget(world.now)
    incoming, every_s = world.lots.rate(world.now), world.lots.every_s()
    return ObservedScheduler(
        session="simulated",
        distributed="simulated",
        agent="simulated",
        target=adaptive_target(world, policy.target_duration_s),
        workers=_workers(here, recorded, world.now),
        queued=world.ready.total(),
        processing=sum(count for count, _ in running.values()),
        demand=Demand(
            _prefixes(world, running), incoming=incoming, every_s=every_s, unknown_s=UNKNOWN_S
        ),
        wants=recorded.wants,
        quiet=Quiet(no_task_s=quiet_s, no_client_s=recorded.no_client_s),
    )


def _workers(here: list[Worker], recorded: Sample, now: float) -> tuple[SchedulerWorker, ...]:
    staying = sorted(here, key=lambda w: (w.leaving.value, w.connected_at, w.name))
    pins: dict[str, tuple[Pin, ...]] = {}
    for source, count in recorded.pins:
        pin = Pin(source, "recorded", "", _PIN_S, _PIN_S)
        for worker in staying[:count]:
            pins[worker.name] = (*pins.get(worker.name, ()), pin)
    return tuple(
        SchedulerWorker(
            name=w.name,
            address=w.name,
            status="running",
            nthreads=w.threads,
            processing=len(w.running),
            idle_s=max(0.0, now - w.idle_since) if w.idle_since < math.inf else 0.0,
            sole_bytes=0,
            closable=not w.running,
            pins=pins.get(w.name, ()),
            leaving=w.leaving,
            leaving_reason=w.leaving_reason,
            use=Use(runs=w.runs),
        )
        for w in here
    )


def _prefixes(world: World, running: dict[str, tuple[int, float]]) -> tuple[PrefixWork, ...]:
    # As the agent tells of it: only those of which something is left to do.
    ready = (name for name, n in world.ready.items() if n)
    waiting = (name for name, n in world.waiting.items() if n)
    names = sorted({*ready, *waiting, *running})
    shapes = world.load.shapes
    stages = sorted({shapes[name].level for name in names if world.waiting[name]})
    return tuple(
        PrefixWork(
            name=name,
            mean_s=world.mean_s(name),
            running=running.get(name, (0, 0.0))[0],
            ready=world.ready[name],
            waiting=world.waiting[name],
            longest_s=running.get(name, (0, 0.0))[1],
            done=world.done[name],
            level=stages.index(shapes[name].level) + 1 if world.waiting[name] else 0,
            width=shapes[name].width,
            fan_in=shapes[name].fan_in,
        )
        for name in names
    )


def adaptive_target(world: World, duration_s: float) -> int:
    """
    What the scheduler's own rule would ask for. Memory, which is not modelled, asks for nothing.

    Source:
        `distributed.Scheduler.adaptive_target` (2026.8.0).
    """
    workers = [w for w in world.workers.values() if w.is_here]
    running = world.running()
    queued = world.ready.total()
    work_s = sum(n * (world.mean_s(name) or UNKNOWN_S) for name, n in world.ready.items())
    work_s += sum(n * (world.mean_s(name) or UNKNOWN_S) for name, (n, _) in running.items())
    cpu = math.ceil(work_s / duration_s)
    if queued <= cpu:
        cpu = min(queued + sum(len(w.running) for w in workers), cpu)
    if workers:
        cpu = math.ceil(cpu / sum(w.threads for w in workers) * len(workers))
    elif queued:
        cpu = max(1, cpu)
    if cpu >= len(workers):
        return cpu
    return sum(bool(w.running) for w in workers)
