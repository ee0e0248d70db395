"""The operator's loop on a simulated cluster, with all that a test may want to change by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dask_adaptive.loop.one_pass import NO_STATUS, ClusterLoop, PassResult
from dask_adaptive.loop.ports import Event, LinkError, PageContent, PlatformError, Retired
from dask_adaptive.loop.status import Status
from dask_adaptive.model import observed
from dask_adaptive.model.plan import Arriving, Decision
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive.model.scaling import NO_PAUSE
from dask_adaptive_lab.simulate.cluster import SimulatedCluster, Worker
from dask_adaptive_lab.simulate.simulated_ports import SimulatedPorts, completed
from dask_adaptive_lab.simulate.workload import Arrival, Workload
from support.worlds import GROUP, KEY, POLICY

#: The wall clock when a fake cluster begins; its workers have been idle for so long then.
EPOCH, IDLE_S = 1_800_000_000.0, 100.0

#: Workers as they are named, in the order of their creation.
W1, W2 = (f"{GROUP}-worker-{n:04d}" for n in (1, 2))

SHORT, ENDLESS = "short", "endless"


class FakeCluster(SimulatedPorts):
    """
    Args:
        workers: How many there are at the beginning, all idle; by group where there are several.
        target: What the scheduler asks for; None: what its tasks ask for.
        start_s: How long a pod takes until its process is connected.
        room: Pods that the machines have room for; others wait.
        knows_handled: Whether the platform says which number was handled last.
        holds_results: Whether workers hold results, which only one in service can take.
        pinned: Workers that a client holds.
    """

    def __init__(
        self, workers: int | Mapping[str, int], *, target: int | None = 0, start_s: float = 5.0,
        drain_s: float = 0.0, handle_s: float = 0.0, room: int | None = None,
        knows_handled: bool = True, holds_results: bool = False,
        pinned: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        sizes = {GROUP: workers} if isinstance(workers, int) else workers
        workload = Workload((), (), (), {SHORT: 1.0, ENDLESS: 1e9}, {})
        cluster = SimulatedCluster(
            workload, lambda *_: self.start_s, dict.fromkeys(sizes, 1), capacity=room,
            handle_s=handle_s, drain_s=drain_s,
        )  # fmt: skip
        for name, size in sizes.items():
            cluster.replicas[name] = cluster.handled[name] = size
            for _ in range(size):
                cluster.add(name, connects_at=0.0)
        cluster.advance(IDLE_S)
        super().__init__(cluster, KEY, started=EPOCH - IDLE_S)
        self.target, self.start_s = target, start_s
        self.knows_handled, self.holds_results = knows_handled, holds_results
        self.start_operator()
        # What others see differently from the simulation.
        self.pins: tuple[observed.Pin, ...] = ()  # of each worker
        self.pinned = pinned
        self.wants: tuple[observed.Want, ...] | None = (
            None  # not None: with them all demand is known
        )
        self.notes: list[observed.Note] = []
        self.terminating: tuple[observed.TerminatingPod, ...] = ()
        self.is_stale = False  # the platform shows what it showed the last time
        self._shown: observed.PlatformView | None = None
        self.problem: Reason | None = None
        self.quiet: observed.Quiet | None = None
        self.pause = NO_PAUSE
        self.refusal = ""  # why the agent takes no limits
        self.on_platform: dict[str, dict[str, Any]] = {}  # changes, by worker
        # What was asked of it and told.
        self.calls: list[str] = []  # that write to an API, in order
        self.refused = 0  # of these the platform
        self.retired: list[str] = []
        self.left: list[tuple[tuple[str, ...], float]] = []
        self.limits: list[Limits] = []
        self.asked_meters: list[bool] = []
        self.announced: list[tuple[tuple[Arriving, ...], PageContent]] = []
        self.statuses: list[Status] = []
        self.events: list[Event] = []
        self.decisions: list[tuple[Decision, ...]] = []
        # What it came to.
        self.fewest = self.most = sum(sizes.values())  # workers: in service, and in all
        self.most_runs = 0  # of one process

    def step(
        self, policy: Policy = POLICY, *, after_s: float = 5.0, tasks: int | None = None,
        generation: int = 1,
    ) -> PassResult:  # fmt: skip
        """
        Let time pass, and then make a pass.

        Args:
            tasks: Of a second each that the cluster has all the time; None: as before.
        """
        cluster = self.cluster
        cluster.advance(cluster.now + after_s)
        workers = cluster.workers.values()
        self.fewest = min(self.fewest, self.in_service)
        self.most = max(self.most, len(workers))
        self.most_runs = max(self.most_runs, *(w.runs for w in workers), 0)
        if tasks is not None:
            self.target = tasks
            cluster.arrive(Arrival(cluster.now, SHORT, max(0, tasks - cluster.unfinished), 0))
        self.last = completed(self.loop.one_pass(policy, generation))
        return self.last

    def steps(self, count: int, policy: Policy = POLICY, **options: Any) -> None:
        for _ in range(count):
            self.step(policy, **options)

    @property
    def replicas(self) -> int:
        return self.cluster.replicas[GROUP]

    @property
    def in_service(self) -> int:
        return sum(w.serves and not w.is_cordoned for w in self.cluster.workers.values())

    def occupy(self, count: int, group: str = GROUP) -> None:
        """The first so many workers of a group run a task without end; the others are idle."""
        serving = [w for w in self.cluster.of(group) if w.serves]
        for worker in serving[:count]:
            if not worker.running:
                self.cluster.ready[ENDLESS] += 1
                self.cluster.run(worker, ENDLESS)
        for worker in serving[count:]:
            for number in list(worker.running):
                self.cluster.finish(worker, number)

    def start_operator(self, before: Status = NO_STATUS, *, name: str = "") -> None:
        """Another process takes over; what it may know is as `ClusterLoop` takes it."""
        self.loop = ClusterLoop(KEY, self.ports(), before, name=name)

    def restart_operator(self) -> None:
        """Another process takes over, which knows what the policy's status says."""
        self.start_operator(self.statuses[-1] if self.statuses else NO_STATUS)

    # The platform.

    async def look(self) -> observed.PlatformView:
        view = await super().look()
        if not self.knows_handled:
            groups = tuple(dataclasses.replace(g, handled=None) for g in view.groups)
            view = dataclasses.replace(view, groups=groups)
        view = dataclasses.replace(view, terminating=self.terminating, pause=self.pause)
        before, self._shown = self._shown, view
        return before if self.is_stale and before is not None else view

    def platform_worker(self, worker: Worker) -> observed.PlatformWorker:
        seen = super().platform_worker(worker)
        return dataclasses.replace(seen, **self.on_platform.get(worker.name, {}))

    async def set_replicas(self, group: str, replicas: int) -> None:
        self.calls.append("set_replicas")
        try:
            await super().set_replicas(group, replicas)
        except PlatformError:
            self.refused += 1
            raise

    async def delete_worker(self, worker: str, uid: str) -> None:
        self.calls.append("delete_worker")
        await super().delete_worker(worker, uid)

    async def delete_cluster(self, uid: str) -> None:
        self.calls.append("delete_cluster")
        await super().delete_cluster(uid)

    async def restart_worker(self, worker: str, pod: str, pod_uid: str) -> None:
        self.calls.append("restart_worker")
        await super().restart_worker(worker, pod, pod_uid)

    # The scheduler and its agent.

    async def observe(self, policy: Policy, *, meters: bool = False) -> observed.ObservedScheduler:
        self.asked_meters.append(meters)
        if self.problem is not None:
            return observed.ObservedScheduler(self.problem, "it does not answer")
        seen = await super().observe(policy, meters=meters)
        notes, self.notes = tuple(self.notes), []
        if self.target is not None:
            seen = dataclasses.replace(seen, target=self.target, demand=None)
        if self.wants is not None:
            seen = dataclasses.replace(seen, wants=self.wants, demand=observed.Demand())
        quiet = self.quiet or seen.quiet
        return dataclasses.replace(seen, notes=notes, quiet=quiet)

    def process(self, worker: Worker, pins: tuple[observed.Pin, ...]) -> observed.SchedulerWorker:
        if worker.name in self.pinned:
            pins = (*pins, observed.Pin("client", "nb", "", self.cluster.now + 60.0))
        seen = super().process(worker, (*pins, *self.pins))
        return dataclasses.replace(seen, address=f"tcp://10.0.0.{int(worker.name[-4:])}:1")

    async def retire(
        self, names: Sequence[str], policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False, ends: str = "",
    ) -> list[Retired]:  # fmt: skip
        workers = self.cluster.workers.values()
        others = any(w.serves and not w.is_cordoned and w.name not in names for w in workers)
        here = [w for w in map(self.cluster.workers.get, names) if w is not None and w.serves]
        if here and self.holds_results and not others:
            return [Retired(n, "active", Reason.NO_RECIPIENT, "nobody is there") for n in names]
        answers = await super().retire(names, policy, reason, busy_ok=busy_ok)
        self.retired += [w.name for w in here if w.retiring is not None]
        return answers

    async def leave(self, names: Sequence[str], *, left_s: float, reason: Reason) -> list[Retired]:
        self.left.append((tuple(names), left_s))
        return [Retired(n, "draining") for n in names]

    async def limit(self, limits: Limits) -> None:
        if self.refusal:
            raise LinkError(self.refusal)
        self.limits.append(limits)
        await super().limit(limits)

    async def announce(self, arriving: Sequence[Arriving], content: PageContent) -> None:
        self.announced.append((tuple(arriving), content))

    # The reporter.

    async def status(self, status: Status) -> None:
        self.calls.append("status")
        self.statuses.append(status)

    async def tell(self, events: Sequence[Event]) -> None:
        self.calls.extend("event" for _ in events)
        self.events.extend(events)

    async def history(self, decisions: Sequence[Decision]) -> None:
        self.calls.append("history")
        self.decisions.append(tuple(decisions))
