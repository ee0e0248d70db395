"""Of the workers of one group that are due: who is replaced now, and who of them leaves now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dask_adaptive.model.duration import format_duration
from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Blocker, Retire
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, Replacing
from dask_adaptive.planner.budget import (
    Headcount,
    Rules,
    allowance,
    beats_pins,
    first_allowed,
    is_last_chance,
)
from dask_adaptive.planner.candidates import ranked_pending
from dask_adaptive.planner.fleet import Fleet, is_replaced
from dask_adaptive.planner.quotas import Due

#: Before memory is so full that the nanny kills, it is too late to wait for a replacement.
_AT_ONCE = frozenset({Reason.MEMORY_HARD, Reason.GPU_MEMORY})


@dataclass(frozen=True, slots=True)
class Scene:
    """What decides about the recycles of one group."""

    observed: ObservedCluster
    group: ObservedGroup
    policy: Policy
    recycle: Recycle
    rules: Rules
    past: Past
    desired: int  # workers that shall serve; for groups that we do not scale, `replicas`
    left: int  # recycles that maxPerHour still allows
    now: float


@dataclass(frozen=True, slots=True)
class Candidate:
    worker: ObservedWorker
    due: Due
    by_surge: bool = False


class Chooser:
    """Who is to be replaced now; the most urgent are offered first."""

    def __init__(self, fleet: Fleet, heads: Headcount, scene: Scene) -> None:
        self._heads, self._scene = heads, scene
        self._active = {w.name: w for w in fleet.active}
        #: Workers that can go without a replacement: it is there, or none is needed.
        # One that is paused could not take what another leaves behind.
        self._spare = fleet.serving - scene.desired - sum(w.paused for w in fleet.active)
        self._slots = max(1, scene.recycle.max_surge.of(max(1, scene.desired)))
        # One that drains is one more than desired still. Drained ones are as good as gone.
        self._draining = sum(
            is_replaced(w) and w.leaving is Leaving.DRAINING for w in fleet.retiring
        )
        self._hasty = self._surging = 0
        self._gpus = scene.observed.free_gpus
        self._is_still = not any(w.takes_tasks for w in fleet.active)
        self.left = scene.left
        self._why_missing = why_missing(fleet, scene)
        self.chosen: list[Candidate] = []
        #: Wait their turn, and are of no use meanwhile: others are to take their places.
        self.useless: set[str] = set()
        self.blockers: list[Blocker] = []
        self.rows: list[Replacing] = []
        self.storm = ""
        self.aborting: dict[str, str] = {}

    def ordered(self, dues: Iterable[Due]) -> list[Due]:
        """
        The most urgent first, then those that take no tasks: to let one of them go costs no
        capacity, and as long as a stopped one waits no other may be stopped.
        """
        stopped = {w.name for w in self._active.values() if not w.takes_tasks}
        return sorted(dues, key=lambda d: (not d.is_over, not d.is_urgent, d.worker not in stopped))

    def offer(self, due: Due) -> None:
        worker = self._active.get(due.worker)
        if worker is None:
            return  # it is on its way already, or has a weightier reason to go
        one, against = first_allowed(worker, due, self._scene.rules)
        if one is None:
            if against is not None:
                self._wait(due, *against)
        elif (stormy := self._stormy(worker, one)) is not None:
            self._wait(one, *stormy)
        elif self._by_surge(worker, one):
            self._surge(worker, one)
        elif one.is_over:
            self._take(worker, one, by_surge=False)

    def _stormy(self, worker: ObservedWorker, due: Due) -> tuple[Reason, str] | None:
        if due.is_manual or self.left > 0 or is_last_chance(worker, due, self._scene.recycle):
            return None
        if due.is_over:
            self.storm = (
                f"as many workers were replaced within an hour as maxPerHour allows;"
                f" next: {due.worker}, {due.message}"
            )
        return Reason.RECYCLE_STORM, f"{due.message}; maxPerHour is used up"

    def _by_surge(self, worker: ObservedWorker, due: Due) -> bool:
        if self._spare > 0 or worker.name in self._scene.past.floors:
            return True  # its replacement may be there already, on the last GPU
        rules = self._scene.rules
        # Where no worker takes tasks, none takes results either: without one more nobody can drain.
        if due.is_spent and (not rules.surge or rules.hold):
            if not (self._is_still and rules.is_scaled):
                return False
        elif not rules.surge:
            return False
        return not worker.gpus or (self._gpus is not None and self._gpus >= worker.gpus)

    def _surge(self, worker: ObservedWorker, due: Due) -> None:
        # The hasty have places of their own: they must not wait for those that drain for hours, and
        # one that waits for a budget must not keep those from leaving that use the budget up.
        is_hasty = self._is_hasty(worker, due)
        taken = self._hasty if is_hasty else self._surging + self._draining
        is_lost = due.is_spent or is_last_chance(worker, due, self._scene.recycle)
        if is_lost and (taken >= self._slots or self._has_failed(worker)):
            # It is of no use while it waits, so it need not wait for a replacement either.
            if taken < self._slots:
                self.aborting[worker.name] = self._why_missing
            self._take(worker, due, by_surge=False)
        elif taken >= self._slots:
            self._wait(due, Reason.BUDGET_EXHAUSTED, f"{due.message}; waits its turn (maxSurge)")
            if worker.paused:
                self.useless.add(worker.name)
        elif self._has_failed(worker):
            self.aborting[worker.name] = self._why_missing
            self._wait(due, Reason.RECYCLE_ABORTED, self.aborting[worker.name])
        else:
            self._hasty += is_hasty
            self._surging += not is_hasty
            self._take(worker, due, by_surge=True)

    def _is_hasty(self, worker: ObservedWorker, due: Due) -> bool:
        is_harmful = due.is_urgent and due.reason in _AT_ONCE
        return is_harmful or is_last_chance(worker, due, self._scene.recycle)

    def _has_failed(self, worker: ObservedWorker) -> bool:
        since = self._scene.past.recycle.surging_since.get(worker.name)
        if since is None or self._scene.now - since < self._scene.recycle.ready_timeout_s:
            return False
        floor = min(floor_of(worker, self._heads, self._scene), self._scene.desired)
        return self._heads.in_service - 1 < floor

    def _take(self, worker: ObservedWorker, due: Due, *, by_surge: bool) -> None:
        if by_surge:
            if self._spare <= 0 and self._gpus is not None:
                self._gpus -= worker.gpus
            self._spare -= 1
        self.left -= not due.is_manual
        self.chosen.append(Candidate(worker, due, by_surge))

    def _wait(self, due: Due, reason: Reason, message: str) -> None:
        if due.is_over:
            self.blockers.append(Blocker(due.worker, reason, message))
            self.rows.append(Replacing(due.worker, due.reason, due.message, "Due"))


class Gate:
    """Who of those that are to be replaced may leave now; the most urgent are offered first."""

    def __init__(self, heads: Headcount, scene: Scene) -> None:
        self._heads, self._scene = heads, scene
        self._begun = 0
        self._missing = heads.missing
        self.retire: list[Retire] = []
        self.blockers: list[Blocker] = []
        self.rows: list[Replacing] = []
        self.floors: dict[str, int] = {}
        self.waiting: set[str] = set()

    def offer(self, candidate: Candidate) -> None:
        worker, due = candidate.worker, candidate.due
        is_ready = True
        if candidate.by_surge:
            # The number that served when it was chosen, not what is desired: under load that may
            # be more than there is room for, and would hold the worker for ever. Each one that
            # connects from then on, for whatever reason, takes one place.
            floor = floor_of(worker, self._heads, self._scene)
            self.floors[worker.name] = floor
            is_ready = self._heads.in_service - self._begun - 1 >= min(floor, self._scene.desired)
            if not is_ready:
                self.waiting.add(worker.name)
        begins = due.is_over and self._may_leave(worker, due, is_ready=is_ready)
        if begins:
            self._begin(worker, due)
        state = "Draining" if begins else ("Surging" if candidate.by_surge else "Due")
        self.rows.append(Replacing(worker.name, due.reason, due.message, state))

    def _may_leave(self, worker: ObservedWorker, due: Due, *, is_ready: bool) -> bool:
        if is_last_chance(worker, due, self._scene.recycle):
            return True  # it is missing from then on, whatever is done now
        refusal = self._scene.past.refusals.get(worker.name)
        if refusal is not None and refusal.until > self._scene.now:
            self.blockers.append(Blocker(worker.name, refusal.reason, refusal.message))
            return False
        budgets = self._scene.policy.disruption.budgets
        allowed = allowance(budgets, due.reason, max(1, self._heads.base))
        if due.is_spent:
            # It is missing already. But others have to take the results of those that drain.
            return is_ready and self._heads.draining + self._begun < max(1, allowed)
        after = self._missing + worker.takes_tasks
        if after > allowed:
            missing = f"{self._missing} of {self._heads.base} are missing"
            message = f"{due.message}; {missing}, {allowed:.0f} may be (disruption.budgets)"
            self.blockers.append(Blocker(worker.name, Reason.BUDGET_EXHAUSTED, message))
            return False
        return is_ready or (due.is_urgent and due.reason in _AT_ONCE)

    def _begin(self, worker: ObservedWorker, due: Due) -> None:
        self._begun += 1
        self._missing += worker.takes_tasks
        over_pins = beats_pins(due, self._scene.recycle)
        self.retire.append(
            Retire(
                worker.name, worker.dask_names, due.reason, due.message,
                busy_ok=True, over_pins=over_pins,
            )
        )  # fmt: skip


def why_missing(fleet: Fleet, scene: Scene) -> str:
    """Why a replacement has not come, in the platform's words."""
    late = f"no replacement within {format_duration(scene.recycle.ready_timeout_s)}"
    if not fleet.pending:
        return f"{late}: no worker was made"
    waiting = (w.waiting for w in ranked_pending(fleet.pending) if w.waiting)
    return f"{late}: {next(waiting, 'still starting')}"


def floor_of(worker: ObservedWorker, heads: Headcount, scene: Scene) -> int:
    """How many others are to serve before a worker leaves, unless fewer are desired."""
    return scene.past.floors.get(worker.name, heads.in_service)
