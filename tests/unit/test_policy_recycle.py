"""Quotas, budgets and windows of a spec are read, or a sentence names the field and the fix."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.amounts import format_bytes, parse_amount, parse_percent, parse_quantity
from dask_adaptive.model.patterns import problem_of
from dask_adaptive.model.policy import Disruption, InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Amount,
    Budget,
    FailureQuota,
    GpuQuota,
    LifetimeQuota,
    Measure,
    MemoryQuota,
    Recycle,
    Selection,
    Strategy,
    TaskQuota,
    Trait,
    Window,
)

LEAST = {"clusterRef": {"name": "etl"}, "maxReplicas": 3}
CRD = Path(__file__).parents[2] / "manifests" / "crds" / "adaptivepolicies.yaml"


def test_nothing_is_recycled_but_what_has_drifted_unless_asked_for() -> None:
    policy = parse_policy(LEAST)

    assert Recycle() == policy.recycle
    assert (Budget(Amount(percent=25.0)),) == policy.disruption.budgets
    assert policy.recycle.drift


def test_every_field_is_read() -> None:
    spec = yaml.safe_load("""
        recycle:
          tasks: {max: 1000, jitter: 10%, exact: true, fromWalltime: true}
          lifetime: {max: 12h, jitter: 20%, minTaskDuration: 1s, deviations: 1.5, margin: 30s}
          memory: {soft: 80%, for: 1m, hard: 92%, measure: Process, leakRate: 500Mi,
                   leakWindow: 30m, overridePins: true}
          gpuMemory: {soft: 70%, for: 3m, hard: 95%}
          failures: {max: 20, window: 5m, patterns: ["*CUDA error*", "*No space left*"]}
          selection: {by: [Duration, UnmanagedMemory], deviations: 3, minTasks: 50}
          drift: false
          minAge: 5m
          maxPerHour: 20%
          strategy: {type: InPlace, maxSurge: 25%, readyTimeout: 2m}
        workerGroups:
        - {name: etl-gpu, recycle: {gpuMemory: {hard: 90%}}}
        - {name: etl-cpu}
        disruption:
          budgets: [{workers: 10%}, {workers: 2, reasons: [TaskQuota, Lifetime]}]
          windows:
          - {schedule: "0 2 * * *", duration: 2h, timeZone: Europe/Berlin}
          - {schedule: "0 3 * * SUN", duration: 30m}
        restartAt: "2026-01-31T18:00:00Z"
    """)
    expected = Policy(
        "etl", 3,
        recycle=Recycle(
            TaskQuota(1000, 0.1, True, True),
            LifetimeQuota(43200.0, 0.2, 1.0, 1.5, 30.0),
            MemoryQuota(0.8, 60.0, 0.92, Measure.PROCESS, 500 * 2**20, 1800.0, True),
            GpuQuota(0.7, 180.0, 0.95),
            FailureQuota(20, 300.0, ("*CUDA error*", "*No space left*")),
            Selection((Trait.DURATION, Trait.UNMANAGED_MEMORY), 3.0, 50),
            False, 300.0, Strategy.IN_PLACE, Amount(percent=25.0), 120.0,
        ),
        group_recycle={"etl-gpu": Recycle(gpu=GpuQuota(hard=0.9))},
        disruption=Disruption(
            budgets=(
                Budget(Amount(percent=10.0)),
                Budget(Amount(2), frozenset({Reason.TASK_QUOTA, Reason.LIFETIME})),
            ),
            windows=(
                Window("0 2 * * *", 7200.0, "Europe/Berlin"), Window("0 3 * * SUN", 1800.0),
            ),
            max_per_hour=Amount(percent=20.0),
        ),
        restart_at=1769882400.0,
    )  # fmt: skip

    assert expected == parse_policy({**LEAST, **spec})


def test_a_group_has_its_own_quotas_or_those_of_the_cluster() -> None:
    spec = {
        "recycle": {"tasks": {"max": 9}},
        "workerGroups": [{"name": "gpu", "recycle": {"minAge": "1m"}}],
    }
    policy = parse_policy({**LEAST, **spec})

    assert 9 == policy.recycle_of("etl-default").tasks.maximum
    assert 0 == policy.recycle_of("gpu").tasks.maximum


def test_the_schema_and_the_parser_have_the_same_defaults() -> None:
    assert Policy("etl", 3) == parse_policy(_filled(LEAST))


def test_no_budget_at_all_is_not_the_default_one() -> None:
    assert () == parse_policy({**LEAST, "disruption": {"budgets": []}}).disruption.budgets


R = "spec.recycle"


@pytest.mark.parametrize(
    ("recycle", "message"),
    [
        ([], f"{R} must be an object"),
        ({"task": {}}, f"{R}.task is not a known field; known here: drift"),
        ({"tasks": {"maximum": 1}}, f"{R}.tasks.maximum is not a known field"),
        ({"tasks": {"max": -1}}, f"{R}.tasks.max must be a whole number of at least 0"),
        ({"tasks": {"max": 1.5}}, f"{R}.tasks.max must be a whole number"),
        ({"tasks": {"max": 9, "jitter": 10}}, f"{R}.tasks.jitter: 10 is not a percentage; write"),
        ({"tasks": {"max": 9, "jitter": "101%"}}, "101% is more than 100%"),
        ({"tasks": {"max": 9, "jitter": "-1%"}}, "is not a percentage; write one like 10%"),
        ({"tasks": {"max": 9, "exact": "yes"}}, f"{R}.tasks.exact must be true or false"),
        ({"lifetime": {"max": "0s"}}, f"{R}.lifetime.max must be longer than 0s"),
        ({"lifetime": {"max": "1d"}}, f"{R}.lifetime.max: '1d' is not a duration; write one like"),
        ({"lifetime": {"walltime": True}}, f"{R}.lifetime.walltime needs recycle.lifetime.max"),
        ({"lifetime": {"deviations": -1}}, f"{R}.lifetime.deviations must be a number from 0 to"),
        ({"lifetime": {"deviations": math.nan}}, "must be a number from 0 to 10"),
        ({"lifetime": {"deviations": True}}, "must be a number from 0 to 10"),
        ({"memory": {"soft": "80%", "hard": "80%"}}, "must be less than spec.recycle.memory.hard,"
         " got 80% and 80%"),
        ({"memory": {"soft": "0%"}}, f"{R}.memory.soft must be more than 0%"),
        ({"memory": {"soft": 0.8}}, f"{R}.memory.soft: 0.8 is not a percentage"),
        ({"memory": {"for": "5m"}}, f"{R}.memory has no quota: set soft, hard or leakRate"),
        ({"memory": {"hard": "9%", "measure": "RSS"}}, "must be one of Unmanaged, Process"),
        ({"memory": {"leakRate": "500mb"}}, "'500mb' is not a quantity; write one like 500Mi"),
        ({"memory": {"leakRate": 0}}, f"{R}.memory.leakRate must be more than 0"),
        ({"memory": {"leakRate": "1G", "leakWindow": "5s"}}, "leakWindow must be at least 1m"),
        ({"gpuMemory": {"for": "1m"}}, f"{R}.gpuMemory has no quota: set soft or hard"),
        ({"gpuMemory": {"soft": "90%", "hard": "80%"}}, "must be less than spec.recycle.gpuMemory"),
        ({"failures": {"window": "0s", "max": 1}}, f"{R}.failures.window must be longer than 0s"),
        ({"failures": {"patterns": "CUDA"}}, f"{R}.failures.patterns must be a list"),
        ({"failures": {"patterns": [""]}}, "patterns[0] must be a text that is not empty"),
        ({"failures": {"patterns": ["*", "("]}}, 'patterns[1] must have a *, which stands'),
        ({"failures": {"patterns": ["*", "x.*"]}}, "patterns[1] is a regular expression; patterns"),
        ({"failures": {"patterns": ["a*", "a*"]}}, "patterns[1] stands there twice: a*"),
        ({"failures": {"patterns": ["x" * 201]}}, "has 201 characters; 200 are allowed"),
        ({"failures": {"patterns": [f"x{i}*" for i in range(33)]}}, "33 entries; 32 are allowed"),
        ({"selection": {"by": ["Memory"]}}, "by[0] must be one of Duration, Failures, Unmanaged"),
        ({"selection": {"by": [1]}}, "by[0] must be a text"),
        ({"selection": {"by": ["Duration"], "deviations": 0}}, "deviations must be more than 0"),
        ({"selection": {"by": ["Duration"], "minTasks": 0}}, "minTasks must be a whole number of"
         " at least 1"),
        ({"drift": "no"}, f"{R}.drift must be true or false"),
        ({"maxPerHour": "20"}, "'20' is neither a whole number such as 2 nor a percentage"),
        ({"maxPerHour": -1}, "-1 is neither a whole number"),
        ({"maxPerHour": True}, "True is neither a whole number"),
        ({"strategy": {"type": "surge"}}, f"{R}.strategy.type must be one of Surge, InPlace"),
        ({"strategy": {"maxSurge": 0}}, f"{R}.strategy.maxSurge must be at least 1, or more than"),
        ({"strategy": {"maxSurge": "0%"}}, f"{R}.strategy.maxSurge must be at least 1"),
        ({"strategy": {"readyTimeout": "0s"}}, "readyTimeout must be longer than 0s"),
    ],
)  # fmt: skip
def test_nonsense_in_recycle_gets_a_sentence(recycle: Any, message: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy({**LEAST, "recycle": recycle})

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"disruption": {"budgets": [{}]}}, "spec.disruption.budgets[0].workers is required"),
        ({"disruption": {"budgets": {"workers": 1}}}, "spec.disruption.budgets must be a list"),
        ({"disruption": {"budgets": [{"workers": "half"}]}}, "'half' is neither a whole number"),
        ({"disruption": {"budgets": [{"workers": 1, "reasons": ["Idle"]}]}},
         "budgets[0].reasons[0] must be one of TaskQuota, Lifetime"),
        ({"disruption": {"budgets": [{"workers": 1, "nodes": 1}]}},
         "spec.disruption.budgets[0].nodes is not a known field"),
        ({"disruption": {"windows": [{"duration": "2h"}]}}, "windows[0].schedule is required"),
        ({"disruption": {"windows": [{"schedule": "0 2 * * *"}]}},
         "spec.disruption.windows[0].duration is required"),
        ({"disruption": {"windows": [{"schedule": "0 2 * * *", "duration": "0s"}]}},
         "windows[0].duration must be longer than 0s"),
        ({"disruption": {"windows": [{"schedule": "2 am", "duration": "2h"}]}},
         "windows[0].schedule: '2 am' is not a cron schedule; write five fields"),
        ({"disruption": {"windows": [
            {"schedule": "0 2 * * *", "duration": "2h", "timeZone": "Berlin"}]}},
         "windows[0].timeZone: 'Berlin' is not a time zone; write one like Europe/Berlin"),
        ({"workerGroups": [{"recycle": {}}]}, "spec.workerGroups[0].name is required"),
        ({"workerGroups": [{"name": "a"}, {"name": "a"}]}, "workerGroups[1].name: a stands there"),
        ({"workerGroups": [{"name": "a", "recycle": {"maxPerHour": 1}}]},
         "workerGroups[0].recycle.maxPerHour holds for the whole cluster"),
        ({"workerGroups": [{"name": "a", "recycle": {"memory": {"soft": "1"}}}]},
         "spec.workerGroups[0].recycle.memory.soft: '1' is not a percentage"),
        ({"workerGroups": ["a"]}, "spec.workerGroups[0] must be an object"),
        ({"recycle": {"tasks": {"max": 9, "exact": True}},
          "disruption": {"budgets": [{"workers": "0%", "reasons": ["TaskQuota"]}]}},
         "spec.disruption.budgets has one of 0 for TaskQuota, and with recycle.tasks.exact"),
        ({"workerGroups": [{"name": "a", "recycle": {"tasks": {"max": 9, "exact": True}}}],
          "disruption": {"budgets": [{"workers": 0}]}}, "raise it, or drop exact"),
        ({"restartAt": "tomorrow"}, "spec.restartAt: tomorrow is not an instant with its time"),
        ({"restartAt": "2026-01-31T18:00:00"}, "an instant with its time zone, in quotes"),
        (yaml.safe_load("restartAt: 2026-01-31T18:00:00Z"), "in quotes, such as"),
    ],
)  # fmt: skip
def test_nonsense_elsewhere_gets_a_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy({**LEAST, **change})

    assert message in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    ["*CUDA error*", "OSError(28, *)", "*", "*[Errno 28]*", "*(a|b)*", "* $x ^y*", "a+*", r"*\\n*"],
)
def test_globs_are_taken(pattern: str) -> None:
    assert "" == problem_of(pattern)


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        ("CUDA error", 'write "*CUDA error*"'),
        ("CUDA|NCCL", 'write "*CUDA*" and "*NCCL*"'),
        (r"\w+.*\w+Error: \d+", 'write "*Error: *"'),
        (r"\[Errno 28\]", 'write "*[Errno 28]*"'),
        (r"*\[Errno 28\]*", 'write "*[Errno 28]*"'),
        ("(?i)cuda", 'write "*cuda*"'),
        ("a.*b.*c", 'write "*a*b*c*"'),
        ("^OSError", 'write "*OSError*"'),
        (r"error \d$", 'write "*error ?*"'),
        (r"code [0-9]{2,}\b", 'write "*code *"'),
        (r"(CUDA|NCCL) error: \w+", "a glob for each alternative"),
        ("(?:x)+", "a glob for each alternative"),
        ("|", "a glob for each alternative"),
    ],
)
def test_a_regular_expression_is_refused_with_the_glob_that_says_the_same(
    pattern: str, instead: str
) -> None:
    """Those of version 0.1.0: read as globs they would match nothing, and nobody would notice."""
    assert instead in problem_of(pattern)


@given(st.text(st.sampled_from("ab()|+*?.[]{}1,\\^$dw"), max_size=14))
def test_what_is_proposed_is_taken(pattern: str) -> None:
    for glob in re.findall(r'"([^"]+)"', problem_of(pattern)):
        again = problem_of(glob)
        assert not again or "is a regular expression" in again, (pattern, glob, again)


@pytest.mark.parametrize(
    ("text", "part"), [("0%", 0.0), ("10%", 0.1), ("2.5%", 0.025), ("100%", 1.0)]
)
def test_percentages_are_read(text: str, part: float) -> None:
    assert part == parse_percent(text)


@pytest.mark.parametrize("text", ["", "10", "10 %", "%", "-1%", "100.1%", "1e1%", 10, None, "1%\n"])
def test_what_is_no_percentage_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="%"):
        parse_percent(text)


@given(st.integers(0, 100), st.integers(0, 10_000))
def test_a_part_of_the_workers_is_rounded_up(percent: int, workers: int) -> None:
    amount = parse_amount(f"{percent}%")

    assert -(-workers * percent // 100) == amount.of(workers)


@pytest.mark.parametrize(
    ("value", "size"),
    [("500Mi", 500 * 2**20), ("1.5Gi", 1.5 * 2**30), ("2G", 2e9), ("100k", 1e5), (1024, 1024),
     ("1e9", 1e9), ("12", 12), ("1E", 1e18)],
)  # fmt: skip
def test_quantities_are_read(value: object, size: float) -> None:
    assert size == parse_quantity(value)


@pytest.mark.parametrize("value", ["", "Mi", "-5Mi", "5MB", "1.Gi", True, None, 1.5, "9e999", "5m"])
def test_what_is_no_quantity_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"quantity|too much"):
        parse_quantity(value)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (500 * 2**20, "500 MiB"), (2**30, "1.0 GiB"),
     (2**60, "1048576 TiB")],
)  # fmt: skip
def test_bytes_are_written(size: float, text: str) -> None:
    assert text == format_bytes(size)


def _filled(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec as the API server stores it."""
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]
    filled = _with_defaults(spec, schema["openAPIV3Schema"]["properties"]["spec"])
    assert isinstance(filled, dict)
    return filled


def _with_defaults(node: Any, schema: dict[str, Any]) -> Any:
    properties = schema.get("properties")
    if not isinstance(node, dict) or not properties:
        return node
    filled = dict(node)
    for key, inner in properties.items():
        if key not in filled and "default" in inner:
            filled[key] = inner["default"]
        if key in filled:
            filled[key] = _with_defaults(filled[key], inner)
    return filled
