"""The operator's ports to a simulated cluster: the very loop runs on it. Reports go nowhere."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from dask_adaptive.loop.ports import Event, PageContent, PlatformError, Ports, Retired
from dask_adaptive.loop.status import Status
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    Cordon,
    Demand,
    ObservedGroup,
    ObservedScheduler,
    Pin,
    PlatformView,
    PlatformWorker,
    PrefixWork,
    Quiet,
    SchedulerWorker,
)
from dask_adaptive.model.plan import Arriving, Decision
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits, Quota, Use
from dask_adaptive_lab.simulate.cluster import SimulatedCluster, Worker
from dask_adaptive_lab.simulate.workload import UNKNOWN_S
from dask_adaptive_lab.trace import Sample

#: A recorded pin goes on for so long, as far as the planner can see.
_PIN_S = 60.0

T = TypeVar("T")


def completed(passing: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing, as none does in simulated time."""
    try:
        passing.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("it waits for something in real time")


class SimulatedPorts:
    """
    Platform, scheduler link and reporter in one.

    Attributes:
        recorded: The sample of this time: its pins, and what clients asked for.
        lead_s: How far the operator's clock is before the cluster's: passes before time begins.
    """

    def __init__(self, cluster: SimulatedCluster, key: ClusterKey, *, started: float = 0.0) -> None:
        self.cluster, self.key = cluster, key
        self.recorded = Sample(0.0)
        self.lead_s = 0.0
        self._started, self._busy_at = started, cluster.now

    def ports(self) -> Ports:
        return Ports(self, self, self, lambda: self.cluster.now - self.lead_s)

    # The platform.

    async def look(self) -> PlatformView:
        cluster = self.cluster
        return PlatformView(
            found=not cluster.is_deleted,
            groups=tuple(
                ObservedGroup(name, replicas, handled=cluster.handled.get(name))
                for name, replicas in cluster.replicas.items()
            ),
            workers=tuple(self.platform_worker(w) for w in cluster.workers.values()),
            at=self._started + cluster.now,
            uid="simulated",
        )

    def platform_worker(self, worker: Worker) -> PlatformWorker:
        is_stuck, made_at = worker.is_stuck and not worker.deleting, self._started + worker.made_at
        return PlatformWorker(
            name=worker.name,
            uid=worker.uid,
            group=worker.group,
            made_at=made_at,
            deleting=worker.deleting,
            pod=f"{worker.name}-{worker.pod}",
            pod_uid=f"{worker.uid}-{worker.pod}",
            pod_made_at=self._started + worker.pod_at,
            waiting="Unschedulable: the simulated cluster is full" if is_stuck else "",
            unscheduled_at=made_at if is_stuck else None,
        )

    async def set_replicas(self, group: str, replicas: int) -> None:
        exist = sum(not w.deleting for w in self.cluster.of(group))
        if exist > replicas:
            raise PlatformError(f"{group} has {exist} workers: not lowered to {replicas} replicas")
        self.cluster.set_replicas(group, replicas)

    async def delete_worker(self, worker: str, uid: str) -> None:
        self.cluster.delete(worker)

    async def delete_cluster(self, uid: str) -> None:
        self.cluster.delete_all()

    async def restart_worker(self, worker: str, pod: str, pod_uid: str) -> None:
        known = self.cluster.workers.get(worker)
        if known is not None and self.platform_worker(known).pod_uid == pod_uid:
            self.cluster.restart(worker)

    # The scheduler and its agent.

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        cluster = self.cluster
        cluster.batches.look(cluster.now, cluster.came_s, is_queue=cluster.ready.total() > 0)
        cluster.came_s = 0.0
        coming = cluster.batches.coming(cluster.now)
        if cluster.unfinished:
            self._busy_at = cluster.now
        running = cluster.running()
        here = [w for w in cluster.workers.values() if w.is_here]
        return ObservedScheduler(
            at=cluster.now,
            session="simulated",
            distributed="simulated",
            agent="simulated",
            workers=tuple(
                self.process(w, pins) for w, pins in _pinned(here, self.recorded, cluster.now)
            ),
            queued=cluster.ready.total(),
            processing=sum(count for count, _ in running.values()),
            demand=Demand(
                _prefixes(cluster, running),
                incoming=coming.rate,
                every_s=coming.every_s,
                trickle_s=coming.trickle_s,
                unknown_s=UNKNOWN_S,
            ),
            wants=self.recorded.wants,
            quiet=Quiet(cluster.now - self._busy_at, self.recorded.no_client_s),
        )

    async def changed(self) -> None: ...

    def process(self, worker: Worker, pins: tuple[Pin, ...]) -> SchedulerWorker:
        return SchedulerWorker(
            name=worker.name,
            address=worker.name,
            status="running" if worker.retiring is None else "closing_gracefully",
            nthreads=worker.threads,
            processing=len(worker.running),
            idle_since=worker.idle_since,
            sole_bytes=0,
            closable=worker.serves and not worker.running,
            pins=pins,
            retiring=worker.retiring,
            use=Use(runs=worker.runs),
            cordon=Cordon(Quota.TASKS, "has had all its runs") if worker.is_cordoned else None,
        )

    async def retire(
        self, names: Sequence[str], policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False, ends: str = "",
    ) -> list[Retired]:  # fmt: skip
        return [self._retire(name, reason, busy_ok=busy_ok) for name in names]

    def _retire(self, name: str, reason: Reason, *, busy_ok: bool) -> Retired:
        worker = self.cluster.workers.get(name)
        if worker is None or not worker.is_here:
            return Retired(name, "gone")
        if worker.retiring is None:
            if worker.running and not busy_ok:
                return Retired(name, "active", Reason.BUSY, "has tasks")
            self.cluster.retire(name, reason)
        return Retired(name, worker.state)

    async def leave(self, names: Sequence[str], *, left_s: float, reason: Reason) -> list[Retired]:
        return [self._retire(name, reason, busy_ok=True) for name in names]

    async def cancel(self, names: Sequence[str]) -> list[Retired]:
        for name in names:
            self.cluster.cancel(name)
        return []

    async def limit(self, limits: Limits) -> None:
        self.cluster.enforce(limits)

    async def announce(self, arriving: Sequence[Arriving], content: PageContent) -> None: ...

    async def pin(self, names: Sequence[str], *, ttl_s: float, note: str) -> None: ...

    async def unpin(self, names: Sequence[str]) -> None: ...

    # The reporter.

    async def status(self, status: Status) -> None: ...

    async def tell(self, events: Sequence[Event]) -> None: ...

    async def history(self, decisions: Sequence[Decision]) -> None: ...


def _pinned(
    here: list[Worker], recorded: Sample, now: float
) -> list[tuple[Worker, tuple[Pin, ...]]]:
    """Recorded pins, which name no worker: those are held that stay, and came first."""
    staying = sorted(here, key=lambda w: (w.state, w.connected_at, w.name))
    pins: dict[str, tuple[Pin, ...]] = {}
    for source, count in recorded.pins:
        pin = Pin(source, "recorded", "", now + _PIN_S, since=now)
        for worker in staying[:count]:
            pins[worker.name] = (*pins.get(worker.name, ()), pin)
    return [(worker, pins.get(worker.name, ())) for worker in here]


def _prefixes(
    cluster: SimulatedCluster, running: dict[str, tuple[int, float]]
) -> tuple[PrefixWork, ...]:
    """Like the agent, only those of which something is left to do."""
    ready = (name for name, n in cluster.ready.items() if n)
    waiting = (name for name, n in cluster.waiting.items() if n)
    names = sorted({*ready, *waiting, *running})
    shapes = {name: cluster.workload.shapes.get(name, _NO_SHAPE) for name in names}
    stages = sorted({shapes[name].level for name in names if cluster.waiting[name]})
    return tuple(
        PrefixWork(
            name=name,
            mean_s=cluster.mean_s(name),
            running=running.get(name, (0, 0.0))[0],
            ready=cluster.ready[name],
            waiting=cluster.waiting[name],
            longest_s=running.get(name, (0, 0.0))[1],
            done=cluster.done[name],
            level=stages.index(shapes[name].level) + 1 if cluster.waiting[name] else 0,
            width=shapes[name].width,
            fan_in=shapes[name].fan_in,
        )
        for name in names
    )


_NO_SHAPE = PrefixWork("", None, 0, 0, 0)
