"""How many workers may be missing at once for our sake, and what else stands in the way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dask_adaptive.model.duration import format_duration
from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Budget, Recycle, RecyclePast, Strategy
from dask_adaptive.model.windows import is_open
from dask_adaptive.planner.candidates import claims
from dask_adaptive.planner.fleet import Fleet, is_replaced
from dask_adaptive.planner.quotas import Due

#: `maxPerHour` counts so far back.
HOUR_S = 3600.0

#: Somebody wants these now: neither windows nor minAge hold them. (Drift is rolled out in windows.)
_WILLED = frozenset({Reason.RECYCLE_REQUESTED, Reason.RESTART_REQUESTED})

#: A worker that waits, why, in words.
Objection = tuple[Reason, str]


@dataclass(frozen=True, slots=True)
class Headcount:
    """
    One group's workers as budgets see them, like those of a PodDisruptionBudget.

    `base` is what should be in service: workers that are wanted and were connected before. One
    that was never connected is not missed, one that leaves for good is made up for by another.
    """

    base: int
    in_service: int  # connected and not leaving, those that take no new tasks included
    stopped: int  # of them: kept from new tasks by their scheduler, for a quota
    paused: int = 0  # of the others: by themselves, or because they end too soon
    draining: int = 0  # to be replaced

    @property
    def missing(self) -> int:
        """Workers that are missed now; negative: more serve than are needed."""
        return self.base - (self.in_service - self.stopped - self.paused)


def count_heads(fleet: Fleet, past: Past, wanted: int) -> Headcount:
    """
    Args:
        wanted: Workers that shall serve; for groups that we do not scale, as many as they ask for.
    """
    serving = (*fleet.active, *fleet.replaced)
    away = sum(_was_connected(w, past) for w in fleet.pending)
    known = len(serving) + len(fleet.restarting) + away
    # One that left before its replacement had come is missed until as many serve as did then.
    # Without a past each is: another may serve in its place, which is then not counted on.
    left = [w.name for w in fleet.retiring if is_replaced(w)]
    unsure = sum(name not in past.floors for name in left)
    known = max([known + unsure, *(past.floors[n] for n in left if n in past.floors)])
    return Headcount(
        base=min(wanted, known),
        in_service=len(serving),
        stopped=sum(bool(w.stopped) for w in serving),
        paused=sum((w.paused or w.too_short) and not w.stopped for w in serving),
        draining=sum(
            is_replaced(w) and w.leaving is Leaving.DRAINING
            for w in (*fleet.retiring, *fleet.restarting)
        ),
    )


def _was_connected(worker: ObservedWorker, past: Past) -> bool:
    # Without a past, by its pod: one that is younger than its Deployment has come in the place of
    # another. Upstream's Deployments make their first pod within seconds.
    return bool(worker.ending) or worker.name in past.seen or (
        0.0 < worker.pod_age_s < worker.age_s - 30.0
    )  # fmt: skip


def allowance(budgets: Sequence[Budget], reason: Reason, total: int) -> float:
    """How many of `total` workers may be missing for a reason: the smallest budget counts."""
    mine = [b for b in budgets if not b.reasons or reason in b.reasons]
    return min((b.workers.of(total) for b in mine), default=math.inf)


def is_forbidden(budgets: Sequence[Budget], reason: Reason) -> bool:
    """Whether a budget of none at all says that workers never leave for this reason."""
    return allowance(budgets, reason, 1) < 1


def left_this_hour(policy: Policy, observed: ObservedCluster, past: RecyclePast, now: float) -> int:
    """How many more workers may be replaced within the hour for their quotas, in all groups."""
    limit = policy.disruption.max_per_hour
    workers = sum(len(g.workers) for g in observed.groups)
    if limit is None:
        return workers
    return max(0, limit.of(workers) - sum(now - at < HOUR_S for at in past.begun))


@dataclass(frozen=True, slots=True)
class Rules:
    """What may forbid to replace a worker of one group, besides the budgets' present state."""

    recycle: Recycle
    forbidden: frozenset[Reason]
    has_agent: bool
    is_open: bool
    surge: bool  # its replacements come first
    is_scaled: bool  # its number of workers is ours to set
    now: float
    aborted: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # still in force

    @property
    def hold(self) -> str:
        """Why no worker at all is to be replaced now: replacements do not come; else empty."""
        return max(self.aborted.values(), default=(0.0, ""))[1] if self.surge else ""


def rules_for(
    observed: ObservedCluster, policy: Policy, recycle: Recycle, past: RecyclePast,
    *, is_scaled: bool, now: float,
) -> Rules:  # fmt: skip
    return Rules(
        recycle=recycle,
        forbidden=frozenset(
            reason
            for reason in Reason
            if reason.replaces and is_forbidden(policy.disruption.budgets, reason)
        ),
        has_agent=bool(observed.scheduler.agent),
        is_open=is_open(policy.disruption.windows, observed.at),
        surge=is_scaled and recycle.strategy is Strategy.SURGE,
        is_scaled=is_scaled,
        now=now,
        aborted={n: a for n, a in past.aborted.items() if a[0] > now},
    )


def objection(worker: ObservedWorker, due: Due, rules: Rules) -> Objection | None:
    """Why a worker must not be replaced now for this reason, or None."""
    if not rules.has_agent:
        # Stock RPC neither lets a busy worker finish nor says why one leaves.
        return Reason.AGENT_MISSING, f"{due.message}; the scheduler has no agent"
    if due.reason in rules.forbidden:
        return Reason.BUDGET_EXHAUSTED, f"{due.message}; a budget of 0 forbids {due.reason}"
    if due.reason is Reason.DRIFTED and not rules.is_scaled:
        # Its Deployment would have to go, and upstream to be told by two changes of `replicas`
        # that it is to make another: an operator that dies between them leaves a smaller group.
        return Reason.DRIFTED, f"{due.message}; only the default group follows by itself"
    return _held(worker, due, rules) or _untimely(worker, due, rules)


def beats_pins(due: Due, recycle: Recycle) -> bool:
    """Whether pins of people and of code do not count."""
    return due.reason is Reason.MEMORY_HARD and recycle.memory.over_pins


def is_last_chance(worker: ObservedWorker, due: Due, recycle: Recycle) -> bool:
    """Whether its process is about to end whatever we do: what it has must be out by then."""
    return due.reason is Reason.LIFETIME and worker.ends_in_s <= recycle.lifetime.margin_s


def _held(worker: ObservedWorker, due: Due, rules: Rules) -> Objection | None:
    if beats_pins(due, rules.recycle):
        is_pinned = any(p.source == "shuffle" for p in worker.pins)
    else:
        is_pinned = worker.is_pinned
    if is_pinned:
        return Reason.PINNED, f"{due.message}; pinned by {', '.join(sorted(claims(worker)))}"
    if worker.actors:
        return Reason.HOLDS_ACTORS, f"{due.message}; holds actors, which cannot be moved"
    return None


def _untimely(worker: ObservedWorker, due: Due, rules: Rules) -> Objection | None:
    if due.is_spent:
        return None  # windows, minAge and back-offs keep workers in service: this one is not
    why = rules.aborted[worker.name][1] if worker.name in rules.aborted else rules.hold
    # Who asks by hand may have mended what was wrong: that is tried at once.
    is_held = not due.is_manual or worker.name in rules.aborted
    if why and is_held and not is_last_chance(worker, due, rules.recycle):
        return Reason.RECYCLE_ABORTED, why
    if due.is_urgent or due.reason in _WILLED:
        return None
    if not rules.is_open:
        return Reason.OUTSIDE_WINDOW, f"{due.message}; waits for a window (disruption.windows)"
    if worker.pod_age_s < rules.recycle.min_age_s:
        least = format_duration(rules.recycle.min_age_s)
        return Reason.TOO_YOUNG, f"{due.message}; its pod is younger than {least} (minAge)"
    return None


def first_allowed(
    worker: ObservedWorker, due: Due, rules: Rules
) -> tuple[Due | None, Objection | None]:
    """What a worker may be replaced for, of all that it is due for; else what stands against."""
    first = None
    for one in _reasons(due):
        against = objection(worker, one, rules)
        if against is None:
            return one, None
        first = first or against
    return None, first


def _reasons(due: Due) -> Iterable[Due]:
    yield due
    yield from (one for one in due.rest if one.is_over == due.is_over)
