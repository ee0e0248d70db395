"""
A cluster that lives in steps of a second, for the planner: upstream, pods, and the agent's part.

Upstream is as facts 2 and 9a tell: it acts on changes of `replicas` that it sees, later and rashly,
and never looks at the state. kopf shows it the number that is there when it looks; two changes in
between that undo each other are none (kopf compares with what was handled last).
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    Outcome,
    Plan,
    Restart,
    Retire,
    SetReplicas,
)
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits, Quota, Use
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.remember import remember
from support.worlds import NOW, cluster, worker


@dataclass
class Hand:
    """One worker: its Deployment, its pod, and its process."""

    name: str
    made_at: float
    pod: int
    pod_at: float
    ready_at: float  # when its process connects
    runs: int = 0
    life: int = 0  # runs of all its pods
    leaving: Leaving = Leaving.NO
    reason: Reason | None = None
    drained_at: float = 0.0
    stopped: bool = False
    waiting: str = ""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def is_up(self, now: float) -> bool:
        return self.ready_at <= now


class Farm:
    """
    Args:
        size: Workers that are there at the beginning.
        start_s: How long a pod takes until its process is connected.
        drain_s: How long a worker drains.
        handle_s: How long upstream takes to see a change of `replicas`.
        room: Pods that the machines have room for; others wait.
        knows_handled: Whether the platform says which number was handled last.
        holds_results: Whether workers hold results, which only one in service can take.
    """

    def __init__(
        self, size: int, *, start_s: float = 5.0, drain_s: float = 3.0, handle_s: float = 1.0,
        room: int = 99, knows_handled: bool = True, holds_results: bool = False,
    ) -> None:  # fmt: skip
        self.holds_results, self.told, self.runs = holds_results, Limits(), 0
        self.most_runs = 0  # of one process
        self.now = NOW
        self.start_s, self.drain_s, self.handle_s = start_s, drain_s, handle_s
        self.room, self.knows_handled = room, knows_handled
        self.numbers = itertools.count(1)
        self.pods = itertools.count(1)
        self.hands: dict[str, Hand] = {}
        self.replicas = self.handled = size
        self.changed_at = NOW
        self.is_broken = False  # new pods never start
        self.past = Past(session="s", since=0.0)
        self.killed = self.deleted = self.restarted = self.made = 0
        self.refused = 0  # calls that the platform or the agent turned down
        self.retired: list[str] = []
        self.least = size
        self.most = size
        self.decided = Plan(Reason.RECONCILED, "")
        for _ in range(size):
            self._make(ready_at=0.0)

    def _make(self, ready_at: float) -> None:
        name = f"w{next(self.numbers):03}"
        at = 0.0 if ready_at == 0.0 else self.now
        self.hands[name] = Hand(name, at, next(self.pods), at, ready_at)

    def _ready_at(self) -> float:
        return float("inf") if self.is_broken else self.now + self.start_s

    @property
    def in_service(self) -> int:
        return sum(
            h.is_up(self.now) and h.leaving is Leaving.NO and not h.stopped
            for h in self.hands.values()
        )

    def seen(self, target: int) -> ObservedCluster:
        workers, free = [], target
        for hand in self.hands.values():
            is_busy = free > 0 and hand.is_up(self.now) and hand.leaving is Leaving.NO
            free -= is_busy
            workers.append(self._seen(hand, is_busy=is_busy))
        known = cluster(workers, target=target, replicas=self.replicas)
        handled = self.handled if self.knows_handled else None
        group = dataclasses.replace(known.groups[0], handled=handled)
        return dataclasses.replace(known, groups=(group,), at=1_700_000_000.0 + self.now)

    def _seen(self, hand: Hand, *, is_busy: bool) -> ObservedWorker:
        is_up = hand.is_up(self.now)
        base = worker(
            hand.name,
            age_s=self.now - hand.made_at,
            pod=f"{hand.name}-{hand.pod}",
            pod_uid=f"pod-{hand.pod}",
            pod_age_s=self.now - hand.pod_at,
            dask_names=(hand.name,) if is_up else (),
            waiting="" if is_up else (hand.waiting or "ContainerCreating"),
            processing=int(is_busy or (is_up and hand.leaving is Leaving.DRAINING)),
            closable=is_up and hand.leaving is Leaving.NO and not is_busy,
            idle_s=0.0 if is_busy else 100.0,
            use=Use(runs=hand.runs),
            leaving=hand.leaving if is_up else Leaving.NO,
            leaving_reason=hand.reason if is_up else None,
            in_service=not is_up or hand.leaving is Leaving.NO,
            stopped="comes to its limit" if hand.stopped else "",
            stopped_for=Quota.TASKS if hand.stopped else None,
        )
        return dataclasses.replace(base, **hand.changes)

    def step(self, policy: Policy, target: int, *, forgets: bool = False) -> Plan:
        """One pass, and one second of everybody else's life."""
        world = self.seen(target)
        self.decided = plan(world, policy, self.past, now=self.now)
        outcomes = [self._do(a) for a in self.decided.actions]
        self.past = remember(self.past, world, policy, self.decided, outcomes, now=self.now)
        self._enforce(self.decided.limits)
        if forgets:
            recycle = dataclasses.replace(
                type(self.past.recycle)(), begun=self.past.recycle.begun,
                totals=self.past.recycle.totals,
            )  # fmt: skip
            self.past = Past(leaving=self.past.leaving, recycle=recycle)
        self._upstream()
        self.now += 1.0
        self._live(target)
        self.least = min(self.least, self.in_service)
        self.most = max(self.most, len(self.hands))
        return self.decided

    def _do(self, action: Action) -> Outcome:
        is_done = self._obey(action)
        self.refused += not is_done
        return Outcome(action, is_done, action.reason if is_done else Reason.ACTION_FAILED, "")

    def _obey(self, action: Action) -> bool:
        if isinstance(action, SetReplicas):
            return self._set_replicas(action.replicas)
        hand = self.hands.get(getattr(action, "worker", ""))
        if hand is None:
            return False
        match action:
            case Retire():
                return self._retire(hand, action)
            case Cancel():
                hand.leaving, hand.reason = Leaving.NO, None
            case Delete():
                return self._delete(hand)
            case Restart():
                return self._restart(hand, action)
        return True

    def _retire(self, hand: Hand, action: Retire) -> bool:
        if hand.leaving is not Leaving.NO or not hand.is_up(self.now):
            return False
        if self.holds_results and self.in_service == (not hand.stopped):
            return False  # the agent's NoRecipient
        hand.leaving, hand.reason = Leaving.DRAINING, action.reason
        hand.drained_at = self.now + self.drain_s
        hand.stopped = False
        self.retired.append(hand.name)
        return True

    def _delete(self, hand: Hand) -> bool:
        if hand.is_up(self.now) and hand.leaving is not Leaving.DRAINED:
            return False
        del self.hands[hand.name]
        self.deleted += 1
        return True

    def _restart(self, hand: Hand, action: Restart) -> bool:
        if hand.leaving is not Leaving.DRAINED or action.pod_uid != f"pod-{hand.pod}":
            return False
        hand.pod, hand.pod_at, hand.ready_at = next(self.pods), self.now, self._ready_at()
        hand.runs, hand.leaving, hand.reason, hand.stopped = 0, Leaving.NO, None, False
        self.restarted += 1
        return True

    def _set_replicas(self, replicas: int) -> bool:
        if replicas < len(self.hands):
            return False
        self.replicas, self.changed_at = replicas, self.now
        return True

    def _upstream(self) -> None:
        if self.now < self.changed_at + self.handle_s:
            return
        if self.replicas != self.handled:
            self.handled = self.replicas
            while len(self.hands) < self.replicas:
                self.made += 1
                self._make(self._ready_at())
            while len(self.hands) > self.replicas:
                self.hands.popitem()
                self.killed += 1

    def _live(self, target: int) -> None:
        up = [h for h in self.hands.values() if h.pod_at == 0.0 or h.is_up(self.now)]
        free = self.room - len(up)
        for hand in self.hands.values():
            self._stop_if_exact(hand)
            if hand.is_up(self.now) and hand.leaving is Leaving.NO and not hand.stopped and target:
                hand.runs += 1
                hand.life += 1
                self.runs += 1
                self.most_runs = max(self.most_runs, hand.runs)
            if hand.leaving is Leaving.DRAINING and self.now >= hand.drained_at:
                hand.leaving = Leaving.DRAINED
            if not hand.is_up(self.now):
                free -= 1
                if free < 0:
                    hand.ready_at = max(hand.ready_at, self.now + 1.5)
                    hand.waiting = "Unschedulable: no room"

    def _stop_if_exact(self, hand: Hand) -> None:
        """The agent does that between two passes, whatever `stops` says."""
        limit, others = self.told.workers.get(hand.name), self.told.others
        profile = others if limit is None else limit.profile
        if profile is None or not self.told.profiles[profile].exact:
            return
        runs = self.told.profiles[profile].runs if limit is None else limit.runs
        if runs and hand.runs >= runs and hand.leaving is Leaving.NO:
            hand.stopped = True

    def _enforce(self, limits: Limits) -> None:
        self.told = limits
        for hand in self.hands.values():
            limit = limits.workers.get(hand.name)
            if limit is None or not limit.runs or hand.runs < limit.runs:
                hand.stopped = False
            self._stop_if_exact(hand)
        stopped = sum(h.stopped for h in self.hands.values())
        for hand in self.hands.values():
            limit = limits.workers.get(hand.name)
            if hand.leaving is not Leaving.NO or limit is None or not limit.runs:
                continue
            if not hand.stopped and hand.runs >= limit.runs and stopped < limits.stops:
                hand.stopped = True
                stopped += 1
