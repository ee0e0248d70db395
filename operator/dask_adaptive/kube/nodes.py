"""Reads which nodes are about to terminate, and from which signal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dask_adaptive.kube.objects import Meta, OfNoCluster, parse_meta

#: Taints that announce the end of a node, of any value and effect. Not
#: DeletionCandidateOfClusterAutoscaler, which is often withdrawn.
GOING_TAINTS = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",  # cluster-autoscaler, before it drains
        "karpenter.sh/disrupted",  # Karpenter since 1.0
        "karpenter.sh/disruption",  # Karpenter before
        "cloud.google.com/impending-node-termination",  # GKE
        "remediator.kubernetes.azure.com/unschedulable",  # AKS node auto-drain: spot, maintenance
        "remediator.aks.microsoft.com/unschedulable",  # the same, before
        "node.cloudprovider.kubernetes.io/shutdown",  # cloud provider: the instance is shut down
    }
)

#: aws-node-termination-handler has one per event: spot-itn, scheduled-maintenance, …
GOING_PREFIXES = ("aws-node-termination-handler/",)

#: The node lifecycle controller adds it to each node with `spec.unschedulable`: the same signal.
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

CORDONED, DELETED = "is cordoned", "is being deleted"


@dataclass(frozen=True, slots=True)
class NodeObject(OfNoCluster):
    """A node, without heartbeats, so that two heartbeats in a row are equal."""

    meta: Meta
    signals: tuple[str, ...] = ()  # signals of its end, strongest first

    @property
    def terminating(self) -> str:
        """Describe the strongest signal; empty if the node stays."""
        name = f"node {self.meta.name}"
        taints = [s for s in self.signals if s not in (CORDONED, DELETED)]
        if taints:
            return f"{name}: {', '.join(taints)}"
        return f"{name} {self.signals[0]}" if self.signals else ""


def parse_node(body: Mapping[str, Any]) -> NodeObject:
    meta, spec = parse_meta(body), body.get("spec") or {}
    signals = dict.fromkeys(_going_taints(spec.get("taints") or []))
    if meta.deleting:  # finalizers, such as Karpenter's, hold a node until it is drained
        signals[DELETED] = None
    if spec.get("unschedulable"):
        signals[CORDONED] = None
    return NodeObject(meta, tuple(signals))


def _going_taints(taints: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    keys = sorted(str(taint.get("key") or "") for taint in taints)
    for key in keys:
        if key in GOING_TAINTS or key.startswith(GOING_PREFIXES):
            yield key
    if UNSCHEDULABLE in keys:
        yield CORDONED
