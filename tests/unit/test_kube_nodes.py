"""Which nodes are about to go, and whom that wakes."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive.kube.nodes import NodeObject, parse_node
from dask_adaptive.kube.view import view
from dask_adaptive.kube.world import KINDS, World, kinds_within
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import Ending, Mark
from support import kube_objects as ko

KEY = ClusterKey("ns", "etl")
NODES = next(k for k in KINDS if k.type is NodeObject)
CA = "ToBeDeletedByClusterAutoscaler"


@pytest.mark.parametrize(
    ("node", "going"),
    [
        pytest.param(ko.node(), "", id="stays"),
        pytest.param(ko.node("n1", "dedicated", "node.kubernetes.io/not-ready"), "", id="other"),
        pytest.param(ko.node("n1", "DeletionCandidateOfClusterAutoscaler"), "", id="a-thought"),
        pytest.param(ko.node(spec={"unschedulable": True}), "node n1 is cordoned", id="cordoned"),
        pytest.param(
            ko.node("n1", "node.kubernetes.io/unschedulable", spec={"unschedulable": True}),
            "node n1 is cordoned",
            id="the-same-news-twice",
        ),
        pytest.param(
            ko.node("n1", "node.kubernetes.io/unschedulable"), "node n1 is cordoned", id="by-taint"
        ),
        pytest.param(ko.node("n1", CA, CA), f"node n1: {CA}", id="cluster-autoscaler"),
        pytest.param(
            ko.node("n1", "karpenter.sh/disrupted", spec={"unschedulable": True}),
            "node n1: karpenter.sh/disrupted",
            id="karpenter",
        ),
        pytest.param(
            ko.node("n1", "karpenter.sh/disruption"),
            "node n1: karpenter.sh/disruption",
            id="karpenter-before-1.0",
        ),
        pytest.param(
            ko.node("n1", "aws-node-termination-handler/spot-itn"),
            "node n1: aws-node-termination-handler/spot-itn",
            id="aws-spot",
        ),
        pytest.param(
            ko.node("n1", "cloud.google.com/impending-node-termination"),
            "node n1: cloud.google.com/impending-node-termination",
            id="gke",
        ),
        pytest.param(
            ko.node("n1", "remediator.kubernetes.azure.com/unschedulable"),
            "node n1: remediator.kubernetes.azure.com/unschedulable",
            id="aks",
        ),
        pytest.param(
            ko.node("n1", "node.cloudprovider.kubernetes.io/shutdown"),
            "node n1: node.cloudprovider.kubernetes.io/shutdown",
            id="shut-down",
        ),
        pytest.param(
            ko.node(metadata={"deletionTimestamp": ko.CREATED}),
            "node n1 is being deleted",
            id="deleted-and-held-by-a-finalizer",
        ),
    ],
)
def test_signals(node: dict[str, Any], going: str) -> None:
    assert going == parse_node(node).going


def heartbeat(version: int, *taints: str) -> dict[str, Any]:
    body = ko.node("n1", *taints, metadata={"resourceVersion": str(version)})
    condition = {"type": "Ready", "lastHeartbeatTime": f"{version}"}
    return {**body, "status": {"conditions": [condition], "images": [{"names": ["x"]}]}}


def on(node: str, name: str = "w1-hash-x", **more: Any) -> dict[str, Any]:
    return ko.pod(name, spec={"nodeName": node}, **more)


def test_heartbeats_wake_nobody_and_signals_wake_whom_they_concern() -> None:
    elsewhere = on("n2", "w9-hash-x")
    elsewhere["metadata"]["labels"]["dask.org/cluster-name"] = "other"
    world = ko.world_of(ko.cluster(), ko.deployment(), on("n1"), elsewhere)
    heard: list[ClusterKey] = []
    world.listen(heard.append)

    for version in (1, 2, 3):
        world.take(NODES, "MODIFIED", heartbeat(version))
    assert [] == heard
    world.take(NODES, "MODIFIED", heartbeat(4, CA))
    assert [KEY] == heard
    world.take(NODES, "MODIFIED", heartbeat(5, CA))
    assert [KEY] == heard
    world.take(NODES, "MODIFIED", heartbeat(6))
    world.take(NODES, "DELETED", heartbeat(7))
    assert [KEY, KEY] == heard


def test_nodes_are_beyond_an_operator_of_some_namespaces() -> None:
    assert NODES in kinds_within(())
    assert NODES not in kinds_within(iter(["a"]))
    assert len(KINDS) - 1 == len(kinds_within(iter(["a", "b"])))


def look(world: World) -> Any:
    return view(world, KEY, now=ko.CREATED_AT, read_pin=lambda notes: None)


def test_a_worker_knows_that_its_node_is_going() -> None:
    base = (ko.cluster(), ko.group(), ko.deployment(), on("n1"))

    assert "" == look(ko.world_of(*base)).workers[0].node_going
    assert "" == look(ko.world_of(*base, ko.node())).workers[0].node_going
    (worker,) = look(ko.world_of(*base, ko.node("n1", CA), ko.node("n2"))).workers
    assert f"node n1: {CA}" == worker.node_going
    moved = on("n2", "w1-hash-y")
    going = on("n1", metadata={"deletionTimestamp": ko.CREATED})
    world = ko.world_of(*base[:3], going, moved, ko.node("n1", CA))
    assert "" == look(world).workers[0].node_going, "its new pod is elsewhere"


def test_a_workers_mark_is_that_of_its_pod() -> None:
    notes = {"dask-adaptive.dev/pinned-by": "p", "dask-adaptive.dev/hints": "", "x": "y"}
    marked = on("n1", metadata={"annotations": notes})

    (worker,) = look(ko.world_of(ko.cluster(), ko.deployment(), marked)).workers
    assert Mark("p", keep=True) == worker.mark


AT_40_S = {"deletionTimestamp": "2026-02-01T00:00:40Z", "deletionGracePeriodSeconds": 30}


@pytest.mark.parametrize(
    ("pod", "ending"),
    [
        pytest.param(on("n1"), (), id="it-stays"),
        pytest.param(
            on("n1", metadata=AT_40_S),
            (Ending("w1", "w1-hash-x", ("10.0.0.1",), 40.0),),
            id="deleted",
        ),
        pytest.param(
            on("n1", metadata={"deletionTimestamp": "2026-01-31T23:59:00Z"}),
            (Ending("w1", "w1-hash-x", ("10.0.0.1",), 0.0),),
            id="overdue",
        ),
        pytest.param(
            ko.pod(metadata=AT_40_S, spec={"hostNetwork": True}),
            (Ending("w1", "w1-hash-x", (), 40.0),),
            id="an-address-that-others-share",
        ),
        pytest.param(ko.pod(metadata=AT_40_S, status={}), (), id="never-ran"),
    ],
)
def test_pods_that_end(pod: dict[str, Any], ending: tuple[Ending, ...]) -> None:
    assert ending == look(ko.world_of(ko.cluster(), pod)).ending
