"""A status as JSON: what is written of it, and what the next operator and the CLI make of that."""

from __future__ import annotations

import dataclasses
from typing import Any

from dask_adaptive.kube.api import AlreadyExists, ApiUnreachable, error_of
from dask_adaptive.kube.status_json import read_status, status_json, unable_json
from dask_adaptive.loop.status import PAUSED, READY, Condition, HeldBy, Status, WorkerRow
from dask_adaptive.model.plan import Decision
from dask_adaptive.model.reason import Reason
from support import kube_objects as ko

HELD = HeldBy("client", "nb-1", "debugging", ("a", "b"), 2, until=5_000.0, left_s=3600.0)
STATUS = Status(
    generation=3,
    replicas=2,
    desired=1,
    pinned=1,
    idle=2,
    reason=Reason.NO_CANDIDATES,
    message="1 worker too many, all held",
    blockers={Reason.PINNED: 1},
    workers=(WorkerRow("w1", "Active", Reason.PINNED, "held 3h59m by kubectl"),),
    conditions=(Condition(READY, True, Reason.RECONCILED, "fine"),),
    held_by=(HELD,),
)
T0, T1 = "2026-01-31T18:00:00Z", "2026-01-31T18:00:20Z"


def rendered(status: Status = STATUS, before: Any = None, now: str = T0) -> Any:
    return status_json(status, before=before or {}, now=now)


FIRST = rendered()


def test_an_unchanged_world_gives_equal_json() -> None:
    assert FIRST == rendered(before=FIRST, now=T1)


def test_the_time_of_a_condition_moves_with_its_status_only() -> None:
    def written(status: bool | None, message: str) -> tuple[str, str]:
        said = Status(conditions=(Condition(READY, status, Reason.RECONCILED, message),))
        (row,) = rendered(said, FIRST, T1)["conditions"]
        return row["status"], row["lastTransitionTime"]

    assert ("True", T0) == written(True, "otherwise")
    assert ("Unknown", T1) == written(None, "?")


def test_a_pass_that_fails_changes_nothing_of_what_was_seen() -> None:
    """Conditions that nobody looked at stay those of the spec that they were seen under."""
    other = Condition(PAUSED, False, Reason.RECONCILED, "mode is Auto")
    before = rendered(dataclasses.replace(STATUS, conditions=(*STATUS.conditions, other)))
    ready = Condition(READY, False, Reason.INVALID_SPEC, "minReplicas: mend it")
    after = unable_json(ready, generation=4, before=before, now=T1)

    changed = {key for key in after if after[key] != before[key]}
    assert {"observedGeneration", "reason", "message", "conditions"} == changed
    assert 4 == after["observedGeneration"]
    assert [("Ready", "False", T1, 4), ("Paused", "False", T0, 3)] == [
        (c["type"], c["status"], c["lastTransitionTime"], c["observedGeneration"])
        for c in after["conditions"]
    ]


def held(row: HeldBy, now: str = T0, before: Any = None) -> Any:
    return rendered(Status(held_by=(row,)), before, now)["heldBy"]


def test_a_pin_and_its_end() -> None:
    """An end that has not really moved is not written anew."""
    pin = {
        "source": "client", "owner": "nb-1", "reason": "debugging", "workers": ["a", "b"],
        "count": 2, "until": "2026-01-31T19:00:00Z",
    }  # fmt: skip

    assert [pin] == held(HELD)
    assert [pin] == held(dataclasses.replace(HELD, left_s=3595.0), T1, FIRST), "another clock"
    later = held(dataclasses.replace(HELD, left_s=7200.0), T1, FIRST)
    assert [{**pin, "until": "2026-01-31T20:00:20Z"}] == later
    assert "until" not in held(dataclasses.replace(HELD, left_s=float("inf")))[0]


def test_figures_of_an_earlier_decision_do_not_stay_in_the_object() -> None:
    """A merge patch adds to objects."""
    old = Decision(1.7e9, "g", 1, 2, 2, Reason.LOAD_INCREASED, "", inputs={"queued": 4.0, "old": 1})
    new = dataclasses.replace(old, inputs={"queued": 5.0})
    after = rendered(Status(last_decision=new), rendered(Status(last_decision=old)))

    assert {"queued": 5.0, "old": None} == after["lastDecision"]["inputs"]


def test_who_stays_no_more_does_not_stay_in_the_object() -> None:
    before = rendered(Status(blockers={Reason.BUSY: 2, Reason.PINNED: 1}))

    assert {"Busy": 2, "Pinned": 1} == before["blockers"]
    assert {"Busy": 3, "Pinned": None} == rendered(Status(blockers={Reason.BUSY: 3}), before)[
        "blockers"
    ]


def test_lists_that_an_earlier_release_wrote_are_replaced() -> None:
    before = {
        "blockers": [{"reason": "Busy", "workers": 2}],
        "pendingReasons": [{"reason": "Unschedulable", "workers": 1}],
        "scheduler": {"relief": [{"name": "host", "state": "Active"}]},
    }
    after = rendered(before=before)

    assert {"Pinned": 1} == after["blockers"]
    assert ({}, {}) == (after["pendingReasons"], after["scheduler"]["relief"])


def test_what_a_fresh_operator_knows_of_recycles_and_of_those_that_leave() -> None:
    recent = (ko.CREATED_AT, ko.CREATED_AT + 7200)
    states = {"a": "Draining", "b": "Active", "c": "Going", "d": "Drained"}
    workers = tuple(WorkerRow(name, state, Reason.RETIRING, "") for name, state in states.items())
    written = rendered(Status(workers=workers, recycled={Reason.TASK_QUOTA: 3}, recent=recent))

    read = read_status(written)
    assert ["a", "c", "d"] == read.leaving
    assert ({Reason.TASK_QUOTA: 3}, recent) == (read.recycles, read.recent)
    later = read_status({"recycled": {"TaskQuota": 3, "Later": 1}})
    assert {Reason.TASK_QUOTA: 3} == later.recycles
    assert Status() == read_status({}) == read_status({"recycled": None, "recentRecycles": ["?"]})


def test_errors_say_who_can_fix_them() -> None:
    """Those of an API server itself: tests/api."""
    assert isinstance(error_of(409, '{"reason": "AlreadyExists"}', ""), AlreadyExists)
    for body in ("down", "[]"):
        assert isinstance(error_of(503, body, "GET /x"), ApiUnreachable)
