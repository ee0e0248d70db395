"""Drift: told when it is sure, and only then."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dask_adaptive.kube.drift import drifted, sketch
from support.tables import table

HOUR = 3600.0
SPEC: dict[str, Any] = {
    "containers": [
        {
            "name": "worker",
            "image": "dask:1",
            "args": ["dask", "worker"],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": ""}],
            "resources": {"limits": {"cpu": "1", "memory": "2Gi"}},
        },
        {"name": "side", "image": "side:1"},
    ]
}


def changed(**worker: Any) -> dict[str, Any]:
    spec = copy.deepcopy(SPEC)
    spec["containers"][0] |= worker
    return spec


def drift(wanted: dict[str, Any], found: dict[str, Any], **times: Any) -> str:
    """Of a Deployment that was made an hour before its group was changed."""
    when = {"group_made_at": 0.0, "group_written_at": 2 * HOUR, "made_at": HOUR, **times}
    return drifted(sketch(wanted), sketch(found), **when)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (changed(image="dask:2"), "image is dask:1"),
        (changed(args=["dask", "worker", "-v"]), "args differ"),
        (changed(command=["sh"]), "command differs"),
        (changed(env=[{"name": "A", "value": "2"}]), "variable A differs"),
        (changed(env=[{"name": "A", "value": "1"}]), "variable B differs"),
        (changed(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
         "variable A differs"),
        (changed(envFrom=[{"secretRef": {"name": "s"}}]), "envFrom differs"),
        (changed(resources={"limits": {"cpu": "1"}}), "limits.memory differs"),
        (changed(resources={"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": 0.5}}),
         "requests.cpu differs"),
        ({"containers": [*SPEC["containers"], {"name": "more"}]}, "more: is missing"),
    ],
)  # fmt: skip
def test_what_differs_is_said(wanted: dict[str, Any], said: str) -> None:
    assert said in drift(wanted, SPEC)
    assert "container" in drift(wanted, SPEC)


@table(
    "found",
    the_same=SPEC,
    what_upstream_adds=changed(env=[{"name": "B"}, {"name": "A", "value": "1"},
                     {"name": "DASK_WORKER_NAME", "value": "w"},
                     {"name": "DASK_SCHEDULER_ADDRESS", "value": "tcp://"}]),
    quantities_in_other_words=changed(resources={"limits": {"cpu": "1000m", "memory": "2048Mi"},
                           "requests": {"cpu": 1, "memory": 2147483648}}),
    a_sidecar={"containers": [*SPEC["containers"], {"name": "istio", "image": "i"}]},
    defaults={**SPEC, "terminationGracePeriodSeconds": 30, "restartPolicy": "Always"},
    of_no_known_shape={"containers": 7},
    nothing={},
)  # fmt: skip
def test_what_does_not_matter_is_no_drift(found: dict[str, Any]) -> None:
    assert "" == drift(SPEC, found)


def test_defaults_of_references_are_no_drift() -> None:
    def spec(**more: str) -> dict[str, Any]:
        field = {"fieldPath": "status.podIP", **{k: v for k, v in more.items() if k != "divisor"}}
        resource = {"resource": "limits.cpu", "divisor": more.get("divisor", "")}
        refs = {"IP": {"fieldRef": field}, "CPU": {"resourceFieldRef": resource}}
        return changed(env=[{"name": name, "valueFrom": ref} for name, ref in refs.items()])

    assert "" == drift(spec(), spec(apiVersion="v1", divisor="0"))


@table(
    "times",
    nobody_knows_when_the_group_was_changed={"group_written_at": None},
    the_group_was_never_changed={"group_made_at": 2 * HOUR - 3},
    the_deployment_is_younger_than_the_change={"made_at": 2 * HOUR + 60},
)
def test_what_a_new_worker_would_have_too_is_no_drift(times: dict[str, Any]) -> None:
    assert "" == drift(changed(image="mirror/dask:1"), SPEC, **times)


def test_equal_workers_share_a_sketch() -> None:
    named = [changed(env=[{"name": "DASK_WORKER_NAME", "value": name}]) for name in "ab"]

    assert sketch(named[0]) is sketch(named[1])
