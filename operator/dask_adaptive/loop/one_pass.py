"""One pass over one cluster: observe, plan, act, report. Each pass reads the world anew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from dask_adaptive.loop.act import act
from dask_adaptive.loop.happened import (
    events_of_advice,
    events_of_conditions,
    events_of_notes,
    events_of_outcomes,
)
from dask_adaptive.loop.join import join
from dask_adaptive.loop.marks import Marked, marks
from dask_adaptive.loop.ports import Event, PlatformError, Ports
from dask_adaptive.loop.report import status_of
from dask_adaptive.loop.status import Status
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import Mark, ObservedCluster, ObservedScheduler, PlatformView
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Outcome, Plan
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.remember import remember

#: The longest time between two passes over a cluster.
REST_S = 5.0

#: The time between passes while workers are on their way in or out.
BRISK_S = 1.0


@dataclass(frozen=True, slots=True)
class PassResult:
    """What one pass saw, decided and did."""

    observed: ObservedCluster
    plan: Plan
    outcomes: tuple[Outcome, ...]
    status: Status
    again_in_s: float  # when the next pass should be, if nothing happens before


class ClusterLoop:
    """
    The passes over one cluster. Not reentrant: one pass at a time.

    Args:
        leaving: Workers that an earlier process had on their way out, as the policy's status says.
            Once they are missing, they explain why `replicas` is too high.
    """

    def __init__(self, key: ClusterKey, ports: Ports, leaving: Iterable[str] = ()) -> None:
        self._key, self._ports = key, ports
        self._past = Past(leaving=frozenset(leaving))
        self._status: Status | None = None
        self._told = frozenset[Event]()
        self._marked = Marked()
        self._bearers = frozenset[str]()  # workers whose pods bear a mark of ours

    async def one_pass(self, policy: Policy) -> PassResult:
        """Bring the cluster a step closer to its policy; `PlatformError` if it cannot be seen."""
        ports = self._ports
        view = await ports.platform.look()
        observed = join(self._key, view, await self._ask_scheduler(view, policy))
        decided = plan(observed, policy, self._past, now=ports.clock())
        outcomes = await act(decided, policy, ports)
        self._past = remember(self._past, observed, policy, decided, outcomes, now=ports.clock())
        status = status_of(
            observed, policy, decided, outcomes, now=ports.clock(), before=self._status
        )
        await self._report(observed, status, decided, outcomes)
        await self._mark(observed, policy)
        again_in_s = _next(policy, status, outcomes)
        return PassResult(observed, decided, outcomes, status, again_in_s)

    async def unmark(self) -> None:
        """Take all marks off the pods: nobody will keep them true any more."""
        for worker in sorted(self._bearers):
            with contextlib.suppress(PlatformError):
                await self._ports.reporter.mark(worker, Mark())
        self._bearers = frozenset()

    async def _ask_scheduler(self, view: PlatformView, policy: Policy) -> ObservedScheduler:
        # A cluster that is not there, or not ours, is not even asked.
        if not view.found:
            return ObservedScheduler(Reason.CLUSTER_NOT_FOUND, "there is no cluster to ask")
        if view.conflict:
            return ObservedScheduler(Reason.OWNERSHIP_CONFLICT, view.conflict)
        return await self._ports.link.observe(policy)

    async def _report(
        self,
        observed: ObservedCluster,
        status: Status,
        decided: Plan,
        outcomes: tuple[Outcome, ...],
    ) -> None:
        """Tell people of what is new: an unchanged world causes no call."""
        happened = frozenset(events_of_outcomes(outcomes)) | frozenset(events_of_advice(decided))
        new = [e for e in _ordered(happened) if e not in self._told]
        noted = events_of_notes(observed)  # each comes only once, and may well say the same again
        for event in (*events_of_conditions(status, self._status), *new, *noted):
            # An event that cannot be posted (a quota, a namespace that goes away) is lost; the
            # status says the same and must not be lost with it.
            with contextlib.suppress(PlatformError):
                await self._ports.reporter.event(event)
        self._told = happened
        if status != self._status:
            await self._ports.reporter.status(status)
            self._status = status

    async def _mark(self, observed: ObservedCluster, policy: Policy) -> None:
        """Bring the annotations of pods in step with what is true of their workers."""
        if not observed.scheduler.is_connected:
            return  # nothing new is known of them
        workers = [w for g in observed.groups for w in g.workers]
        now = self._ports.clock()
        changes, self._marked = marks(workers, self._marked, hints=policy.disruption.hints, now=now)
        bearers = {w.name for w in workers if w.mark != Mark()}
        self._bearers = frozenset(bearers | {worker for worker, _ in changes})
        for worker, mark in changes:
            with contextlib.suppress(PlatformError):  # a pod that goes, a right that was taken
                await self._ports.reporter.mark(worker, mark)


def _ordered(events: frozenset[Event]) -> list[Event]:
    return sorted(events, key=lambda e: (e.worker, e.reason.value, e.message))


def _next(policy: Policy, status: Status, outcomes: tuple[Outcome, ...]) -> float:
    if outcomes or status.pending or status.retiring:
        return BRISK_S
    # A window that holds no earlier recommendation would hold nothing back.
    return max(BRISK_S, min(REST_S, policy.idle_timeout_s / 3))
