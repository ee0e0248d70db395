"""
DaskAutoscalers that are taken over: which, and when upstream's timer rests. Pure.

Upstream's timer returns early as long as the annotation `COOLDOWN` lies ahead, and so it is put to
rest by that. It is never deleted: it is the user's object, and once we are gone it goes on.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from dask_adaptive.kube.api import Json
from dask_adaptive.kube.objects import ADOPT, ADOPTED, COOLDOWN, AutoscalerObject, ClusterObject
from dask_adaptive.model.pins import instant
from dask_adaptive.model.policy import InvalidPolicy, parse_policy

#: Upstream rests for so long at a time. It is the longest that nobody scales a cluster whose
#: operator has died: long enough for an operator to be upgraded or moved to another node, and for
#: a node's worth of its image, and short enough that nobody has to mend anything by hand.
REST_S = 600.0

#: With so much left, the rest is made longer. An operator may be away for so long, less `MARGIN_S`.
RENEW_S = 300.0

#: With less left, upstream counts as awake: its clock may be ahead of ours.
MARGIN_S = 30.0

#: A run of upstream's timer that had looked at the annotation before it was there is over by then:
#: it is one request to the scheduler, and the timer's own interval is 5 s.
SETTLE_S = 5.0


class Adopt(str, enum.Enum):
    """Which DaskAutoscalers are taken over; the chart's value `adopt`."""

    NEVER = "Never"
    ANNOTATED = "Annotated"  # those that people have annotated, or whose cluster they have
    ALWAYS = "Always"  # all but those where an annotation says "false"


def is_wished(cluster: ClusterObject, autoscaler: AutoscalerObject, adopt: Adopt) -> bool:
    """
    Whether a DaskAutoscaler is to be taken over. Its own annotation goes before its cluster's.

    Raises:
        InvalidPolicy: Who annotated it can mend it; the message says how.
    """
    if adopt is Adopt.NEVER:
        return False
    said = autoscaler.adopt
    if said is None:
        said = cluster.note(ADOPT.partition("/")[2])
    if said is None:
        return adopt is Adopt.ALWAYS
    word = said.strip().lower()
    if word not in ("true", "false"):
        raise InvalidPolicy(f'annotation {ADOPT} must be "true" or "false", got {said!r}')
    return word == "true"


def chosen(
    cluster: ClusterObject, autoscalers: Sequence[AutoscalerObject], adopt: Adopt
) -> AutoscalerObject | None:
    """
    The one DaskAutoscaler of a cluster that is to be taken over, if there is one.

    Raises:
        InvalidPolicy: It can't be told which; the message says how to mend it.
    """
    wished = [a for a in autoscalers if is_wished(cluster, a, adopt)]
    if not wished:
        return None
    if len(autoscalers) > 1:
        names = ", ".join(a.meta.name for a in autoscalers)
        raise InvalidPolicy(
            f"DaskAutoscalers {names} are all for DaskCluster {cluster.meta.name};"
            " none is taken over until all but one are deleted"
        )
    return wished[0]


def adopted_spec(cluster: ClusterObject, autoscaler: AutoscalerObject, idle: str | None) -> Json:
    """
    The policy's spec that a DaskAutoscaler asks for; whatever else a policy has is people's to set.

    Raises:
        InvalidPolicy: Who called `adapt()` can mend it; the message says how.
    """
    spec: Json = {
        "clusterRef": {"name": cluster.meta.name},
        "maxReplicas": autoscaler.maximum,
        "minReplicas": autoscaler.minimum,
    }
    if idle is not None:
        spec["idleTimeout"] = idle.strip()
    try:
        parse_policy(spec)
    except InvalidPolicy as exc:
        text = str(exc).replace("spec.maxReplicas", "spec.maximum")
        text = text.replace("spec.minReplicas", "spec.minimum")
        raise InvalidPolicy(f"DaskAutoscaler {autoscaler.meta.name}: {text}") from exc
    return spec


def is_awake(autoscaler: AutoscalerObject, now: float) -> bool:
    """Whether upstream may scale, now or before its rest could be made longer."""
    return autoscaler.adopted_at is None or autoscaler.rests_until - now < MARGIN_S


def at_rest(autoscaler: AutoscalerObject, now: float) -> bool:
    """Whether upstream does nothing, and no run of it that began before is still under way."""
    if autoscaler.adopted_at is None or is_awake(autoscaler, now):
        return False
    return now - autoscaler.adopted_at >= SETTLE_S


def rest_of(autoscaler: AutoscalerObject, now: float) -> tuple[float, float] | None:
    """
    What to write: until when upstream rests, and since when. None: it is written well.

    A time that is too far ahead (a clock was wrong) is written anew, too: the bound that `REST_S`
    promises holds.
    """
    since = autoscaler.adopted_at
    if since is None or is_awake(autoscaler, now) or since > now + 1:  # written in whole seconds
        return now + REST_S, now
    if RENEW_S <= autoscaler.rests_until - now <= REST_S + MARGIN_S:
        return None
    return now + REST_S, since


def rest_notes(until: float, since: float) -> dict[str, str | None]:
    """The annotations that put upstream to rest; both times in seconds since 1970."""
    return {COOLDOWN: f"{until:.0f}", ADOPTED: instant(since)}


def woken_notes() -> dict[str, str | None]:
    """The same, taken back: upstream goes on at its timer's next turn."""
    return {COOLDOWN: None, ADOPTED: None}
