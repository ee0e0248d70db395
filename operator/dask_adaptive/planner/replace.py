"""
Replaces workers that are due: one group's recycles in one pass.

No state is needed to continue: due, draining and serving workers are observed. The memory (`Past`)
only says how long something has lasted; without it the same is done later.

There are two strategies. Surge: the worker no longer counts as serving, so a replacement is
requested; once that is connected, the worker is retired for good. InPlace: the worker is retired
within the budgets and counts as serving throughout; its pod is deleted, and its Deployment creates
the next.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.observed import Clocks, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Blocker, Cancel, Restart, Retire
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, Replacing, StrategyType
from dask_adaptive.model.windows import is_open
from dask_adaptive.planner.context import PassContext
from dask_adaptive.planner.groups import GroupWorkers, set_apart, sort_workers
from dask_adaptive.planner.leave import (
    WITH_ACTORS,
    Objection,
    pinned,
    ranked_pending,
    refused_lately,
)
from dask_adaptive.planner.quotas import (
    Assessment,
    RecycleCandidate,
    assess,
    has_spent,
    own_margin_s,
    still_applies,
)

#: Period of `maxPerHour`.
HOUR_S = 3600.0

#: A pod that is younger than its Deployment by more than this is a later one.
FIRST_POD_S = 30.0


@dataclass(frozen=True)
class RecycleContext:
    """One group in one pass, as all decisions about its recycles see it."""

    context: PassContext
    group: ObservedGroup
    desired: int  # workers that shall serve; for groups that we do not scale, `replicas`
    left: int  # recycles that maxPerHour still allows
    is_scaled: bool  # we set its number of workers

    @cached_property
    def clocks(self) -> Clocks:
        return self.context.clocks

    @cached_property
    def recycle(self) -> Recycle:
        return self.context.policy.recycle_of(self.group.name)

    @cached_property
    def is_open(self) -> bool:
        """True if a window is open, or none is set."""
        return is_open(self.context.policy.disruption.windows, self.context.observed.at)

    @cached_property
    def aborted(self) -> Mapping[str, tuple[float, str]]:
        """Workers whose replacement did not come, with the end of the back-off and the reason."""
        known = self.context.past.recycle.aborted
        return {name: one for name, one in known.items() if one[0] > self.context.now}

    def is_overdue(self, worker: str) -> bool:
        """True if the replacement of a worker is overdue."""
        now, since = self.context.now, self.context.past.recycle.surging_since
        return now - since.get(worker, now) >= self.recycle.strategy.ready_timeout_s

    @cached_property
    def surges(self) -> bool:
        """True if replacements come first."""
        return self.is_scaled and self.recycle.strategy.type is StrategyType.SURGE

    @cached_property
    def hold(self) -> str:
        """Return why no worker may be replaced now, because replacements fail; empty if any may."""
        return max(self.aborted.values(), default=(0.0, ""))[1] if self.surges else ""

    def allowance(self, reason: Reason, total: int) -> float:
        """Return how many of `total` workers may be missing for a reason: the smallest budget."""
        budgets = self.context.policy.disruption.budgets
        mine = [b for b in budgets if not b.reasons or reason in b.reasons]
        return min((b.workers.of(total) for b in mine), default=math.inf)

    @cached_property
    def forbidden(self) -> frozenset[Reason]:
        """Reasons with a budget of 0: no worker is ever replaced for these."""
        return frozenset(r for r in Reason if r.replaces and self.allowance(r, 1) < 1)


def left_this_hour(context: PassContext) -> int:
    """Return how many workers of all groups may still be replaced for quotas within the hour."""
    limit = context.policy.recycle.max_per_hour
    workers = sum(len(g.workers) for g in context.observed.groups)
    if limit is None:
        return workers
    begun = sum(context.now - at < HOUR_S for at in context.past.recycle.begun)
    return max(0, limit.of(workers) - begun)


@dataclass(slots=True)
class GroupRecycling:
    """The recycles of one group in this pass: those under way, and those decided now."""

    at: RecycleContext
    assessment: Assessment
    workers: GroupWorkers
    heads: Headcount
    back: tuple[Cancel, ...]
    restart: tuple[Restart, ...]
    left: int  # recycles that maxPerHour allows beyond those that are chosen
    aborting: dict[str, str]
    rows: list[Replacing]
    floors: dict[str, int]
    waiting: set[str]
    chosen: list[Chosen] = field(default_factory=list)
    retire: list[Retire] = field(default_factory=list)
    blockers: list[Blocker] = field(default_factory=list)
    storm: str = ""

    @property
    def is_contested(self) -> bool:
        """True if some workers are being replaced while others wait."""
        is_complete = len(self.chosen) == len(self.assessment.due) and not self.blockers
        return bool(self.chosen) and not is_complete

    @property
    def under_way(self) -> frozenset[str]:
        """Workers that are being replaced."""
        return frozenset(row.worker for row in self.rows if row.state != "Due")


def recycle_unscaled(
    context: PassContext, *, scaled: Collection[str], left: int
) -> Iterator[GroupRecycling]:
    """Replace workers of unscaled groups in place."""
    for group in (g for g in context.observed.groups if g.name not in scaled):
        # Node signals are heeded only where we may request replacements.
        workers = sort_workers(group, context.past.deleted, heed_nodes=False)
        at = RecycleContext(context, group, group.replicas, left, is_scaled=False)
        mine = recycle_group(workers, assess(context, group), at)
        left = mine.left
        yield mine


def recycle_group(
    workers: GroupWorkers, assessment: Assessment, at: RecycleContext
) -> GroupRecycling:
    """Decide which workers are replaced now, which wait, and which return to service."""
    past, failed = at.context.past, _failed_drains(workers, at)
    restarting, back = _settle_leaving(workers, failed, at)
    workers = set_apart(workers, restarting=restarting, back=[c.worker for c in back])
    heads = count_heads(workers, past, at.desired, at=at.clocks.platform)
    draining = [
        Replacing(w.name, w.retiring.reason, w.retiring.message, "Draining")
        for w in (*workers.retiring, *workers.restarting)
        if w.retiring and w.retiring.reason and w.is_replaced
    ]
    floors = {r.worker: past.floors[r.worker] for r in draining if r.worker in past.floors}
    # Their replacement has left again, or has not come yet.
    short = {n for n, f in floors.items() if heads.in_service < min(f, at.desired)}
    restart = _restarts(workers, at)
    mine = GroupRecycling(
        at, assessment, workers, heads, back, restart, at.left, failed, draining, floors, short
    )
    useless = ReplacementSelector(mine).choose(assessment.due)
    surged = {c.worker.name for c in mine.chosen if c.by_surge}
    mine.workers = set_apart(workers, replaced=surged | useless)
    gate = BudgetGate(mine)
    for chosen in mine.chosen:
        gate.offer(chosen)
    return mine


def _failed_drains(workers: GroupWorkers, at: RecycleContext) -> dict[str, str]:
    """Return draining workers whose replacements have been missing for too long."""
    if not at.surges:
        return {}
    floors = at.context.past.floors
    return {
        w.name: why_missing(workers, at)
        for w in workers.retiring
        if w.is_replaced
        and w.is_draining
        and not has_spent(w, at.recycle)  # back in service it would get no task either
        and workers.in_service < min(floors.get(w.name, 0), at.desired)
        and at.is_overdue(w.name)
    }


def _settle_leaving(
    workers: GroupWorkers, failed: Mapping[str, str], at: RecycleContext
) -> tuple[frozenset[str], tuple[Cancel, ...]]:
    """
    Find which workers draining for a replacement restart by themselves, and which to call back.

    The others leave for good: those by surge, and those that nobody needs any more. One that
    drains for what no longer holds (its quota is gone from the policy, its annotation was taken
    back) returns to service, unless it is drained and surplus.
    """
    needed = at.desired - len(workers.pending) - len(workers.active)
    restarting, back = [], []
    for worker in workers.retiring:
        if not worker.is_replaced:
            continue
        is_needed = needed > 0 or not at.is_scaled
        if worker.name in failed:
            back.append(_cancel(worker, Reason.RECYCLE_ABORTED, failed[worker.name]))
        elif not still_applies(worker, at.recycle):
            if worker.is_drained and not is_needed:
                continue
            back.append(_cancel(worker, Reason.WANTED_AGAIN, "the reason no longer applies"))
        elif is_needed and _comes_back(worker, at):
            restarting.append(worker.name)
        else:
            continue
        needed -= 1
    return frozenset(restarting), tuple(back)


def _comes_back(worker: ObservedWorker, at: RecycleContext) -> bool:
    """True if a drained worker's Deployment is to start the next pod."""
    if not at.is_scaled:
        return True
    if worker.retires_for is Reason.DRIFTED:
        return False  # it would be what it was
    return not at.surges or has_spent(worker, at.recycle)


def _restarts(workers: GroupWorkers, at: RecycleContext) -> tuple[Restart, ...]:
    # The scheduler may still know the old process while the pod is already the next one.
    terminating = {pod.worker for pod in at.context.observed.terminating}
    done = at.context.past.restarted
    return tuple(
        Restart(
            w.name, w.dask_names, w.retires_for or Reason.RECYCLING,
            "drained: no task, no last copy", w.platform.pod, w.platform.pod_uid,
        )
        for w in workers.restarting
        if w.is_drained
        and w.platform.pod
        and w.name not in terminating
        and (w.name not in done or w.platform.pod_uid == done[w.name] != "")
    )  # fmt: skip


def _cancel(worker: ObservedWorker, reason: Reason, message: str) -> Cancel:
    return Cancel(worker.name, worker.dask_names, reason, message)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A worker that is to be replaced now."""

    worker: ObservedWorker
    candidate: RecycleCandidate
    by_surge: bool = False


class ReplacementSelector:
    """Selects the workers to replace now."""

    def __init__(self, mine: GroupRecycling) -> None:
        at, workers = mine.at, mine.workers
        self._mine, self._at = mine, at
        self._active: Mapping[str, ObservedWorker] = {}
        #: Workers that can go without a replacement: it is there, or none is needed.
        # A paused worker could not take over another's work.
        paused = sum(w.process.is_paused for w in workers.noted)
        self._spare = workers.serving - at.desired - paused
        self._slots = max(1, at.recycle.strategy.max_surge.of(max(1, at.desired)))
        # A draining worker still counts beyond the desired number; a drained one does not.
        self._draining = sum(w.is_replaced and w.is_draining for w in workers.retiring)
        self._hasty = self._surging = 0
        self._floors = at.context.past.floors
        self._is_still = not any(w.takes_tasks for w in workers.active)
        self._why_missing = why_missing(workers, at)
        self._useless: set[str] = set()

    def choose(self, due: Sequence[RecycleCandidate]) -> set[str]:
        """
        Choose urgent workers first, then those that take no tasks: replacing these costs no
        capacity, and a waiting cordoned worker keeps others from being cordoned.

        Returns:
            Workers that wait for their turn and take no tasks meanwhile: others are requested in
            their places.
        """
        self._active = {w.name: w for w in self._mine.workers.active} if due else {}
        idle = {w.name for w in self._mine.workers.noted if not w.takes_tasks}
        # One number, not a tuple of three: there may be thousands.
        for one in sorted(due, key=lambda c: -4 * c.is_over - 2 * c.is_urgent - (c.worker in idle)):
            self._offer(one)
        return self._useless

    def _offer(self, candidate: RecycleCandidate) -> None:
        worker = self._active.get(candidate.worker)
        if worker is None:
            return  # it is leaving already, or has a stronger reason to
        one = first_allowed(worker, candidate, self._at)
        if not isinstance(one, RecycleCandidate):
            self._wait(candidate, *one)
        elif self._is_stormy(worker, one):
            self._wait(one, Reason.RECYCLE_STORM, f"{one.message}; maxPerHour is used up")
        elif self._is_by_surge(worker, one):
            self._surge(worker, one)
        elif one.is_over:
            self._take(worker, one, by_surge=False)

    def _is_stormy(self, worker: ObservedWorker, candidate: RecycleCandidate) -> bool:
        is_allowed = candidate.is_manual or self._mine.left > 0
        if is_allowed or is_last_chance(worker, candidate, self._at):
            return False
        if candidate.is_over:
            self._mine.storm = (
                f"as many workers were replaced within an hour as maxPerHour allows;"
                f" next: {candidate.worker}, {candidate.message}"
            )
        return True

    def _is_by_surge(self, worker: ObservedWorker, candidate: RecycleCandidate) -> bool:
        at = self._at
        if self._spare > 0 or worker.name in self._floors:
            return True  # its replacement may be there already
        # If no worker takes tasks, none takes results: nothing can drain without one more worker.
        is_stuck = candidate.is_spent and self._is_still and at.is_scaled
        return is_stuck or (at.surges and not (candidate.is_spent and at.hold))

    def _surge(self, worker: ObservedWorker, candidate: RecycleCandidate) -> None:
        # Urgent workers have places of their own: they must not wait for drains of hours, and one
        # that waits for a budget must not block those that use it up.
        is_ending = is_last_chance(worker, candidate, self._at)
        is_hasty = is_ending or _is_at_once(candidate)
        taken = self._hasty if is_hasty else self._surging + self._draining
        has_place = taken < self._slots
        has_failed = has_place and self._has_failed(worker)
        if has_failed:
            self._mine.aborting[worker.name] = self._why_missing
        if has_place and not has_failed:
            self._hasty += is_hasty
            self._surging += not is_hasty
            self._take(worker, candidate, by_surge=True)
        elif candidate.is_spent or is_ending:
            # It serves nothing while it waits, so it need not wait for a replacement.
            self._take(worker, candidate, by_surge=False)
        elif has_place:
            self._wait(candidate, Reason.RECYCLE_ABORTED, self._why_missing)
        else:
            message = f"{candidate.message}; waits for its turn (maxSurge)"
            self._wait(candidate, Reason.BUDGET_EXHAUSTED, message)
            if worker.process.is_paused:
                self._useless.add(worker.name)

    def _has_failed(self, worker: ObservedWorker) -> bool:
        """True if the replacement of a worker did not come in time."""
        heads, at = self._mine.heads, self._at
        is_missing = heads.in_service - 1 < min(_floor_of(worker, heads, at), at.desired)
        return is_missing and at.is_overdue(worker.name)

    def _take(self, worker: ObservedWorker, candidate: RecycleCandidate, *, by_surge: bool) -> None:
        self._spare -= by_surge
        self._mine.left = max(0, self._mine.left - (not candidate.is_manual))
        self._mine.chosen.append(Chosen(worker, candidate, by_surge))

    def _wait(self, candidate: RecycleCandidate, reason: Reason, message: str) -> None:
        if candidate.is_over:
            name = candidate.worker
            self._mine.blockers.append(Blocker(name, reason, message))
            self._mine.rows.append(Replacing(name, candidate.reason, candidate.message, "Due"))


class BudgetGate:
    """Decides which selected workers may leave now, the most urgent first."""

    def __init__(self, mine: GroupRecycling) -> None:
        self._mine, self._heads, self._at = mine, mine.heads, mine.at
        self._missing = mine.heads.missing

    def offer(self, chosen: Chosen) -> None:
        worker, candidate = chosen.worker, chosen.candidate
        is_ready = True
        if chosen.by_surge:
            # The number serving when it was chosen, not the desired one: under load that may be
            # unreachable, and would hold the worker forever. Each worker that connects later takes
            # one place.
            floor = _floor_of(worker, self._heads, self._at)
            self._mine.floors[worker.name] = floor
            others = self._heads.in_service - len(self._mine.retire) - 1
            is_ready = others >= min(floor, self._at.desired)
            if not is_ready:
                self._mine.waiting.add(worker.name)
        begins = candidate.is_over and self._may_leave(worker, candidate, is_ready=is_ready)
        if begins:
            self._begin(worker, candidate)
        state = "Draining" if begins else ("Surging" if chosen.by_surge else "Due")
        self._mine.rows.append(Replacing(worker.name, candidate.reason, candidate.message, state))

    def _may_leave(
        self, worker: ObservedWorker, candidate: RecycleCandidate, *, is_ready: bool
    ) -> bool:
        at, context = self._at, self._at.context
        if is_last_chance(worker, candidate, at):
            return True  # it counts as missing from then on
        if (refusal := refused_lately(worker, context)) is not None:
            self._mine.blockers.append(Blocker(worker.name, *refusal))
            return False
        allowed = at.allowance(candidate.reason, self._heads.base)
        if candidate.is_spent:
            # It counts as missing already, but others must be able to take its results.
            return is_ready and self._heads.draining + len(self._mine.retire) < max(1, allowed)
        if self._missing + worker.takes_tasks > allowed:
            missing = f"{self._missing} of {self._heads.base} are missing"
            message = f"{candidate.message}; {missing}, {allowed:.0f} allowed (disruption.budgets)"
            self._mine.blockers.append(Blocker(worker.name, Reason.BUDGET_EXHAUSTED, message))
            return False
        return is_ready or _is_at_once(candidate)

    def _begin(self, worker: ObservedWorker, candidate: RecycleCandidate) -> None:
        self._missing += worker.takes_tasks
        over_pins = beats_pins(candidate, self._at.recycle)
        self._mine.retire.append(
            Retire(
                worker.name, worker.dask_names, candidate.reason, candidate.message,
                busy_ok=True, over_pins=over_pins,
            )
        )  # fmt: skip


def why_missing(workers: GroupWorkers, at: RecycleContext) -> str:
    """Return why a replacement has not come, in the platform's words."""
    late = f"no replacement within {format_duration(at.recycle.strategy.ready_timeout_s)}"
    if not workers.pending:
        return f"{late}: no worker was created"
    waiting = (w.waiting for w in ranked_pending(workers.pending) if w.waiting)
    return f"{late}: {next(waiting, 'still starting')}"


def _is_at_once(candidate: RecycleCandidate) -> bool:
    """True if memory is so full that the nanny may kill it before a replacement comes."""
    return candidate.reason is Reason.MEMORY_HARD


def _floor_of(worker: ObservedWorker, heads: Headcount, at: RecycleContext) -> int:
    """Return how many others must serve before a worker leaves, unless fewer are desired."""
    return at.context.past.floors.get(worker.name, heads.in_service)


# Disruption budgets, and other obstacles to the replacement of a worker


@dataclass(frozen=True, slots=True)
class Headcount:
    """
    One group's workers as budgets see them, like those of a PodDisruptionBudget.

    `base` is what should be in service: workers that are wanted and were connected before. One
    that was never connected is not missed, one that leaves for good is made up for by another.
    """

    base: int
    in_service: int  # connected and not leaving, including those without new tasks
    cordoned: int  # of them: cordoned for a quota
    paused: int  # of the others: paused, or ending too soon
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
    away = sum(_was_connected(w, past, at) for w in workers.pending)
    known = workers.in_service + len(workers.restarting) + away
    # A worker that left before its replacement came is missed until as many serve again. Without a
    # past each is missed: another one may already serve in its place.
    leaving = (*workers.retiring, *workers.restarting)
    left = [w.name for w in workers.retiring if w.is_replaced]
    unsure = sum(name not in past.floors for name in left)
    known = max([known + unsure, *(past.floors[n] for n in left if n in past.floors)])
    processes = [w.process for w in (*workers.noted, *workers.replaced)]
    return Headcount(
        base=min(wanted, known),
        in_service=workers.in_service,
        cordoned=sum(p.cordon is not None for p in processes),
        paused=sum((p.is_paused or p.too_short) and p.cordon is None for p in processes),
        draining=sum(w.is_replaced and w.is_draining for w in leaving),
    )


def _was_connected(worker: ObservedWorker, past: Past, at: float) -> bool:
    # Without a past, judge by its pod: one that is younger than its Deployment replaced another.
    # Upstream's Deployments create their first pod within seconds.
    is_next_pod = worker.platform.made_at + FIRST_POD_S < worker.platform.pod_made_at < at
    return bool(worker.terminating) or worker.name in past.seen or is_next_pod


def first_allowed(
    worker: ObservedWorker, candidate: RecycleCandidate, at: RecycleContext
) -> RecycleCandidate | Objection:
    """Return a worker's first reason that allows its replacement, else the first objection."""
    first = _objection(worker, candidate, at)
    if first is None:
        return candidate
    others = (c for c in candidate.other_reasons if c.is_over == candidate.is_over)
    return next((c for c in others if _objection(worker, c, at) is None), first)


def _objection(
    worker: ObservedWorker, candidate: RecycleCandidate, at: RecycleContext
) -> Objection | None:
    """Return why a worker must not be replaced now for this reason, or None."""
    reason, message = candidate.reason, candidate.message
    if at.forbidden and reason in at.forbidden:
        return Reason.BUDGET_EXHAUSTED, f"{message}; a budget of 0 forbids {reason}"
    if reason is Reason.DRIFTED and not at.is_scaled:
        # Its Deployment would have to be deleted, and upstream made to create another by two
        # changes of `replicas`: an operator that dies in between leaves a smaller group.
        return Reason.DRIFTED, f"{message}; only the default group is rolled out automatically"
    if (held := pinned(worker)) and not (
        beats_pins(candidate, at.recycle)
        and all(p.source != "shuffle" for p in worker.process.pins)
    ):
        return held[0], f"{message}; {held[1]}"
    if worker.process.actors:
        return WITH_ACTORS[0], f"{message}; {WITH_ACTORS[1]}"
    # Windows, minAge and back-offs keep workers in service; a spent one is not in service.
    return None if candidate.is_spent else _untimely(worker, candidate, at)


def _untimely(
    worker: ObservedWorker, candidate: RecycleCandidate, at: RecycleContext
) -> Objection | None:
    message, aborted = candidate.message, at.aborted
    why = aborted[worker.name][1] if worker.name in aborted else at.hold
    # A manual request may follow a fix: try it at once.
    is_held = not candidate.is_manual or worker.name in aborted
    if why and is_held and not is_last_chance(worker, candidate, at):
        return Reason.RECYCLE_ABORTED, why
    # Urgent or requested: neither windows nor minAge apply. (Drift is rolled out in windows.)
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
    """True if its process ends soon in any case: its results must be copied by then."""
    if candidate.reason is not Reason.LIFETIME:
        return False
    margin_s = own_margin_s(worker, at.recycle.lifetime, at.clocks)
    return at.clocks.ends_in_s(worker) <= margin_s
