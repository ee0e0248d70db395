"""Metrics: what each pass adds, and that nothing of a policy stays when it goes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.summary import status_of
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    ObservedCluster,
    ObservedScheduler,
    Pin,
    ReliefState,
    SchedulerWorker,
    Serialized,
)
from dask_adaptive.model.plan import Outcome, Plan, Retire
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Quota, QuotaUse
from dask_adaptive_agent import wire
from support.worlds import KEY, NOW, POLICY, cluster, worker


class Measured:
    """What a series of passes has added up to."""

    def __init__(self) -> None:
        self.metrics = Metrics()

    def passed(
        self, *, pins: Any = (), outcomes: Sequence[Outcome] = (), uses: Any = (),
        key: ClusterKey = KEY, **scheduler: Any,
    ) -> None:  # fmt: skip
        processes = tuple(
            SchedulerWorker(n, f"tcp://{n}", "running", 1, 0, 9.0, 0, pins=p)
            for n, p in dict(pins).items()
        )
        seen = ObservedScheduler(workers=processes, **{"session": "s", "agent": "1", **scheduler})
        there = cluster([worker("a", pins=tuple(p for own in dict(pins).values() for p in own))])
        world: ObservedCluster = dataclasses.replace(there, scheduler=seen)
        decided = Plan(Reason.DESIRED_WITHIN_RANGE, "as it should be", uses=uses)
        status = status_of(world, POLICY, decided, outcomes, now=NOW)
        self.metrics.passed(key, PassResult(world, decided, outcomes, status, 5.0, POLICY), 0.1)

    def value(self, name: str, **labels: str) -> float | None:
        where = {"namespace": KEY.namespace, "cluster": KEY.name, **labels}
        return self.metrics.registry.get_sample_value(f"dask_adaptive_{name}", where)


@pytest.fixture
def measured() -> Iterator[Measured]:
    made = Measured()
    yield made
    made.metrics.forget(KEY)
    assert b'cluster="etl"' not in made.metrics.render()


def test_quotas(measured: Measured) -> None:
    used = {"group": "etl-default", "quota": "tasks"}
    retire = Retire("w", ("w",), Reason.TASK_QUOTA, "21 of 20 runs", busy_ok=True)
    idle = Retire("w", ("w",), Reason.UNDERUTILIZED, "idle")
    outcomes = [Outcome(a, True, a.reason, "") for a in (retire, idle)]
    outcomes.append(Outcome(retire, False, Reason.PINNED, ""))
    measured.passed(uses=(QuotaUse("etl-default", Quota.TASKS, 0.5, "w"),), outcomes=outcomes)

    assert 0.5 == measured.value("quota_used_ratio", **used)
    assert 1 == measured.value("recycles_total", reason="TaskQuota")
    assert measured.value("recycles_total", reason="Underutilized") is None, "a scale-down"
    measured.passed()
    assert measured.value("quota_used_ratio", **used) is None


@pytest.mark.parametrize(
    ("metric", "label", "fact", "word"),
    [
        ("tasks_redone_total", "cause", "redone", "lost"),
        ("pin_expired_total", "source", "pins_expired", "shuffle"),
    ],
)
def test_what_schedulers_count_is_added_up_since_we_came(
    metric: str, label: str, fact: str, word: str, measured: Measured
) -> None:
    totals = []
    for session, count in (("s", 3), ("s", 3), ("s", 5), ("new", 1), ("new", 1)):
        measured.passed(session=session, **{fact: {word: count}})
        totals.append(measured.value(metric, **{label: word}))

    assert [0, 0, 2, 3, 3] == totals


def test_the_age_of_pins(measured: Measured) -> None:
    young, old = Pin("client", "x", "", 60.0, since=-5.0), Pin("client", "y", "", 60.0, since=-50.0)
    measured.passed(pins={"a": (young, old), "b": (young,)})

    assert 50.0 == measured.value("pin_age_seconds_max", source="client")
    assert 0.0 == measured.value("pin_age_seconds_max", source="shuffle")


def test_the_scheduler_as_it_is_now(measured: Measured) -> None:
    relief = ReliefState("pickling", wire.R_ACTIVE)
    measured.passed(relief=(relief,), serialized=Serialized(5_000, 12.34, 57_000_000, 0.31, ()))
    assert 1 == measured.value("relief_state", relief="pickling", state="Active")
    assert 0.31 == measured.value("serialize_share")

    quiet = dataclasses.replace(relief, state=wire.R_DISABLED)
    measured.passed(relief=(quiet,), serialized=None)
    assert measured.value("relief_state", relief="pickling", state="Active") is None
    assert measured.value("serialize_share") is None


def test_a_scheduler_that_invents_words_makes_no_series(measured: Measured) -> None:
    for n in range(50):
        words: list[Any] = [n, f"word {n}", "\x1b]0;title\x07"]
        counted = dict.fromkeys(words, n)
        pins = {f"w{n}": tuple(Pin(word, "x", "", 60.0, since=-5.0) for word in words[1:])}
        relief = [ReliefState(word, word) for word in words]
        measured.passed(pins=pins, relief=tuple(relief), redone=counted, pins_expired=counted)
        if n == 1:
            before = measured.metrics.render().count(b"\n")

    text = measured.metrics.render()
    assert before == text.count(b"\n")
    assert b"word" not in text
    assert b"\x1b" not in text
    assert 1 == measured.value("relief_state", relief="other", state="other")
    assert 1 == measured.value("pinned_workers", source="other")
    assert 5 == measured.value("pin_age_seconds_max", source="other")
    assert 3 * 49 == measured.value("tasks_redone_total", cause="other")


@pytest.mark.parametrize("count", [math.nan, -math.inf, -5, -(2**63)])
def test_what_was_counted_never_becomes_less(count: Any, measured: Measured) -> None:
    measured.passed(redone={"lost": 0})
    measured.passed(redone={"lost": 2})
    measured.passed(redone={"lost": count})
    assert 2 == measured.value("tasks_redone_total", cause="lost")


@pytest.mark.parametrize(
    "senseless",
    [
        {"serialized": Serialized(1, 1.0, 1, 10**400, ())},
        {"serialized": Serialized(1, 1.0, 1, "much", ())},  # type: ignore[arg-type]
        {"relief": (ReliefState([], {}),)},  # type: ignore[arg-type]
    ],
)
def test_senseless_figures_are_left_out_and_all_others_are_there(
    senseless: dict[str, Any], measured: Measured, caplog: pytest.LogCaptureFixture
) -> None:
    measured.passed(**senseless)
    other = ClusterKey("other", "fine")
    fine = Serialized(1, 1.0, 1, 0.5, ())
    measured.passed(key=other, serialized=fine, relief=(ReliefState("host", wire.R_ACTIVE),))

    text = measured.metrics.render().decode()
    measured.metrics.forget(other)
    for line in (
        'serialize_share{cluster="fine",namespace="other"} 0.5',
        'relief_state{cluster="fine",namespace="other",relief="host",state="Active"} 1.0',
        'pinned_workers{cluster="fine",namespace="other",source="client"} 0.0',
        'workers{cluster="etl",namespace="ns",state="idle"}',
    ):
        assert f"dask_adaptive_{line}" in text
    assert "Can't compute" in caplog.text
