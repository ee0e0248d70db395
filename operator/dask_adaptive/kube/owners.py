"""Who scales a cluster: exactly one, or nobody of ours. Pure."""

from __future__ import annotations

from dask_adaptive.kube.adoption import at_rest
from dask_adaptive.kube.objects import ADOPT, BY_ADOPTION, AutoscalerObject, PolicyObject
from dask_adaptive.kube.world import World
from dask_adaptive.model.keys import ClusterKey


def conflict(world: World, key: ClusterKey, *, now: float) -> str:
    """
    Who else scales the cluster, and how to mend it; empty if nobody does.

    Args:
        now: Seconds since 1970.
    """
    policies = [p for p in world.of(PolicyObject, key) if not p.meta.going]
    if len(policies) > 1:
        return (
            f"AdaptivePolicies {', '.join(p.meta.name for p in policies)} are all for DaskCluster"
            f" {key.name}; nothing is touched until all but one are deleted"
        )
    autoscalers = standing(world, key)
    for autoscaler in autoscalers:
        if not at_rest(autoscaler, now):
            return _awake(autoscaler, key)
    if not autoscalers and any(p.managed_by == BY_ADOPTION for p in policies):
        # `cluster.scale(3)` deletes it and sets a number, which is to stay; the policy goes next.
        return f"the DaskAutoscaler of DaskCluster {key.name} was deleted; nothing is touched"
    return ""


def standing(world: World, key: ClusterKey) -> list[AutoscalerObject]:
    """The DaskAutoscalers of a cluster, by name, but for those whose deletion has begun."""
    return [a for a in world.of(AutoscalerObject, key) if not a.meta.going]


def adopted(world: World, key: ClusterKey, *, now: float) -> AutoscalerObject | None:
    """The DaskAutoscaler that was taken over and rests."""
    return next((a for a in standing(world, key) if at_rest(a, now)), None)


def is_settling(world: World, key: ClusterKey, *, now: float) -> bool:
    """Whether a policy was just made from a DaskAutoscaler that does not rest yet."""
    return any(
        p.managed_by == BY_ADOPTION and not p.status and not p.meta.going
        for p in world.of(PolicyObject, key)
    ) and any(not at_rest(a, now) for a in standing(world, key))


def _awake(autoscaler: AutoscalerObject, key: ClusterKey) -> str:
    name = autoscaler.meta.name
    if autoscaler.adopted_at is not None:
        return (
            f"DaskAutoscaler {name} is being taken over; nothing is touched until upstream's"
            " autoscaler rests"
        )
    return (
        f"DaskAutoscaler {name} scales DaskCluster {key.name} as well; nothing is touched until it"
        f" is deleted (kubectl delete daskautoscaler {name}), or taken over"
        f" (kubectl annotate daskautoscaler {name} {ADOPT}=true)"
    )
