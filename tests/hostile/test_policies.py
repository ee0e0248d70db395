"""Whatever policy the API server takes is refused with a sentence, or costs little to plan with."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.policy import InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.recycle import Use
from dask_adaptive.model.windows import is_open, turns_at
from dask_adaptive.planner.context import in_numbers
from support.policies import schema_of
from support.worlds import (
    GPU,
    GROUP,
    NOW,
    busy,
    cluster,
    dated,
    group_of,
    pending,
    plan,
    watched,
    worker,
)

CASES = int(os.environ.get("HOSTILE_CASES", "100"))

pytestmark = pytest.mark.timeout(3600)

#: CPU time of one plan for 50 workers.
MOST_S = 0.05

DAY_S = 86_400.0
AT = 1_790_000_000.0

Schema = dict[str, Any]


DURATIONS = st.sampled_from(
    ["1ms", "1s", "10s", "1m", "1h", "30m", "744h", "87600h", "87599h59m59.999999999s", "1.5s",
     "0s", "0.000000000000000000000001ms", "9" * 31 + "h", "1h" * 16, "745h", "Auto"]
)  # fmt: skip
MINUTES = st.sampled_from(["*", "0", "59", "*/59", "0-59", ",".join(map(str, range(12)))])
CRONS = st.one_of(
    st.tuples(
        MINUTES,
        st.sampled_from(["*", "0", "2", "23", "*/23", "0-23"]),
        st.sampled_from(["*", "1", "29", "31", "*/31", "*/28", "L", "LW"]),
        st.sampled_from(["*", "2", "12", "1-12", "*/11"]),
        st.sampled_from(["*", "MON", "MON#5", "5L", "*/6", "0-7"]),
    ).map(" ".join),
    st.sampled_from(["* * * * *", "0 0 29 2 *", "0 0 * 2 MON#5", "0 0 */31 1-12 SUN#5"]),
)
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia",
     "Africa/Casablanca", "America/Sao_Paulo", "Etc/GMT+12", "Nowhere/Town", "../etc/passwd"]
)  # fmt: skip
PERCENTS = st.sampled_from(["0%", "1%", "50%", "100%", "99.9999%", "00000.1%", "101%"])
GLOBS = st.sampled_from(["*", "*a*", "*" * 200, "*?" * 100, "*a" * 100, "[*", "*[!" * 60, ".*"])
NAMES = st.sampled_from([GROUP, GPU, "g1", "g2", "x" * 253, "\x1b[2J", ""])

#: What is tried, by what a rule or a field is about; anything else is any text.
TEXTS = {
    "(ms|s|m|h)": DURATIONS,
    "five fields of cron": CRONS,
    "time zone": ZONES,
    "percentage": PERCENTS,
    "globs": GLOBS,
    "DaskWorkerGroup": NAMES,
}


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Strategies over a structural schema, with what its bounds allow at the most."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return configurations()
    if schema.get("x-kubernetes-int-or-string"):
        return st.one_of(whole(schema), PERCENTS)
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            return whole(schema)
        case "string":
            return texts(schema)
        case "array":
            return lists(schema)
    return objects(schema)


def whole(schema: Schema) -> st.SearchStrategy[int]:
    least, most = schema.get("minimum", 0), schema.get("maximum", 2**31 - 1)
    return st.one_of(st.sampled_from([least, most, max(1, least)]), st.integers(least, most))


def texts(schema: Schema) -> st.SearchStrategy[str]:
    about = str(schema)
    known = next((one for word, one in TEXTS.items() if word in about), None)
    if known is not None:
        return known
    return st.one_of(st.text(max_size=8), st.just("a" * schema["maxLength"]))


def lists(schema: Schema) -> st.SearchStrategy[list[Any]]:
    items, most = schema["items"], schema["maxItems"]
    one = GLOBS if "Globs" in schema.get("description", "") else values(items)
    keys = schema.get("x-kubernetes-list-map-keys")
    key = (lambda item: tuple(item[k] for k in keys)) if keys else None
    if schema.get("x-kubernetes-list-type") == "set":
        key = str
    few = st.lists(one, max_size=3, unique_by=key)
    return few if key else st.one_of(few, one.map(lambda item: [item] * most))


def objects(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    children = {name: values(child) for name, child in schema["properties"].items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: one for name, one in children.items() if name in required},
        optional={name: one for name, one in children.items() if name not in required},
    )


def configurations() -> st.SearchStrategy[Any]:
    """What no schema looks into."""
    leaves = st.one_of(
        st.none(), st.booleans(), st.floats(), st.text(max_size=5), st.just("x" * 40_000),
        st.sampled_from([2**63, -(2**63), 1e308, ".".join("a" * 5000)]),
    )  # fmt: skip
    usual = st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text("abc.-_", max_size=8), inner, max_size=3)
        ),
        max_leaves=8,
    )
    deep = st.sampled_from([10, 17, 900, 5000]).flatmap(
        lambda depth: st.sampled_from([nested(depth, "a"), nested(depth, "")])
    )
    wide = st.just({f"k{i}": i for i in range(50_000)})
    long = st.just({".".join("a" * 50_000): 1})
    return st.one_of(st.dictionaries(st.just("distributed"), usual), deep, wide, long)


def nested(depth: int, key: str) -> dict[str, Any]:
    """Objects, or lists where there is no key, in one another."""
    value: Any = 1
    for _ in range(depth):
        value = {key: value} if key else [value]
    return {"a": value}


SPECS = values(schema_of("adaptivepolicies"))


def understood(spec: dict[str, Any]) -> tuple[Policy, int]:
    """A policy without the fields that are refused, and how many those are."""
    left_out = 0
    while True:
        try:
            return parse_policy(spec), left_out
        except InvalidPolicy as exc:
            problems = exc.problems
        assert problems
        assert all(len(p.words) < 500 and " " in p.words for p in problems), problems
        wrong = {p.path.split(".")[1].split("[")[0] for p in problems}
        spec = {k: v for k, v in spec.items() if k not in wrong}
        spec |= {"clusterRef": {"name": "etl"}, "maxReplicas": spec.get("maxReplicas", 50)}
        left_out += len(wrong)


def fifty() -> ObservedCluster:
    """A cluster with workers of many kinds."""
    mine = [
        *(busy(f"b{i}", use=Use(1000 * i, 1, "", 0.9, 0.8)) for i in range(15)),
        *(worker(f"i{i}", made_at=-1e6, pod_made_at=-1e6, ends_in_s=600.0) for i in range(10)),
        *(pending(f"p{i}") for i in range(5)),
    ]
    others = group_of(GPU, [worker(f"g{i}", use=Use(failures=5)) for i in range(20)], replicas=25)
    return cluster(mine, target=100, others=(others,))


FIFTY = fifty()


@pytest.mark.timeout(3600)
@settings(
    max_examples=CASES, derandomize=True, deadline=None, database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(SPECS, st.integers(2, 31).map(float))
def test_every_policy_is_refused_or_planned_with_soon(spec: Any, days: float) -> None:
    policy, left_out = understood({**spec, "clusterRef": {"name": "etl"}})
    event(f"{left_out} fields refused")
    past = watched(GPU)
    took = []
    for moved in range(3):  # so far from one another that nothing of the last one is still known
        world = dated(FIFTY, AT + moved * days * DAY_S)
        numbers, _ = in_numbers(policy, world, past)
        began = time.process_time()
        plan(world, numbers, past, now=NOW)
        took.append(time.process_time() - began)

    assert min(took) < MOST_S


@pytest.mark.parametrize("crd", ["adaptivepolicies", "adaptivebudgets"])
def test_all_that_a_tenant_writes_has_bounds(crd: str) -> None:
    assert [] == list(unbounded(schema_of(crd), "spec"))


def unbounded(schema: Schema, path: str) -> Iterator[str]:
    if path == "spec.scheduler.config":  # the schema cannot look into it; `read_settings` does
        return
    needed = {
        "string": {"maxLength"},
        "array": {"maxItems"},
        "integer": {"minimum", "maximum"},
        "number": {"minimum", "maximum"},
    }.get(schema.get("type", ""), set())
    if "additionalProperties" in schema:
        needed = {"maxProperties"}
        yield from unbounded(schema["additionalProperties"], f"{path}{{}}")
    if schema.get("x-kubernetes-int-or-string"):
        needed = {"minimum", "maximum", "maxLength"}
    rules = str(schema.get("x-kubernetes-validations", ""))
    has_rule = "self >= 0 && self <= 2147483647" in rules
    if not ("enum" in schema or has_rule or needed <= schema.keys()):
        yield path
    for name, child in schema.get("properties", {}).items():
        yield from unbounded(child, f"{path}.{name}")
    if "items" in schema:
        yield from unbounded(schema["items"], f"{path}[]")


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago"]
)
@pytest.mark.parametrize(
    "schedule",
    ["* * * * *", "0-59 0-23 * * *", "0 0 29 2 *", "59 23 31 12 *", "* * */31 12 *", "0 0 LW 2 *"],
)
def test_windows_of_any_schedule_cost_little(schedule: str, zone: str) -> None:
    """A month's worth of openings cost as little as one; so do those that come in years."""
    entry = {"schedule": schedule, "duration": "744h", "timeZone": zone}
    spec = {"clusterRef": {"name": "etl"}, "maxReplicas": 5, "disruption": {"windows": [entry]}}
    windows = parse_policy(spec).disruption.windows
    instants = [AT + 3.1 * DAY_S * i for i in range(100)]
    took = []
    for _ in range(3):
        began = time.process_time()
        for at in instants:
            is_open(windows, at)
            turns_at(windows, at)
        took.append((time.process_time() - began) / len(instants))

    assert min(took) < 0.001
