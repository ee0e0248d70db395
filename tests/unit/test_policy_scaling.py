"""What a spec says of the number of workers, read; and nonsense, refused with the CRD's words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.model.policy import InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.recycle import GpuQuota, Recycle, Window
from dask_adaptive.model.scaling import (
    Behavior,
    Caps,
    Direction,
    Fallback,
    GroupBounds,
    Idle,
    IdleAction,
    RatePolicy,
    RateType,
    Scaling,
    Schedule,
    Select,
    ShuffleWait,
    Source,
)
from support.policies import SCALING_MISTAKES, SCALING_NONSENSE, SCALING_TAKEN

LEAST = {"clusterRef": {"name": "etl"}, "maxReplicas": 5}

EVERY: dict[str, Any] = {
    "target": {"source": "Scheduler", "duration": "2s"},
    "behavior": {
        "scaleUp": {
            "stabilizationWindow": "10s",
            "selectPolicy": "Min",
            "policies": [{"type": "Percent", "value": 100, "period": "15s"}],
            "tolerance": "0.1",
            "maxPending": 20,
        },
        "scaleDown": {
            "stabilizationWindow": "2m",
            "selectPolicy": "Disabled",
            "policies": [{"type": "Pods", "value": 3, "period": "1m"}],
            "tolerance": "10%",
            "delayAfterScaleUp": "90s",
        },
    },
    "schedules": [
        {"cron": "0 8 * * 1-5", "duration": "10h", "timeZone": "Europe/Berlin", "minReplicas": 4},
        {"cron": "0 0 * * *", "duration": "1h", "minReplicas": 1, "workerGroup": "etl-gpu"},
    ],
    "idle": {"after": "2h", "action": "DeleteCluster", "noClientTimeout": "30m"},
    "fallback": {"failureThreshold": 5, "behavior": "Replicas", "replicas": 2},
    "unschedulableTimeout": "1m",
    "maxUnready": "30%",
    "shuffle": {"waitForWorkers": "Disabled", "maxWait": "20s"},
    "workerGroups": [
        {
            "name": "etl-gpu",
            "minReplicas": 1,
            "maxReplicas": 3,
            "idleTimeout": "10m",
            "priority": -7,
            "recycle": {"gpuMemory": {"hard": "90%"}},
        },
        {"name": "etl-big", "maxReplicas": 2},
        {"name": "etl-fixed"},
    ],
}


def test_a_policy_without_these_fields_is_as_before() -> None:
    assert Scaling() == parse_policy(LEAST).scaling


def test_every_field_is_read() -> None:
    policy = parse_policy({**LEAST, **EVERY})

    assert Scaling(
        groups=(
            GroupBounds("etl-gpu", 3, 1, idle_timeout_s=600.0, priority=-7),
            GroupBounds("etl-big", 2),
        ),
        source=Source.SCHEDULER,
        behavior=Behavior(
            up=Direction(10.0, Select.MIN, (RatePolicy(RateType.PERCENT, 100, 15.0),), 0.1),
            down=Direction(120.0, Select.DISABLED, (RatePolicy(RateType.PODS, 3, 60.0),), 0.1),
            max_pending=20,
            delay_after_up_s=90.0,
        ),
        schedules=(
            Schedule(Window("0 8 * * 1-5", 36000.0, "Europe/Berlin"), 4),
            Schedule(Window("0 0 * * *", 3600.0, "UTC"), 1, "etl-gpu"),
        ),
        idle=Idle(7200.0, IdleAction.DELETE_CLUSTER, 1800.0),
        fallback=Fallback(5, 2),
        caps=Caps(60.0, 0.3),
        shuffle_wait=ShuffleWait(enabled=False, most_s=20.0),
    ) == (policy.scaling)
    assert {"etl-gpu": Recycle(gpu=GpuQuota(hard=0.9))} == policy.group_recycle
    assert policy.target_duration_s == 2.0


def test_without_a_window_of_its_own_a_fall_waits_for_the_idle_timeout() -> None:
    behavior = parse_policy({**LEAST, "behavior": {"scaleDown": {}}}).scaling.behavior

    assert behavior.down.window_s is None
    assert 0.0 == behavior.up.window_s


def test_the_default_group_has_the_policys_bounds_unless_it_has_its_own() -> None:
    others = [{"name": "etl-gpu", "maxReplicas": 2}]
    plain = parse_policy({**LEAST, "minReplicas": 1, "workerGroups": others})
    own = [*others, {"name": "etl-default", "minReplicas": 1, "maxReplicas": 4}]

    gpu = GroupBounds("etl-gpu", 2)
    assert (GroupBounds("etl-default", 5, 1), gpu) == plain.bounds("etl-default")
    written = parse_policy({**LEAST, "workerGroups": own})
    assert (GroupBounds("etl-default", 4, 1), gpu) == written.bounds("etl-default")


@pytest.mark.parametrize(("change", "field", "sentence"), SCALING_NONSENSE)
def test_nonsense_gets_the_field_and_a_sentence(
    change: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy({**LEAST, **change})

    said = str(caught.value)
    assert said.startswith(field)
    assert sentence in said


@pytest.mark.parametrize("change", [change for change, _ in SCALING_MISTAKES])
def test_what_the_schema_refuses_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicy, match=r"^spec\."):
        parse_policy({**LEAST, **change})


@pytest.mark.parametrize("change", SCALING_TAKEN)
def test_what_makes_sense_is_taken(change: dict[str, Any]) -> None:
    assert isinstance(parse_policy({**LEAST, **change}), Policy)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cron": "0 8 31 2 *"}, "is not a cron schedule"),
        ({"cron": "0 25 * * *"}, "is not a cron schedule"),
        ({"timeZone": "Europe/Bärlin"}, "is not a time zone; write one like Europe/Berlin"),
    ],
)
def test_what_only_we_can_know_is_refused_too(change: dict[str, str], words: str) -> None:
    """The API server has no cron and no list of time zones; the policy's status says this."""
    schedule = {"cron": "0 8 * * 1-5", "duration": "10h", "minReplicas": 2, **change}
    with pytest.raises(InvalidPolicy, match=words):
        parse_policy({**LEAST, "schedules": [schedule]})


words = st.sampled_from(["", "1h", "0s", "10%", "Max", "Pods", "etl-gpu", "etl-default", "true"])
scalars = st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | words
keys = st.sampled_from(
    ["name", "minReplicas", "maxReplicas", "scaleUp", "scaleDown", "policies", "type", "value",
     "period", "tolerance", "cron", "duration", "workerGroup", "after", "action", "replicas"]
)  # fmt: skip
json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(EVERY)), json, max_size=4))
def test_whatever_is_written_becomes_a_policy_or_a_sentence(change: dict[str, Any]) -> None:
    said = "spec."
    try:
        parse_policy({**LEAST, **change})
    except InvalidPolicy as exc:
        said = str(exc)

    assert said.startswith("spec.")
