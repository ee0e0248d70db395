"""
Workers that are due make room for others: one group's recycles in one pass.

No state is needed to go on: who is due, who drains and why, and who serves, is observed. What is
remembered (`Past`) only says how long something has lasted; without it the same is done later.

Two ways. By surge: the worker does not count as serving any more, so a replacement is asked for;
when it is connected, the worker is retired, and leaves for good. In place: the worker is retired
within the budgets and counts as serving all the while; its pod is deleted, and comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.plan import Blocker, Cancel, Restart, Retire
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Replacing
from dask_adaptive.planner.budgets import (
    Headcount,
    RecycleContext,
    beats_pins,
    count_heads,
    first_allowed,
    is_last_chance,
)
from dask_adaptive.planner.context import PassContext
from dask_adaptive.planner.groups import GroupWorkers, set_apart, sort_workers
from dask_adaptive.planner.leave import ranked_pending, refused_lately
from dask_adaptive.planner.quotas import (
    Assessment,
    RecycleCandidate,
    assess,
    has_spent,
    still_applies,
)


@dataclass(frozen=True, slots=True)
class GroupRecycling:
    """The recycles of one group in this pass."""

    at: RecycleContext
    assessment: Assessment
    workers: GroupWorkers
    heads: Headcount
    back: tuple[Cancel, ...]
    retire: tuple[Retire, ...]
    restart: tuple[Restart, ...]
    blockers: tuple[Blocker, ...]
    rows: tuple[Replacing, ...]
    storm: str
    left: int  # recycles that maxPerHour allows beyond those that are chosen
    floors: Mapping[str, int]
    waiting: frozenset[str]
    aborting: Mapping[str, str]
    is_contested: bool  # some are replaced, and others wait

    @property
    def under_way(self) -> frozenset[str]:
        """Workers that are being replaced."""
        return frozenset(row.worker for row in self.rows if row.state != "Due")


def recycle_unscaled(
    context: PassContext, *, scaled: Collection[str], left: int
) -> tuple[GroupRecycling, ...]:
    """The recycles of all groups but those that we scale: workers are replaced in place."""
    recycled = []
    for group in context.observed.groups:
        if group.name in scaled:
            continue
        # News of machines that go is heeded only where replacements are ours to ask for.
        workers = sort_workers(group, context.past.deleted, heed_nodes=False)
        at = RecycleContext(context, group, group.replicas, left, is_scaled=False)
        recycled.append(recycle_group(workers, assess(context, group), at))
        left = recycled[-1].left
    return tuple(recycled)


def recycle_group(
    workers: GroupWorkers, assessment: Assessment, at: RecycleContext
) -> GroupRecycling:
    """Decide who is replaced now, who waits, and who that was leaving comes back."""
    past, failed = at.context.past, _failed_drains(workers, at)
    restarting, back = _settle_leaving(workers, failed, at)
    workers = set_apart(workers, restarting=restarting, back=[c.worker for c in back])
    heads = count_heads(workers, past, at.desired, at=at.clocks.platform)
    selector = ReplacementSelector(workers, heads, at)
    selector.choose(assessment.due)
    surged = {c.worker.name for c in selector.chosen if c.by_surge}
    workers = set_apart(workers, replaced=surged | selector.useless)
    gate = BudgetGate(heads, at)
    for chosen in selector.chosen:
        gate.offer(chosen)
    is_contested = len(selector.chosen) < len(assessment.due) or bool(gate.blockers)
    draining = [
        Replacing(w.name, w.retiring.reason, w.retiring.message, "Draining")
        for w in (*workers.retiring, *workers.restarting)
        if w.retiring and w.retiring.reason and w.is_replaced
    ]
    floors = {r.worker: past.floors[r.worker] for r in draining if r.worker in past.floors}
    # Their replacement has gone again, or has not come yet.
    short = {n for n, f in floors.items() if heads.in_service < min(f, at.desired)}
    return GroupRecycling(
        at=at,
        assessment=assessment,
        workers=workers,
        heads=heads,
        back=back,
        retire=tuple(gate.retire),
        restart=_restarts(workers, at),
        blockers=(*selector.blockers, *gate.blockers),
        rows=(*draining, *selector.rows, *gate.rows),
        storm=selector.storm,
        left=max(0, selector.left),
        floors={**floors, **gate.floors},
        waiting=frozenset(gate.waiting | short),
        aborting={**failed, **selector.aborting},
        is_contested=bool(selector.chosen) and is_contested,
    )


def _failed_drains(workers: GroupWorkers, at: RecycleContext) -> dict[str, str]:
    """Workers that drain, and whose replacements have not been there for too long."""
    if not at.surges:
        return {}
    past, now = at.context.past, at.context.now
    since, limit_s = past.recycle.surging_since, at.recycle.strategy.ready_timeout_s
    return {
        w.name: why_missing(workers, at)
        for w in workers.retiring
        if w.is_replaced
        and w.is_draining
        and not has_spent(w, at.recycle)  # back in service it would get no task either
        and workers.in_service < min(past.floors.get(w.name, 0), at.desired)
        and now - since.get(w.name, now) >= limit_s
    }


def _settle_leaving(
    workers: GroupWorkers, failed: Mapping[str, str], at: RecycleContext
) -> tuple[frozenset[str], tuple[Cancel, ...]]:
    """
    Of the workers that drain to be replaced: who comes back by itself, and who is called back.

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
    """True if the Deployment of a drained worker is to start the next one."""
    if not at.is_scaled:
        return True
    if worker.retires_for is Reason.DRIFTED:
        return False  # it would be what it was
    return not at.surges or has_spent(worker, at.recycle)


def _restarts(workers: GroupWorkers, at: RecycleContext) -> tuple[Restart, ...]:
    # The old process may stay known to the scheduler for a while, and the pod be the next one.
    terminating = {pod.worker for pod in at.context.observed.terminating}
    done = at.context.past.restarted
    return tuple(
        Restart(
            w.name, w.dask_names, w.retires_for or Reason.RECYCLING,
            "drained: no task, no last copy", w.pod, w.pod_uid,
        )
        for w in workers.restarting
        if w.is_drained
        and w.pod
        and w.name not in terminating
        and (w.name not in done or w.pod_uid == done[w.name] != "")
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

    def __init__(self, workers: GroupWorkers, heads: Headcount, at: RecycleContext) -> None:
        self._heads, self._at = heads, at
        self._active = {w.name: w for w in workers.active}
        #: Workers that can go without a replacement: it is there, or none is needed.
        # One that is paused could not take what another leaves behind.
        paused = sum(w.process.status == "paused" for w in workers.active)
        self._spare = workers.serving - at.desired - paused
        self._slots = max(1, at.recycle.strategy.max_surge.of(max(1, at.desired)))
        # One that drains is one more than desired still. Drained ones are as good as gone.
        self._draining = sum(w.is_replaced and w.is_draining for w in workers.retiring)
        self._hasty = self._surging = 0
        self._floors = at.context.past.floors
        self._is_still = not any(w.takes_tasks for w in workers.active)
        self.left = at.left
        self._why_missing = why_missing(workers, at)
        self.chosen: list[Chosen] = []
        #: Wait their turn, and are of no use meanwhile: others are to take their places.
        self.useless: set[str] = set()
        self.blockers: list[Blocker] = []
        self.rows: list[Replacing] = []
        self.storm = ""
        self.aborting: dict[str, str] = {}

    def choose(self, due: Sequence[RecycleCandidate]) -> None:
        """
        The most urgent first, then those that take no tasks: to let one of them go costs no
        capacity, and as long as a cordoned one waits no other may be cordoned.
        """
        active = self._active.values() if due else ()
        idle = {w.name for w in active if not w.takes_tasks}
        # One number, not a tuple of three: there may be thousands.
        for one in sorted(due, key=lambda c: -4 * c.is_over - 2 * c.is_urgent - (c.worker in idle)):
            self._offer(one)

    def _offer(self, candidate: RecycleCandidate) -> None:
        worker = self._active.get(candidate.worker)
        if worker is None:
            return  # it is on its way already, or has a weightier reason to go
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
        if candidate.is_manual or self.left > 0 or is_last_chance(worker, candidate, self._at):
            return False
        if candidate.is_over:
            self.storm = (
                f"as many workers were replaced within an hour as maxPerHour allows;"
                f" next: {candidate.worker}, {candidate.message}"
            )
        return True

    def _is_by_surge(self, worker: ObservedWorker, candidate: RecycleCandidate) -> bool:
        at = self._at
        if self._spare > 0 or worker.name in self._floors:
            return True  # its replacement may be there already
        # Where no worker takes tasks, none takes results either: without one more nobody can drain.
        is_stuck = candidate.is_spent and self._is_still and at.is_scaled
        return is_stuck or (at.surges and not (candidate.is_spent and at.hold))

    def _surge(self, worker: ObservedWorker, candidate: RecycleCandidate) -> None:
        # The hasty have places of their own: they must not wait for those that drain for hours, and
        # one that waits for a budget must not keep those from leaving that use the budget up.
        is_ending = is_last_chance(worker, candidate, self._at)
        is_hasty = is_ending or _is_at_once(candidate)
        taken = self._hasty if is_hasty else self._surging + self._draining
        has_place = taken < self._slots
        has_failed = has_place and self._has_failed(worker)
        if has_place and has_failed:
            self.aborting[worker.name] = self._why_missing
        if has_place and not has_failed:
            self._hasty += is_hasty
            self._surging += not is_hasty
            self._take(worker, candidate, by_surge=True)
        elif candidate.is_spent or is_ending:
            # It is of no use while it waits, so it need not wait for a replacement either.
            self._take(worker, candidate, by_surge=False)
        elif has_place:
            self._wait(candidate, Reason.RECYCLE_ABORTED, self._why_missing)
        else:
            message = f"{candidate.message}; waits for its turn (maxSurge)"
            self._wait(candidate, Reason.BUDGET_EXHAUSTED, message)
            if worker.process.is_paused:
                self.useless.add(worker.name)

    def _has_failed(self, worker: ObservedWorker) -> bool:
        """True if the replacement of a worker did not come in time."""
        at, context = self._at, self._at.context
        since = context.past.recycle.surging_since.get(worker.name, context.now)
        limit_s = at.recycle.strategy.ready_timeout_s
        if context.now - since < limit_s:
            return False
        return self._heads.in_service - 1 < min(_floor_of(worker, self._heads, at), at.desired)

    def _take(self, worker: ObservedWorker, candidate: RecycleCandidate, *, by_surge: bool) -> None:
        self._spare -= by_surge
        self.left -= not candidate.is_manual
        self.chosen.append(Chosen(worker, candidate, by_surge))

    def _wait(self, candidate: RecycleCandidate, reason: Reason, message: str) -> None:
        if candidate.is_over:
            name = candidate.worker
            self.blockers.append(Blocker(name, reason, message))
            self.rows.append(Replacing(name, candidate.reason, candidate.message, "Due"))


class BudgetGate:
    """Decides which of the selected workers may leave now; the most urgent come first."""

    def __init__(self, heads: Headcount, at: RecycleContext) -> None:
        self._heads, self._at = heads, at
        self._begun = 0
        self._missing = heads.missing
        self.retire: list[Retire] = []
        self.blockers: list[Blocker] = []
        self.rows: list[Replacing] = []
        self.floors: dict[str, int] = {}
        self.waiting: set[str] = set()

    def offer(self, chosen: Chosen) -> None:
        worker, candidate = chosen.worker, chosen.candidate
        is_ready = True
        if chosen.by_surge:
            # The number that served when it was chosen, not what is desired: under load that may
            # be more than there is room for, and would hold the worker for ever. Each one that
            # connects from then on, for whatever reason, takes one place.
            floor = _floor_of(worker, self._heads, self._at)
            self.floors[worker.name] = floor
            others = self._heads.in_service - self._begun - 1
            is_ready = others >= min(floor, self._at.desired)
            if not is_ready:
                self.waiting.add(worker.name)
        begins = candidate.is_over and self._may_leave(worker, candidate, is_ready=is_ready)
        if begins:
            self._begin(worker, candidate)
        state = "Draining" if begins else ("Surging" if chosen.by_surge else "Due")
        self.rows.append(Replacing(worker.name, candidate.reason, candidate.message, state))

    def _may_leave(
        self, worker: ObservedWorker, candidate: RecycleCandidate, *, is_ready: bool
    ) -> bool:
        at, context = self._at, self._at.context
        if is_last_chance(worker, candidate, at):
            return True  # it is missing from then on, whatever is done now
        if (refusal := refused_lately(worker, context)) is not None:
            self.blockers.append(Blocker(worker.name, *refusal))
            return False
        allowed = at.allowance(candidate.reason, self._heads.base)
        if candidate.is_spent:
            # It is missing already. But others have to take the results of those that drain.
            return is_ready and self._heads.draining + self._begun < max(1, allowed)
        if self._missing + worker.takes_tasks > allowed:
            missing = f"{self._missing} of {self._heads.base} are missing"
            message = f"{candidate.message}; {missing}, {allowed:.0f} may be (disruption.budgets)"
            self.blockers.append(Blocker(worker.name, Reason.BUDGET_EXHAUSTED, message))
            return False
        return is_ready or _is_at_once(candidate)

    def _begin(self, worker: ObservedWorker, candidate: RecycleCandidate) -> None:
        self._begun += 1
        self._missing += worker.takes_tasks
        over_pins = beats_pins(candidate, self._at.recycle)
        self.retire.append(
            Retire(
                worker.name, worker.dask_names, candidate.reason, candidate.message,
                busy_ok=True, over_pins=over_pins,
            )
        )  # fmt: skip


def why_missing(workers: GroupWorkers, at: RecycleContext) -> str:
    """Why a replacement has not come, in the platform's words."""
    late = f"no replacement within {format_duration(at.recycle.strategy.ready_timeout_s)}"
    if not workers.pending:
        return f"{late}: no worker was created"
    waiting = (w.waiting for w in ranked_pending(workers.pending) if w.waiting)
    return f"{late}: {next(waiting, 'still starting')}"


def _is_at_once(candidate: RecycleCandidate) -> bool:
    """Before memory is so full that the nanny kills, it is too late to wait for a replacement."""
    return candidate.reason is Reason.MEMORY_HARD


def _floor_of(worker: ObservedWorker, heads: Headcount, at: RecycleContext) -> int:
    """The number of others that must serve before a worker leaves, unless fewer are desired."""
    return at.context.past.floors.get(worker.name, heads.in_service)
