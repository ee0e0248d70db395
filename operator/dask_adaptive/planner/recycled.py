"""What to keep of one pass's recycles for the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Outcome, Plan, Restart, Retire
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.arrivals import arrival_s
from dask_adaptive.planner.budget import HOUR_S
from dask_adaptive.planner.quotas import remember_quotas

#: What people asked for is not counted by maxPerHour.
_ASKED = frozenset({Reason.RECYCLE_REQUESTED, Reason.RESTART_REQUESTED, Reason.DRIFTED})

#: A replacement that did not come is not asked for again for longer than this.
LONGEST_S = 3600.0


def remember_recycles(
    past: Past,
    observed: ObservedCluster,
    policy: Policy,
    decided: Plan,
    outcomes: Sequence[Outcome],
    *,
    now: float,
) -> Past:
    """The past with what recycles need of this pass, and without workers that are gone."""
    workers = {w.name: w for g in observed.groups for w in g.workers}
    kept = remember_quotas(past.recycle, observed, policy, now=now)
    begun, counted = _begun(past, workers, outcomes)
    automatic = [reason for reason in begun if reason not in _ASKED]
    aborted, aborts = _aborted(past, policy, decided, workers, now=now)
    if any(_has_come(o, decided) for o in outcomes):
        aborted, aborts = {}, {}
    return replace(
        past,
        seen=frozenset(n for n, w in workers.items() if w.is_connected or n in past.seen),
        floors=dict(decided.floors),
        aborts=aborts,
        counted=counted,
        restarted=_restarted(past, workers, outcomes),
        recycle=replace(
            kept,
            begun=(*(at for at in kept.begun if now - at < HOUR_S), *(now for _ in automatic)),
            totals=Counter(begun) + Counter(kept.totals),
            surging_since={
                n: past.recycle.surging_since.get(n, now)
                for n in decided.waiting
                if n not in decided.aborting
            },
            aborted=aborted,
            ready_s=arrival_s(past.recycle.ready_s, past, workers.values()),
        ),
    )


def _begun(
    past: Past, workers: Mapping[str, ObservedWorker], outcomes: Sequence[Outcome]
) -> tuple[list[Reason], dict[str, str]]:
    """Why recycles began in this pass: each pod's is counted once, however often it is tried."""
    reasons = []
    counted = {n: pod for n, pod in past.counted.items() if n in workers}
    for outcome in outcomes:
        action = outcome.action
        if not (isinstance(action, Retire) and outcome.done and action.reason.replaces):
            continue
        worker = workers.get(action.worker)
        life = (worker.pod_uid or worker.uid) if worker else ""
        if counted.get(action.worker) != life:
            counted[action.worker] = life
            reasons.append(action.reason)
    return reasons, counted


def _aborted(
    past: Past, policy: Policy, decided: Plan, workers: Mapping[str, ObservedWorker], *, now: float
) -> tuple[dict[str, tuple[float, str]], dict[str, int]]:
    """Back-offs, twice as long each time, whichever worker it is that waits in vain."""
    known = past.recycle.aborted
    aborted = {n: a for n, a in known.items() if n in workers and a[0] > now}
    aborts = {n: count for n, count in past.aborts.items() if n in workers}
    for name, why in decided.aborting.items():
        if name in workers:
            count = max(past.aborts.values(), default=0)
            first_s = policy.recycle_of(workers[name].group).ready_timeout_s
            aborted[name] = (now + min(first_s * 2 ** min(count, 12), LONGEST_S), why)
            aborts[name] = count + 1
    return aborted, aborts


def _has_come(outcome: Outcome, decided: Plan) -> bool:
    """Whether a worker has left because its replacement is there: they can be made (again)."""
    action = outcome.action
    if not (isinstance(action, Retire) and outcome.done and action.reason.replaces):
        return False
    return action.worker in decided.floors and action.worker not in decided.waiting


def _restarted(
    past: Past, workers: Mapping[str, ObservedWorker], outcomes: Sequence[Outcome]
) -> dict[str, str]:
    """Whose pods we have deleted, as long as the scheduler still shows the old processes."""
    kept = {
        n: pod
        for n, pod in past.restarted.items()
        if n in workers and workers[n].leaving is not Leaving.NO
    }
    done = {
        o.action.worker: o.action.pod_uid
        for o in outcomes
        if o.done and isinstance(o.action, Restart)
    }
    return kept | done
