"""A status as JSON, and what the CLI makes of it."""

from __future__ import annotations

from typing import Any

from dask_adaptive.cli.explain import explanation, render
from dask_adaptive.cli.get import table
from dask_adaptive.kube.errors import AlreadyExists, ApiUnreachable, Conflict, Forbidden, error_of
from dask_adaptive.kube.status_json import status_json
from dask_adaptive.loop.status import READY, Condition, Status, WorkerRow
from dask_adaptive.model.reason import Reason

ROW = WorkerRow("w1", "Active", Reason.PINNED, "held 3h59m by kubectl", pod="w1-x")
STATUS = Status(
    replicas=2,
    desired=1,
    pinned=1,
    idle=2,
    reason=Reason.NO_CANDIDATES,
    message="1 worker too many, all held",
    pins=(("manual", 1),),
    blockers=((Reason.PINNED, 1),),
    workers=(ROW,),
    conditions=(Condition(READY, True, Reason.RECONCILED, "fine"),),
)


def rendered(status: Status = STATUS, before: dict[str, Any] | None = None, now: str = "T1") -> Any:
    return status_json(status, generation=3, before=before or {}, now=now)


def test_an_unchanged_world_gives_equal_json() -> None:
    first = rendered(now="T1")

    assert first == rendered(before=first, now="T2")


def test_the_time_of_a_condition_moves_with_its_status_only() -> None:
    first = rendered(now="T1")
    said = Status(conditions=(Condition(READY, True, Reason.RECONCILED, "otherwise"),))
    fell = Status(conditions=(Condition(READY, None, Reason.RECONCILED, "?"),))

    assert "T1" == rendered(said, first, "T2")["conditions"][0]["lastTransitionTime"]
    assert ("Unknown", "T2") == (
        rendered(fell, first, "T2")["conditions"][0]["status"],
        rendered(fell, first, "T2")["conditions"][0]["lastTransitionTime"],
    )


def policy() -> dict[str, Any]:
    spec = {"clusterRef": {"name": "etl"}, "mode": "Auto", "maxReplicas": 3}
    return {"metadata": {"name": "p", "namespace": "ns"}, "spec": spec, "status": rendered()}


def test_explain_a_worker_that_is_held() -> None:
    answer = explanation("w1-x", [policy()], None, [])

    assert answer is not None
    assert "worker w1, under AdaptivePolicy p: Active\n  Pinned: held 3h59m by kubectl" == render(
        answer
    )


def test_explain_a_cluster() -> None:
    events = [{"lastTimestamp": "T", "reason": "Pinned", "message": "held", "count": 2}]
    answer = explanation("etl", [policy()], None, events)

    assert answer is not None
    text = render(answer)
    assert "NoCandidates: 1 worker too many, all held" in text
    assert "held by manual: 1" in text
    assert "T Pinned: held (2 times)" in text
    assert "w1       Active   Pinned   held 3h59m by kubectl" in text


def test_explain_a_worker_of_which_there_is_nothing_to_say() -> None:
    pod = {
        "metadata": {"name": "w2-x", "labels": {"dask.org/cluster-name": "etl"}},
        "status": {"phase": "Running"},
    }
    answer = explanation("w2-x", [policy()], pod, [])

    assert answer is not None
    assert "Active" == answer.state


def test_explain_what_is_not_there() -> None:
    assert explanation("x", [policy()], None, []) is None


def test_table() -> None:
    assert "A    B\nxx   y" == table(("A", "B"), [["xx", "y"]])


def test_errors_say_who_can_fix_them() -> None:
    body = '{"message": "pods is forbidden", "reason": "Forbidden"}'

    assert isinstance(error_of(403, body, "GET /x"), Forbidden)
    assert "pods is forbidden" == str(error_of(403, body, "GET /x"))
    assert isinstance(error_of(409, '{"reason": "AlreadyExists"}', ""), AlreadyExists)
    assert isinstance(error_of(409, '{"reason": "Conflict"}', ""), Conflict)
    assert isinstance(error_of(503, "down", "GET /x"), ApiUnreachable)
    assert isinstance(error_of(500, "[]", "GET /x"), ApiUnreachable)
