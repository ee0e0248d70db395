"""
Objects of the API as frozen values: only what we read, parsed once, at the edge.

Two values are equal if nothing that matters to us changed; what is left out of the comparison is
marked so. Equality decides whether a cluster is visited, so be stingy.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from dask_adaptive import DOMAIN
from dask_adaptive.kube import worker_pods
from dask_adaptive.kube.drift import Sketch, sketch
from dask_adaptive.kube.notes import PREFIX, Note, read_notes, worker_spec_written_at
from dask_adaptive.kube.worker_pods import NO_SHAPE, Resources, Shape
from dask_adaptive.model.amounts import read_instant
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.policy import DEFAULT_CONTROLLER

#: kopf's default, which dask-kubernetes keeps.
HANDLED = "kopf.zalando.org/last-handled-configuration"

CLUSTER_LABEL = "dask.org/cluster-name"
COMPONENT_LABEL = "dask.org/component"
GROUP_LABEL = "dask.org/workergroup-name"

#: On policies that we make: from what we make them, one of the next two.
MANAGED_BY = f"{DOMAIN}/managed-by"
BY_ANNOTATIONS, BY_ADOPTION = "annotations", "adoption"

#: On a DaskAutoscaler or its DaskCluster, set by people: whether to adopt it.
ADOPT = f"{DOMAIN}/adopt"

#: On a DaskAutoscaler, set by us: since when it has been suspended without a break.
ADOPTED = f"{DOMAIN}/adopted"

#: On a DaskAutoscaler: upstream's own, seconds since 1970. Until then its timer does nothing
#: (dask-kubernetes' daskautoscaler_adapt).
COOLDOWN = "kubernetes.dask.org/cooldown-until"

#: etcd's versions have 64 bits.
_DIGITS = 19

INJECT = f"{DOMAIN}/inject"
INJECTED = f"{DOMAIN}/injected"

#: On what the operator makes at run time.
MANAGED_LABELS = {
    "app.kubernetes.io/managed-by": "dask-adaptive-operator",
    "app.kubernetes.io/part-of": DOMAIN,
}


def handled_replicas(metadata: Mapping[str, Any]) -> int | None:
    """
    `spec.worker.replicas` of a DaskWorkerGroup as dask-kubernetes handled it last; None: unknown.

    kopf notes the object that its handlers have seen, when they have all succeeded
    (`AnnotationsDiffBaseStorage.store` in `process_changing_cause`). Changes that come while one
    is being handled wait: down and up again, the number that is noted may be the one requested,
    although the handler still acts on the one between.
    """
    text = (metadata.get("annotations") or {}).get(HANDLED)
    if not text:
        return None
    try:
        replicas = msgspec.json.decode(text)["spec"]["worker"]["replicas"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return replicas if isinstance(replicas, int) and not isinstance(replicas, bool) else None


@dataclass(frozen=True, slots=True)
class Meta:
    """Metadata of an object."""

    namespace: str
    name: str
    uid: str
    created_at: float  # seconds since 1970
    deleting: bool = False  # deletion has begun
    version: int = field(default=0, compare=False)  # resourceVersion


class Watched(Protocol):
    """A parsed object of a kind that we watch."""

    @property
    def meta(self) -> Meta: ...

    @property
    def key(self) -> ClusterKey:
        """The cluster that it is about."""


@dataclass(frozen=True, slots=True)
class PolicyObject:
    """An AdaptivePolicy."""

    meta: Meta
    key: ClusterKey
    spec_json: bytes  # this and the status are kept as JSON: so they take a tenth of the memory
    generation: int = field(default=0, compare=False)  # the spec says it already
    controller: str = DEFAULT_CONTROLLER  # the operators of that name serve it
    managed_by: str = ""  # what we made it from; empty: a person's
    owner_uid: str = ""
    status_json: bytes = field(default=b"{}", compare=False)
    wishes: tuple[Note, ...] = ()

    @property
    def managed(self) -> bool:
        """True if we made it, and keep it in step with its source."""
        return bool(self.managed_by)

    @property
    def spec(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = msgspec.json.decode(self.spec_json)
        return found

    @property
    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = msgspec.json.decode(self.status_json)
        return found


class OfNoCluster:
    """An object of no cluster in particular; the world finds those it concerns."""

    __slots__ = ()
    meta: Meta

    @property
    def key(self) -> ClusterKey:
        return ClusterKey(self.meta.namespace, "")


@dataclass(frozen=True, slots=True)
class BudgetObject(OfNoCluster):
    """An AdaptiveBudget."""

    meta: Meta
    spec_json: bytes
    generation: int = field(default=0, compare=False)  # the spec says it already
    controller: str = DEFAULT_CONTROLLER  # the operators of that name divide it
    status_json: bytes = field(default=b"{}", compare=False)

    @property
    def title(self) -> str:
        """Its name, behind its namespace where budgets have one."""
        return f"{self.meta.namespace}/{self.meta.name}".lstrip("/")


@dataclass(frozen=True, slots=True)
class ClusterObject:
    """A DaskCluster."""

    meta: Meta
    key: ClusterKey
    notes: tuple[tuple[str, str], ...] = ()  # its annotations of our domain, prefix cut off
    wishes: tuple[Note, ...] = ()

    def note(self, annotation: str) -> str | None:
        return dict(self.notes).get(annotation.removeprefix(PREFIX))


@dataclass(frozen=True, slots=True)
class GroupObject:
    """A DaskWorkerGroup."""

    meta: Meta
    key: ClusterKey
    replicas: int
    grace_s: int | None = field(default=None, compare=False)  # as its workers' template says
    handled: int | None = None  # the replicas that dask-kubernetes has acted on last
    wishes: tuple[Note, ...] = ()  # its own, then those of its workers' template
    sketch: Sketch = ()
    written_at: float | None = field(default=None, compare=False)  # its workers' pod spec
    shape: Shape = NO_SHAPE  # of its workers' pods, as their template says
    threads: int = 0
    resources: Resources = ()


@dataclass(frozen=True, slots=True)
class AutoscalerObject:
    """A DaskAutoscaler: upstream's own, which is what `cluster.adapt()` makes."""

    meta: Meta
    key: ClusterKey
    minimum: int = 0
    maximum: int = 0
    adopt: str | None = None  # `ADOPT` as people wrote it
    adopted_at: float | None = None  # seconds since 1970: `ADOPTED`; None: not by us
    rests_until: float = 0.0  # seconds since 1970: `COOLDOWN`


@dataclass(frozen=True, slots=True)
class DeploymentObject:
    """A worker's Deployment."""

    meta: Meta
    key: ClusterKey
    group: str
    waiting: str = ""  # why it has no pod
    refused: str = ""  # who refuses to let its pod be made, and why
    wishes: tuple[Note, ...] = ()
    sketch: Sketch = ()


@dataclass(frozen=True, slots=True)
class PodObject:
    """A worker's pod."""

    meta: Meta
    key: ClusterKey
    worker: str  # name of its Deployment
    addresses: tuple[str, ...] = ()
    waiting: str = ""
    node: str = ""
    host_network: bool = False  # its addresses are its node's
    ends_at: float | None = None  # seconds since 1970: deleted, and killed then at the latest
    wishes: tuple[Note, ...] = ()
    started_at: float | None = None  # seconds since 1970: taken on by its node
    deadline_s: float = math.inf  # seconds from then on: it is ended
    unscheduled_at: float | None = None  # since then no node has had room for it
    gated: bool = False  # somebody is yet to admit it
    shape: Shape = NO_SHAPE

    @property
    def began_at(self) -> float:
        """The start of its life; time spent waiting for a node does not count."""
        return self.started_at or self.meta.created_at

    @property
    def deadline_at(self) -> float:
        return math.inf if self.started_at is None else self.started_at + self.deadline_s


@dataclass(frozen=True, slots=True)
class NamespaceObject(OfNoCluster):
    meta: Meta
    labels: tuple[tuple[str, str], ...] = ()


class ServedNamespace(NamespaceObject):
    """A namespace whose labels are those of `watch.namespaceSelector`; others are not seen."""


@dataclass(frozen=True, slots=True)
class ServiceObject:
    """A scheduler's Service."""

    meta: Meta
    key: ClusterKey
    ip: str  # empty: headless
    port: int
    selects: bool  # selects pods by labels; else its author sets its endpoints


#: Many objects are of the same second: one number for all, to save memory.
_instant = functools.lru_cache(maxsize=4096)(read_instant)


def parse_meta(body: Mapping[str, Any]) -> Meta:
    meta = body["metadata"]
    name = as_text(meta["name"])
    if not name:
        raise ValueError("metadata.name is empty")
    version = str(meta.get("resourceVersion", ""))
    return Meta(
        namespace=sys.intern(meta.get("namespace", "")),
        name=name,
        uid=as_text(meta.get("uid", "")),
        created_at=_instant(meta.get("creationTimestamp") or "") or 0.0,
        deleting=bool(meta.get("deletionTimestamp")),
        version=int(version) if version.isdecimal() and len(version) <= _DIGITS else 0,
    )


def text_at(body: Any, *path: str) -> str:
    """The text in a field of what may have any shape; empty if there is none."""
    for name in path:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body if isinstance(body, str) else ""


def as_text(value: Any) -> str:
    """
    Return a text. A value that is sorted and compared with those of other clusters must be one.
    """
    if not isinstance(value, str):
        raise TypeError(f"must be a string, not {value!r:.40}")
    return value


def _labels(body: Mapping[str, Any]) -> Mapping[str, str]:
    labels = body["metadata"].get("labels") or {}
    return {as_text(name): as_text(value) for name, value in labels.items()}


def labelled_key(body: Mapping[str, Any]) -> ClusterKey:
    """The cluster of what dask-kubernetes has made."""
    return _key(body["metadata"].get("namespace", ""), _labels(body).get(CLUSTER_LABEL, ""))


@functools.lru_cache(maxsize=4096)
def _key(namespace: str, name: str) -> ClusterKey:
    """One object for all that is of a cluster, to save memory."""
    return ClusterKey(namespace, name)


def parse_policy_object(body: Mapping[str, Any]) -> PolicyObject:
    meta, spec = parse_meta(body), body.get("spec") or {}
    owners = body["metadata"].get("ownerReferences") or [{}]
    return PolicyObject(
        meta=meta,
        key=ClusterKey(meta.namespace, as_text((spec.get("clusterRef") or {}).get("name", ""))),
        spec_json=msgspec.json.encode(spec),
        generation=body["metadata"].get("generation", 0),
        controller=as_text(spec.get("controllerName") or DEFAULT_CONTROLLER),
        managed_by=_labels(body).get(MANAGED_BY, ""),
        owner_uid=as_text(owners[0].get("uid", "")),
        status_json=msgspec.json.encode(body.get("status") or {}),
        wishes=read_notes(body["metadata"], f"AdaptivePolicy {meta.name}"),
    )


def parse_budget_object(body: Mapping[str, Any]) -> BudgetObject:
    spec = body.get("spec") or {}
    return BudgetObject(
        parse_meta(body),
        spec_json=msgspec.json.encode(spec),
        generation=body["metadata"].get("generation", 0),
        controller=as_text(spec.get("controllerName") or DEFAULT_CONTROLLER),
        status_json=msgspec.json.encode(body.get("status") or {}),
    )


def parse_cluster(body: Mapping[str, Any]) -> ClusterObject:
    meta = parse_meta(body)
    annotations = body["metadata"].get("annotations") or {}
    ours = sorted(name for name in annotations if name.startswith(PREFIX))
    return ClusterObject(
        meta=meta,
        key=ClusterKey(meta.namespace, meta.name),
        notes=tuple((name.removeprefix(PREFIX), as_text(annotations[name])) for name in ours),
        wishes=read_notes(body["metadata"], f"DaskCluster {meta.name}"),
    )


def parse_group(body: Mapping[str, Any]) -> GroupObject:
    meta, spec = parse_meta(body), body.get("spec") or {}
    key = ClusterKey(meta.namespace, as_text(spec.get("cluster", "")))
    worker = spec.get("worker") or {}
    name = f"DaskWorkerGroup {meta.name}"
    # A group other than the default one is a person's own object, whatever labels it has.
    own = read_notes(body["metadata"], name, made_by_upstream=meta.name == key.default_group)
    return GroupObject(
        meta,
        key,
        replicas=int(worker.get("replicas") or 0),
        grace_s=(worker.get("spec") or {}).get("terminationGracePeriodSeconds"),
        handled=handled_replicas(body["metadata"]),
        wishes=(*own, *read_notes(worker.get("metadata") or {}, name)),
        sketch=sketch(worker.get("spec")),
        written_at=worker_spec_written_at(body["metadata"]),
        shape=worker_pods.shape_of(worker.get("spec")),
        threads=worker_pods.threads_of(worker.get("spec")),
        resources=worker_pods.resources_of(worker.get("spec")),
    )


def parse_autoscaler(body: Mapping[str, Any]) -> AutoscalerObject:
    meta, spec = parse_meta(body), body.get("spec") or {}
    notes = body["metadata"].get("annotations") or {}
    return AutoscalerObject(
        meta,
        ClusterKey(meta.namespace, as_text(spec.get("cluster", ""))),
        minimum=int(spec.get("minimum") or 0),
        maximum=int(spec.get("maximum") or 0),
        adopt=as_text(notes[ADOPT]) if ADOPT in notes else None,
        # An unreadable value is ours, too: it counts as not suspended, and is rewritten.
        adopted_at=(read_instant(notes[ADOPTED]) or 0.0) if ADOPTED in notes else None,
        rests_until=_seconds(notes.get(COOLDOWN)),
    )


def _seconds(text: str | None) -> float:
    try:
        seconds = float(text or 0.0)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def parse_deployment(body: Mapping[str, Any]) -> DeploymentObject:
    meta = parse_meta(body)
    # Pods and schedulers call the worker so, too: one string for all, to save memory.
    meta = replace(meta, name=sys.intern(meta.name))
    pod_spec = ((body.get("spec") or {}).get("template") or {}).get("spec")
    return DeploymentObject(
        meta=meta,
        key=labelled_key(body),
        group=sys.intern(_labels(body).get(GROUP_LABEL, "")),
        waiting=worker_pods.deployment_waiting(body),
        refused=worker_pods.deployment_refused(body),
        wishes=read_notes(body["metadata"], f"Deployment {meta.name}", made_by_upstream=True),
        sketch=sketch(pod_spec),
    )


def parse_pod(body: Mapping[str, Any]) -> PodObject:
    meta = parse_meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    ips = [entry.get("ip", "") for entry in status.get("podIPs") or []] or [status.get("podIP", "")]
    return PodObject(
        meta=meta,
        key=labelled_key(body),
        worker=_deployment_of(body),
        addresses=tuple(as_text(ip) for ip in ips if ip),
        waiting=worker_pods.pod_waiting(body),
        node=sys.intern(spec.get("nodeName") or ""),
        host_network=bool(spec.get("hostNetwork")),
        # Of a pod this is not when its deletion was asked for, but that plus its grace period
        # (apiserver's BeforeDelete).
        ends_at=read_instant(body["metadata"].get("deletionTimestamp") or ""),
        wishes=read_notes(body["metadata"], f"pod {meta.name}", made_by_upstream=True),
        started_at=_instant(status.get("startTime") or ""),
        deadline_s=float(spec.get("activeDeadlineSeconds") or math.inf),
        unscheduled_at=read_instant(worker_pods.unscheduled_since(body)),
        gated=bool(worker_pods.gates_of(body)),
        shape=worker_pods.shape_of(spec),
    )


def _deployment_of(pod: Mapping[str, Any]) -> str:
    """A ReplicaSet is named after its Deployment and its template's hash: `<name>-<hash>`."""
    for owner in pod["metadata"].get("ownerReferences") or []:
        if owner.get("kind") == "ReplicaSet":
            suffix = f"-{_labels(pod).get('pod-template-hash', '')}"
            return sys.intern(str(owner["name"]).removesuffix(suffix))
    return ""


def parse_namespace(body: Mapping[str, Any]) -> NamespaceObject:
    return NamespaceObject(parse_meta(body), tuple(sorted(_labels(body).items())))


def parse_served_namespace(body: Mapping[str, Any]) -> ServedNamespace:
    return ServedNamespace(parse_meta(body))


def parse_service(body: Mapping[str, Any]) -> ServiceObject:
    spec = body.get("spec") or {}
    ports = {p.get("name", ""): int(p["port"]) for p in spec.get("ports") or []}
    ip = as_text(spec.get("clusterIP") or "")
    return ServiceObject(
        meta=parse_meta(body),
        key=labelled_key(body),
        ip="" if ip == "None" else ip,
        port=ports.get("tcp-comm", 8786),
        selects=bool(spec.get("selector")) and spec.get("type") != "ExternalName",
    )
