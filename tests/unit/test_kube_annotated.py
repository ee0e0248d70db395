"""Policies from annotations: what is made, mended, removed, or complained about."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive.kube.annotated import Complain, Make, Mend, Remove, steps
from dask_adaptive.kube.objects import (
    MANAGED_BY,
    ClusterObject,
    PolicyObject,
    parse_cluster,
    parse_policy_object,
)
from support import kube_objects as ko


def cluster(**notes: str) -> ClusterObject:
    annotations = {f"dask-adaptive.dev/{k.replace('_', '-')}": v for k, v in notes.items()}
    return parse_cluster(ko.cluster(annotations=annotations))


def ours(**spec: Any) -> PolicyObject:
    owner = [{"uid": "uid-etl"}]
    body = ko.policy(labels={MANAGED_BY: "annotations"}, ownerReferences=owner)
    body["spec"] |= {"minReplicas": 0, "idleTimeout": "60s", **spec}
    return parse_policy_object(body)


theirs = parse_policy_object(ko.policy("by-hand"))


@pytest.mark.parametrize(
    ("seen", "policies", "expected"),
    [
        pytest.param(cluster(), [], [], id="nothing-asked-for"),
        pytest.param(cluster(max_replicas="5"), [], [Make], id="made"),
        pytest.param(cluster(max_replicas="5"), [ours()], [], id="in-step"),
        pytest.param(cluster(max_replicas="7"), [ours()], [Mend], id="mended"),
        pytest.param(
            cluster(max_replicas="5"), [ours(idleTimeout="2m")], [Mend], id="default-back"
        ),
        pytest.param(cluster(), [ours()], [Remove], id="annotation-gone"),
        pytest.param(cluster(max_replicas="5"), [theirs], [], id="a-persons-policy-wins"),
        pytest.param(cluster(max_replicas="5"), [theirs, ours()], [Remove], id="and-ours-goes"),
        pytest.param(cluster(max_replicas="x"), [ours()], [Complain], id="malformed"),
        pytest.param(cluster(max_replicas="-1"), [], [Complain], id="negative"),
        pytest.param(
            cluster(max_replicas="5", idle_timeout="soon"), [ours()], [Complain], id="no-duration"
        ),
        pytest.param(
            cluster(max_replicas="5", min_replicas="6"), [], [Complain], id="min-above-max"
        ),
    ],
)
def test_steps(seen: ClusterObject, policies: list[PolicyObject], expected: list[type]) -> None:
    assert expected == [type(step) for step in steps(seen, policies)]


def test_what_is_made() -> None:
    (step,) = steps(cluster(max_replicas="5", min_replicas="1", idle_timeout="2m"), [])

    assert isinstance(step, Make)
    assert {
        "clusterRef": {"name": "etl"},
        "maxReplicas": 5,
        "minReplicas": 1,
        "idleTimeout": "2m",
    } == step.body["spec"]
    assert "uid-etl" == step.body["metadata"]["ownerReferences"][0]["uid"]


@pytest.mark.parametrize(
    "notes", [{"max_replicas": "x"}, {"max_replicas": "1", "min_replicas": "2"}]
)
def test_a_complaint_names_the_annotation(notes: dict[str, str]) -> None:
    (step,) = steps(cluster(**notes), [])

    assert isinstance(step, Complain)
    assert "dask-adaptive.dev/max-replicas" in step.message


def test_a_policy_of_an_earlier_cluster_of_that_name_goes_first() -> None:
    old = parse_policy_object(
        ko.policy(labels={MANAGED_BY: "annotations"}, ownerReferences=[{"uid": "gone"}])
    )

    assert [Remove("etl", "uid-etl")] == steps(cluster(max_replicas="5"), [old])
