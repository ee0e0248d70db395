"""Which nodes are about to go, and whom that wakes."""

from __future__ import annotations

from typing import Any

from dask_adaptive.kube.cache.world import KINDS, scopes_of
from dask_adaptive.kube.nodes import parse_node
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import TerminatingPod
from support import kube_objects as ko
from support.tables import table

NODES, BUDGETS = ko.KIND["Node"], ko.KIND["AdaptiveBudget"]
CA = "ToBeDeletedByClusterAutoscaler"
BY_TAINT = "node.kubernetes.io/unschedulable"
TAINTS = [
    CA,
    "karpenter.sh/disruption",  # before 1.0
    "aws-node-termination-handler/spot-itn",
    "cloud.google.com/impending-node-termination",
    "remediator.kubernetes.azure.com/unschedulable",
    "node.cloudprovider.kubernetes.io/shutdown",
]


@table(
    "node, going",
    stays=(ko.node(), ""),
    other=(ko.node("n1", "dedicated", "node.kubernetes.io/not-ready"), ""),
    a_thought=(ko.node("n1", "DeletionCandidateOfClusterAutoscaler"), ""),
    cordoned=(ko.node(spec={"unschedulable": True}), "node n1 is cordoned"),
    the_same_news_twice=(
        ko.node("n1", BY_TAINT, spec={"unschedulable": True}),
        "node n1 is cordoned",
    ),
    by_taint=(ko.node("n1", BY_TAINT), "node n1 is cordoned"),
    twice=(ko.node("n1", CA, CA), f"node n1: {CA}"),
    karpenter=(
        ko.node("n1", "karpenter.sh/disrupted", spec={"unschedulable": True}),
        "node n1: karpenter.sh/disrupted",
    ),
    **{taint: (ko.node("n1", taint), f"node n1: {taint}") for taint in TAINTS},
    deleted_and_held_by_a_finalizer=(
        ko.node(metadata={"deletionTimestamp": ko.CREATED}),
        "node n1 is being deleted",
    ),
)
def test_signals(node: dict[str, Any], going: str) -> None:
    assert going == parse_node(node).terminating


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
        ko.take(world, "MODIFIED", heartbeat(version))
    assert [] == heard
    ko.take(world, "MODIFIED", heartbeat(4, CA))
    assert [ko.KEY] == heard
    ko.take(world, "MODIFIED", heartbeat(5, CA))
    assert [ko.KEY] == heard
    ko.take(world, "MODIFIED", heartbeat(6))
    ko.take(world, "DELETED", heartbeat(7))
    assert [ko.KEY, ko.KEY] == heard


def test_nodes_are_beyond_an_operator_of_some_namespaces() -> None:
    assert (NODES, None) in scopes_of()
    assert NODES not in dict(scopes_of(iter(["a"])))
    assert (NODES, None) in scopes_of(iter(["a"]), nodes=True), "but if it may watch them"
    assert (BUDGETS, None) in scopes_of(iter(["a"]), budgets=True)
    assert 2 * (len(KINDS) - 4) == len(scopes_of(iter(["a", "b"])))


def test_a_worker_knows_that_its_node_is_going() -> None:
    base = (ko.cluster(), ko.group(), ko.deployment(), on("n1"))

    worker = ko.look(*base).workers[0]
    assert ("n1", "") == (worker.node, worker.node_terminating)
    assert "" == ko.look(*base, ko.node()).workers[0].node_terminating
    (worker,) = ko.look(*base, ko.node("n1", CA), ko.node("n2")).workers
    assert f"node n1: {CA}" == worker.node_terminating
    moved = on("n2", "w1-hash-y")
    going = on("n1", metadata={"deletionTimestamp": ko.CREATED})
    (worker,) = ko.look(*base[:3], going, moved, ko.node("n1", CA)).workers
    assert "" == worker.node_terminating, "its new pod is elsewhere"


AT_40_S = {"deletionTimestamp": "2026-02-01T00:00:40Z", "deletionGracePeriodSeconds": 30}


@table(
    "pod, ending",
    it_stays=(on("n1"), ()),
    deleted=(on("n1", metadata=AT_40_S), (TerminatingPod("w1", "w1-hash-x", ("10.0.0.1",), 40.0),)),
    overdue=(on("n1", metadata={"deletionTimestamp": "2026-01-31T23:59:00Z"}),
        (TerminatingPod("w1", "w1-hash-x", ("10.0.0.1",), 0.0),)),
    an_address_that_others_share=(ko.pod(metadata=AT_40_S, spec={"hostNetwork": True}),
        (TerminatingPod("w1", "w1-hash-x", (), 40.0),)),
    never_ran=(ko.pod(metadata=AT_40_S, status={}), ()),
)  # fmt: skip
def test_pods_that_end(pod: dict[str, Any], ending: tuple[TerminatingPod, ...]) -> None:
    assert ending == ko.look(ko.cluster(), pod, now=ko.CREATED_AT).terminating
