"""
Policies that we make: from a DaskCluster's annotations, or from a DaskAutoscaler that is taken
over. What should be there, against what is. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.kube.adoption import Adopt, adopted_spec, chosen, rest_of
from dask_adaptive.kube.api import Json
from dask_adaptive.kube.objects import (
    BY_ADOPTION,
    BY_ANNOTATIONS,
    MANAGED_BY,
    AutoscalerObject,
    ClusterObject,
    PolicyObject,
)
from dask_adaptive.kube.resources import CLUSTERS, POLICIES
from dask_adaptive.model.policy import InvalidPolicy, Mode, parse_policy
from dask_adaptive.model.reason import Reason

MAXIMUM, MINIMUM, IDLE = "max-replicas", "min-replicas", "idle-timeout"
_FIELDS = {"maxReplicas": MAXIMUM, "minReplicas": MINIMUM, "idleTimeout": IDLE}


@dataclass(frozen=True, slots=True)
class Make:
    """Create the policy."""

    body: Json


@dataclass(frozen=True, slots=True)
class Mend:
    """Bring the policy's spec, and from what it is made, in step."""

    name: str
    spec: Json
    by: str = BY_ANNOTATIONS


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a policy that we made."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Complain:
    """Change nothing; tell who wrote it how to mend it."""

    message: str
    reason: Reason = Reason.INVALID_POLICY


@dataclass(frozen=True, slots=True)
class Rest:
    """Put upstream's autoscaler to rest, or let it rest longer. Times in seconds since 1970."""

    autoscaler: AutoscalerObject
    until: float
    since: float
    told: str = ""  # not empty: it is taken over with this, and people are told


@dataclass(frozen=True, slots=True)
class Wake:
    """Let upstream's autoscaler go on."""

    autoscaler: AutoscalerObject


@dataclass(frozen=True, slots=True)
class Tell:
    """Something has happened to the cluster."""

    reason: Reason
    message: str


Step = Make | Mend | Remove | Complain | Rest | Wake | Tell


def steps(
    cluster: ClusterObject,
    policies: Sequence[PolicyObject],
    autoscalers: Sequence[AutoscalerObject] = (),
    *,
    adopt: Adopt = Adopt.ANNOTATED,
    now: float = 0.0,
) -> list[Step]:
    """
    What to do about a cluster's annotations and its DaskAutoscaler, in this order.

    A policy is made before upstream is put to rest, and removed before it is woken: in between,
    the policy waits (`kube.owners`), so that there are never two who scale.

    Args:
        cluster: The DaskCluster, not being deleted (its policy goes with it, as its child).
        policies: All policies for it, of people and of ours.
        autoscalers: All DaskAutoscalers for it.
        now: Seconds since 1970.
    """
    seen = _Seen(
        cluster,
        standing=[a for a in autoscalers if not a.meta.going],
        ours=[p for p in policies if p.managed and not p.meta.going],
        written=[p for p in policies if not p.managed and not p.meta.going],
    )
    try:
        taken, problems = chosen(cluster, seen.standing, adopt), []
    except InvalidPolicy as exc:
        # As it was until somebody mends it: what rests goes on resting.
        taken = next((a for a in seen.standing if a.adopted_at is not None), None)
        problems = [Complain(str(exc), Reason.INVALID_ADOPTION)]
    changes = list(_policy_steps(seen, taken))
    if not _is_served(seen, changes):
        taken = None  # upstream must not rest for nobody
    return [*problems, *changes, *_rests(seen, taken, now=now), *_farewells(seen, changes)]


@dataclass(frozen=True, slots=True)
class _Seen:
    """One cluster, and all that stays of what is about it."""

    cluster: ClusterObject
    standing: Sequence[AutoscalerObject]
    ours: Sequence[PolicyObject]
    written: Sequence[PolicyObject]

    @property
    def is_annotated(self) -> bool:
        return self.cluster.note(MAXIMUM) is not None


def _policy_steps(seen: _Seen, taken: AutoscalerObject | None) -> Iterator[Step]:
    cluster, ours = seen.cluster, seen.ours
    # An annotation is a person's word on this very cluster, so it goes before `adapt()`.
    by = BY_ANNOTATIONS if seen.is_annotated else BY_ADOPTION
    if seen.written or not (seen.is_annotated or taken):
        yield from (Remove(p.meta.name, p.meta.uid) for p in ours)
        return
    try:
        if taken is None or seen.is_annotated:
            spec = wanted_spec(cluster)
        else:
            spec = adopted_spec(cluster, taken, cluster.note(IDLE))
    except InvalidPolicy as exc:
        invalid = Reason.INVALID_POLICY if by == BY_ANNOTATIONS else Reason.INVALID_ADOPTION
        yield Complain(str(exc), invalid)
        return
    if not ours:
        yield Make(policy_body(cluster, spec, by))
        return
    policy = next((p for p in ours if p.meta.name == cluster.meta.name), ours[0])
    if policy.owner_uid != cluster.meta.uid:  # left by a cluster of the same name; it is going
        yield Remove(policy.meta.name, policy.meta.uid)
    elif policy.managed_by != by or any(policy.spec.get(k) != v for k, v in spec.items()):
        yield Mend(policy.meta.name, spec, by)
    yield from (Remove(p.meta.name, p.meta.uid) for p in ours if p is not policy)


def _is_served(seen: _Seen, changes: Sequence[Step]) -> bool:
    """Whether a policy scales the cluster once the changes are made."""
    if seen.written:
        return len(seen.written) == 1 and seen.written[0].spec.get("mode") != Mode.ADVISE.value
    removed = sum(isinstance(step, Remove) for step in changes)
    return any(isinstance(step, Make) for step in changes) or len(seen.ours) > removed


def _rests(seen: _Seen, taken: AutoscalerObject | None, *, now: float) -> Iterator[Step]:
    for autoscaler in seen.standing:
        if autoscaler is not taken:
            if autoscaler.adopted_at is not None:
                yield Wake(autoscaler)
            continue
        times = rest_of(autoscaler, now)
        if times is not None:
            is_new = autoscaler.adopted_at is None
            yield Rest(autoscaler, *times, _told(seen, autoscaler) if is_new else "")


def _told(seen: _Seen, autoscaler: AutoscalerObject) -> str:
    head = f"DaskAutoscaler {autoscaler.meta.name} was taken over: upstream's autoscaler rests"
    if seen.written:
        name = seen.written[0].meta.name
        return f"{head}, and AdaptivePolicy {name} says how many workers there are"
    if seen.is_annotated:
        return f"{head}, and the annotations of DaskCluster {seen.cluster.meta.name} say the bounds"
    return f"{head}, and AdaptivePolicy {seen.cluster.meta.name} has its bounds"


def _farewells(seen: _Seen, changes: Sequence[Step]) -> Iterator[Step]:
    """An autoscaler that is gone can't say any more that it was released."""
    removed = {step.uid for step in changes if isinstance(step, Remove)}
    adopted = [p for p in seen.ours if p.managed_by == BY_ADOPTION and p.meta.uid in removed]
    if adopted and not seen.standing and not seen.written:
        message = (
            f"the DaskAutoscaler of DaskCluster {seen.cluster.meta.name} was deleted, and so is"
            " the policy made from it; nobody scales the cluster now"
        )
        yield Tell(Reason.RELEASED, message)


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


def policy_body(cluster: ClusterObject, spec: Mapping[str, Any], by: str = BY_ANNOTATIONS) -> Json:
    return {
        "apiVersion": POLICIES.api_version,
        "kind": POLICIES.kind,
        "metadata": {
            "name": cluster.meta.name,
            "namespace": cluster.meta.namespace,
            "labels": {MANAGED_BY: by},
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
