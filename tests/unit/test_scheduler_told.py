"""What is said of a scheduler's reliefs and configuration: conditions, status, events, figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.cli.explain import Asked, explanation, render
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.status_json import status_json
from dask_adaptive.loop.configured import configured, injected
from dask_adaptive.loop.happened import events_of_conditions, events_of_notes
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.ports import Event, EventType
from dask_adaptive.loop.report import status_of
from dask_adaptive.loop.status import Condition, Status
from dask_adaptive.model.observed import (
    ConfigProblem,
    Note,
    ObservedScheduler,
    ReliefState,
    Serialized,
    SerializedFunction,
)
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scheduler_spec import scheduler_settings
from dask_adaptive.planner.plan import plan
from dask_adaptive_agent import wire
from support import kube_objects as ko
from support.worlds import KEY, NOW, PAST, POLICY, busy, cluster

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


def problem(key: str, state: str) -> ConfigProblem:
    return ConfigProblem(key, state, "and why")


@pytest.mark.parametrize(
    ("scheduler", "policy", "expected", "words"),
    [
        pytest.param(SEEN, POLICY, (True, Reason.RECONCILED), "asks for nothing", id="nothing"),
        pytest.param(SEEN, CONFIGURED, (True, Reason.RECONCILED), "all 1 settings", id="in-place"),
        pytest.param(
            ObservedScheduler(Reason.SCHEDULER_UNREACHABLE), CONFIGURED,
            (None, Reason.SCHEDULER_UNREACHABLE), "does not answer", id="unreachable",
        ),
        pytest.param(
            ObservedScheduler(degraded=Reason.INJECTION_REFUSED), CONFIGURED,
            (None, Reason.INJECTION_REFUSED), "only the agent can tell", id="no-agent",
        ),
        pytest.param(
            ObservedScheduler(agent="0.1"), CONFIGURED, (None, Reason.AGENT_MISSING),
            "agent 0.1 is too old", id="old-agent",
        ),
        pytest.param(
            dataclasses.replace(SEEN, config=(problem("a.b", wire.K_PENDING),)), CONFIGURED,
            (False, Reason.PENDING_RESTART), "PendingRestart: a.b (and why): it waits for",
            id="pending",
        ),
        pytest.param(
            dataclasses.replace(
                SEEN, config=(problem("p", wire.K_PENDING), problem("u", wire.K_UNKNOWN))
            ),
            CONFIGURED, (False, Reason.CONFIG_UNKNOWN), "a typo?; PendingRestart: p", id="unknown",
        ),
        pytest.param(
            dataclasses.replace(
                SEEN, config=(problem("u", wire.K_UNKNOWN), problem("i", wire.K_INVALID))
            ),
            CONFIGURED, (False, Reason.CONFIG_INVALID), "Invalid: i (and why): mend it in spec",
            id="invalid-is-worst",
        ),
        pytest.param(
            dataclasses.replace(
                SEEN, config=tuple(problem(f"k{i}", wire.K_UNKNOWN) for i in range(5))
            ),
            CONFIGURED, (False, Reason.CONFIG_UNKNOWN), "k2 (and why) and 2 more: this", id="many",
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
    worse = dataclasses.replace(SEEN, config=(problem("a.b", wire.K_UNKNOWN),))
    busier = (dataclasses.replace(WELL, counts=(("calls", 13_000),)), FAILED)
    later = dataclasses.replace(worse, relief=busier, serialized=COST)

    assert status(worse) == status(later)
    written = status_json(status(later), generation=1, before={}, now="T")["scheduler"]
    assert [
        {"name": "idle", "state": "Active", "message": ""},
        {"name": "host", "state": "Failed", "message": "WorkerState has no host"},
    ] == written["relief"]
    assert [{"key": "a.b", "state": "Unknown", "message": "and why"}] == written["config"]


def test_configuration_that_becomes_bad_or_good_is_told_once() -> None:
    def at(reason: Reason, ok: bool) -> Status:
        return Status(conditions=(Condition("SchedulerConfigured", ok, reason, "said"),))

    bad, good = at(Reason.PENDING_RESTART, False), at(Reason.RECONCILED, True)

    (event,) = events_of_conditions(bad, good)
    assert (EventType.WARNING, Reason.PENDING_RESTART) == (event.type, event.reason)
    assert [] == list(events_of_conditions(bad, bad))
    assert [Event(EventType.NORMAL, Reason.RECONCILED, "SchedulerConfigured again")] == list(
        events_of_conditions(good, bad)
    )


@pytest.mark.parametrize("kind", [Reason.RELIEF_FAILED, Reason.SERIALIZATION_HEAVY])
def test_what_the_agent_warns_of_is_a_warning(kind: Reason) -> None:
    seen = dataclasses.replace(SEEN, notes=(Note(1, kind, "etl.step takes 31 %"),))
    world = dataclasses.replace(cluster([busy("a")]), scheduler=seen)

    assert [Event(EventType.WARNING, kind, "etl.step takes 31 %")] == list(events_of_notes(world))


def test_metrics_follow_the_scheduler_and_go_with_its_policy() -> None:
    def passed(scheduler: ObservedScheduler) -> None:
        world = dataclasses.replace(cluster([busy("a")]), scheduler=scheduler)
        decided = plan(world, POLICY, PAST, now=NOW)
        metrics.passed(KEY, PassResult(world, decided, (), Status(), 5.0), 0.1)

    def value(name: str, **labels: str) -> float | None:
        where = {"namespace": KEY.namespace, "cluster": KEY.name, **labels}
        return metrics.registry.get_sample_value(f"dask_adaptive_{name}", where)

    metrics = Metrics()
    passed(dataclasses.replace(SEEN, serialized=COST))
    assert 1 == value("relief_state", relief="idle", state="Active")
    assert 0.31 == value("serialize_share")
    assert 12.0 == value("serialize_seconds_total", function="etl.step")
    assert 5e7 == value("serialize_bytes_total", function="etl.step")

    renewed = Serialized(1, 0.5, 100, 0.0, (SerializedFunction("etl.other", 1, 0.5, 100, 100),))
    quiet = dataclasses.replace(WELL, state=wire.R_DISABLED)
    passed(dataclasses.replace(SEEN, relief=(quiet,), serialized=renewed))
    assert value("relief_state", relief="idle", state="Active") is None
    assert value("serialize_seconds_total", function="etl.step") is None
    assert 0.5 == value("serialize_seconds_total", function="etl.other")

    metrics.forget(KEY)
    assert b'etl"' not in metrics.render()


def policy() -> dict[str, Any]:
    made = ko.policy()
    made["status"] = status_json(status(SEEN), generation=1, before={}, now="T")
    made["status"]["scheduler"]["config"] = [{"key": "a.b", "state": "Unknown", "message": "no"}]
    return made


def test_explain_shows_reliefs_and_what_serializing_costs() -> None:
    live = dataclasses.replace(SEEN, serialized=COST)
    answer = explanation("etl", [policy()], None, [], Asked(live=live))

    assert answer is not None
    text = render(answer)
    assert "relief idle: Active (calls 12,000)" in text
    assert "relief host: Failed: WorkerState has no host" in text
    assert "config a.b: Unknown: no" in text
    assert "serializing: 12.3 s and 57.0 MB for 5,000 tasks; 31% of the scheduler's CPU" in text
    assert "etl.step   4,000   12.00     50.0 MB   57.0 kB" in text
    assert 1 == text.count("relief idle"), "what is live stands instead of what was"


def test_explain_without_the_scheduler_shows_what_was_seen_last() -> None:
    live = ObservedScheduler(message="kubectl is not on the PATH")
    answer = explanation("etl", [policy()], None, [], Asked(live=live))

    assert answer is not None
    assert "relief idle: Active" in render(answer)
    assert "what reliefs do: not known: kubectl is not on the PATH" in render(answer)
