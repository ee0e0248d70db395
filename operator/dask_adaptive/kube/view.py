"""One cluster as the loop wants to see it, out of the cache. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dask_adaptive.kube.claims import at_most
from dask_adaptive.kube.costs import Shape, at_least
from dask_adaptive.kube.drift import drifted
from dask_adaptive.kube.nodes import NodeObject
from dask_adaptive.kube.objects import (
    ClusterObject,
    DeploymentObject,
    GroupObject,
    PodObject,
    PolicyObject,
    ServiceObject,
)
from dask_adaptive.kube.owners import conflict
from dask_adaptive.kube.pauses import PauseNote, pause_of
from dask_adaptive.kube.pins import PinNote
from dask_adaptive.kube.quotas import Asked, Since, asked, in_order
from dask_adaptive.kube.room import QuotaObject, room
from dask_adaptive.kube.world import World
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    Ending,
    ManualPin,
    Mark,
    PlatformGroup,
    PlatformView,
    PlatformWorker,
)
from dask_adaptive.model.scaling import Pause, Room

#: From the notes on a worker and the objects above it, nearest first, to the pin that holds it.
ReadPin = Callable[[list[PinNote | None]], ManualPin | None]

#: When an annotation that pauses was set, in seconds since 1970; None: nobody knows.
PausedSince = Callable[[PauseNote], float | None]


def view(
    world: World,
    key: ClusterKey,
    *,
    now: float,
    read_pin: ReadPin,
    since: Since = lambda note: note.set_at,
    paused_since: PausedSince = lambda note: note.set_at,
) -> PlatformView:
    """
    All that Kubernetes knows of a cluster, but for `free_gpus`; `now` in seconds since 1970.

    Args:
        since: When an annotation about quotas was set.
        paused_since: When one that pauses was.
    """
    cluster = world.get(ClusterObject, key.namespace, key.name)
    if cluster is None or cluster.meta.going:
        return PlatformView(found=False)
    look = _Look(world, cluster, now, read_pin, since)
    return PlatformView(
        found=True,
        conflict=conflict(world, key, now=now),
        groups=tuple(map(look.group, look.groups.values())),
        workers=tuple(map(look.worker, look.deployments.values())),
        ending=tuple(_endings(look.pods, now=now, pin_of=look.pin_of)),
        at=now,
        pause=_pause(world, cluster, now, paused_since),
        uid=cluster.meta.uid,
    )


def _pause(world: World, cluster: ClusterObject, now: float, since: PausedSince) -> Pause:
    def set_at(note: PauseNote) -> float:
        known = since(note)
        return now if known is None else known

    policies = [p for p in world.of(PolicyObject, cluster.key) if not p.meta.going]
    notes = [note for policy in policies for note in policy.pauses]
    return pause_of(notes, cluster.pauses, now=now, since=set_at)


def gpus_needed(world: World, key: ClusterKey) -> dict[str, int]:
    """By resource, the most GPUs that one worker of a cluster claims."""
    return at_most(d.gpus for d in world.of(DeploymentObject, key) if d.gpus)


def standing(pods: Iterable[PodObject]) -> list[PodObject]:
    """Pods of one worker, first the one that stands for it: it stays, and is the youngest."""
    return sorted(pods, key=lambda p: (p.meta.going, -p.meta.created_at, p.meta.name))


def node_going(world: World, pod: PodObject) -> str:
    """Who says that the machine under a pod is about to go; empty if nobody does."""
    node = world.get(NodeObject, "", pod.node) if pod.node else None
    return node.going if node else ""


def _endings(
    pods: Iterable[PodObject], *, now: float, pin_of: Callable[[PodObject], ManualPin | None]
) -> Iterable[Ending]:
    for pod in pods:
        if pod.ends_at is None or not pod.addresses:
            continue  # it stays, or it never ran
        yield Ending(
            worker=pod.worker,
            pod=pod.meta.name,
            # All pods in a host's network share its address: it says nothing about whose worker.
            addresses=() if pod.host_network else pod.addresses,
            left_s=max(pod.ends_at - now, 0.0),
            manual_pin=pin_of(pod),
        )


def _unschedulable_s(pod: PodObject | None, now: float) -> float:
    if pod is None or pod.unscheduled_at is None or pod.meta.going:
        return 0.0
    return max(now - pod.unscheduled_at, 0.0)


_NOTHING_ASKED = Asked()


class _Look:
    """One cluster's objects, and what holds for each worker by way of those above it."""

    def __init__(
        self, world: World, cluster: ClusterObject, now: float, read_pin: ReadPin, since: Since
    ) -> None:
        key = cluster.key
        self.groups = {g.meta.name: g for g in world.of(GroupObject, key)}
        self.deployments = {d.meta.name: d for d in world.of(DeploymentObject, key)}
        self.pods = world.of(PodObject, key)
        self._world, self._cluster = world, cluster
        self._now, self._read_pin, self._since = now, read_pin, since
        self._pods_of: dict[str, list[PodObject]] = {}
        for pod in self.pods:
            self._pods_of.setdefault(pod.worker, []).append(pod)
        self._quotas = world.of(QuotaObject, ClusterKey(key.namespace, ""))
        self._shapes = self._shaped() if self._quotas else {}

    def group(self, group: GroupObject) -> PlatformGroup:
        return PlatformGroup(
            group.meta.name,
            group.replicas,
            group.handled,
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
            if d.group in self._shapes and not d.meta.going and d.meta.name not in self._pods_of
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
        ranked = standing(self._pods_of.get(deployment.meta.name, []))  # all may be connected
        pod = ranked[0] if ranked else None
        wishes = self._asked(deployment, pod)
        ends_at = min(wishes.expires_at, pod.deadline_at if pod else math.inf)
        return PlatformWorker(
            name=deployment.meta.name,
            uid=deployment.meta.uid,
            group=deployment.group,
            age_s=max(self._now - deployment.meta.created_at, 0.0),
            going=deployment.meta.going,
            pod=pod.meta.name if pod else "",
            addresses=tuple(a for p in ranked for a in p.addresses),
            waiting=pod.waiting if pod else deployment.waiting or "its pod is not created yet",
            manual_pin=self._pin(deployment, pod),
            node_going=node_going(self._world, pod) if pod else "",
            mark=pod.mark if pod else Mark(),
            pod_uid=pod.meta.uid if pod else "",
            pod_created_at=pod.began_at if pod else 0.0,
            ends_in_s=max(ends_at - self._now, 0.0),
            quota_notes=wishes.notes,
            recycle_asked=wishes.recycle,
            drift=self._drift(deployment),
            gpus=sum(number for _, number in deployment.gpus),
            unschedulable_s=_unschedulable_s(pod, self._now),
            refused="" if pod and not pod.meta.going else deployment.refused,
        )

    def _group(self, deployment: DeploymentObject | None) -> GroupObject | None:
        return self.groups.get(deployment.group) if deployment else None

    def _pin(self, deployment: DeploymentObject | None, pod: PodObject | None) -> ManualPin | None:
        group = self._group(deployment)
        notes = [holder.pin if holder else None for holder in (pod, deployment, group)]
        notes.append(self._cluster.pin)
        return self._read_pin(notes) if any(notes) else None

    def _asked(self, deployment: DeploymentObject, pod: PodObject | None) -> Asked:
        group = self._group(deployment)
        above = (*(group.quotas if group else ()), *self._cluster.quotas)
        if not (above or deployment.quotas or (pod and pod.quotas)):
            return _NOTHING_ASKED
        notes = in_order(pod.quotas if pod else (), deployment.quotas, above)
        began_at = pod.began_at if pod else 0.0
        return asked(notes, began_at=began_at, now=self._now, since=self._since)

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


def scheduler_address(world: World, key: ClusterKey) -> str:
    """Where the cluster's scheduler listens: its Service by IP, which needs no DNS."""
    name = f"{key.name}-scheduler"
    service = world.get(ServiceObject, key.namespace, name)
    if service is None:
        return f"tcp://{name}.{key.namespace}.svc:8786"
    if not service.ip:
        return f"tcp://{name}.{key.namespace}.svc:{service.port}"
    host = f"[{service.ip}]" if ":" in service.ip else service.ip
    return f"tcp://{host}:{service.port}"
