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
    ConfigProblem,
    ObservedScheduler,
    ReliefState,
    Serialized,
    SerializedFunction,
)
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scheduler_settings import scheduler_settings
from dask_adaptive.planner.plan import plan
from dask_adaptive_agent import wire
from support.worlds import NOW, PAST, POLICY, busy, cluster

TTL = "distributed.scheduler.worker-ttl"
CONFIGURED = dataclasses.replace(
    POLICY, scheduler=scheduler_settings({"scheduler": {"config": {TTL: "10m"}}})
)
WELL = ReliefState("idle", wire.R_ACTIVE, "", (("calls", 12_000),))
FAILED = ReliefState("host", wire.R_FAILED, "WorkerState has no host")
COST = Serialized(
    5_000, 12.34, 57_000_000, 0.31, (SerializedFunction("etl.step", 4_000, 12.0, 5e7, 57_000),)
)
SEEN = ObservedScheduler(agent="1.0", session="s", config=(), relief=(WELL, FAILED))


def unlike(**states: str) -> ObservedScheduler:
    """Some settings are not as the policy says."""
    problems = (ConfigProblem(key, state, "and why") for key, state in states.items())
    return dataclasses.replace(SEEN, config=tuple(problems))


@pytest.mark.parametrize(
    ("scheduler", "policy", "expected", "words"),
    [
        pytest.param(SEEN, POLICY, (True, Reason.RECONCILED), "is empty", id="nothing"),
        pytest.param(SEEN, CONFIGURED, (True, Reason.RECONCILED), "all 1 settings", id="in-place"),
        pytest.param(
            ObservedScheduler(Reason.SCHEDULER_UNREACHABLE), CONFIGURED,
            (None, Reason.SCHEDULER_UNREACHABLE), "does not answer", id="unreachable",
        ),
        pytest.param(
            ObservedScheduler(Reason.INJECTION_REFUSED), CONFIGURED,
            (None, Reason.INJECTION_REFUSED), "not known", id="no-agent",
        ),
        pytest.param(
            ObservedScheduler(agent="0.1"), CONFIGURED, (None, Reason.AGENT_MISSING),
            "agent 0.1 is too old", id="old-agent",
        ),
        pytest.param(
            unlike(k=wire.K_PENDING), CONFIGURED, (False, Reason.PENDING_RESTART),
            "PendingRestart: k (and why): it waits for", id="pending",
        ),
        pytest.param(
            unlike(p=wire.K_PENDING, u=wire.K_UNKNOWN), CONFIGURED, (False, Reason.CONFIG_UNKNOWN),
            "a typo?; PendingRestart: p", id="unknown",
        ),
        pytest.param(
            unlike(u=wire.K_UNKNOWN, i=wire.K_INVALID), CONFIGURED, (False, Reason.CONFIG_INVALID),
            "Invalid: i (and why): correct it in spec", id="invalid-is-worst",
        ),
        pytest.param(
            unlike(**{f"k{i}": wire.K_UNKNOWN for i in range(5)}), CONFIGURED,
            (False, Reason.CONFIG_UNKNOWN), "k2 (and why) and 2 more: this", id="many",
        ),
    ],
)  # fmt: skip
def test_configured(scheduler: Any, policy: Any, expected: tuple[Any, Any], words: str) -> None:
    found = configured(scheduler, policy)

    assert ("SchedulerConfigured", *expected) == (found.type, found.status, found.reason)
    assert words in found.message


def test_a_relief_that_failed_is_said_where_the_agent_is() -> None:
    found = injected(SEEN)

    assert (True, Reason.CONNECTED) == (found.status, found.reason)
    assert "agent 1.0; off, stock code serves: host (WorkerState has no host)" == found.message
    assert "agent 1.0" == injected(dataclasses.replace(SEEN, relief=(WELL,))).message


def test_the_words_of_the_wire_are_reasons() -> None:
    words = {reason.value for reason in Reason}

    assert set(wire.NOTES) <= words
    assert {wire.K_PENDING, f"Config{wire.K_UNKNOWN}", f"Config{wire.K_INVALID}"} <= words


def status(scheduler: ObservedScheduler) -> Status:
    world = dataclasses.replace(cluster([busy("a")], target=1), scheduler=scheduler)
    return status_of(world, CONFIGURED, plan(world, CONFIGURED, PAST, now=NOW), (), now=NOW)


def test_a_status_holds_states_and_no_figures() -> None:
    worse = unlike(k=wire.K_UNKNOWN)
    busier = (dataclasses.replace(WELL, counts=(("calls", 13_000),)), FAILED)
    later = dataclasses.replace(worse, relief=busier, serialized=COST)

    assert status(worse) == status(later)
    written = status_json(status(later), before={}, now="T")["scheduler"]
    assert [
        {"name": "idle", "state": "Active", "message": ""},
        {"name": "host", "state": "Failed", "message": "WorkerState has no host"},
    ] == written["relief"]
    assert [{"key": "k", "state": "Unknown", "message": "and why"}] == written["config"]


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
    assert [f"{kind}: said", f"{kind} again"] == [e.message for events in told for e in events]
