"""Policies made from a DaskCluster's annotations: what should be there, against what is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.kube.api import Json
from dask_adaptive.kube.objects import MANAGED_BY, ClusterObject, PolicyObject
from dask_adaptive.kube.resources import CLUSTERS, POLICIES
from dask_adaptive.model.policy import InvalidPolicy, parse_policy

MAXIMUM, MINIMUM, IDLE = "max-replicas", "min-replicas", "idle-timeout"
_FIELDS = {"maxReplicas": MAXIMUM, "minReplicas": MINIMUM, "idleTimeout": IDLE}


@dataclass(frozen=True, slots=True)
class Make:
    """Create the policy."""

    body: Json


@dataclass(frozen=True, slots=True)
class Mend:
    """Bring the policy's spec in step."""

    name: str
    spec: Json


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a policy that we made."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Complain:
    """Change nothing; tell who wrote the annotations how to mend them."""

    message: str


Step = Make | Mend | Remove | Complain


def steps(cluster: ClusterObject, policies: list[PolicyObject]) -> list[Step]:
    """
    What to do about a cluster's annotations.

    Args:
        cluster: The DaskCluster, not being deleted (its policy goes with it, as its child).
        policies: All policies for it, of people and of ours.
    """
    ours = [p for p in policies if p.managed and not p.meta.going]
    written = [p for p in policies if not p.managed and not p.meta.going]
    if cluster.note(MAXIMUM) is None or written:
        return [Remove(p.meta.name, p.meta.uid) for p in ours]
    try:
        spec = wanted_spec(cluster)
    except InvalidPolicy as exc:
        return [Complain(str(exc))]
    if not ours:
        return [Make(policy_body(cluster, spec))]
    policy = next((p for p in ours if p.meta.name == cluster.meta.name), ours[0])
    spare: list[Step] = [Remove(p.meta.name, p.meta.uid) for p in ours if p is not policy]
    if policy.owner_uid != cluster.meta.uid:  # left by a cluster of the same name; it is going
        return [Remove(policy.meta.name, policy.meta.uid), *spare]
    if all(policy.spec.get(field) == value for field, value in spec.items()):
        return spare
    return [Mend(policy.meta.name, spec), *spare]


def wanted_spec(cluster: ClusterObject) -> Json:
    """
    The spec that the annotations ask for.

    Raises:
        InvalidPolicy: Who annotated the cluster can mend it; the message says how.
    """
    notes = dict(cluster.notes)
    spec: Json = {
        "clusterRef": {"name": cluster.meta.name},
        "maxReplicas": _count(notes, MAXIMUM, "0"),
        "minReplicas": _count(notes, MINIMUM, "0"),
        "idleTimeout": notes.get(IDLE, "60s").strip(),
    }
    try:
        parse_policy(spec)
    except InvalidPolicy as exc:
        text = str(exc)
        for field, note in _FIELDS.items():
            text = text.replace(f"spec.{field}", f"annotation {DOMAIN}/{note}")
        raise InvalidPolicy(text) from exc
    return spec


def _count(notes: Mapping[str, str], name: str, default: str) -> int:
    text = notes.get(name, default).strip()
    if not (text.isascii() and text.isdigit()):
        raise InvalidPolicy(
            f'annotation {DOMAIN}/{name} must be a whole number of at least 0, such as "20",'
            f" got {text!r}"
        )
    return int(text)


def policy_body(cluster: ClusterObject, spec: Mapping[str, Any]) -> Json:
    return {
        "apiVersion": POLICIES.api_version,
        "kind": POLICIES.kind,
        "metadata": {
            "name": cluster.meta.name,
            "namespace": cluster.meta.namespace,
            "labels": {MANAGED_BY: "annotations"},
            "ownerReferences": [
                {
                    "apiVersion": CLUSTERS.api_version,
                    "kind": CLUSTERS.kind,
                    "name": cluster.meta.name,
                    "uid": cluster.meta.uid,
                }
            ],
        },
        "spec": dict(spec),
    }
