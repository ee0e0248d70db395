"""How long a plan holds while nothing happens: never too long, and not much too short."""

from __future__ import annotations

import dataclasses
import math
import re
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.model.amounts import Amount
from dask_adaptive.model.observed import (
    Demand,
    ManualPin,
    ObservedCluster,
    ObservedScheduler,
    ObservedWorker,
    Pin,
    PrefixWork,
    TerminatingPod,
)
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, GroupPlan, Leave, Plan, Retire, SetPin
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.recycle import (
    LifetimeQuota,
    Limits,
    MemoryQuota,
    Quota,
    Recycle,
    RecyclePast,
    TaskQuota,
    Use,
)
from dask_adaptive.model.scaling import Behavior, Pause, ScaleDown
from dask_adaptive.planner.horizon import CONTESTED_S, TICK_S
from dask_adaptive.planner.limits import IMMINENT_S
from dask_adaptive.planner.memory import heard
from dask_adaptive.planner.plan import AGAIN_S
from support.any_world import MANY, AnyWorld
from support.tables import table
from support.worlds import (
    NOW,
    POLICY,
    busy,
    changed,
    cluster,
    dated,
    past_of,
    pending,
    plan,
    remember,
    worker,
)

#: As the message of a load says it.
WORK = re.compile(r"\d+ s of work")

#: Sums of such times are exact.
INSTANT_S = 2.0**-10

#: So far is looked ahead.
FAR_S = 400.0


def aged(observed: ObservedCluster, seconds: float) -> ObservedCluster:
    """
    The same cluster, some seconds after it was observed, if nothing has happened since.

    What counts from an instant goes on, as the clocks do. What is measured (tasks, memory, runs,
    failures) stays as it was. What has run out is gone: pins, leases, annotations. News is told
    once, so an older observation has none.

    Args:
        seconds: At least 0.
    """
    if seconds <= 0:
        return observed
    older = _Older(seconds, observed.at + seconds, observed.scheduler.at + seconds)
    return dataclasses.replace(
        observed,
        groups=tuple(
            dataclasses.replace(g, workers=tuple(map(older.worker, g.workers)))
            for g in observed.groups
        ),
        scheduler=older.scheduler(observed.scheduler),
        terminating=tuple(map(older.terminating, observed.terminating)),
        at=observed.at + seconds,
        pause=older.pause(observed.pause),
        changes_in_s=older.left(observed.changes_in_s),
    )


class _Older:
    """The parts of an observation as they are some seconds later."""

    def __init__(self, seconds: float, at: float, seen_at: float) -> None:
        self._by_s, self._at, self._seen_at = seconds, at, seen_at

    def left(self, seconds: float) -> float:
        return max(0.0, seconds - self._by_s)

    def scheduler(self, scheduler: ObservedScheduler) -> ObservedScheduler:
        demand, by_s = scheduler.demand, self._by_s
        quiet = scheduler.quiet
        return dataclasses.replace(
            scheduler,
            at=self._seen_at,
            workers=tuple(
                dataclasses.replace(p, pins=self._held(p.pins)) if p.pins else p
                for p in scheduler.workers
            ),
            demand=demand and dataclasses.replace(demand, age_s=demand.age_s + by_s),
            wants=tuple(
                dataclasses.replace(w, left_s=w.left_s - by_s)
                for w in scheduler.wants
                if w.left_s > by_s
            ),
            quiet=dataclasses.replace(
                quiet,
                no_task_s=quiet.no_task_s and quiet.no_task_s + by_s,
                no_client_s=quiet.no_client_s and quiet.no_client_s + by_s,
            ),
            notes=(),
        )

    def terminating(self, pod: TerminatingPod) -> TerminatingPod:
        return dataclasses.replace(
            pod,
            left_s=self.left(pod.left_s),
            known_left_s=self.left(pod.known_left_s),
            manual_pin=self._manual(pod.manual_pin),
        )

    def pause(self, pause: Pause) -> Pause:
        if pause.left_s is None:
            return pause
        return dataclasses.replace(pause, left_s=self.left(pause.left_s))

    def worker(self, worker: ObservedWorker) -> ObservedWorker:
        if not worker.is_pinned:
            return worker
        manual = self._manual(worker.platform.manual_pin)
        return changed(worker, pins=self._held(worker.process.pins), manual_pin=manual)

    def _manual(self, pin: ManualPin | None) -> ManualPin | None:
        return pin if pin and pin.until > self._at else None

    def _held(self, pins: tuple[Pin, ...]) -> tuple[Pin, ...]:
        return tuple(p for p in pins if p.until > self._seen_at)


def timeless(decided: Plan) -> dict[str, Any]:
    """A plan without what counts time."""
    return {
        **{f.name: getattr(decided, f.name) for f in dataclasses.fields(Plan)},
        "valid_until": None,
        "message": WORK.sub("", decided.message),
        "limits": limits(decided),
        "actions": sorted(map(undated, decided.actions), key=repr),
        "advice": sorted(map(undated, decided.advice), key=repr),
        "blockers": set(decided.blockers),
        "replacing": set(decided.replacing),
        "groups": [untimed(group) for group in decided.groups],
        "storm": bool(decided.storm),
        "uses": [u for u in decided.uses if u.quota is not Quota.LIFETIME],
        "arriving": None,
    }


def untimed(group: GroupPlan) -> GroupPlan:
    """Without figures, and stages that made no difference."""
    return dataclasses.replace(
        group,
        message=WORK.sub("", group.message),
        steps=tuple(dataclasses.replace(s, message="") for s in group.steps[-1:]),
        inputs={},
        blocked=group.blocked and dataclasses.replace(group.blocked, until=0.0),
    )


def undated(action: Action) -> Action:
    match action:
        case Leave():
            return dataclasses.replace(action, left_s=0.0)
        case SetPin():
            return dataclasses.replace(action, ttl_s=0.0, message="")
        case Retire():
            return dataclasses.replace(action, message="")  # for how long it has been idle
    return action


def ends(decided: Plan, passed_s: float = 0.0) -> dict[str, float]:
    """What is left of each worker's limit some seconds later, as the agent counts it down."""
    left = {name: limit.left_s for name, limit in decided.limits.workers.items()}
    return {n: left_s and max(IMMINENT_S, left_s - passed_s) for n, left_s in left.items()}


def limits(decided: Plan) -> Limits:
    """All of them but what counts time: ends, and how long the youngest worker lives."""
    workers = {n: dataclasses.replace(w, left_s=0.0) for n, w in decided.limits.workers.items()}
    profiles = tuple(dataclasses.replace(p, fresh_s=0.0) for p in decided.limits.profiles)
    return dataclasses.replace(decided.limits, workers=workers, profiles=profiles)


def assert_it_holds(
    decided: Plan, observed: ObservedCluster, policy: Policy, past: Past, seconds: float
) -> None:
    now = NOW + seconds
    again = plan(aged(observed, seconds), policy, heard(past, now=now), now=now)

    assert timeless(decided) == timeless(again)
    assert ends(decided, seconds) == pytest.approx(ends(again))


def check(seed: int) -> None:
    case, rng = AnyWorld(seed), Random(seed)
    observed, policy, past = case.observed, case.policy, case.past
    decided = plan(observed, policy, past, now=NOW)
    kept = remember(past, observed, policy, decided, (), now=NOW)
    if rng.random() < 0.7:
        again = plan(observed, policy, kept, now=NOW)
        if timeless(again) != timeless(decided):
            assert decided.valid_until <= NOW + AGAIN_S
        decided, past = again, kept
    assert observed is aged(observed, 0.0)
    left_s = min(decided.valid_until - NOW, FAR_S)
    if left_s <= (CONTESTED_S if decided.replacing else TICK_S):
        return  # who of several is replaced first may be a second late
    for part in (rng.random(), 1.0):
        seconds = math.ceil(part * left_s / INSTANT_S - 1) * INSTANT_S
        assert_it_holds(decided, observed, policy, past, seconds)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_plan_holds_until_it_says(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("plans", MANY)
def test_many_plans_hold_until_they_say(plans: int) -> None:
    for seed in range(plans):
        check(seed)


def holds_s(world: ObservedCluster, past: dict[str, Any], **rules: Any) -> float:
    """For how long the plan of a pass that is one of many holds."""
    policy, recycle = dataclasses.replace(POLICY, **rules), RecyclePast(**past.pop("recycle", {}))
    seen = frozenset(w.name for group in world.groups for w in group.workers if w.dask_names)
    known = past_of(recycle=recycle, seen=seen, **past)
    for _ in range(2):
        known = remember(known, world, policy, plan(world, policy, known, now=NOW), (), now=NOW)
    return plan(world, policy, known, now=NOW).valid_until - NOW


AT = 1_700_000_040.0  # a minute before a quarter past ten
LATE = {"aborted": {"a": (NOW + 33, "late")}}
AGED = {"pod_age_s": 500.0, "pod_uid": "p", "use": Use(runs=9, unmanaged=0.9)}
FREE = [worker("a", idle_s=21.0), worker("b", idle_s=10.0)]
OVER = {"recycle": Recycle(tasks=TaskQuota(9))}


def at(*workers: ObservedWorker, **changes: Any) -> ObservedCluster:
    """As many as there are are wanted."""
    seen = {f.name for f in dataclasses.fields(ObservedCluster)} & changes.keys()
    known = {name: changes.pop(name) for name in seen}
    world = cluster(workers, **{"target": len(workers), **changes})
    return dataclasses.replace(dated(world, AT), uid="u", **known)


def slowly(**rule: Any) -> dict[str, Any]:
    return {"behavior": Behavior(scale_down=ScaleDown(stabilization_window_s=0.0, **rule))}


def demand(running: int = 1, **row: Any) -> Demand:
    return Demand((PrefixWork("p", None, running, 0, 0, **row),))


@table(
    "expected_s, world, past, rules",
    a_delay=(15.0, at(*FREE, target=0), {"up_at": NOW - 5}, slowly(delay_after_scale_up_s=20.0)),
    no_node=(100.0, at(pending("a", unschedulable_s=200.0)), {}, {}),
    one_comes=(0.5, at(pending("a", age_s=4.0), demand=demand()), {}, {}),
    how_long_a_task_takes=(4.0, at(busy("a"), worker("b"), demand=demand(2, longest_s=100.0)), {},
        {}),
    all_run_that_can=(math.inf, at(busy("a"), demand=demand(longest_s=100.0)), {}, {}),
    a_lifetime_less_a_start=(90.0, at(busy("a", **AGED)), {},
        {"recycle": Recycle(lifetime=LifetimeQuota(600.0))}),
    an_end_less_its_margin=(50.0, at(busy("a", ends_in_s=70.0)), {}, {}),
    memory=(70.0, at(busy("a", **AGED)),
        {"recycle": {"above_since": {"p": NOW - 100}, "pace": {"p": (NOW, 9, 0.0)}}},
        {"recycle": Recycle(memory=MemoryQuota(soft=0.5, for_s=180.0))}),
    too_young=(100.0, at(busy("a", **AGED)), {},
        {"recycle": Recycle(tasks=TaskQuota(9), min_age_s=600.0)}),
    an_hour=(100.0, at(busy("a", **AGED)), {"recycle": {"begun": (NOW - 3500,)}},
        {"recycle": Recycle(tasks=TaskQuota(9), max_per_hour=Amount(1))}),
    a_back_off=(33.0, at(busy("a", **AGED)), {"recycle": LATE}, OVER),
)  # fmt: skip
def test_a_plan_holds_until_the_next_rule_turns(
    expected_s: float, world: ObservedCluster, past: dict[str, Any], rules: dict[str, Any]
) -> None:
    assert expected_s == holds_s(world, past, **rules)
