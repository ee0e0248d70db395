"""What stops scaling as a whole: too many workers away, or a scheduler that does not answer."""

from __future__ import annotations

from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason

#: Fewer workers that are away never stop anything: in a small cluster one is soon a large part.
AWAY_LEAST = 3


def gate(observed: ObservedCluster, policy: Policy, past: Past) -> Step | None:
    """
    Say that nothing is to be scaled, because more of the workers than `maxUnready` are away.

    Then something is wrong with more than the load (a network, a registry, a zone), and what the
    scheduler says of load is as wrong. Only workers that have been connected count: a cluster that
    starts has none that are away. What we let go or replace is not away.

    Returns:
        None: scale. The step's number is that of the workers that are there.

    Source:
        cluster-autoscaler, `--max-total-unready-percentage` (45) and `--ok-total-unready-count`
        (3; there more than so many stop it, here as many do: clusters of workers are smaller).
    """
    if not observed.scheduler.is_connected:
        return None
    known = [
        w
        for group in observed.groups
        for w in group.workers
        if (w.is_connected or w.name in past.seen) and not _is_let_go(w, policy, past)
    ]
    away = sum(not w.is_connected for w in known)
    most = policy.scaling.caps.max_unready
    if away < AWAY_LEAST or away <= most * len(known):
        return None
    message = (
        f"{away} of {len(known)} workers that were connected are away, more than {most:.0%}"
        " (maxUnready): nothing is scaled until they are back"
    )
    return Step("gate", len(known) - away, Reason.TOO_MANY_UNREADY, message)


def fallback_minimum(observed: ObservedCluster, policy: Policy) -> int | None:
    """
    How many workers there shall at least be while the scheduler can't be asked; None: as many as
    there are.
    """
    fallback = policy.scaling.fallback
    scheduler = observed.scheduler
    if scheduler.is_connected or fallback.replicas is None:
        return None
    if scheduler.unanswered < max(1, fallback.failure_threshold):
        return None
    default = policy.bounds(observed.key.default_group)[0]
    return min(max(fallback.replicas, default.minimum), default.maximum)


def _is_let_go(worker: ObservedWorker, policy: Policy, past: Past) -> bool:
    if worker.going or worker.leaving is not Leaving.NO or worker.leaving_reason is not None:
        return True
    if worker.name in past.leaving or worker.name in past.restarted:
        return True
    # Replaced in place: its next pod is on its way. Later than that it is away like any other.
    recycled = past.counted.get(worker.name)
    ready_s = policy.recycle_of(worker.group).ready_timeout_s
    return recycled not in (None, worker.pod_uid) and worker.pod_age_s < ready_s
