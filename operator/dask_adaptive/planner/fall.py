"""Fewer workers: those that never connected first, then idle ones that nothing holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dask_adaptive.model.duration import format_duration
from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, Blocker, Cancel, Delete, Retire
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.candidates import Context, ranked, ranked_pending, veto
from dask_adaptive.planner.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Fall:
    reason: Reason
    message: str
    actions: tuple[Action, ...] = ()
    blockers: tuple[Blocker, ...] = ()


def fall(
    observed: ObservedCluster, fleet: Fleet, desired: int, policy: Policy, past: Past,
    *, due: Collection[str] = (), idle_s: float, leaving: int, now: float,
) -> Fall:  # fmt: skip
    """
    Let workers go until `desired` serve, which is below their number now.

    Args:
        due: Workers whose quotas have run out: of those that may go, they go first.
        idle_s: So long a worker has to be without a task.
        leaving: Workers of the whole cluster that are on their way out because nobody needs them.

    Returns:
        No more deletions and retirements than workers too many; never a worker that a veto objects
        to, never more on their way out at once than `retirement.maxConcurrent` (deletions of
        workers that never connected cost nothing and are not counted), never so many that fewer
        than desired are connected: one that is pending may never come.
    """
    unpinned = [w for w in ranked_pending(fleet.pending) if w.manual_pin is None]
    deletions = tuple(_never_connected(w) for w in unpinned[: fleet.serving - desired])
    surplus = fleet.serving - len(fleet.pending) - desired
    if surplus <= 0:
        if not deletions:
            return Fall(Reason.NO_CANDIDATES, "workers that never connected are pinned")
        return Fall(deletions[0].reason, _never_needed(deletions, desired), deletions)

    free, blockers = _divide(observed, fleet, past, idle_s=idle_s, now=now)
    budget = policy.retirement.max_concurrent - leaving
    order = ranked(free, first=due)
    going = tuple(_retire(w, desired) for w in order[: max(0, min(surplus, budget))])
    actions: tuple[Action, ...] = (*deletions, *going)
    if going:
        message = f"{fleet.serving} workers, {desired} desired: {len(going)} idle ones leave"
        return Fall(Reason.UNDERUTILIZED, message, actions, blockers)
    if free:
        message = f"{leaving} workers are on their way out (retirement.maxConcurrent)"
        return Fall(Reason.BUDGET_EXHAUSTED, message, actions, blockers)
    message = f"{surplus} of {fleet.serving} workers are not needed, none may leave now"
    return Fall(Reason.NO_CANDIDATES, message, actions, blockers)


def delete_drained(fleet: Fleet) -> tuple[Delete, ...]:
    """Workers with no task and no last copy, closed to new work: take them away."""
    return tuple(
        Delete(w.name, w.uid, w.dask_names, Reason.DRAINED, "drained: no task, no last copy")
        for w in fleet.retiring
        if w.leaving is Leaving.DRAINED
    )


def cancel_all(fleet: Fleet, reason: Reason, message: str) -> tuple[Cancel, ...]:
    """Put every worker that is on its way out back to service."""
    return tuple(Cancel(w.name, w.dask_names, reason, message) for w in fleet.retiring)


def _divide(
    observed: ObservedCluster, fleet: Fleet, past: Past, *, idle_s: float, now: float
) -> tuple[list[ObservedWorker], tuple[Blocker, ...]]:
    in_service = sum(
        w.leaving is Leaving.NO and w.status == "running" and not w.departing
        for w in observed.scheduler.workers
    )
    at = Context(past, now, in_service, idle_s)
    free, blockers = [], []
    for worker in fleet.active:
        if (blocker := veto(worker, at)) is None:
            free.append(worker)
        else:
            blockers.append(blocker)
    return free, tuple(blockers)


def _never_connected(worker: ObservedWorker) -> Delete:
    why = worker.waiting or "still starting"
    message = f"not needed and never connected ({why})"
    return Delete(worker.name, worker.uid, (), Reason.NEVER_CONNECTED, message)


def _never_needed(deletions: Sequence[Delete], desired: int) -> str:
    return f"{desired} desired: {len(deletions)} workers that never connected leave first"


def _retire(worker: ObservedWorker, desired: int) -> Retire:
    idle = format_duration(worker.idle_s)
    message = f"idle for {idle}, {desired} workers desired"
    return Retire(worker.name, worker.dask_names, Reason.UNDERUTILIZED, message)
