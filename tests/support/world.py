"""A platform, a scheduler and a reporter in one: a whole cluster for tests of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.loop.ports import Event, LinkError, Ports, Retired, Told
from dask_adaptive.loop.status import Status
from dask_adaptive.model.demand import Quiet
from dask_adaptive.model.history import Decision
from dask_adaptive.model.observed import (
    Ending,
    Mark,
    Note,
    ObservedScheduler,
    Pin,
    PlatformGroup,
    PlatformView,
    PlatformWorker,
    SchedulerWorker,
)
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits, QuotaNotes
from dask_adaptive.model.scaling import NO_PAUSE
from support.worlds import GROUP, POLICY

#: When the clock of a `World` was at 0.
EPOCH = 1_800_000_000.0


class World:
    """Counts what it is asked, and answers as its attributes say."""

    def __init__(self, workers: int, target: int) -> None:
        self.target, self.now = target, 0.0
        self.names = [f"w{i}" for i in range(workers)]
        self.replicas = workers
        self.statuses: list[Status] = []
        self.events: list[Event] = []
        self.left: list[tuple[tuple[str, ...], float]] = []
        self.marks: dict[str, Mark] = {}
        self.asked: list[tuple[str, Mark]] = []
        self.pins: tuple[Pin, ...] = ()
        self.busy = False
        self.notes: list[Note] = []
        self.ending: tuple[Ending, ...] = ()
        self.asked_meters: list[bool] = []
        self.limits: list[Limits] = []
        self.announced: list[tuple[tuple[Arriving, ...], Told]] = []
        self.told_decisions: list[tuple[Decision, ...]] = []
        self.problem: Reason | None = None
        self.quiet = Quiet()
        self.pause = NO_PAUSE
        self.deleted_clusters: list[str] = []
        self.calls: list[str] = []  # that write to an API, in order
        self.refusal = ""
        self.restarted: list[tuple[str, str, str]] = []
        self.drained = False
        self.quota_notes: QuotaNotes | None = None

    def ports(self) -> Ports:
        return Ports(self, self, self, lambda: self.now)

    async def look(self) -> PlatformView:
        return PlatformView(
            groups=(PlatformGroup(GROUP, self.replicas),),
            workers=tuple(
                PlatformWorker(
                    n,
                    f"u-{n}",
                    GROUP,
                    9.0,
                    mark=self.marks.get(n, Mark()),
                    quota_notes=self.quota_notes,
                )
                for n in self.names
            ),
            at=EPOCH + self.now,
            ending=self.ending,
            pause=self.pause,
            uid="u-cluster",
        )

    async def set_replicas(self, group: str, replicas: int) -> None:
        self.calls.append("set_replicas")
        self.replicas = replicas

    async def delete_worker(self, worker: str, uid: str) -> None:
        self.calls.append("delete_worker")
        self.names.remove(worker)

    async def delete_cluster(self, uid: str) -> None:
        self.calls.append("delete_cluster")
        self.deleted_clusters.append(uid)

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        self.asked_meters.append(meters)
        if self.problem is not None:
            return ObservedScheduler(self.problem, "it does not answer")
        workers = tuple(
            SchedulerWorker(
                n, f"tcp://10.0.0.{i}:1", "running", 1, int(self.busy), 100.0 * (not self.busy), 0,
                closable=not self.busy, pins=self.pins,
            )
            for i, n in enumerate(self.names)
        )  # fmt: skip
        notes, self.notes = tuple(self.notes), []
        return ObservedScheduler(
            session="s", agent="1", target=self.target, workers=workers, notes=notes,
            quiet=self.quiet,
        )  # fmt: skip

    async def retire(
        self, names: Any, policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False,
    ) -> list[Retired]:  # fmt: skip
        if self.drained:
            return [Retired(n, "drained") for n in names]
        return [Retired(n, "active", Reason.BUSY, "has 1 task") for n in names]

    async def limit(self, limits: Limits) -> None:
        if self.refusal:
            raise LinkError(self.refusal)
        self.limits.append(limits)

    async def announce(self, arriving: Any, told: Told) -> None:
        self.announced.append((tuple(arriving), told))

    async def restart_worker(self, worker: str, pod: str, pod_uid: str) -> None:
        self.restarted.append((worker, pod, pod_uid))

    async def leave(
        self, names: Any, *, left_s: float, reason: Reason, ending: bool = True
    ) -> list[Retired]:
        self.left.append((tuple(names), left_s))
        return [Retired(n, "draining") for n in names]

    async def cancel(self, names: Any) -> list[Retired]:
        return []

    async def pin(self, names: Any, *, ttl_s: float, note: str) -> None: ...

    async def unpin(self, names: Any) -> None: ...

    async def status(self, status: Status) -> None:
        self.calls.append("status")
        self.statuses.append(status)

    async def tell(self, events: Sequence[Event]) -> None:
        self.calls.extend("event" for _ in events)
        self.events.extend(events)

    async def history(self, decisions: Sequence[Decision]) -> None:
        self.calls.append("history")
        self.told_decisions.append(tuple(decisions))

    async def mark(self, worker: str, mark: Mark) -> None:
        self.asked.append((worker, mark))
        self.marks[worker] = mark

    async def passes(
        self, loop: ClusterLoop, count: int, policy: Policy = POLICY, every_s: float = 5.0
    ) -> None:
        for _ in range(count):
            self.now += every_s
            await loop.one_pass(policy)
