"""
Builds the loop's view of one cluster from the cache, and decides who scales it: exactly one
autoscaler, or none of ours. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain
from operator import is_
from typing import Any

from dask_adaptive.kube.annotated import is_suspended
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.drift import drifted
from dask_adaptive.kube.nodes import NodeObject
from dask_adaptive.kube.notes import (
    Note,
    Since,
    Wishes,
    in_order,
    manual_pin,
    pause_of,
    turns_in_s,
    wishes_of,
)
from dask_adaptive.kube.objects import (
    ADOPT,
    BY_ADOPTION,
    AutoscalerObject,
    ClusterObject,
    DeploymentObject,
    GroupObject,
    PodObject,
    PolicyObject,
)
from dask_adaptive.kube.resource_quotas import QuotaObject, room
from dask_adaptive.kube.worker_pods import Shape, at_least
from dask_adaptive.model.amounts import listed
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    ManualPin,
    ObservedGroup,
    PlatformView,
    PlatformWorker,
    TerminatingPod,
    differing,
)
from dask_adaptive.model.scaling import Room


def view(
    world: World,
    key: ClusterKey,
    *,
    now: float,
    since: Since | None = None,
    manual_max_s: float = math.inf,
    look: ClusterLook | None = None,
) -> PlatformView:
    """
    Return Kubernetes' state of a cluster; `now` in seconds since 1970.

    Args:
        since: None: what nobody noted was set now.
        manual_max_s: The longest that a pin by annotation may last.
        look: That of the views of this cluster before.
    """
    look = look or ClusterLook()
    cluster = world.get(ClusterObject, key.namespace, key.name)
    if cluster is None or cluster.meta.deleting:
        return PlatformView(found=False)
    since = since or (lambda note: now if note.set_at is None else note.set_at)
    look.read(world, cluster, now, since, manual_max_s)
    policies = world.existing(PolicyObject, key)
    return PlatformView(
        found=True,
        conflict=conflict(world, key, now=now),
        groups=tuple(map(look.group, look.groups.values())),
        workers=look.workers,
        terminating=tuple(_terminating(look.terminating, now=now, pin_of=look.pin_of)),
        at=now,
        pause=pause_of(
            (note for p in policies for note in p.wishes), cluster.wishes, now=now, since=since
        ),
        uid=cluster.meta.uid,
        changes_in_s=turns_in_s(
            chain(*look.wishes, *(p.wishes for p in policies)), now=now, since=since
        ),
    )


def sort_pods(pods: Iterable[PodObject]) -> list[PodObject]:
    """Sort a worker's pods, the one that represents it first: it stays, and is the youngest."""
    return sorted(pods, key=lambda p: (p.meta.deleting, -p.meta.created_at, p.meta.name))


def _terminating(
    pods: Iterable[PodObject], *, now: float, pin_of: Callable[[PodObject], ManualPin | None]
) -> Iterable[TerminatingPod]:
    for pod in pods:
        if pod.ends_at is None or not pod.addresses:
            continue  # it stays, or has never run
        yield TerminatingPod(
            worker=pod.worker,
            pod=pod.meta.name,
            # Pods on the host network share its address, which identifies no worker.
            addresses=() if pod.host_network else pod.addresses,
            left_s=max(pod.ends_at - now, 0.0),
            manual_pin=pin_of(pod),
        )


_NO_WISHES = Wishes()


class ClusterLook:
    """
    Cache of one cluster's objects and of each worker built from them.

    Only workers whose objects have changed are rebuilt. Workers with annotations are rebuilt and
    compared: time may change their meaning.
    """

    def __init__(self) -> None:
        self._source: tuple[Any, ...] = (None,) * 4
        self._above: Any = None  # what a worker inherits of its group and cluster
        self._terminating: dict[str, str] = {}  # by node: the signal of its end
        self.deployments: dict[str, DeploymentObject] = {}
        self.pods: tuple[PodObject, ...] = ()
        self._pods_of: dict[str, tuple[PodObject, ...]] = {}
        self._made: dict[str, PlatformWorker] = {}
        self.workers: tuple[PlatformWorker, ...] = ()

    def read(
        self, world: World, cluster: ClusterObject, now: float, since: Since, manual_max_s: float
    ) -> None:
        key, self._cluster = cluster.key, cluster
        self._now, self._since, self._manual_max_s = now, since, manual_max_s
        kinds = (GroupObject, DeploymentObject, PodObject)
        source: tuple[Any, ...] = (cluster, *(world.of(kind, key) for kind in kinds))
        # By signals, not by nodes: these are rewritten all the time.
        terminating = {n.meta.name: n.terminating for n in world.all(NodeObject) if n.signals}
        before, self._source = self._source, (None,) * 4  # until all is read
        changed = set[str]()
        if terminating != self._terminating or not all(map(is_, source, before)):
            replaced = self._replaced(before, source) if terminating == self._terminating else None
            changed = self._sort(source, terminating) if replaced is None else replaced
        wishes = [one.wishes for one in (cluster, *source[1])]
        above = wishes, [(g.meta, g.sketch, g.written_at) for g in source[1]]
        known_above, self._above = self._above, None
        if above != known_above or any(wishes):
            changed = set(self.deployments)
        self._quotas = world.of(QuotaObject, ClusterKey(key.namespace, ""))
        self._shapes = self._shaped() if self._quotas else {}
        if changed or self._noted or len(self._made) != len(self.deployments):
            changed |= self._noted
            self._made = {
                name: self._again(d) if name in changed else self._made[name]
                for name, d in self.deployments.items()
            }
            self.workers = tuple(self._made.values())
        self._source, self._above = source, above

    def _replaced(self, before: tuple[Any, ...], source: tuple[Any, ...]) -> set[str] | None:
        """Put pods in the places of what they were; None: something else has changed, too."""
        known, pods = before[-1] or (), source[-1]
        if len(known) != len(pods) or not all(map(is_, before[:-1], source)):
            return None
        pairs = [(known[i], pods[i]) for i in differing(known, pods)]
        if any((a.meta.name, a.worker) != (b.meta.name, b.worker) for a, b in pairs):
            return None
        if any(pod.wishes or pod.ends_at is not None for pair in pairs for pod in pair):
            return None
        for old, new in pairs:
            mine = self._pods_of[new.worker]
            self._pods_of[new.worker] = tuple(new if p is old else p for p in mine)
        self.pods = pods
        return {new.worker for _, new in pairs}

    def _sort(self, source: tuple[Any, ...], terminating: dict[str, str]) -> set[str]:
        """Sort the objects; return the names of workers for which one has changed."""
        cluster, groups, deployments, pods = source
        known, known_pods, known_nodes = self.deployments, self._pods_of, self._terminating
        self.groups: dict[str, GroupObject] = {g.meta.name: g for g in groups}
        self.deployments = {d.meta.name: d for d in deployments}
        self.pods = pods
        self._pods_of, self._terminating = {}, terminating
        for pod in pods:
            self._pods_of[pod.worker] = (*self._pods_of.get(pod.worker, ()), pod)
        self.terminating = [p for p in self.pods if p.ends_at is not None]
        every = chain((cluster,), groups, deployments, pods)
        self.wishes: list[tuple[Note, ...]] = [one.wishes for one in every if one.wishes]
        self._noted = {d.meta.name for d in deployments if d.wishes}
        self._noted |= {p.worker for p in pods if p.wishes}
        changed = {
            name
            for name, deployment in self.deployments.items()
            if deployment is not known.get(name) or self._pods_of.get(name) != known_pods.get(name)
        }
        nodes = dict(terminating.items() ^ known_nodes.items())
        if nodes:
            changed |= {p.worker for p in pods if p.node in nodes}
        return changed

    def _again(self, deployment: DeploymentObject) -> PlatformWorker:
        """Rebuild a worker; return the previous object if it is equal."""
        before, worker = self._made.get(deployment.meta.name), self.worker(deployment)
        return before if before is not None and worker == before else worker

    def group(self, group: GroupObject) -> ObservedGroup:
        return ObservedGroup(
            group.meta.name,
            group.replicas,
            handled=group.handled,
            room=self._room(group),
            threads=group.threads,
            resources=group.resources,
        )

    def _room(self, group: GroupObject) -> Room | None:
        if not self._quotas:
            return None
        unmade = [
            self._shapes[d.group]
            for d in self.deployments.values()
            if d.group in self._shapes and not d.meta.deleting and d.meta.name not in self._pods_of
        ]
        return room(self._quotas, self._shapes[group.meta.name], unmade)

    def _shaped(self) -> dict[str, Shape]:
        """By group, the shape of the pod of one more worker."""
        youngest: dict[str, PodObject] = {}
        for pod in sorted(self.pods, key=lambda p: p.meta.created_at):
            if pod.worker in self.deployments:
                youngest[self.deployments[pod.worker].group] = pod
        return {
            name: at_least(g.shape, youngest[name].shape) if name in youngest else g.shape
            for name, g in self.groups.items()
        }

    def pin_of(self, pod: PodObject) -> ManualPin | None:
        return self._pin(self.deployments.get(pod.worker), pod)

    def worker(self, deployment: DeploymentObject) -> PlatformWorker:
        pods = self._pods_of.get(deployment.meta.name, ())
        ranked = sort_pods(pods) if len(pods) > 1 else pods  # all may be connected
        pod = ranked[0] if ranked else None
        wishes = self._wishes(deployment, pod)
        ends_at = min(wishes.expires_at, pod.deadline_at if pod else math.inf)
        return PlatformWorker(
            name=deployment.meta.name,
            uid=deployment.meta.uid,
            group=deployment.group,
            made_at=deployment.meta.created_at,
            deleting=deployment.meta.deleting,
            pod=pod.meta.name if pod else "",
            addresses=tuple(a for p in ranked for a in p.addresses),
            waiting=pod.waiting if pod else deployment.waiting or "its pod is not created yet",
            manual_pin=self._pin(deployment, pod),
            node=pod.node if pod else "",
            node_terminating=self._terminating.get(pod.node, "") if pod else "",
            pod_uid=pod.meta.uid if pod else "",
            pod_made_at=(pod.began_at if pod else 0.0) or deployment.meta.created_at,
            ends_at=ends_at,
            annotation_problem=wishes.problem,
            recycle_request=wishes.recycle,
            drift=self._drift(deployment),
            unscheduled_at=pod.unscheduled_at if pod and not pod.meta.deleting else None,
            gated=pod is not None and pod.gated,
            refused="" if pod and not pod.meta.deleting else deployment.refused,
        )

    def _group(self, deployment: DeploymentObject | None) -> GroupObject | None:
        return self.groups.get(deployment.group) if deployment else None

    def _pin(self, deployment: DeploymentObject | None, pod: PodObject | None) -> ManualPin | None:
        holders = (pod, deployment, self._group(deployment), self._cluster)
        notes = [note for holder in holders if holder for note in holder.wishes]
        if not notes:  # nearly always
            return None
        return manual_pin(notes, now=self._now, since=self._since, max_s=self._manual_max_s)

    def _wishes(self, deployment: DeploymentObject, pod: PodObject | None) -> Wishes:
        group = self._group(deployment)
        above = (*(group.wishes if group else ()), *self._cluster.wishes)
        if not (above or deployment.wishes or (pod and pod.wishes)):
            return _NO_WISHES
        notes = in_order(pod.wishes if pod else (), deployment.wishes, above)
        began_at = pod.began_at if pod else 0.0
        return wishes_of(notes, began_at=began_at, now=self._now, since=self._since)

    def _drift(self, deployment: DeploymentObject) -> str:
        group = self._group(deployment)
        if group is None:
            return ""
        return drifted(
            group.sketch,
            deployment.sketch,
            group_made_at=group.meta.created_at,
            group_written_at=group.written_at,
            made_at=deployment.meta.created_at,
        )


def conflict(world: World, key: ClusterKey, *, now: float) -> str:
    """Return the other autoscaler of the cluster, with a fix; empty if there is none."""
    policies = world.existing(PolicyObject, key)
    if len(policies) > 1:
        return (
            f"AdaptivePolicies {listed([p.meta.name for p in policies])} are all for DaskCluster"
            f" {key.name}; nothing is changed until all but one are deleted"
        )
    autoscalers = world.existing(AutoscalerObject, key)
    for autoscaler in autoscalers:
        if not is_suspended(autoscaler, now):
            return _awake(autoscaler, key)
    if not autoscalers and any(p.managed_by == BY_ADOPTION for p in policies):
        # `cluster.scale(3)` deletes it and sets a number, which must stay; the policy is deleted
        # next.
        return f"the DaskAutoscaler of DaskCluster {key.name} was deleted; nothing is changed"
    return ""


def adopted(world: World, key: ClusterKey, *, now: float) -> AutoscalerObject | None:
    """Return the suspended DaskAutoscaler that was adopted, if any."""
    return next((a for a in world.existing(AutoscalerObject, key) if is_suspended(a, now)), None)


def is_settling(world: World, key: ClusterKey, *, now: float) -> bool:
    """True if a policy was just made from a DaskAutoscaler that is not suspended yet."""
    return any(
        p.managed_by == BY_ADOPTION and not p.status for p in world.existing(PolicyObject, key)
    ) and any(not is_suspended(a, now) for a in world.existing(AutoscalerObject, key))


def _awake(autoscaler: AutoscalerObject, key: ClusterKey) -> str:
    name = autoscaler.meta.name
    if autoscaler.adopted_at is not None:
        return f"DaskAutoscaler {name} is being adopted; nothing is changed until it is suspended"
    return (
        f"DaskAutoscaler {name} scales DaskCluster {key.name} as well; nothing is changed until it"
        f" is deleted (kubectl delete daskautoscaler {name}) or adopted"
        f" (kubectl annotate daskautoscaler {name} {ADOPT}=true)"
    )
