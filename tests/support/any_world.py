"""Any cluster, policy and past, by seed: all that the planner looks at, each time among it."""

from __future__ import annotations

import dataclasses
import math
from random import Random
from typing import Any

import pytest

from dask_adaptive.model import observed, recycle, scaling
from dask_adaptive.model.amounts import Amount
from dask_adaptive.model.observed import ObservedWorker, Pin, PlatformWorker, PrefixWork, Retiring
from dask_adaptive.model.past import Blocked, Change, GroupPast, Past, Recommendation, Refusal
from dask_adaptive.model.policy import ClusterRef, Disruption, Mode, Policy, Retirement
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.context import in_numbers
from dask_adaptive.planner.leave import OWNER
from support.worlds import GPU, GROUP, KEY, NOW, changed, dated, lifecycle_of, with_walltimes

#: So many seeds; more where there is time.
MANY = (
    pytest.param(1_000, marks=pytest.mark.long),
    pytest.param(3_000, marks=pytest.mark.thorough),
)

AT = 1_700_000_000.0
HEARD_AT = NOW - 4
OTHER = "etl-wild"


class AnyWorld:
    """Draws one case; times are multiples of an eighth of a second, so that sums are exact."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self.policy = self._policy()
        names = (GROUP, GPU, OTHER) if self._p(0.6) else (GROUP,)
        groups = tuple(self._group(name) for name in names if self._p(0.97))
        self.observed = with_walltimes(dated(self._cluster(groups), AT + self._s(600)), self.policy)
        self.past = self._past()
        self.policy, _ = in_numbers(self.policy, self.observed, self.past)

    def _p(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _s(self, most: float = 100.0) -> float:
        return self._rng.randrange(1, int(8 * most)) / 8

    def _ago(self, most: float = 100.0) -> float:
        return NOW - self._s(most)

    def _n(self, most: int) -> int:
        return self._rng.randint(0, most)

    def _one(self, *values: Any) -> Any:
        return self._rng.choice(values)

    def _some(self, probability: float, make: Any, other: Any = None) -> Any:
        return make() if self._p(probability) else other

    # The policy.

    def _policy(self) -> Policy:
        if self._p(0.1):
            return Policy(ClusterRef("etl"), 10)
        groups = (
            scaling.WorkerGroup(GROUP, 6, self._n(2)),
            scaling.WorkerGroup(GPU, self._n(6), 0, self._s()),
        )
        return Policy(
            ClusterRef("etl"),
            self._n(12),
            mode=self._one(*[Mode.AUTO] * 8, Mode.ADVISE, Mode.PAUSED),
            idle_timeout_s=self._one(0.0, 30.0, 60.0, scaling.AUTO_S),
            target=scaling.LoadTarget(5.0),
            behavior=scaling.Behavior(
                scaling.ScaleUp(**self._direction(), max_pending=self._one(None, None, 2)),
                scaling.ScaleDown(
                    **self._direction(), delay_after_scale_up_s=self._one(0.0, 0.0, 30.0)
                ),
            ),
            schedules=self._some(
                0.2, lambda: (scaling.Schedule("*/5 * * * *", self._s(400), 2),), ()
            ),
            idle=self._idle(),
            fallback=self._one(
                scaling.Fallback(), scaling.Fallback(1, 2, scaling.FallbackBehavior.REPLICAS)
            ),
            unschedulable_timeout_s=60.0,
            max_unready=self._one(0.1, 0.45, 1.0),
            retirement=Retirement(max_concurrent=self._one(1, 3)),
            disruption=Disruption(
                budgets=(recycle.Budget(self._one(Amount(1), Amount(percent=50.0))),),
                windows=self._some(
                    0.2, lambda: (recycle.Window("*/10 * * * *", self._s(600)),), ()
                ),
            ),
            recycle=self._some(0.6, self._recycle, recycle.Recycle()),
            worker_groups=self._some(0.4, lambda: groups, ()),
        )

    def _direction(self) -> dict[str, Any]:
        rate = scaling.RatePolicy(
            self._one(*scaling.RateType), 1 + self._n(3), self._one(10.0, 60.0)
        )
        usual = scaling.Direction(
            self._one(0.0, 20.0, 60.0), self._one(*scaling.Select), (rate,) * self._n(1)
        )
        return {f.name: getattr(usual, f.name) for f in dataclasses.fields(usual)}

    def _idle(self) -> scaling.Idle:
        action = self._one(
            scaling.IdleAction.NOTHING,
            scaling.IdleAction.SCALE_TO_ZERO,
            scaling.IdleAction.DELETE_CLUSTER,
        )
        return scaling.Idle(self._one(None, 60.0), action, self._one(30.0, 90.0))

    def _recycle(self) -> recycle.Recycle:
        return recycle.Recycle(
            tasks=recycle.TaskQuota(
                self._one(0, 50), self._one(0, 0.5), self._p(0.2), self._p(0.2)
            ),
            lifetime=recycle.LifetimeQuota(self._one(math.inf, 120.0), jitter=self._one(0, 0.5))
            if self._p(0.8)
            else recycle.LifetimeQuota(120.0, walltime=True),
            memory=self._one(
                recycle.MemoryQuota(),
                recycle.MemoryQuota(soft=0.5, for_s=60.0),
                recycle.MemoryQuota(hard=0.9),
            ),
            failures=recycle.FailureQuota(self._one(0, 3)),
            min_age_s=self._one(0.0, 0.0, 60.0),
            strategy=recycle.Strategy(self._one(*recycle.StrategyType), ready_timeout_s=60.0),
            max_per_hour=self._one(None, Amount(2)),
        )

    # What is there.

    def _group(self, name: str) -> observed.ObservedGroup:
        workers = tuple(self._worker(f"{name}-worker-{i:04}", name) for i in range(self._n(6)))
        replicas = len(workers) + self._one(0, 0, 0, 1, -1)
        room = self._some(0.1, lambda: scaling.Room(self._n(2), "quota"))
        handled = self._one(None, replicas, replicas, replicas + 1)
        allowance = self._some(0.15, lambda: scaling.Allowance(self._n(5), "budget"))
        return observed.ObservedGroup(
            name, max(0, replicas), workers, handled, room, allowance, threads=1
        )

    def _worker(self, name: str, group: str) -> ObservedWorker:
        is_connected, age_s = self._p(0.75), self._s(400)
        going = is_connected and self._p(0.15)
        reason = self._one(Reason.UNDERUTILIZED, Reason.LIFETIME, Reason.TASK_QUOTA)
        tasks = self._one(0, 0, 2) if is_connected else 0
        use = recycle.Use(self._n(60), self._n(3), "", self._rng.random(), self._rng.random())
        return changed(
            ObservedWorker(name, PlatformWorker(name, f"uid-{name}", group, -age_s)),
            dask_names=(name,) if is_connected else (),
            lifecycle=lifecycle_of(
                is_connected=is_connected, deleting=self._p(0.05), in_service=not going,
                retiring=Retiring(reason, is_drained=self._one(False, True)) if going else None,
            ),
            pod=f"{name}-x",
            processing=tasks,
            idle_since=math.inf if tasks or not is_connected else -self._s(),
            sole_bytes=self._one(0, 0, 9),
            closable=self._p(0.9),
            actors=self._p(0.05),
            pins=self._some(0.1, lambda: (Pin(*self._one(("client", "nb"), ("manual", OWNER)), "",
                                              self._s()),), ()) if is_connected else (),
            manual_pin=self._some(0.1, lambda: observed.ManualPin(self._s(), "")),
            node=self._one("", "n1", "n2"),
            node_terminating=self._one(*[""] * 9, "cordoned"),
            pod_uid=f"pod-{name}",
            pod_made_at=-min(age_s, self._s(400)),
            use=use,
            ends_at=self._one(*[math.inf] * 5, self._s(60)),
            lifetime_ends_at=self._one(*[math.inf] * 5, self._s(60)),
            cordon=self._some(0.05, lambda: observed.Cordon(self._one(*recycle.Quota), "stopped")),
            paused=self._p(0.05),
            too_short=self._p(0.03),
            recycle_request=self._one(*[""] * 19, "me"),
            drift=self._one(*[""] * 19, "image"),
            nthreads=1 if is_connected else 0,
            unscheduled_at=None if is_connected else self._one(None, -self._s()),
            refused="" if is_connected else self._one("", "", "", "exceeded quota"),
            gated=not is_connected and self._p(0.2),
        )  # fmt: skip

    def _cluster(self, groups: tuple[observed.ObservedGroup, ...]) -> observed.ObservedCluster:
        workers = [w for g in groups for w in g.workers]
        processes = tuple(
            observed.SchedulerWorker(
                w.name, f"tcp://{w.name}", "running", 1, w.process.processing, w.idle_since,
                w.process.sole_bytes, pins=w.process.pins, actors=w.process.actors,
                retiring=w.retiring,
            )
            for w in workers if w.dask_names
        )  # fmt: skip
        scheduler = observed.ObservedScheduler(
            self._one(*[None] * 18, Reason.SCHEDULER_UNREACHABLE, Reason.AGENT_MISSING),
            session="s",
            agent="1",
            target=self._n(8),
            workers=processes,
            expected_s=self._one(0.0, 10.0),
            demand=self._some(0.8, self._demand),
            wants=self._some(0.2, lambda: (observed.Want(self._n(8), self._s(), "nb"),), ()),
            quiet=observed.Quiet(self._one(0.0, self._s()), self._one(0.0, self._s())),
            processing=sum(w.process.processing for w in workers),
            unanswered=self._n(2),
        )
        return observed.ObservedCluster(
            key=KEY,
            groups=groups,
            scheduler=scheduler,
            strangers=self._one((), ("a-stranger",)),
            terminating=self._some(0.1, self._terminating, ()),
            pause=self._some(0.1, self._pause, scaling.Pause()),
            uid="u",
            changes_in_s=self._one(*[math.inf] * 9, self._s()),
        )  # fmt: skip

    def _pause(self) -> scaling.Pause:
        left_s = self._one(None, self._s())
        return scaling.Pause(scale_in=self._p(0.5), scale_out=self._p(0.5), left_s=left_s)

    def _terminating(self) -> tuple[observed.TerminatingPod, ...]:
        known_s = self._one(math.inf, self._s(40))
        pin = self._some(0.3, lambda: observed.ManualPin(self._s(), ""))
        name = f"{GROUP}-worker-0000"
        return (
            observed.TerminatingPod(name, "p", (), self._s(40), (f"tcp://{name}",), known_s, pin),
        )

    def _demand(self) -> observed.Demand:
        if self._p(0.5):
            return observed.Demand()
        rows = tuple(
            PrefixWork(f"p{i}", self._one(None, self._s(20)), self._n(3), self._n(20), self._n(9),
                       self._s(60), level=i, fan_in=self._one(1.0, 9.0))
            for i in range(self._n(2))
        )  # fmt: skip
        needs = (observed.Need(self._n(3), self._s(), {"GPU": 1.0}, able=(f"{GPU}-worker-0000",)),)
        shuffles = (observed.UpcomingShuffle(3, self._n(20)),)
        often = (self._s(9), self._s(20), self._one(0.0, self._s(60))) if self._p(0.2) else ()
        return observed.Demand(rows, needs * self._p(0.2), shuffles * self._p(0.2), *often)

    # What is remembered.

    def _past(self) -> Past:
        if self._p(0.1):
            return Past()
        workers = [w for g in self.observed.groups for w in g.workers]
        pods, names = [w.platform.pod_uid for w in workers], [w.name for w in workers]
        deleted = frozenset(self._few(names)) if self._p(0.1) else frozenset()
        return Past(
            session=self._one(*["s"] * 9, "older"),
            since=self._one(None, *[self._ago(200)] * 5),
            heard_at=HEARD_AT,
            groups={g.name: self._group_past(g) for g in self.observed.groups[:2]},
            refusals={n: Refusal(NOW + self._s(20) - 5, Reason.BUSY, "") for n in self._few(names)},
            leaving=deleted | {w.name for w in workers if w.retiring} | {f"{GROUP}-worker-0099"},
            deleted=deleted,
            seen=frozenset(w.name for w in workers if self._p(0.9 if w.dask_names else 0.5)),
            floors={w.name: self._n(6) for w in workers if w.is_replaced or self._p(0.05)},
            counted={n: "another" for n in self._few(names)},
            recycle=recycle.RecyclePast(
                begun=tuple(sorted(self._ago(3600 * 1.1) for _ in range(self._n(3)))),
                above_since={pod: self._ago() for pod in self._few(pods)},
                pace={w.platform.pod_uid: self._pace(w) for w in workers},
                surging_since={n: self._ago() for n in self._few(names)},
                aborted={n: (NOW + self._s(), "late") for n in self._few(names) if self._p(0.2)},
                ready_s=self._s(20),
            ),
        )

    def _pace(self, worker: observed.ObservedWorker) -> tuple[float, int, float]:
        at = NOW - 0.5 if worker.process.processing else self._ago(30)
        return at, worker.use.runs, self._rng.random()

    def _few(self, values: list[str]) -> list[str]:
        return [v for v in values if self._p(0.2)]

    def _group_past(self, group: observed.ObservedGroup) -> GroupPast:
        number = self._n(8)
        at = sorted((*(HEARD_AT - self._s(90) for _ in range(self._n(4))), HEARD_AT))
        gap = (
            group.replicas,
            len(group.workers),
            *(() if group.handled is None else (group.handled,)),
        )
        blocked = Blocked(NOW + self._s(100) - 50, Reason.UNSCHEDULABLE, "", 1 + self._n(2))
        return GroupPast(
            recommendations=tuple(Recommendation(a, self._n(8)) for a in at),
            changes=tuple(Change(a, self._n(6) - 3) for a in sorted(self._ago(70) for _ in at)),
            gap=self._one(gap, (0, 0)),
            gap_since=self._ago(200),
            corrected_at=self._some(0.2, lambda: self._ago(20)),
            desired=self._one(None, number, number),
            requested=number,
            up_at=self._some(0.5, self._ago),
            arrival_s=self._one(None, self._s(60)),
            starts=self._one((), (self._s(60), self._s(60))),
            blocked=self._some(0.15, lambda: blocked),
            since=self._one(None, *[self._ago(200)] * 5),
        )
