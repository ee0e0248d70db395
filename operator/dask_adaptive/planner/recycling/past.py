"""What recycling remembers from pass to pass: of workers their use, of recycles how they went."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dask_adaptive.model.observed import Deleting, ObservedCluster, ObservedWorker, Retiring
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, Outcome, Plan, Restart, Retire
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast
from dask_adaptive.planner.number.capacity import SEEN_S, arrival_s, starts
from dask_adaptive.planner.recycling.budgets import HOUR_S
from dask_adaptive.planner.recycling.effective_quotas import life_of
from dask_adaptive.planner.recycling.quotas import paced_over_s

#: Passes that follow each other faster than this say nothing of a pace.
SHORTEST_S = 1.0

#: A replacement that did not come is not asked for again for longer than this.
LONGEST_S = 3600.0

#: What people asked for is not counted by maxPerHour.
_ASKED = frozenset({Reason.RECYCLE_REQUESTED, Reason.DRIFTED})

Pace = tuple[float, int, float]


def remember_recycles(
    past: Past, observed: ObservedCluster, policy: Policy, decided: Plan,
    outcomes: Sequence[Outcome], *, now: float,
) -> Past:  # fmt: skip
    """The past with what recycles need of this pass, and without workers that are gone."""
    workers = {w.name: w for g in observed.groups for w in g.workers}
    done = [outcome.action for outcome in outcomes if outcome.done]
    replaced = [a for a in done if isinstance(a, Retire) and a.reason.replaces]
    begun, counted = _begun(past, workers, replaced)
    aborted, aborts = _aborted(past, policy, decided, workers, now=now)
    if any(a.worker in decided.floors and a.worker not in decided.waiting for a in replaced):
        aborted, aborts = {}, {}  # its replacement is there: they can be made (again)
    kept = remember_quotas(past.recycle, observed, policy, now=now)
    automatic = [now for reason in begun if reason not in _ASKED]
    since = past.recycle.surging_since
    new = starts(past, workers.values(), observed.clocks, now=now)
    waiting = decided.waiting - decided.aborting.keys()
    seen = frozenset(n for n, w in workers.items() if w.dask_names or n in past.seen)
    return replace(
        past,
        seen=seen,
        lost={n: past.lost.get(n, now) for n in seen if not workers[n].dask_names},
        awaited={
            # The start of one that is gated begins when its gate opens, and that is seen at once.
            n: now + SEEN_S if w.gated else past.awaited.get(n, now)
            for n, w in workers.items()
            if n not in seen
        },
        floors=dict(decided.floors),
        aborts=aborts,
        counted=counted,
        restarted=_restarted(past, workers, done),
        recycle=replace(
            kept,
            begun=(*(at for at in kept.begun if now - at < HOUR_S), *automatic),
            totals=Counter(begun) + Counter(kept.totals),
            surging_since={name: since.get(name, now) for name in waiting},
            aborted=aborted,
            ready_s=arrival_s(past.recycle.ready_s, new),
        ),
    )


def _begun(
    past: Past, workers: Mapping[str, ObservedWorker], replaced: Sequence[Retire]
) -> tuple[list[Reason], dict[str, str]]:
    """Why recycles began in this pass: each pod's is counted once, however often it is tried."""
    reasons = []
    counted = {n: pod for n, pod in past.counted.items() if n in workers}
    for action in replaced:
        life = life_of(workers[action.worker]) if action.worker in workers else ""
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
    count = max(past.aborts.values(), default=0)
    for name in decided.aborting.keys() & workers.keys():
        first_s = policy.recycle_of(workers[name].group).strategy.ready_timeout_s
        until = now + min(first_s * 2 ** min(count, 12), LONGEST_S)
        aborted[name], aborts[name] = (until, decided.aborting[name]), count + 1
    return aborted, aborts


def _restarted(
    past: Past, workers: Mapping[str, ObservedWorker], done: Sequence[Action]
) -> dict[str, str]:
    """Whose pods we have deleted, as long as the scheduler still shows the old processes."""
    leaving = {n for n, w in workers.items() if isinstance(w.lifecycle, Retiring)}
    kept = {n: pod for n, pod in past.restarted.items() if n in leaving}
    return kept | {a.worker: a.pod_uid for a in done if isinstance(a, Restart)}


def remember_quotas(
    past: RecyclePast, observed: ObservedCluster, policy: Policy, *, now: float
) -> RecyclePast:
    """
    The past with what quotas need of this observation, and without workers that are gone.

    `ready_s` is not measured here: that takes knowledge of what was waited for.
    """
    above_since: dict[str, float] = {}
    pace: dict[str, Pace] = {}
    for group in observed.groups:
        recycle = policy.recycle_of(group.name)
        if not recycle.tasks.max and math.isinf(recycle.memory.soft):
            continue
        for worker in group.workers:
            if not worker.dask_names or isinstance(worker.lifecycle, Deleting):
                continue
            life = life_of(worker)
            known, age_s = past.pace.get(life), observed.clocks.pod_age_s(worker)
            pace[life] = _pace(known, worker, age_s=age_s, over_s=paced_over_s(past), now=now)
            if worker.use.unmanaged >= recycle.memory.soft:
                # Another process, though maybe in the same pod, has memory that began anew.
                is_new = known is None or worker.use.runs < known[1]
                above_since[life] = now if is_new else past.above_since.get(life, now)
    return replace(past, above_since=above_since, pace=pace)


def _pace(
    known: Pace | None, worker: ObservedWorker, *, age_s: float, over_s: float, now: float
) -> Pace:
    """When it last worked, its runs by then, and runs a second while it has tasks."""
    runs = worker.use.runs
    if known is None:
        return now, runs, runs / age_s if age_s > 0 else 0.0
    at, before, pace = known
    if now - at < SHORTEST_S:
        return known
    if runs == before and not worker.processing:
        return known  # it rests: `TaskRuns` says for how long its pace counts
    if runs < before or now - at > over_s:
        return now, runs, pace  # another process, or a rest: what lies between was no work
    weight = 1 - math.exp((at - now) / over_s)
    pace += weight * ((runs - before) / (now - at) - pace)
    # An average that begins at nothing comes too late for a worker that is spent within seconds.
    is_young = 0 < age_s < 3 * over_s
    return now, runs, max(pace, runs / age_s) if is_young else pace
