"""The Reporter that is Kubernetes: the status of one AdaptivePolicy, and events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.decision_log import DecisionLog
from dask_adaptive.kube.errors import Conflict, KubeError, NotFound
from dask_adaptive.kube.events import EventPoster, News, Subject
from dask_adaptive.kube.gathered import gathered, sentence
from dask_adaptive.kube.marks import changes
from dask_adaptive.kube.objects import (
    BY_ADOPTION,
    DeploymentObject,
    PodObject,
    PolicyObject,
    parse_pod,
)
from dask_adaptive.kube.owners import adopted
from dask_adaptive.kube.resources import DEPLOYMENTS, PODS, POLICIES
from dask_adaptive.kube.status_json import status_json
from dask_adaptive.kube.view import standing
from dask_adaptive.kube.world import World
from dask_adaptive.loop.ports import Event
from dask_adaptive.loop.status import Condition, Status
from dask_adaptive.model.history import Decision
from dask_adaptive.model.observed import Mark
from dask_adaptive.model.pins import instant
from dask_adaptive.model.reason import Reason

#: The condition that a DaskAutoscaler was taken over; there only while it is so.
ADOPTED = "Adopted"

#: A pod's status changes often, and each change makes what the watch has told stale.
_TRIES = 3


class KubeReporter:
    """
    Tells people what one policy does; see `loop.ports.Reporter`.

    Args:
        hints: Whether pods may be annotated; else `mark` does nothing.
    """

    def __init__(
        self,
        policy: PolicyObject,
        *,
        api: KubeApi,
        world: World,
        events: EventPoster,
        wall_clock: Callable[[], float],
        hints: bool = True,
    ) -> None:
        self._hints = hints
        self._policy, self._api, self._world = policy, api, world
        self._events, self._wall_clock = events, wall_clock
        self._written: Json | None = None
        self._log = DecisionLog(policy, api, events)

    async def status(self, status: Status) -> None:
        meta = self._policy.meta
        policy = self._world.get(PolicyObject, meta.namespace, meta.name) or self._policy
        before = self._written if self._written is not None else dict(policy.status)
        status = self._with_adoption(status, policy)
        now = instant(self._wall_clock())
        new = status_json(status, generation=policy.generation, before=before, now=now)
        if new == before:
            return
        path = POLICIES.path(meta.namespace, meta.name, "status")
        try:
            await self._api.patch(path, {"metadata": {"uid": meta.uid}, "status": new})
        except (NotFound, Conflict):
            return  # deleted or made anew a moment ago: nobody is left to be told
        self._written = new

    def _with_adoption(self, status: Status, policy: PolicyObject) -> Status:
        found = adopted(self._world, policy.key, now=self._wall_clock())
        if found is None:
            return status
        has = "has its bounds" if policy.managed_by == BY_ADOPTION else "has bounds of its own"
        name = found.meta.name
        message = f"DaskAutoscaler {name} was taken over and rests; this policy {has}"
        condition = Condition(ADOPTED, True, Reason.ADOPTED, message)
        return replace(status, conditions=(*status.conditions, condition))

    async def tell(self, events: Sequence[Event]) -> None:
        for group in gathered(events):
            for subject, message in self._told(group):
                # One that cannot be posted (a quota, a namespace that goes away) is lost; the
                # status says the same and must not be lost with it.
                with contextlib.suppress(KubeError):
                    await self._events.post(subject, _news(group[0], message))

    def _told(self, group: tuple[Event, ...]) -> Iterator[tuple[Subject, str]]:
        """The policy gets one event for all of them, each worker that is still there its own."""
        meta = self._policy.meta
        yield Subject(POLICIES, meta.namespace, meta.name, meta.uid), sentence(group)
        for event in group:
            worker = None if event.gone else self._subject(event.worker)
            if worker is not None:
                yield worker, event.message

    async def history(self, decisions: Sequence[Decision]) -> None:
        await self._log.add(decisions)

    async def mark(self, worker: str, mark: Mark) -> None:
        key = self._policy.key
        pods = standing(p for p in self._world.of(PodObject, key) if p.worker == worker)
        pod = pods[0] if pods and self._hints else None
        for _ in range(_TRIES):
            notes = changes(dict(pod.notes), mark) if pod and not pod.meta.going else {}
            if pod is None or not notes:
                return
            try:
                return await self._annotate(pod, notes)
            except NotFound:
                return
            except Conflict:
                pod = await self._read(pod)

    async def _annotate(self, pod: PodObject, notes: Mapping[str, str | None]) -> None:
        # Only if it is still as we know it: what somebody has set since is not overwritten.
        meta: Json = {"uid": pod.meta.uid, "annotations": notes}
        meta |= {"resourceVersion": str(pod.meta.version)} if pod.meta.version else {}
        await self._api.patch(PODS.path(pod.meta.namespace, pod.meta.name), {"metadata": meta})

    async def _read(self, pod: PodObject) -> PodObject | None:
        """The same pod as it is now; by a list, which the watch has the right to anyway."""
        path = PODS.path(pod.meta.namespace)
        found = await self._api.list(path, field=f"metadata.name={pod.meta.name}")
        fresh = next(map(parse_pod, found), None)
        return fresh if fresh and fresh.meta.uid == pod.meta.uid else None

    def _subject(self, worker: str) -> Subject | None:
        """The worker's pod; where it has none, its Deployment."""
        if not worker:
            return None
        key = self._policy.key
        for pod in self._world.of(PodObject, key):
            if pod.worker == worker and not pod.meta.going:
                return Subject(PODS, key.namespace, pod.meta.name, pod.meta.uid)
        deployment = self._world.get(DeploymentObject, key.namespace, worker)
        if deployment is None:
            return None
        return Subject(DEPLOYMENTS, key.namespace, worker, deployment.meta.uid)


def _news(event: Event, message: str) -> News:
    reason = f"Would{event.reason}" if event.would else str(event.reason)
    return News(event.type, reason, message)
