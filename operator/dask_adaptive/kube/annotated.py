"""
Decides on policies made from a DaskCluster's annotations or an adopted DaskAutoscaler: compares
what should exist with what does. Suspends upstream's timer. Pure.

Upstream's timer returns early while the annotation `COOLDOWN` lies in the future, so that suspends
it. The DaskAutoscaler is never deleted: it is the user's object, and resumes once we are gone.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.kube.api import CLUSTERS, POLICIES, Json
from dask_adaptive.kube.objects import (
    ADOPT,
    ADOPTED,
    BY_ADOPTION,
    BY_ANNOTATIONS,
    COOLDOWN,
    MANAGED_BY,
    AutoscalerObject,
    ClusterObject,
    PolicyObject,
)
from dask_adaptive.model.amounts import instant, listed
from dask_adaptive.model.policy import DEFAULT_CONTROLLER, InvalidPolicy, Mode, parse_policy
from dask_adaptive.model.reason import Reason

#: Length of one suspension, and so the longest time that nobody scales a cluster whose operator has
#: died: long enough to upgrade the operator or move it to another node and pull its image, short
#: enough that nobody has to intervene.
REST_S = 600.0

#: The suspension is extended when this much is left; an operator may be away for as long, less
#: `MARGIN_S`.
RENEW_S = 300.0

#: With less left, upstream counts as awake: its clock may be ahead of ours.
MARGIN_S = 30.0

#: By then a run of upstream's timer that began before the annotation has ended: it makes one
#: request to the scheduler, and the timer's interval is 5 s.
SETTLE_S = 5.0


class Adopt(str, enum.Enum):
    """Selects the DaskAutoscalers to adopt; the chart's value `adopt`."""

    NEVER = "Never"
    ANNOTATED = "Annotated"  # annotated ones, or those of annotated clusters
    ALWAYS = "Always"  # all, unless an annotation says "false"


def is_wished(cluster: ClusterObject, autoscaler: AutoscalerObject, adopt: Adopt) -> bool:
    """
    True if a DaskAutoscaler is to be adopted. Its own annotation overrides its cluster's. Raises
    `InvalidPolicy` with a fix.
    """
    if adopt is Adopt.NEVER:
        return False
    answer = autoscaler.adopt
    if answer is None:
        answer = cluster.note(ADOPT)
    if answer is None:
        return adopt is Adopt.ALWAYS
    word = answer.strip().lower()
    if word not in ("true", "false"):
        raise InvalidPolicy(f'annotation {ADOPT} must be "true" or "false", got {answer!r:.80}')
    return word == "true"


def chosen(
    cluster: ClusterObject, autoscalers: Sequence[AutoscalerObject], adopt: Adopt
) -> AutoscalerObject | None:
    """Return the DaskAutoscaler to adopt, if any. Raises `InvalidPolicy` if several qualify."""
    wished = [a for a in autoscalers if is_wished(cluster, a, adopt)]
    if not wished:
        return None
    if len(autoscalers) > 1:
        names = listed([a.meta.name for a in autoscalers])
        raise InvalidPolicy(
            f"DaskAutoscalers {names} are all for DaskCluster {cluster.meta.name};"
            " none is adopted until all but one are deleted"
        )
    return wished[0]


def adopted_spec(
    cluster: ClusterObject, autoscaler: AutoscalerObject, idle: str | None, controller: str
) -> Json:
    """
    Return the part of a policy's spec that a DaskAutoscaler sets. Raises `InvalidPolicy` with a
    fix.
    """
    spec: Json = {
        "clusterRef": {"name": cluster.meta.name},
        "controllerName": controller,
        "maxReplicas": autoscaler.maximum,
        "minReplicas": autoscaler.minimum,
    }
    if idle is not None:
        spec["idleTimeout"] = idle.strip()
    words = {"maxReplicas": "spec.maximum", "minReplicas": "spec.minimum"}
    return _checked(spec, words, f"DaskAutoscaler {autoscaler.meta.name}: ")


def _checked(spec: Json, words: Mapping[str, str], head: str = "") -> Json:
    """Return the spec if it is valid; errors name fields as people wrote them."""
    try:
        parse_policy(spec)
    except InvalidPolicy as exc:
        text = str(exc)
        for field, word in words.items():
            text = text.replace(f"spec.{field}", word)
        raise InvalidPolicy(head + text) from exc
    return spec


def is_awake(autoscaler: AutoscalerObject, now: float) -> bool:
    """True if upstream may scale, now or before its suspension can be extended."""
    return autoscaler.adopted_at is None or autoscaler.rests_until - now < MARGIN_S


def is_suspended(autoscaler: AutoscalerObject, now: float) -> bool:
    """True if upstream does nothing, and no earlier run of it is still in progress."""
    if autoscaler.adopted_at is None or is_awake(autoscaler, now):
        return False
    return now - autoscaler.adopted_at >= SETTLE_S


def suspension_of(autoscaler: AutoscalerObject, now: float) -> tuple[float, float] | None:
    """
    Return the end and start of upstream's suspension to write, or None if it is long enough.

    A time that is too far ahead (a clock was wrong) is rewritten, too: the bound that `REST_S`
    promises holds.
    """
    since = autoscaler.adopted_at
    if since is None or is_awake(autoscaler, now) or since > now + 1:  # written in whole seconds
        return now + REST_S, now
    if RENEW_S <= autoscaler.rests_until - now <= REST_S + MARGIN_S:
        return None
    return now + REST_S, since


def suspension_notes(until: float, since: float) -> dict[str, str]:
    """Return the annotations that suspend upstream; both times in seconds since 1970."""
    return {COOLDOWN: f"{until:.0f}", ADOPTED: instant(since)}


def woken_notes() -> dict[str, None]:
    """Return the annotations that resume upstream at its timer's next turn."""
    return {COOLDOWN: None, ADOPTED: None}


MAXIMUM, MINIMUM, IDLE = "max-replicas", "min-replicas", "idle-timeout"
_DIGITS = 10  # of a number of workers; the CRD's are of 32 bits
_FIELDS = {"maxReplicas": MAXIMUM, "minReplicas": MINIMUM, "idleTimeout": IDLE}


@dataclass(frozen=True, slots=True)
class Make:
    """Create the policy."""

    body: Json


@dataclass(frozen=True, slots=True)
class Mend:
    """Update the policy's spec, and the record of its source."""

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
    """Change nothing; report to the author how to fix it."""

    message: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Suspend upstream's autoscaler, or extend its suspension. Times in seconds since 1970."""

    autoscaler: AutoscalerObject
    until: float
    since: float
    told: str = ""  # not empty: report the adoption with this message


@dataclass(frozen=True, slots=True)
class Wake:
    """Resume upstream's autoscaler."""

    autoscaler: AutoscalerObject


@dataclass(frozen=True, slots=True)
class Tell:
    """Post an event about the cluster."""

    reason: Reason
    message: str


Step = Make | Mend | Remove | Complain | Suspend | Wake | Tell


def steps(
    cluster: ClusterObject,
    policies: Sequence[PolicyObject],
    autoscalers: Sequence[AutoscalerObject] = (),
    *,
    adopt: Adopt = Adopt.ANNOTATED,
    controller: str = DEFAULT_CONTROLLER,
    now: float = 0.0,
) -> list[Step]:
    """
    Return the steps for a cluster's annotations and its DaskAutoscaler, in order.

    A policy is made before upstream is suspended, and removed before it resumes: in between,
    the policy waits (`kube.view`), so that two never scale at once.

    Operators of several names may see the same cluster. All of them give the policy that they make
    the cluster's name, so the API server lets one of them make it; the others leave the cluster
    alone as long as that policy, or a person's for another operator, is there.

    Args:
        cluster: Not being deleted: its policy goes with it, as its child.
        policies: All for it, of people and of ours.
        controller: The name of this operator.
        now: Seconds since 1970.
    """
    mine = [p for p in policies if p.controller == controller and not p.meta.deleting]
    ours = [p for p in mine if p.managed]
    if any(p.controller != controller and not p.meta.deleting for p in policies):
        return [Remove(p.meta.name, p.meta.uid) for p in ours]
    seen = _Seen(
        cluster,
        autoscalers=[a for a in autoscalers if not a.meta.deleting],
        ours=ours,
        written=[p for p in mine if not p.managed],
    )
    try:
        taken, problems = chosen(cluster, seen.autoscalers, adopt), []
    except InvalidPolicy as exc:
        # Leave it unchanged until it is fixed: a suspended one stays suspended.
        taken = next((a for a in seen.autoscalers if a.adopted_at is not None), None)
        problems = [Complain(str(exc))]
    changes = list(_policy_steps(seen, taken, controller))
    if not _is_served(seen, changes):
        taken = None  # do not suspend upstream if nobody scales instead
    return [*problems, *changes, *_rests(seen, taken, now=now), *_farewells(seen, changes)]


@dataclass(frozen=True, slots=True)
class _Seen:
    """One cluster and all objects about it that stay."""

    cluster: ClusterObject
    autoscalers: Sequence[AutoscalerObject]
    ours: Sequence[PolicyObject]
    written: Sequence[PolicyObject]

    @property
    def is_annotated(self) -> bool:
        return self.cluster.note(MAXIMUM) is not None


def _policy_steps(seen: _Seen, taken: AutoscalerObject | None, controller: str) -> Iterator[Step]:
    cluster, ours = seen.cluster, seen.ours
    # An annotation is about this very cluster, so it overrides `adapt()`.
    by = BY_ANNOTATIONS if seen.is_annotated else BY_ADOPTION
    if seen.written or not (seen.is_annotated or taken):
        yield from (Remove(p.meta.name, p.meta.uid) for p in ours)
        return
    try:
        if taken is None or seen.is_annotated:
            spec = wanted_spec(cluster, controller)
        else:
            spec = adopted_spec(cluster, taken, cluster.note(IDLE), controller)
    except InvalidPolicy as exc:
        yield Complain(str(exc))
        return
    if not ours:
        yield Make(policy_body(cluster, spec, by))
        return
    policy = next((p for p in ours if p.meta.name == cluster.meta.name), ours[0])
    if policy.owner_uid != cluster.meta.uid:  # of a deleted cluster of the same name; it will go
        yield Remove(policy.meta.name, policy.meta.uid)
    elif policy.managed_by != by or any(policy.spec.get(k) != v for k, v in spec.items()):
        yield Mend(policy.meta.name, spec, by)
    yield from (Remove(p.meta.name, p.meta.uid) for p in ours if p is not policy)


def _is_served(seen: _Seen, changes: Sequence[Step]) -> bool:
    """True if a policy scales the cluster once the changes are made."""
    if seen.written:
        return len(seen.written) == 1 and seen.written[0].spec.get("mode") != Mode.ADVISE.value
    removed = sum(isinstance(step, Remove) for step in changes)
    return any(isinstance(step, Make) for step in changes) or len(seen.ours) > removed


def _rests(seen: _Seen, taken: AutoscalerObject | None, *, now: float) -> Iterator[Step]:
    for autoscaler in seen.autoscalers:
        if autoscaler is not taken:
            if autoscaler.adopted_at is not None:
                yield Wake(autoscaler)
            continue
        times = suspension_of(autoscaler, now)
        if times is not None:
            is_new = autoscaler.adopted_at is None
            yield Suspend(autoscaler, *times, _adoption_message(seen, autoscaler) if is_new else "")


def _adoption_message(seen: _Seen, autoscaler: AutoscalerObject) -> str:
    policy = seen.written[0].meta.name if seen.written else seen.cluster.meta.name
    return (
        f"DaskAutoscaler {autoscaler.meta.name} was adopted: it is suspended, and the bounds of"
        f" AdaptivePolicy {policy} apply"
    )


def _farewells(seen: _Seen, changes: Sequence[Step]) -> Iterator[Step]:
    """Report the release of an autoscaler that no longer exists."""
    removed = {step.uid for step in changes if isinstance(step, Remove)}
    adopted = [p for p in seen.ours if p.managed_by == BY_ADOPTION and p.meta.uid in removed]
    if adopted and not seen.autoscalers and not seen.written:
        message = (
            f"the DaskAutoscaler of DaskCluster {seen.cluster.meta.name} was deleted, and with it"
            " the policy made from it; nothing scales the cluster now"
        )
        yield Tell(Reason.RELEASED, message)


def wanted_spec(cluster: ClusterObject, controller: str) -> Json:
    """Return the spec that the annotations set. Raises `InvalidPolicy` with a fix."""
    notes = dict(cluster.notes)
    spec: Json = {
        "clusterRef": {"name": cluster.meta.name},
        "controllerName": controller,
        "maxReplicas": _count(notes, MAXIMUM, "0"),
        "minReplicas": _count(notes, MINIMUM, "0"),
        "idleTimeout": notes.get(IDLE, "Auto").strip(),
    }
    return _checked(spec, {f: f"annotation {DOMAIN}/{name}" for f, name in _FIELDS.items()})


def _count(notes: Mapping[str, str], name: str, default: str) -> int:
    text = notes.get(name, default).strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise InvalidPolicy(
            f'annotation {DOMAIN}/{name} must be a whole number of at least 0, such as "20",'
            f" got {text!r:.60}"
        )
    return int(text)


def policy_body(cluster: ClusterObject, spec: Mapping[str, Any], by: str = BY_ANNOTATIONS) -> Json:
    return {
        **POLICIES.head,
        "metadata": {
            "name": cluster.meta.name,
            "namespace": cluster.meta.namespace,
            "labels": {MANAGED_BY: by},
            "ownerReferences": [CLUSTERS.owner(cluster.meta.name, cluster.meta.uid)],
        },
        "spec": dict(spec),
    }
