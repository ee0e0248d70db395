"""Pins as people see them: in the status' JSON, by the command line, and in metrics."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from click.testing import CliRunner

from dask_adaptive.cli import pins
from dask_adaptive.cli.explain import explanation, render
from dask_adaptive.cli.get import table
from dask_adaptive.cli.main import cli
from dask_adaptive.cli.pins import of_cluster, pin_lines
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.status_json import status_json
from dask_adaptive.loop.held import aged, held_by, pins_of
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.report import status_of
from dask_adaptive.loop.status import HeldBy, Status, WorkerRow
from dask_adaptive.model.observed import ObservedCluster, Pin, SchedulerWorker
from dask_adaptive.model.plan import Plan
from dask_adaptive.model.reason import Reason
from support.worlds import KEY, NOW, POLICY, cluster, worker

ROW = HeldBy("client", "nb-1", "debugging", ("a", "b"), 2, until=5_000.0, left_s=3600.0)
T0, T1, T2 = "2026-01-31T18:00:00Z", "2026-01-31T18:00:20Z", "2026-01-31T18:10:00Z"


def heldby(row: HeldBy, now: str, before: list[Any] | None = None) -> Any:
    status = Status(held_by=(row,))
    return status_json(status, generation=1, before={"heldBy": before or []}, now=now)["heldBy"]


def test_a_pin_as_json() -> None:
    assert [
        {
            "source": "client", "owner": "nb-1", "reason": "debugging", "workers": ["a", "b"],
            "count": 2, "until": "2026-01-31T19:00:00Z",
        }
    ] == heldby(ROW, T0)  # fmt: skip


def test_an_end_that_has_not_really_moved_is_not_written_anew() -> None:
    first = heldby(ROW, T0)
    other_clock = dataclasses.replace(ROW, left_s=3595.0)
    later = dataclasses.replace(ROW, left_s=7200.0)

    assert first == heldby(other_clock, T1, first)
    assert "2026-01-31T20:00:20Z" == heldby(later, T1, first)[0]["until"]


def test_rows_of_a_while_ago_still_tell_the_same_end() -> None:
    """A pass that fails reports what was seen last."""
    first = heldby(ROW, T0)
    (old,) = aged((ROW,), by_s=600.0)

    assert first == heldby(old, T2, first)
    assert [{**first[0], "until": "2026-01-31T19:00:00Z"}] == heldby(old, T2)


def test_an_end_that_nobody_knows_is_left_out() -> None:
    assert "until" not in heldby(dataclasses.replace(ROW, left_s=float("inf")), T0)[0]


def test_a_status_stays_small_and_its_order_the_same() -> None:
    many = tuple(Pin("client", f"c{i:03}", "", 60.0, 60.0) for i in range(120))
    names = [f"w{i:02}" for i in range(12)]
    world = processes({n: many if n == "w00" else (Pin("shuffle", "s", "", 9.0),) for n in names})
    rows = held_by(world, POLICY, (), now=NOW)

    assert 100 == len(rows)
    assert ("shuffle", 11, tuple(names[1:11])) == (rows[0].source, rows[0].count, rows[0].workers)
    assert [f"c{i:03}" for i in range(99)] == [r.owner for r in rows[1:]]


def processes(pins_by_name: dict[str, tuple[Pin, ...]], **scheduler: Any) -> ObservedCluster:
    rows = tuple(
        SchedulerWorker(n, f"tcp://{n}", "running", 1, 0, 9.0, 0, pins=p)
        for n, p in pins_by_name.items()
    )
    named = [worker(n) for n in pins_by_name if not n.startswith("stranger")]
    return dataclasses.replace(
        cluster(named),
        scheduler=dataclasses.replace(cluster([]).scheduler, workers=rows, **scheduler),
    )


def test_a_pin_of_a_stranger_or_of_a_departing_worker_is_shown_too() -> None:
    pin = Pin("client", "nb-1", "", 5.0, latest_s=60.0)
    world = processes({"a-0": (), "a": (pin,), "stranger": (pin,)})

    (held,) = pins_of(world).values()
    assert {"a", "stranger"} == held.workers


def policy(name: str = "p", of: str = "etl", **status: Any) -> dict[str, Any]:
    spec = {"clusterRef": {"name": of}, "maxReplicas": 3}
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec, "status": status}


HELD = {
    "source": "client", "owner": "nb-1", "reason": "debugging", "workers": ["a", "b", "c", "d"],
    "count": 12, "until": "2026-01-31T19:00:00Z",
}  # fmt: skip
SHUFFLE = {"source": "shuffle", "owner": "5f3a", "workers": ["a"], "count": 1}


def test_pins_as_a_table() -> None:
    lines = pin_lines([policy("z", "train", heldBy=[SHUFFLE]), policy(heldBy=[HELD])])

    text = table(pins._COLUMNS, map(pins._row, lines))
    assert [
        "CLUSTER   SOURCE    OWNER   UNTIL                  WORKERS              REASON",
        "etl       client    nb-1    2026-01-31T19:00:00Z   a, b, c and 9 more   debugging",
        "train     shuffle   5f3a    unknown                a",
    ] == text.splitlines()


def test_a_cluster_is_found_by_its_name_or_its_policys() -> None:
    policies = [policy("p", "etl"), policy("q", "train")]

    assert ["p"] == [p["metadata"]["name"] for p in of_cluster("etl", policies)]
    assert ["q"] == [p["metadata"]["name"] for p in of_cluster("q", policies)]
    assert [] == of_cluster("x", policies)
    assert policies == of_cluster(None, policies)


@pytest.mark.parametrize(
    ("words", "found", "code", "said"),
    [
        pytest.param(["etl"], [policy(heldBy=[])], 0, "No pins.\n", id="none"),
        pytest.param([], [], 0, "No pins.\n", id="no-policies"),
        pytest.param(["x"], [policy()], 1, "x in namespace ns is under no", id="unknown-cluster"),
        pytest.param(["etl"], [policy(heldBy=[HELD])], 0, "a, b, c and 9 more", id="one"),
        pytest.param([], [{**policy(), "status": None}], 0, "is it running?", id="not-looked-at"),
    ],
)
def test_the_command(
    words: list[str], found: list[Any], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "ask", lambda question, context: found)  # the API server's answer
    result = CliRunner().invoke(cli, ["pins", *words, "-n", "ns"])

    assert code == result.exit_code
    assert said in result.output


def test_the_command_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "ask", lambda question, context: [policy(heldBy=[HELD])])
    result = CliRunner().invoke(cli, ["pins", "-n", "ns", "-o", "json"])

    assert {"items": [{"cluster": "etl", **HELD}]} == json.loads(result.output)


def test_explain_says_until_when_a_worker_is_held() -> None:
    rows = [{"name": "a", "pod": "a-x", "state": "Active", "reason": "Pinned", "message": "m"}]
    answer = explanation("a-x", [policy(workers=rows, heldBy=[HELD, SHUFFLE])], None, [])

    assert answer is not None
    text = render(answer)
    assert "held by client nb-1: until 2026-01-31T19:00:00Z at the latest (debugging)" in text
    assert "held by shuffle 5f3a: until it is given up" in text


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "its pod is being deleted"),
        (
            [
                WorkerRow(
                    "a", "Pending", Reason.POD_ENDING, "its pod is ending: 1 task", pod="a-new"
                )
            ],
            "its pod is ending: 1 task",
        ),
    ],
)
def test_explain_a_pod_that_is_being_deleted(rows: list[WorkerRow], said: str) -> None:
    labels = {"dask.org/cluster-name": "etl", "dask.org/component": "worker"}
    labels["pod-template-hash"] = "5d4f"
    meta = {
        "name": "a-old", "labels": labels, "deletionTimestamp": T0,
        "ownerReferences": [{"kind": "ReplicaSet", "name": "a-5d4f"}],
    }  # fmt: skip
    pod = {"metadata": meta, "status": {"phase": "Running"}, "spec": {}}
    told = status_json(Status(workers=tuple(rows)), generation=1, before={}, now=T0)
    answer = explanation("a-old", [policy(**told)], pod, [])

    assert answer is not None
    assert ("Going", "PodEnding") == (answer.state, answer.reason)
    assert said in answer.message


def passed(metrics: Metrics, world: ObservedCluster) -> None:
    decided = Plan(Reason.DESIRED_WITHIN_RANGE, "")
    status = status_of(world, POLICY, decided, (), now=NOW)
    metrics.passed(KEY, PassResult(world, decided, (), status, 1.0), 0.1)


def value(metrics: Metrics, name: str, source: str) -> float:
    labels = {"namespace": "ns", "cluster": "etl", "source": source}
    number = metrics.registry.get_sample_value(f"dask_adaptive_{name}", labels)
    assert number is not None
    return number


def test_pins_and_their_age_are_measured() -> None:
    metrics = Metrics()
    young, old = Pin("client", "x", "", 60.0, for_s=5.0), Pin("client", "y", "", 60.0, for_s=50.0)
    passed(metrics, processes({"a": (young, old), "b": (young,)}))

    assert (2, 50.0) == (
        value(metrics, "pins", "client"),
        value(metrics, "pin_age_seconds_max", "client"),
    )
    assert (0, 0.0) == (
        value(metrics, "pins", "shuffle"),
        value(metrics, "pin_age_seconds_max", "shuffle"),
    )


def test_expired_pins_are_counted_once_and_not_those_before_our_time() -> None:
    metrics = Metrics()
    for session, count in (("s", 3), ("s", 3), ("s", 5), ("new", 1), ("new", 1)):
        passed(metrics, processes({}, session=session, pins_expired=(("shuffle", count),)))

    assert 3 == value(metrics, "pin_expired_total", "shuffle")
    assert 0 == value(metrics, "pin_expired_total", "client")
    metrics.forget(KEY)
    assert 'cluster="etl"' not in metrics.render().decode()
