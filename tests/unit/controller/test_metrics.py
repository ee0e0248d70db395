"""Metrics: what each pass adds, and that nothing of a policy stays when it goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.summary import status_of
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
        self, *, pins: Any = (), outcomes: Sequence[Outcome] = (), uses: Any = (), **scheduler: Any
    ) -> None:
        processes = tuple(
            SchedulerWorker(n, f"tcp://{n}", "running", 1, 0, 9.0, 0, pins=p)
            for n, p in dict(pins).items()
        )
        seen = ObservedScheduler(workers=processes, **{"session": "s", "agent": "1", **scheduler})
        world: ObservedCluster = dataclasses.replace(cluster([worker("a")]), scheduler=seen)
        decided = Plan(Reason.DESIRED_WITHIN_RANGE, "as it should be", uses=uses)
        status = status_of(world, POLICY, decided, outcomes, now=NOW)
        self.metrics.passed(KEY, PassResult(world, decided, outcomes, status, 5.0, POLICY), 0.1)

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
    ("metric", "label", "fact"),
    [("tasks_redone_total", "cause", "redone"), ("pin_expired_total", "source", "pins_expired")],
)
def test_what_schedulers_count_is_added_up_since_we_came(
    metric: str, label: str, fact: str, measured: Measured
) -> None:
    totals = []
    for session, count in (("s", 3), ("s", 3), ("s", 5), ("new", 1), ("new", 1)):
        measured.passed(session=session, **{fact: (("shuffle", count),)})
        totals.append(measured.value(metric, **{label: "shuffle"}))

    assert [0, 0, 2, 3, 3] == totals


def test_the_age_of_pins(measured: Measured) -> None:
    young, old = Pin("client", "x", "", 60.0, since=-5.0), Pin("client", "y", "", 60.0, since=-50.0)
    measured.passed(pins={"a": (young, old), "b": (young,)})

    assert 50.0 == measured.value("pin_age_seconds_max", source="client")
    assert 0.0 == measured.value("pin_age_seconds_max", source="shuffle")


def test_the_scheduler_as_it_is_now(measured: Measured) -> None:
    relief = ReliefState("idle", wire.R_ACTIVE)
    measured.passed(relief=(relief,), serialized=Serialized(5_000, 12.34, 57_000_000, 0.31, ()))
    assert 1 == measured.value("relief_state", relief="idle", state="Active")
    assert 0.31 == measured.value("serialize_share")

    quiet = dataclasses.replace(relief, state=wire.R_DISABLED)
    measured.passed(relief=(quiet,), serialized=None)
    assert measured.value("relief_state", relief="idle", state="Active") is None
    assert measured.value("serialize_share") is None
