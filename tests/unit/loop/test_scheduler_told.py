"""What is said of a scheduler's reliefs and configuration: conditions, status, events, figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.kube.status_json import status_json
from dask_adaptive.loop.conditions import configured, injected
from dask_adaptive.loop.events import events_of_conditions
from dask_adaptive.loop.ports import EventType
from dask_adaptive.loop.status import Condition, Status
from dask_adaptive.loop.summary import status_of
from dask_adaptive.model.observed import (
    ObservedScheduler,
    ReliefState,
    Serialized,
    SerializedFunction,
)
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scheduler_settings import json_by_key, scheduler_settings
from dask_adaptive_agent import wire
from support.tables import table
from support.worlds import NOW, PAST, POLICY, busy, cluster, plan

WELL = ReliefState("idle", wire.R_ACTIVE, "", {"calls": 12_000})
FAILED = ReliefState("host", wire.R_FAILED, "WorkerState has no host")
COST = Serialized(
    5_000, 12.34, 57_000_000, 0.31, (SerializedFunction("etl.step", 4_000, 12.0, 5e7, 57_000),)
)
SEEN = ObservedScheduler(agent="1.0", session="s", config=(), relief=(WELL, FAILED))


def running(**values: Any) -> ObservedScheduler:
    """The values in force; `distributed.scheduler.` is left out of their keys."""
    named = {f"distributed.scheduler.{key}": value for key, value in values.items()}
    return dataclasses.replace(SEEN, config=json_by_key(named))


def setting(config: Any) -> Policy:
    scheduler = scheduler_settings({"scheduler": {"config": config}})
    return dataclasses.replace(POLICY, scheduler=scheduler)


def wanting(**values: Any) -> Policy:
    return setting({"distributed": {"scheduler": values}})


CONFIGURED = wanting(**{"worker-ttl": "10m"})
NOT_YET = (False, Reason.PENDING_RESTART)
SECRETS = {"coiled.token": "mine", "distributed.nanny.environ.KEY": "mine"}


@table(
    "scheduler, policy, expected, words",
    nothing=(SEEN, POLICY, (True, Reason.RECONCILED), "is empty"),
    in_force=(running(a=[1, None], b=True), wanting(a=[1, None], b=True), (True, Reason.RECONCILED),
        "2 settings"),
    unreachable=(ObservedScheduler(Reason.SCHEDULER_UNREACHABLE), CONFIGURED,
        (None, Reason.SCHEDULER_UNREACHABLE), "not known"),
    no_agent=(ObservedScheduler(Reason.INJECTION_REFUSED), CONFIGURED,
        (None, Reason.INJECTION_REFUSED), "not known"),
    old_agent=(ObservedScheduler(agent="0.1"), CONFIGURED, (None, Reason.AGENT_MISSING),
        "agent 0.1 does not report"),
    other_value=(running(a="5 minutes"), wanting(a="10m"), NOT_YET,
        "values: distributed.scheduler.a"),
    no_value=(running(), wanting(a=1), NOT_YET, ": distributed.scheduler.a"),
    other_type=(running(a=1), wanting(a=True), NOT_YET, ": distributed.scheduler.a"),
    many=(running(), wanting(**dict.fromkeys("abcdefg")), NOT_YET, "r.e and 2 more"),
    maybe_a_secret=(dataclasses.replace(SEEN, config=tuple((key, '"theirs"') for key in SECRETS)),
        setting(SECRETS), NOT_YET, "coiled.token, distributed.nanny.environ"),
)  # fmt: skip
def test_configured(scheduler: Any, policy: Any, expected: tuple[Any, Any], words: str) -> None:
    found = configured(scheduler, policy)

    assert ("SchedulerConfigured", *expected) == (found.type, found.status, found.reason)
    assert words in found.message
    assert "theirs" not in found.message


def test_a_relief_that_failed_is_said_where_the_agent_is() -> None:
    found = injected(SEEN)

    assert (True, Reason.RECONCILED) == (found.status, found.reason)
    assert found.message.endswith("host (WorkerState has no host)")
    assert "agent 1.0" == injected(dataclasses.replace(SEEN, relief=(WELL,))).message


def test_the_words_of_the_wire_are_reasons() -> None:
    words = {reason.value for reason in Reason}

    assert set(wire.NOTES) <= words


def status(scheduler: ObservedScheduler) -> Status:
    world = dataclasses.replace(cluster([busy("a")], target=1), scheduler=scheduler)
    return status_of(world, CONFIGURED, plan(world, CONFIGURED, PAST, now=NOW), (), now=NOW)


def test_a_status_holds_states_and_no_figures() -> None:
    busier = (dataclasses.replace(WELL, counts={"calls": 13_000}), FAILED)
    later = dataclasses.replace(SEEN, relief=busier, serialized=COST)

    assert status(SEEN) == status(later)
    written = status_json(status(later), before={}, now="T")["scheduler"]
    assert {"idle": "Active", "host": "Failed"} == written["relief"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("SchedulerConfigured", Reason.PENDING_RESTART),
        ("AbleToScale", Reason.RECYCLE_STORM),
        ("Ready", Reason.OWNERSHIP_CONFLICT),
    ],
)
def test_what_becomes_bad_or_good_is_told_once(kind: str, reason: Reason) -> None:
    def at(reason: Reason, ok: bool) -> Status:
        return Status(conditions=(Condition(kind, ok, reason, "said"),))

    bad, good = at(reason, False), at(Reason.RECONCILED, True)
    told = [list(events_of_conditions(*pair)) for pair in ((bad, good), (bad, bad), (good, bad))]

    assert [[(EventType.WARNING, reason)], [], [(EventType.NORMAL, Reason.RECONCILED)]] == [
        [(event.type, event.reason) for event in events] for events in told
    ]
    said = [event.message for events in told for event in events]
    assert [f"{kind}: said", f"{kind} is true again"] == said
