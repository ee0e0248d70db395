"""Disruption budgets: the number of workers that may be replaced at once, and other obstacles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.observed import Clocks, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, StrategyType
from dask_adaptive.model.windows import is_open
from dask_adaptive.planner.context import PassContext
from dask_adaptive.planner.groups import GroupWorkers
from dask_adaptive.planner.leave import claims
from dask_adaptive.planner.quotas import RecycleCandidate, own_margin_s

#: `maxPerHour` counts so far back.
HOUR_S = 3600.0

#: A pod that is younger than its Deployment by more than this is not its first one.
FIRST_POD_S = 30.0

#: Why a worker waits: the word, and a sentence.
Objection = tuple[Reason, str]


@dataclass(frozen=True)
class RecycleContext:
    """One group in one pass, as everything that decides about its recycles sees it."""

    context: PassContext
    group: ObservedGroup
    desired: int  # workers that shall serve; for groups that we do not scale, `replicas`
    left: int  # recycles that maxPerHour still allows
    is_scaled: bool  # its number of workers is ours to set

    @cached_property
    def clocks(self) -> Clocks:
        return self.context.clocks

    @cached_property
    def recycle(self) -> Recycle:
        return self.context.policy.recycle_of(self.group.name)

    @cached_property
    def is_open(self) -> bool:
        """A window is, or there is none."""
        return is_open(self.context.policy.disruption.windows, self.context.observed.at)

    @cached_property
    def aborted(self) -> Mapping[str, tuple[float, str]]:
        """Workers whose replacement did not come: until when it is not tried again, and why."""
        known = self.context.past.recycle.aborted
        return {name: one for name, one in known.items() if one[0] > self.context.now}

    @cached_property
    def surges(self) -> bool:
        """Replacements come first."""
        return self.is_scaled and self.recycle.strategy.type is StrategyType.SURGE

    @cached_property
    def hold(self) -> str:
        """Why no worker at all is to be replaced now: replacements do not come; else empty."""
        return max(self.aborted.values(), default=(0.0, ""))[1] if self.surges else ""

    def allowance(self, reason: Reason, total: int) -> float:
        """
        The number of `total` workers that may be missing for a reason: the smallest budget
        counts.
        """
        budgets = self.context.policy.disruption.budgets
        mine = [b for b in budgets if not b.reasons or reason in b.reasons]
        return min((b.workers.of(total) for b in mine), default=math.inf)

    @cached_property
    def forbidden(self) -> frozenset[Reason]:
        """For these workers never leave: a budget of none at all says so."""
        return frozenset(r for r in Reason if r.replaces and self.allowance(r, 1) < 1)


def left_this_hour(context: PassContext) -> int:
    """
    The number of workers in all groups that may still be replaced within the hour for their
    quotas.
    """
    limit = context.policy.recycle.max_per_hour
    workers = sum(len(g.workers) for g in context.observed.groups)
    if limit is None:
        return workers
    begun = sum(context.now - at < HOUR_S for at in context.past.recycle.begun)
    return max(0, limit.of(workers) - begun)


@dataclass(frozen=True, slots=True)
class Headcount:
    """
    One group's workers as budgets see them, like those of a PodDisruptionBudget.

    `base` is what should be in service: workers that are wanted and were connected before. One
    that was never connected is not missed, one that leaves for good is made up for by another.
    """

    base: int
    in_service: int  # connected and not leaving, those that take no new tasks included
    cordoned: int  # of them: kept from new tasks by their scheduler, for a quota
    paused: int  # of the others: by themselves, or because they end too soon
    draining: int  # to be replaced

    @property
    def missing(self) -> int:
        """Workers that are missed now; negative: more serve than are needed."""
        return self.base - (self.in_service - self.cordoned - self.paused)


def count_heads(workers: GroupWorkers, past: Past, wanted: int, *, at: float) -> Headcount:
    """
    Args:
        wanted: Workers that shall serve; for groups that we do not scale, as many as they ask for.
        at: Seconds since 1970.
    """
    serving = (*workers.active, *workers.replaced)
    away = sum(_was_connected(w, past, at) for w in workers.pending)
    known = len(serving) + len(workers.restarting) + away
    # One that left before its replacement had come is missed until as many serve as did then.
    # Without a past each is: another may serve in its place, which is then not counted on.
    leaving = (*workers.retiring, *workers.restarting)
    left = [w.name for w in workers.retiring if w.is_replaced]
    unsure = sum(name not in past.floors for name in left)
    known = max([known + unsure, *(past.floors[n] for n in left if n in past.floors)])
    processes = [w.process for w in serving]
    return Headcount(
        base=min(wanted, known),
        in_service=len(serving),
        cordoned=sum(p.cordon is not None for p in processes),
        paused=sum((p.status == "paused" or p.too_short) and p.cordon is None for p in processes),
        draining=sum(w.is_replaced and w.is_draining for w in leaving),
    )


def _was_connected(worker: ObservedWorker, past: Past, at: float) -> bool:
    # Without a past, by its pod: one that is younger than its Deployment has come in the place of
    # another. Upstream's Deployments make their first pod within seconds.
    is_next_pod = worker.made_at + FIRST_POD_S < worker.pod_made_at < at
    return bool(worker.terminating) or worker.name in past.seen or is_next_pod


def first_allowed(
    worker: ObservedWorker, candidate: RecycleCandidate, at: RecycleContext
) -> RecycleCandidate | Objection:
    """The first of a worker's reasons that allows its replacement; else the obstacle."""
    first = _objection(worker, candidate, at)
    if first is None:
        return candidate
    others = (c for c in candidate.rest if c.is_over == candidate.is_over)
    return next((c for c in others if _objection(worker, c, at) is None), first)


def _objection(
    worker: ObservedWorker, candidate: RecycleCandidate, at: RecycleContext
) -> Objection | None:
    """Why a worker must not be replaced now for this reason, or None."""
    reason, message = candidate.reason, candidate.message
    if at.forbidden and reason in at.forbidden:
        return Reason.BUDGET_EXHAUSTED, f"{message}; a budget of 0 forbids {reason}"
    if reason is Reason.DRIFTED and not at.is_scaled:
        # Its Deployment would have to go, and upstream to be told by two changes of `replicas`
        # that it is to make another: an operator that dies between them leaves a smaller group.
        return Reason.DRIFTED, f"{message}; only the default group is rolled out automatically"
    if worker.is_pinned and not (
        beats_pins(candidate, at.recycle)
        and all(p.source != "shuffle" for p in worker.process.pins)
    ):
        return Reason.PINNED, f"{message}; pinned by {', '.join(sorted(claims(worker)))}"
    if worker.process.actors:
        return Reason.HOLDS_ACTORS, f"{message}; holds actors, which cannot be moved"
    # Windows, minAge and back-offs keep workers in service: one that is spent is not.
    return None if candidate.is_spent else _untimely(worker, candidate, at)


def _untimely(
    worker: ObservedWorker, candidate: RecycleCandidate, at: RecycleContext
) -> Objection | None:
    message, aborted = candidate.message, at.aborted
    why = aborted[worker.name][1] if worker.name in aborted else at.hold
    # Who asks by hand may have mended what was wrong: that is tried at once.
    is_held = not candidate.is_manual or worker.name in aborted
    if why and is_held and not is_last_chance(worker, candidate, at):
        return Reason.RECYCLE_ABORTED, why
    # Somebody wants it now: neither windows nor minAge hold it. (Drift is rolled out in windows.)
    if candidate.is_urgent or candidate.reason is Reason.RECYCLE_REQUESTED:
        return None
    if not at.is_open:
        return Reason.NOT_YET, f"{message}; waits for a window (disruption.windows)"
    least_s = at.recycle.min_age_s
    if at.clocks.pod_age_s(worker) < least_s:
        least = format_duration(least_s)
        return Reason.NOT_YET, f"{message}; its pod is younger than {least} (minAge)"
    return None


def beats_pins(candidate: RecycleCandidate, recycle: Recycle) -> bool:
    """True if pins of people and of code do not count."""
    return candidate.reason is Reason.MEMORY_HARD and recycle.memory.override_pins


def is_last_chance(worker: ObservedWorker, candidate: RecycleCandidate, at: RecycleContext) -> bool:
    """True if its process is about to end whatever we do: its results must be copied by then."""
    is_about_end = candidate.reason is Reason.LIFETIME
    margin_s = own_margin_s(worker, at.recycle.lifetime, at.clocks)
    return is_about_end and at.clocks.ends_in_s(worker) <= margin_s
