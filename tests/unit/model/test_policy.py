"""A spec becomes a policy, or a line for each field that is wrong; `support.policies` has both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from dask_adaptive.model.amounts import Amount
from dask_adaptive.model.policy import (
    ClientPins,
    ClusterRef,
    Disruption,
    InvalidPolicy,
    ManualPins,
    Mode,
    OnLifetime,
    OnTimeout,
    Pins,
    Policy,
    Retirement,
    ShufflePins,
    parse_policy,
)
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Budget,
    FailureQuota,
    GroupRecycle,
    LifetimeQuota,
    MemoryLimit,
    MemoryQuota,
    Recycle,
    Strategy,
    StrategyType,
    TaskQuota,
    Window,
)
from dask_adaptive.model.scaling import (
    AUTO_S,
    Behavior,
    Fallback,
    FallbackBehavior,
    GroupBounds,
    Idle,
    IdleAction,
    LoadTarget,
    RatePolicy,
    RateType,
    ScaleDown,
    ScaleUp,
    Schedule,
    Select,
    ShuffleWait,
    WorkerGroup,
)
from dask_adaptive.model.scheduler_settings import ReliefChoices, SchedulerSettings, Setting
from support.policies import FULL, LEAST, TAKEN, WRONG, changed, schema_of, spec


def test_only_the_cluster_and_the_maximum_are_needed() -> None:
    assert Policy(ClusterRef("etl"), 5) == parse_policy(LEAST)


def test_every_field_is_read() -> None:
    written = yaml.safe_load("""
        controllerName: team-a
        mode: Advise
        minReplicas: 1
        idleTimeout: 90s
        target: {duration: 2s}
        behavior:
          scaleUp: {stabilizationWindow: 10s, selectPolicy: Min, tolerance: "0.1", maxPending: 20,
                    policies: [{type: Percent, value: 100, period: 15s}]}
          scaleDown: {stabilizationWindow: 2m, selectPolicy: Disabled, tolerance: 10%,
                      delayAfterScaleUp: 90s, policies: [{type: Pods, value: 3, period: 1m}]}
        schedules:
        - {cron: 0 8 * * 1-5, duration: 10h, timeZone: Europe/Berlin, minReplicas: 4}
        - {cron: 0 0 * * *, duration: 1h, minReplicas: 1, workerGroup: etl-gpu}
        idle: {after: 2h, action: DeleteCluster, noClientTimeout: 30m}
        fallback: {failureThreshold: 5, behavior: Replicas, replicas: 2}
        unschedulableTimeout: 1m
        maxUnready: 30%
        shuffle: {waitForWorkers: Disabled, maxWait: 20s}
        pins: {shuffle: {enabled: false, timeout: 2h}, manual: {maxDuration: 8h},
               client: {enabled: false, maxDuration: 1h}}
        retirement: {gracePeriod: 1m, onTimeout: Force, onLifetime: Stock, maxConcurrent: 2}
        disruption:
          nodeSignals: Ignore
          hints: false
          budgets: [{workers: 10%}, {workers: 2, reasons: [TaskQuota, Lifetime]}]
          windows:
          - {schedule: 0 2 * * *, duration: 2h, timeZone: Europe/Berlin}
          - {schedule: 0 3 * * SUN, duration: 30m}
        recycle:
          tasks: {max: 1000, jitter: 10%, exact: true, fromWalltime: true}
          lifetime: {max: 12h, jitter: 20%, minTaskDuration: 1s, margin: 30s,
                     walltime: true}
          memory: {soft: 80%, for: 1m, hard: 92%, overridePins: true}
          failures: {max: 20, window: 5m, patterns: ["*CUDA error*", "*No space left*"]}
          drift: false
          minAge: 5m
          maxPerHour: 20%
          strategy: {type: InPlace, maxSurge: 25%, readyTimeout: 2m}
        workerGroups:
        - {name: etl-gpu, minReplicas: 1, maxReplicas: 3, idleTimeout: 10m, priority: -7,
           recycle: {memory: {hard: 90%}}}
        - {name: etl-big, maxReplicas: 2}
        - {name: etl-fixed}
        scheduler: {relief: {host: Disabled}, config: {a.b: 1}}
    """)
    expected = Policy(
        ClusterRef("etl"), 5, 1, Mode.ADVISE, 90.0,
        LoadTarget(2.0),
        Behavior(
            ScaleUp(10.0, Select.MIN, (RatePolicy(RateType.PERCENT, 100, 15.0),), 0.1, 20),
            ScaleDown(120.0, Select.DISABLED, (RatePolicy(RateType.PODS, 3, 60.0),), 0.1, 90.0),
        ),
        (
            Schedule("0 8 * * 1-5", 36000.0, 4, "Europe/Berlin"),
            Schedule("0 0 * * *", 3600.0, 1, worker_group="etl-gpu"),
        ),
        Idle(7200.0, IdleAction.DELETE_CLUSTER, 1800.0),
        Fallback(5, 2, FallbackBehavior.REPLICAS),
        60.0, 0.3, ShuffleWait(False, 20.0),
        Pins(ShufflePins(False, 7200.0), ManualPins(28800.0), ClientPins(False, 3600.0)),
        Retirement(60.0, OnTimeout.FORCE, 2, OnLifetime.STOCK),
        Disruption(
            node_signals=False,
            hints=False,
            budgets=(
                Budget(Amount(percent=10.0)),
                Budget(Amount(2), frozenset({Reason.TASK_QUOTA, Reason.LIFETIME})),
            ),
            windows=(
                Window("0 2 * * *", 7200.0, "Europe/Berlin"), Window("0 3 * * SUN", 1800.0),
            ),
        ),
        Recycle(
            TaskQuota(1000, 0.1, True, True),
            LifetimeQuota(43200.0, True, 0.2, 1.0, 30.0),
            MemoryQuota(0.8, 0.92, 60.0, True),
            FailureQuota(20, 300.0, ("*CUDA error*", "*No space left*")),
            False, 300.0, Strategy(StrategyType.IN_PLACE, Amount(percent=25.0), 120.0),
            Amount(percent=20.0),
        ),
        (
            WorkerGroup("etl-gpu", 3, 1, 600.0, -7, GroupRecycle(memory=MemoryLimit(hard=0.9))),
            WorkerGroup("etl-big", 2), WorkerGroup("etl-fixed"),
        ),
        SchedulerSettings(ReliefChoices(host="Disabled"), (Setting(("a", "b"), 1),)),
        "team-a",
    )  # fmt: skip

    assert FULL.keys() == written.keys() | LEAST.keys(), "a test on the API server compares the CRD"
    assert expected == parse_policy({**LEAST, **written})


def test_without_a_window_of_its_own_a_fall_waits_for_the_idle_timeout() -> None:
    behavior = parse_policy(spec("behavior: {scaleDown: {tolerance: 1%}}")).behavior
    windows = [d.stabilization_window_s for d in (behavior.scale_down, behavior.scale_up)]

    assert [None, 0.0] == windows


def test_the_default_group_has_the_policys_bounds_unless_it_has_its_own() -> None:
    gpu = GroupBounds("etl-gpu", 2, 0, AUTO_S, 0)
    plain = parse_policy(spec("{minReplicas: 1, workerGroups: [{name: etl-gpu, maxReplicas: 2}]}"))
    own = parse_policy(spec(
        "workerGroups: [{name: etl-gpu, maxReplicas: 2},"
        " {name: etl-default, minReplicas: 1, maxReplicas: 4}]"
    ))  # fmt: skip

    assert (GroupBounds("etl-default", 5, 1, AUTO_S, 0), gpu) == plain.bounds("etl-default")
    assert (GroupBounds("etl-default", 4, 1, AUTO_S, 0), gpu) == own.bounds("etl-default")


def test_a_group_has_its_own_quotas_or_those_of_the_cluster() -> None:
    group = "workerGroups: [{name: gpu, recycle: {memory: {soft: 70%}}}]"
    usual = "{tasks: {max: 9, jitter: 10%}, memory: {hard: 90%, for: 1m}, minAge: 5m, drift: false}"
    policy = parse_policy(spec(f"{{recycle: {usual}, {group}}}"))

    assert 9 == policy.recycle_of("etl-default").tasks.max
    expected = Recycle(
        TaskQuota(jitter=0.1), memory=MemoryQuota(soft=0.7, for_s=60.0), min_age_s=300.0,
        drift=False,
    )  # fmt: skip
    assert expected == policy.recycle_of("gpu")
    assert policy.recycle == replace(policy, worker_groups=()).recycle_of("gpu")


@pytest.mark.parametrize(("written", "field", "words"), WRONG)
def test_what_is_wrong_is_refused_with_its_field(written: str, field: str, words: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(spec(written))

    (problem,) = [p for p in caught.value.problems if p.path == f"spec.{field}"]
    assert words in problem.words


#: Of the CRD, with a value of each field.
Field = tuple[tuple[Any, ...], dict[str, Any], Any]


def fields(schema: dict[str, Any], value: Any, path: tuple[Any, ...] = ()) -> Iterator[Field]:
    yield path, schema, value
    for name, child in schema.get("properties", {}).items():
        if name in value and name != "config":
            yield from fields(child, value[name], (*path, name))
    if "items" in schema:
        yield from fields(schema["items"], value[0], (*path, 0))


FIELDS = list(fields(schema_of("adaptivepolicies"), FULL))
OTHERS = {"string": 5, "integer": "3", "boolean": "yes", "array": {}, "object": []}


def beyond(schema: dict[str, Any], value: Any) -> Iterator[Any]:
    """A value beyond each bound."""
    yield from [OTHERS[schema["type"]]] if "type" in schema else []
    yield from [schema["minimum"] - 1, schema["maximum"] + 1] if "maximum" in schema else []
    yield from ["odd"] if "enum" in schema else []
    yield from [""] if "minLength" in schema else []
    yield from ["x" * (schema["maxLength"] + 1)] if "maxLength" in schema else []
    yield from [value * (schema["maxItems"] + 1)] if "maxItems" in schema else []
    if "properties" in schema:
        yield {**value, "odd": 1}
    for name in schema.get("required", ()):
        yield {k: v for k, v in value.items() if k != name}


def said_of(path: tuple[Any, ...], value: Any) -> list[str]:
    """The words of problems at or in a field of the full example with another value."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(changed(FULL, path, value))
    at = "spec" + "".join(f"[{part}]" if part == 0 else f".{part}" for part in path)
    return [problem.words for problem in caught.value.problems if problem.path.startswith(at)]


def test_the_bounds_of_the_crd_are_those_of_the_model() -> None:
    found = [(path, odd) for path, schema, value in FIELDS for odd in beyond(schema, value)]

    assert len(found) > 250
    assert [] == [(path, odd) for path, odd in found if not said_of(path, odd)]


@pytest.mark.parametrize("written", TAKEN)
def test_what_makes_sense_is_taken(written: str) -> None:
    assert isinstance(parse_policy(spec(written)), Policy)


def test_nan_is_no_number() -> None:
    with pytest.raises(InvalidPolicy, match="maxReplicas: must be"):
        parse_policy({**LEAST, "maxReplicas": math.nan})


def test_all_problems_are_found_at_once() -> None:
    """Also those between fields, unless one of them is wrong by itself."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(
            spec("""
            minReplicas: 9
            idleTimeout: soon
            recycle: {memory: {soft: 90%, hard: 80%, for: 1}, strategy: {maxSurge: 0, tipe: 1},
                      tasks: 3}
            workerGroups: [{name: a, maxReplicas: 1}, {name: b, minReplicas: 1, priority: x}]
            schedules: [{cron: daily, duration: 0s, minReplicas: 9, workerGroup: b}]
            pins: []
            mode: Off
        """)
        )

    assert {
        "spec.minReplicas", "spec.idleTimeout", "spec.mode", "spec.pins",
        "spec.recycle.memory.soft", "spec.recycle.memory.for", "spec.recycle.strategy.maxSurge",
        "spec.recycle.strategy.tipe", "spec.recycle.tasks", "spec.workerGroups[1].minReplicas",
        "spec.workerGroups[1].priority", "spec.schedules[0].cron", "spec.schedules[0].duration",
    } == {p.path for p in caught.value.problems}  # fmt: skip
    lines = str(caught.value).splitlines()
    assert (11, "and 3 more") == (len(lines), lines[-1])
