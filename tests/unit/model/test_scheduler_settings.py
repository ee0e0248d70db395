"""`spec.scheduler`: read, refused with a sentence, and turned into variables."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from dask_adaptive.model.codec import json_name
from dask_adaptive.model.policy import InvalidPolicy, parse_policy
from dask_adaptive.model.scheduler_settings import (
    AUTO,
    INHERIT,
    MAX_SETTINGS,
    RELIEF,
    Environment,
    ReliefChoices,
    SchedulerSettings,
    flat,
    nested,
    of_scheduler,
    of_worker,
    read_settings,
    scheduler_settings,
)
from dask_adaptive_agent import wire
from dask_adaptive_agent.relief.registry import VARIABLE, at_start
from support.tables import table


def deep(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


LEAST = {"clusterRef": {"name": "etl"}, "maxReplicas": 3}
POLLING = "DASK_DISTRIBUTED__CLIENT__SCHEDULER_INFO_INTERVAL"
WORKER_TTL = "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"


def settings(config: Any = None, **relief: str) -> SchedulerSettings:
    return scheduler_settings({"scheduler": {"relief": relief, "config": config or {}}})


def ttl(value: Any = "10m") -> dict[str, Any]:
    return {"distributed": {"scheduler": {"worker-ttl": value}}}


def test_the_core_knows_the_reliefs_of_the_wire() -> None:
    assert [*wire.RELIEFS] == [json_name(own) for own in ReliefChoices.__dataclass_fields__]
    for name, choices in wire.RELIEFS.items():
        made = [settings(**{name: choice}).relief.chosen for choice in choices]
        assert made == [{} if choice == AUTO else {name: choice} for choice in choices]
    assert VARIABLE == RELIEF


def test_nothing_is_set_by_default() -> None:
    every = {"relief": dict.fromkeys(wire.RELIEFS, "Auto"), "config": {}}

    assert SchedulerSettings() == parse_policy(LEAST).scheduler
    assert SchedulerSettings() == parse_policy({**LEAST, "scheduler": every}).scheduler


@table(
    "config",
    nested=ttl(),
    dotted={"distributed.scheduler.worker-ttl": "10m"},
    both={"distributed.scheduler": {"worker-ttl": "10m"}},
)
def test_a_dotted_key_at_the_top_is_a_path(config: Any) -> None:
    made = settings(config)

    assert {"distributed.scheduler.worker-ttl": "10m"} == flat(made.config)
    assert ttl() == nested(made.config)
    assert made.configures(("distributed", "scheduler", "worker_ttl"))
    assert not made.configures(("distributed", "scheduler"))


def test_a_dot_below_the_top_is_part_of_a_name() -> None:
    levels = {"distributed.scheduler": "debug", "bokeh": "error"}
    made = settings({"distributed": {"logging": levels}})

    assert {
        "distributed.logging": {"distributed.scheduler": "debug"},
        "distributed.logging.bokeh": "error",
    } == flat(made.config)
    assert {"distributed": {"logging": levels}} == nested(made.config)


def test_values_are_frozen_and_come_out_as_they_were() -> None:
    value = [1, 2.5, None, True, "x", {"a": ["b"]}]
    (one,) = read_settings({"k": value})

    assert isinstance(one.value, tuple)
    with pytest.raises(TypeError):
        one.value[5]["a"] = 1
    assert {"k": value} == flat((one,))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (["a"], ": must be an object"),
        ({"distributed": {1: 2}}, ".distributed: the key 1"),
        ({"a..b": 2}, ": the key 'a..b' has"),
        ({"a": {"": 2}}, ".a: the key '' has"),
        ({"a": datetime.date(2026, 1, 1)}, ".a: 2026-01-01 can't be sent"),
        ({"a": [float("nan")]}, ".a: nan can't be sent"),
        ({"a": 2**64}, ".a: 18446744073709551616 can't be sent"),
        ({"a.b": 1, "a": {"b": 2}}, ": sets a.b twice"),
        ({"a": {"b-c": 1, "b_c": 2}}, ": sets a.b_c twice"),
        ({"a.b": 1, "a": {"b": {"c": 2}}}, ": gives a.b a value"),
        ({"distributed": 1}, ".distributed: is a section"),
        ({"distributed": {"comm": None}}, ".distributed.comm: is a section"),
        ({"distributed.scheduler.preload": []}, ".distributed.scheduler.preload: must not have a"),
        ({"a": dict.fromkeys(map(str, range(MAX_SETTINGS + 1)), 0)}, ": holds 201 settings of"),
        ({"a": "x" * 100_000}, ": has 100009 characters"),
        ({"a": deep(17)}, ".a: is nested too deeply"),
        ({"a": deep(60_000)}, ": is nested too deeply"),
        ({".".join("a" * 17): 1}, ": is nested too deeply"),
        ({"a": "x" * 40_000}, ": holds 1 setting of"),
    ],
)
def test_a_configuration_that_harms_is_refused(config: Any, problem: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        scheduler_settings({"scheduler": {"config": config}})

    assert str(caught.value).startswith(f"spec.scheduler.config{problem}")


def test_all_problems_of_a_configuration_are_found_at_once() -> None:
    with pytest.raises(InvalidPolicy) as caught:
        settings({"distributed": 1, "a": {"": 2}, "b": float("inf")}, host="Shared")

    assert 4 == len(caught.value.problems)


def test_reliefs_travel_in_one_variable_and_come_out_as_they_were() -> None:
    made = settings(pickling="Shared", clientInfo="Disabled")
    variables = of_scheduler(made, ()).variables

    assert {RELIEF: "pickling=Shared,clientInfo=Disabled"} == variables
    assert made.relief.chosen == at_start(variables)
    assert {} == of_scheduler(made, [RELIEF]).variables
    assert {} == of_scheduler(SchedulerSettings(), ()).variables


@table(
    "config, taken, expected",
    plain=(ttl(), (), {WORKER_TTL}),
    the_users_own=(ttl(), (WORKER_TTL,), set()),
    in_any_case=(ttl(), (WORKER_TTL.lower().replace("dask", "DASK"),), set()),
    users_section=(ttl(), ("DASK_DISTRIBUTED__SCHEDULER",), {INHERIT}),
    capitals=({"a": {"B": 1}}, (), {INHERIT}),
    hyphen_and_underscore=({"a": {"b_c-d": 1}}, (), {INHERIT}),
    two_underscores=({"a": {"b__c": 1}}, (), {INHERIT}),
    dots=({"a": {"b.c": 1}}, (), {INHERIT}),
    no_setting_but_a_folder=({"config": 1}, (), {INHERIT}),
    some_of_each=({**ttl(), "A": 1}, (), {WORKER_TTL, INHERIT}),
)
def test_which_variables_are_set(config: Any, taken: tuple[str, ...], expected: set[str]) -> None:
    made = of_scheduler(settings(config), taken)

    assert (expected, ()) == (set(made.variables), made.left_out)


def test_an_inherited_configuration_of_the_users_own_stays() -> None:
    made = of_scheduler(settings({**ttl(), "A": {"b": 1}}), [INHERIT])

    assert Environment({WORKER_TTL: "10m"}, ("A.b",)) == made


@table(
    "made, taken, expected",
    as_a_rule=(SchedulerSettings(), (), {POLLING: "600s"}),
    switched_off=(settings(clientInfo="Disabled"), (), {}),
    the_users_own=(SchedulerSettings(), (POLLING,), {}),
    configured=(settings({"distributed.client.scheduler_info_interval": "3s"}), (), {}),
)
def test_clients_in_workers_ask_seldom(
    made: SchedulerSettings, taken: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert expected == of_worker(made, taken).variables


def test_where_not_all_variables_can_be_seen_none_is_overwritten() -> None:
    assert {INHERIT} == of_scheduler(settings(ttl()), (), has_unseen=True).variables.keys()
    assert {} == of_worker(SchedulerSettings(), (), has_unseen=True).variables
