"""
A cluster of several worker groups that lives in steps, for the planner.

Upstream is as facts 2 and 9a tell: it acts on changes of `replicas`, and would choose victims of
its own, of any group, if a number were ever below that of the workers.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dask_adaptive.model.demand import Demand, Want
from dask_adaptive.model.observed import (
    Leaving,
    ObservedCluster,
    ObservedGroup,
    ObservedWorker,
    Pin,
)
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    Outcome,
    Plan,
    Retire,
    SetReplicas,
)
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.remember import remember
from support.worlds import GROUP, NOW, busy, cluster, pending, worker

STEP_S = 5.0


@dataclass
class Row:
    """One group: what is asked for, what upstream has acted on, and the state of each worker."""

    replicas: int = 0
    handled: int = 0
    workers: dict[str, str] = field(default_factory=dict)  # "pending" | "idle" | "busy" | "drained"


class Town:
    """
    Args:
        groups: Workers of each at the beginning, all idle.
        pinned: Workers that are pinned, by name, when they are there.
    """

    def __init__(self, groups: Mapping[str, int], *, pinned: Iterable[str] = ()) -> None:
        self.now, self.past = NOW, Past()
        self.pinned = frozenset(pinned)
        self.numbers = itertools.count(1)
        self.rows: dict[str, Row] = {}
        self.loads: dict[str, int] = dict.fromkeys(groups, 0)
        self.killed = self.lost = 0
        self.decided = Plan(Reason.RECONCILED, "")
        for name, size in groups.items():
            row = self.rows[name] = Row(size, size)
            for _ in range(size):
                self._make(name, row, "idle")

    def _make(self, name: str, row: Row, state: str = "pending") -> None:
        row.workers[f"{name}-worker-{next(self.numbers):03}"] = state

    def seen(self) -> ObservedCluster:
        groups = [
            ObservedGroup(
                name, row.replicas, tuple(self._seen(name, w, s) for w, s in row.workers.items()),
                row.handled,
            )
            for name, row in self.rows.items()
        ]  # fmt: skip
        wants = tuple(
            Want(n, 60.0, "nb", "" if name == GROUP else name)
            for name, n in self.loads.items()
            if n
        )
        others = [g for g in groups if g.name != GROUP]
        known = cluster(
            [w for g in groups if g.name == GROUP for w in g.workers], others=others, wants=wants,
            demand=Demand(),
        )  # fmt: skip
        return dataclasses.replace(known, groups=tuple(groups), at=1_700_000_000.0 + self.now)

    def _seen(self, group: str, name: str, state: str) -> ObservedWorker:
        pins = (Pin("client", "nb", "", 60.0),) if name in self.pinned else ()
        match state:
            case "pending":
                return pending(name, group=group, age_s=9.0)
            case "busy":
                return busy(name, group=group, pins=pins)
            case "drained":
                return worker(name, group=group, leaving=Leaving.DRAINED, in_service=False)
        return worker(name, group=group, pins=pins)

    def step(self, policy: Policy, *, handles: bool = True, dies: bool = False) -> Plan:
        """One pass, and what everybody else does until the next."""
        self.now += STEP_S
        world = self.seen()
        self.decided = plan(world, policy, self.past, now=self.now)
        outcomes = [self._do(action) for action in self.decided.actions]
        self.past = remember(self.past, world, policy, self.decided, outcomes, now=self.now)
        if dies:
            self.past = Past(leaving=self.past.leaving)
        if handles:
            self.handle()
        self.live()
        return self.decided

    def _do(self, action: Action) -> Outcome:
        is_done = self._obey(action)
        reason = action.reason if is_done else Reason.RETIREMENT_REFUSED
        return Outcome(action, is_done, reason, "")

    def _obey(self, action: Action) -> bool:
        if isinstance(action, SetReplicas):
            row = self.rows[action.group]
            if action.replicas < len(row.workers):
                return False  # the platform refuses
            row.replicas = action.replicas
            return True
        name = getattr(action, "worker", "")
        row = next((r for r in self.rows.values() if name in r.workers), Row())
        match action, row.workers.get(name):
            case Retire(), "idle":
                row.workers[name] = "drained"
            case Cancel(), "drained":
                row.workers[name] = "idle"
            case Delete(), ("drained" | "pending"):
                del row.workers[name]
            case _:
                return False
        return True

    def handle(self) -> None:
        for name, row in self.rows.items():
            if row.replicas == row.handled:
                continue
            row.handled = row.replicas
            while len(row.workers) < row.replicas:
                self._make(name, row)
            while len(row.workers) > row.replicas:
                row.workers.popitem()
                self.killed += 1

    def live(self) -> None:
        """Pending workers connect, and as many work as there is load for."""
        for name, row in self.rows.items():
            left = self.loads[name]
            for worker_name, state in row.workers.items():
                if state == "drained":
                    continue
                row.workers[worker_name] = "busy" if left > 0 else "idle"
                left -= 1

    def run(self, policy: Policy, steps: int) -> Sequence[Plan]:
        return [self.step(policy) for _ in range(steps)]
