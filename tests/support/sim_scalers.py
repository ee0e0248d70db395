"""Who decides in a simulated Dask cluster: upstream's autoscaler, or our planner."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    Leaving,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
    SchedulerWorker,
)
from dask_adaptive.model.past import GroupPast, Past
from dask_adaptive.model.plan import Cancel, Delete, Retire, SetReplicas
from dask_adaptive.model.policy import Policy
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.remember import remember
from dask_adaptive.scheduler.demand import read_demand
from dask_adaptive_agent.demand import DemandView
from support.sim_dask import SimDask, SimWorker

KEY = ClusterKey("ns", "sim")


class Upstream:
    """
    dask-kubernetes' `daskautoscaler_adapt`: a timer of 5 s, 15 s of rest after each change, at most
    a quarter down at once.

    Kinder than the real one: workers on their way go first (facts: it closes connected ones for
    them), and of the others the idle ones (facts: it may delete any).
    """

    name = "upstream"
    EVERY_S, COOLDOWN_S, PART_DOWN = 5.0, 15.0, 0.25

    def __init__(self, sim: SimDask, minimum: int, maximum: int) -> None:
        self._sim, self._minimum, self._maximum = sim, minimum, maximum
        self._rests_until = 0.0

    def step(self) -> float:
        sim = self._sim
        if sim.now < self._rests_until:
            return self.EVERY_S
        current = len(sim.all_workers)
        desired = min(max(self._minimum, sim.adaptive_target(5.0)), self._maximum)
        if current > 0:
            desired = max(current - (int(current * self.PART_DOWN) or 1), desired)
        if desired != current:
            if desired > current:
                sim.grow(desired - current)
            else:
                for worker in self._victims(current - desired):
                    sim.remove(worker)
            self._rests_until = sim.now + self.COOLDOWN_S
        return self.EVERY_S

    def _victims(self, n: int) -> list[SimWorker]:
        workers = self._sim.all_workers.values()
        order = sorted(workers, key=lambda w: (w.is_here, bool(w.processing), w.name))
        return order[:n]


class Ours:
    """The real planner, seeing what the real agent says of the simulated scheduler."""

    name = "ours"

    def __init__(self, sim: SimDask, policy: Policy, arrival_s: float | None = None) -> None:
        self._sim, self._policy = sim, policy
        agent: Any = SimpleNamespace(
            scheduler=sim,
            clock=lambda: sim.now,
            roster=SimpleNamespace(entries={}),
            barriers=SimpleNamespace(seen=lambda: None, upcoming=tuple),
            shuffle_wait=SimpleNamespace(ongoing={}),
        )
        self._demand, self._roster = DemandView(agent), agent.roster
        known = GroupPast(arrival_s=arrival_s)
        self._past = Past(groups={KEY.default_group: known})
        self.plans: list[Any] = []

    def warm_up(self) -> None:
        """Watch for as long as any rule looks back, as an operator that has been there has."""
        for n in range(20, 0, -1):
            self._decide(self._sim.now - 5.0 * n)

    def step(self) -> float:
        decided = self._decide(self._sim.now)
        for action in decided.actions:
            self._act(action)
        moving = any(not w.is_here or w.is_leaving for w in self._sim.all_workers.values())
        return 1.0 if decided.actions or moving else 5.0

    def _decide(self, now: float) -> Any:
        seen = self._observed()
        decided = plan(seen, self._policy, self._past, now=now)
        self._past = remember(self._past, seen, self._policy, decided, (), now=now)
        self.plans.append((now, decided))
        return decided

    def _act(self, action: Any) -> None:
        sim = self._sim
        if isinstance(action, SetReplicas):
            sim.grow(max(0, action.replicas - len(sim.all_workers)))
        elif isinstance(action, Retire):
            sim.all_workers[action.worker].is_leaving = True
        elif isinstance(action, Cancel):
            sim.all_workers[action.worker].is_leaving = False
        elif isinstance(action, Delete) and action.worker in sim.all_workers:
            sim.remove(sim.all_workers[action.worker])

    def _observed(self) -> ObservedCluster:
        sim = self._sim
        self._roster.entries = {a: SimpleNamespace(ws=w) for a, w in sim.workers.items()}
        snapshot = {"demand": self._demand.answer()}
        workers = [self._worker(w) for w in sim.all_workers.values()]
        scheduler = ObservedScheduler(
            session="s",
            agent="1",
            target=sim.adaptive_target(self._policy.target_duration_s),
            workers=tuple(self._process(w) for w in sim.workers.values()),
            demand=read_demand(snapshot),
            queued=len(sim.queued) + len(sim.unrunnable),
            processing=sum(len(w.processing) for w in sim.workers.values()),
        )
        group = ObservedGroup(KEY.default_group, len(workers), tuple(workers), len(workers))
        return ObservedCluster(KEY, groups=(group,), scheduler=scheduler, at=sim.now)

    def _worker(self, w: SimWorker) -> ObservedWorker:
        is_idle = w.is_here and not w.processing
        leaving = Leaving.DRAINED if is_idle else Leaving.DRAINING
        return ObservedWorker(
            name=w.name,
            uid=w.name,
            group=KEY.default_group,
            age_s=self._sim.now - w.asked_at,
            pod_age_s=self._sim.now - w.asked_at,
            dask_names=(w.name,) if w.is_here else (),
            processing=len(w.processing),
            idle_s=self._sim.now - w.idle_since if is_idle else 0.0,
            closable=is_idle and not w.is_leaving,
            leaving=leaving if w.is_leaving else Leaving.NO,
            nthreads=w.nthreads if w.is_here else 0,
        )

    def _process(self, w: SimWorker) -> SchedulerWorker:
        seen = self._worker(w)
        return SchedulerWorker(
            name=w.name, address=w.address, status="running", nthreads=w.nthreads,
            processing=seen.processing, idle_s=seen.idle_s, sole_bytes=0, closable=seen.closable,
            leaving=seen.leaving,
        )  # fmt: skip


def policy_of(minimum: int, maximum: int, **changes: Any) -> Policy:
    base = Policy(cluster=KEY.name, minimum=minimum, maximum=maximum)
    return dataclasses.replace(base, **changes)
