"""Say what was seen, decided and done: a `Status`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from dask_adaptive.loop.conditions import conditions_of
from dask_adaptive.loop.happened import about
from dask_adaptive.loop.held import held_by
from dask_adaptive.loop.pause import pause_row
from dask_adaptive.loop.recycles import NO_RECYCLES, Recycles
from dask_adaptive.loop.status import GroupRow, Status, WorkerRow
from dask_adaptive.model.history import Decision
from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedWorker
from dask_adaptive.model.plan import Blocker, Delete, Outcome, Plan, Restart, Retire
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Replacing
from dask_adaptive.planner.candidates import claims
from dask_adaptive.planner.fleet import Fleet, sort_fleet
from dask_adaptive.planner.plan import count_blockers
from dask_adaptive.planner.stages import scaled_groups

#: Rows of workers in one status; an object of the API server should stay small.
MAX_ROWS = 100

#: Workers of which one status says that they are, or are to be, replaced.
MAX_REPLACING = 50

#: Keys of Dask's configuration of which one status says what is wrong with them.
MAX_KEYS = 50

#: Vetoes that are the normal life of a worker: counted, but worth no row.
_USUAL = frozenset({Reason.BUSY, Reason.IDLE_GRACE})

#: Groups in one status.
MAX_GROUPS = 50


def status_of(
    observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome],
    *, now: float, before: Status | None = None, recycles: Recycles = NO_RECYCLES,
    last: Decision | None = None,
) -> Status:  # fmt: skip
    """
    Render one pass. Two equal worlds give two equal values: no number in it counts time.

    Args:
        now: Seconds on the clock that stamped `before`.
        before: What was told last; ends of pins that have not really moved stay as told.
        recycles: What has been recycled so far.
        last: The last decision.
    """
    scheduler = observed.scheduler
    scaled = [group for group, _ in scaled_groups(observed, policy)]
    workers = [w for group in scaled for w in group.workers]
    fleets = [sort_fleet(g, heed_nodes=policy.disruption.node_signals) for g in scaled]
    serving = [w for fleet in fleets for w in (*fleet.active, *fleet.doomed)]
    held = Counter(pin.source for w in workers for pin in w.pins)
    pause = pause_row(observed, before.pause if before else None)
    return Status(
        replicas=sum(group.replicas for group in scaled),
        desired=decided.desired,
        wanted=decided.wanted,
        connected=sum(w.is_connected for w in workers),
        pending=sum(len(fleet.pending) for fleet in fleets),
        idle=sum(not w.processing for w in serving),
        busy=sum(bool(w.processing) for w in serving),
        pinned=sum(w.is_pinned for w in workers),
        retiring=sum(len(fleet.retiring) for fleet in fleets),
        reason=decided.reason,
        message=decided.message,
        target=scheduler.target,
        pins=tuple(sorted(held.items())),
        held_by=held_by(observed, policy, before.held_by if before else (), now=now),
        blockers=count_blockers(decided.blockers),
        pending_reasons=_pending_reasons(fleets),
        workers=tuple(islice(_rows(observed, fleets, decided, outcomes), MAX_ROWS)),
        groups=tuple(group_rows(fleets, decided))[:MAX_GROUPS],
        last_decision=last,
        pause=pause,
        recycled=recycles.totals,
        recent=recycles.recent,
        replacing=decided.replacing[:MAX_REPLACING],
        distributed=scheduler.distributed,
        agent=scheduler.agent,
        relief=scheduler.relief,
        config=(scheduler.config or ())[:MAX_KEYS],
        conditions=conditions_of(
            observed, policy, decided, outcomes, unheard=recycles.unheard, pause=pause
        ),
    )


def _pending_reasons(fleets: Sequence[Fleet]) -> tuple[tuple[str, int], ...]:
    pending = [w for fleet in fleets for w in fleet.pending]
    counts = Counter((w.waiting or "Starting").partition(":")[0] for w in pending)
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def group_rows(fleets: Sequence[Fleet], decided: Plan) -> Iterator[GroupRow]:
    plans = {plan.group: plan for plan in decided.groups}
    for fleet in fleets:
        plan = plans.get(fleet.name)
        yield GroupRow(
            name=fleet.name,
            replicas=fleet.replicas,
            desired=plan.desired if plan else fleet.serving,
            wanted=plan.wanted if plan else 0,
            connected=fleet.connected,
            pending=len(fleet.pending),
            reason=plan.reason if plan else decided.reason,
            message=plan.message if plan else decided.message,
        )


def _rows(
    observed: ObservedCluster, fleets: Sequence[Fleet], decided: Plan, outcomes: Sequence[Outcome]
) -> Iterator[WorkerRow]:
    # What has just been done is told at once: an operator that dies before its next pass leaves in
    # the status whose absence explains that `replicas` is too high.
    done = {about(o.action): o.action for o in outcomes if o.done}
    blocked = {b.worker: b for b in decided.blockers if b.reason not in _USUAL}
    due = {r.worker: r for r in decided.replacing}
    on_doomed_nodes = frozenset().union(*(fleet.on_doomed_nodes for fleet in fleets))
    for worker in (*_in_order(fleets), *_of_other_groups(observed, fleets, due)):
        match done.get(worker.name):
            case Retire(_, _, reason, message):
                word = reason if reason.replaces else Reason.RETIRING
                yield WorkerRow(worker.name, "Draining", word, message, worker.pod)
                continue
            case Delete(_, _, _, reason, message) | Restart(_, _, _, _, reason, message):
                yield WorkerRow(worker.name, "Going", reason, message, worker.pod)
                continue
        is_doomed = worker.name in on_doomed_nodes
        row = _row(worker, is_doomed=is_doomed)
        blocker = blocked.get(worker.name)
        if blocker is not None and (row is None or is_doomed):
            row = (blocker.reason, blocker.message)
        if worker.name in due:
            row = _due(due[worker.name], worker, row, blocker)
        if row is not None:
            yield WorkerRow(worker.name, worker_state(worker), *row, pod=worker.pod)


def _in_order(fleets: Sequence[Fleet]) -> Iterator[ObservedWorker]:
    """Those of whom there is most to say first: a status has room for so many."""
    for row in ("retiring", "doomed", "other", "active", "pending"):
        for fleet in fleets:
            yield from getattr(fleet, row)


def _of_other_groups(
    observed: ObservedCluster, fleets: Sequence[Fleet], due: Mapping[str, Replacing]
) -> Iterator[ObservedWorker]:
    """Nobody scales the other groups; their workers are replaced like any."""
    scaled = {fleet.name for fleet in fleets}
    for group in observed.groups:
        if group.name not in scaled:
            yield from (w for w in group.workers if w.name in due or w.stopped)


def _due(
    replacing: Replacing, worker: ObservedWorker, row: tuple[Reason, str] | None,
    blocker: Blocker | None,
) -> tuple[Reason, str]:  # fmt: skip
    """A worker at a quota: the quota, and what holds it or what it waits for, if anything."""
    if blocker is not None:
        row = (blocker.reason, blocker.message)
    if row is None:
        return replacing.reason, replacing.message
    reason, message = row
    if not message.startswith(replacing.message):
        message = f"{replacing.message}; {message}"
    is_by_quota = worker.leaving is not Leaving.NO or reason is Reason.QUOTA_REACHED
    return replacing.reason if is_by_quota else reason, message


def _row(worker: ObservedWorker, *, is_doomed: bool) -> tuple[Reason, str] | None:
    if worker.going:
        return Reason.LEAVING_ALREADY, "is being deleted"
    if worker.leaving is not Leaving.NO:
        said = worker.leaving_message or worker.leaving.value
        return Reason.RETIRING, f"{worker.node_going}: {said}" if is_doomed else said
    if worker.manual_pin is not None and worker.manual_pin.problem:
        return Reason.INVALID_PIN, worker.manual_pin.problem
    if worker.is_pinned:
        return Reason.PINNED, f"pinned by {', '.join(sorted(claims(worker)))}"
    return _row_of_unheld(worker, is_doomed=is_doomed)


def _row_of_unheld(worker: ObservedWorker, *, is_doomed: bool) -> tuple[Reason, str] | None:
    if worker.ending:
        return Reason.POD_ENDING, worker.waiting
    if not worker.is_connected:
        return Reason.NEVER_CONNECTED, worker.waiting or "starting"
    if worker.in_service and is_doomed:
        return Reason.NODE_GOING, worker.node_going
    if worker.stopped:
        return Reason.QUOTA_REACHED, worker.stopped
    if worker.quota_notes is not None and worker.quota_notes.problem:
        return Reason.INVALID_QUOTA, worker.quota_notes.problem
    return None if worker.in_service else (Reason.LEAVING_ALREADY, "is being closed by someone")


def worker_state(worker: ObservedWorker) -> str:
    """Where a worker stands, in one word: `WorkerRow.state`."""
    if worker.going:
        return "Going"
    if not worker.is_connected:
        return "Pending"
    if worker.stopped and worker.leaving is Leaving.NO:
        return "Stopped"
    return worker.leaving.value.capitalize()
