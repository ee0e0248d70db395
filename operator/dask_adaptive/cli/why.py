"""
Explains which workers of a cluster stay, what holds its number, and when each hold ends. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dask_adaptive.cli.status_view import NOT_LOOKED, PolicyView, most_first
from dask_adaptive.loop.status import HeldBy, Status, WorkerRow
from dask_adaptive.loop.summary import pins_of
from dask_adaptive.loop.words import ENDS, FREE, worker_row, worker_state
from dask_adaptive.model.amounts import counted, format_bytes, format_duration, instant
from dask_adaptive.model.observed import ObservedCluster, ObservedWorker, Serving
from dask_adaptive.model.past import Past
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.leave import VetoContext, veto

#: Reasons for which a cluster is not scaled at all.
_NOT_SCALED = frozenset(
    ("Paused", "Advising", "SchedulerUnreachable", "AgentMissing",
     "OwnershipConflict", "ClusterNotFound", "InvalidSpec", "Fallback", "TooManyUnready")
)  # fmt: skip


class Stay(NamedTuple):
    """The reason why one worker stays or leaves."""

    reason: str
    worker: str
    state: str
    ends: str
    message: str


class Hold(NamedTuple):
    """A reason for which a group, or the whole cluster, does not shrink."""

    group: str
    reason: str
    ends: str
    message: str


@dataclass(frozen=True, slots=True)
class Live:
    """A cluster's current state in Kubernetes and its scheduler, under its policy."""

    policy: PolicyView
    observed: ObservedCluster
    unknown: str = ""  # the scheduler's error; empty: it answered

    def stays(self) -> list[Stay]:
        """Explain each worker, sorted by reason; without the scheduler only those in the status."""
        if self.unknown:
            rows = self.policy.status.workers if self.policy.status else ()
            found = [_from_row(row) for row in rows]
        else:
            scaled = [w for w in self.observed.workers if w.platform.group in self.policy.bounds]
            found = [self.stay(worker) for worker in scaled]
        return sorted(found, key=lambda stay: (stay.reason, stay.worker))

    def stay(self, worker: ObservedWorker) -> Stay:
        """Explain one worker by the operator's own rules."""
        name, state = worker.name, worker_state(worker)
        # Only the operator remembers refusals of the agent, and reads annotations.
        known = self.policy.status.worker(name) if self.policy.status else None
        if self.unknown:
            if known:
                return _from_row(known)
            if worker.waiting:
                return Stay(worker.absence[0].value, name, state, "", worker.waiting)
            return Stay(Reason.SCHEDULER_UNREACHABLE.value, name, "Unknown", "", self.unknown)
        clocks, idle_s = self.observed.clocks, self.policy.idle_s(worker.platform.group)
        row = worker_row(worker, is_exposed=bool(worker.platform.node_terminating))
        row = row or self._objection(worker, idle_s)
        if known and known.state == state and (row is None or known.reason.startswith("Invalid")):
            return _from_row(known)
        if row is None:
            sole_bytes = worker.process.sole_bytes
            moved = f", {format_bytes(sole_bytes)} to move" if sole_bytes else ""
            idle = f"idle for {format_duration(clocks.idle_s(worker))}"
            return Stay(FREE, name, state, ENDS[FREE], f"{idle}{moved}")
        reason, message = row
        ends = ENDS.get(reason.value, "")
        if reason is Reason.IDLE_GRACE:
            ends = f"in {format_duration(idle_s - clocks.idle_s(worker))}"
        elif reason is Reason.PINNED and worker.process.pins:
            ends = (
                f"at the latest {self.date(max(p.latest or p.until for p in worker.process.pins))}"
            )
        return Stay(reason.value, name, state, ends, message)

    def _objection(self, worker: ObservedWorker, idle_s: float) -> tuple[Reason, str] | None:
        workers = self.observed.workers
        serving = [w for w in workers if isinstance(w.lifecycle, Serving) and w.takes_tasks]
        in_service = sum(len(w.dask_names) for w in serving)
        clocks = self.observed.clocks
        blocker = veto(worker, VetoContext(Past(), 0.0, clocks, in_service, idle_s))
        return (blocker.reason, blocker.message) if blocker else None

    def pins(self) -> list[HeldBy]:
        """List the pins, by workers held; without the scheduler those of the status."""
        if self.unknown:
            return list(self.policy.status.held_by) if self.policy.status else []
        return pins_of(self.observed, now=self.observed.at)

    def date(self, at: float) -> str:
        """Convert an instant of the scheduler's clock to a date."""
        left_s = at - self.observed.scheduler.at
        return "" if math.isinf(left_s) else instant(self.observed.at + left_s)


def _from_row(row: WorkerRow) -> Stay:
    return Stay(row.reason, row.name, row.state, ENDS.get(row.reason, ""), row.message)


def holds(status: Status) -> Iterator[Hold]:
    """Yield the holds by group, or the one that keeps the whole cluster from scaling."""
    found = {("", status.reason): status.message} if status.reason in _NOT_SCALED else {}
    for name, reason, message in _steps_up(status):
        if ("", reason) not in found:
            found.setdefault((name, reason), message)
    for (name, reason), message in found.items():
        if reason in ENDS:
            yield Hold(name or "all groups", reason, ENDS[reason], message)


def _steps_up(status: Status) -> Iterable[tuple[str, str, str]]:
    """Yield the groups' reasons, and steps of the last decision that raised the load's number."""
    yield from ((group.name, group.reason, group.message) for group in status.groups)
    if decision := status.last_decision:
        for step in decision.steps:
            if step.replicas > decision.wanted:
                yield decision.group, str(step.reason), step.message


def answer(status: Status | None) -> str:
    """Summarise in one line how many workers are not needed, and why they stay."""
    if status is None:
        return NOT_LOOKED
    if status.reason in _NOT_SCALED:
        return f"no worker leaves because of {status.reason}: {status.message}"
    workers = status.connected + status.pending - status.retiring
    leaving = f"; {status.retiring} leaving now" if status.retiring else ""
    there = f"{counted(workers, 'worker')}, {status.desired} desired"
    if workers > status.desired:
        reasons = ", ".join(most_first(status.blockers))
        why = f": {reasons}" if reasons else ""
        return f"{there}, {workers - status.desired} too many{why}{leaving}"
    hold = next(holds(status), None)
    held = f": {hold.reason}; the load needs {status.wanted}" if hold else ""
    return f"{there}, none to remove{held}{leaving}"
