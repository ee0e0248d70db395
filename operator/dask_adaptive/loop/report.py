"""Say what was seen, decided and done: a `Status`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from dask_adaptive.loop import status as st
from dask_adaptive.loop.configured import configured, injected
from dask_adaptive.loop.happened import about
from dask_adaptive.loop.held import held_by
from dask_adaptive.loop.recycles import NO_RECYCLES, Recycles
from dask_adaptive.loop.status import Condition, Status, WorkerRow
from dask_adaptive.model.observed import (
    Leaving,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
)
from dask_adaptive.model.plan import Blocker, Delete, Outcome, Plan, Restart, Retire
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Replacing
from dask_adaptive.planner.candidates import claims
from dask_adaptive.planner.fleet import Fleet, sort_fleet
from dask_adaptive.planner.plan import count_blockers

#: Rows of workers in one status; an object of the API server should stay small.
MAX_ROWS = 100

#: Workers of which one status says that they are, or are to be, replaced.
MAX_REPLACING = 50

#: Keys of Dask's configuration of which one status says what is wrong with them.
MAX_KEYS = 50

#: Vetoes that are the normal life of a worker: counted, but worth no row.
_USUAL = frozenset({Reason.BUSY, Reason.IDLE_GRACE})

_LIMITED = frozenset({Reason.TOO_MANY_REPLICAS, Reason.TOO_FEW_REPLICAS})


def status_of(
    observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome],
    *, now: float, before: Status | None = None, recycles: Recycles = NO_RECYCLES,
) -> Status:  # fmt: skip
    """
    Render one pass. Two equal worlds give two equal values: no number in it counts time.

    Args:
        now: Seconds on the clock that stamped `before`.
        before: What was told last; ends of pins that have not really moved stay as told.
        recycles: What has been recycled so far.
    """
    scheduler = observed.scheduler
    group = observed.group(observed.key.default_group) or ObservedGroup("", 0)
    fleet = sort_fleet(group, heed_nodes=policy.disruption.node_signals)
    serving = (*fleet.active, *fleet.doomed)
    held = Counter(pin.source for w in group.workers for pin in w.pins)
    return Status(
        replicas=group.replicas,
        desired=decided.desired,
        wanted=decided.wanted,
        connected=sum(w.is_connected for w in group.workers),
        pending=len(fleet.pending),
        idle=sum(not w.processing for w in serving),
        busy=sum(bool(w.processing) for w in serving),
        pinned=sum(w.is_pinned for w in group.workers),
        retiring=len(fleet.retiring),
        reason=decided.reason,
        message=decided.message,
        target=scheduler.target,
        pins=tuple(sorted(held.items())),
        held_by=held_by(observed, policy, before.held_by if before else (), now=now),
        blockers=count_blockers(decided.blockers),
        pending_reasons=_pending_reasons(fleet),
        workers=tuple(islice(_rows(observed, fleet, decided, outcomes), MAX_ROWS)),
        recycled=recycles.totals,
        recent=recycles.recent,
        replacing=decided.replacing[:MAX_REPLACING],
        distributed=scheduler.distributed,
        agent=scheduler.agent,
        relief=scheduler.relief,
        config=(scheduler.config or ())[:MAX_KEYS],
        conditions=conditions_of(observed, policy, decided, outcomes, unheard=recycles.unheard),
    )


def _pending_reasons(fleet: Fleet) -> tuple[tuple[str, int], ...]:
    counts = Counter((w.waiting or "Starting").partition(":")[0] for w in fleet.pending)
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _rows(
    observed: ObservedCluster, fleet: Fleet, decided: Plan, outcomes: Sequence[Outcome]
) -> Iterator[WorkerRow]:
    # What has just been done is told at once: an operator that dies before its next pass leaves in
    # the status whose absence explains that `replicas` is too high.
    done = {about(o.action): o.action for o in outcomes if o.done}
    blocked = {b.worker: b for b in decided.blockers if b.reason not in _USUAL}
    due = {r.worker: r for r in decided.replacing}
    for worker in (*_in_order(fleet), *_of_other_groups(observed, due)):
        match done.get(worker.name):
            case Retire(_, _, reason, message):
                word = reason if reason.replaces else Reason.RETIRING
                yield WorkerRow(worker.name, "Draining", word, message, worker.pod)
                continue
            case Delete(_, _, _, reason, message) | Restart(_, _, _, _, reason, message):
                yield WorkerRow(worker.name, "Going", reason, message, worker.pod)
                continue
        is_doomed = worker.name in fleet.on_doomed_nodes
        row = _row(worker, is_doomed=is_doomed)
        blocker = blocked.get(worker.name)
        if blocker is not None and (row is None or is_doomed):
            row = (blocker.reason, blocker.message)
        if worker.name in due:
            row = _due(due[worker.name], worker, row, blocker)
        if row is not None:
            yield WorkerRow(worker.name, worker_state(worker), *row, pod=worker.pod)


def _in_order(fleet: Fleet) -> tuple[ObservedWorker, ...]:
    """Those of whom there is most to say first: a status has room for so many."""
    return (*fleet.retiring, *fleet.doomed, *fleet.other, *fleet.active, *fleet.pending)


def _of_other_groups(
    observed: ObservedCluster, due: Mapping[str, Replacing]
) -> Iterator[ObservedWorker]:
    """Nobody scales the other groups; their workers are replaced like any."""
    for group in observed.groups:
        if group.name != observed.key.default_group:
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


def conditions_of(
    observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome],
    *, unheard: str = "",
) -> tuple[Condition, ...]:  # fmt: skip
    """
    All seven conditions, always, in the order in which they are shown.

    Args:
        unheard: Why the agent could not be told of limits; empty: it was.
    """
    mode = f"mode is {policy.mode.value}"
    return (
        _ready(observed, decided),
        _connected(observed.scheduler),
        injected(observed.scheduler),
        configured(observed.scheduler, policy),
        _able(observed, decided, outcomes, unheard),
        _limited(decided),
        Condition(st.PAUSED, policy.mode is Mode.PAUSED, _mode_reason(policy), mode),
    )


def _limited(decided: Plan) -> Condition:
    if decided.reason in _LIMITED:
        return Condition(st.SCALING_LIMITED, True, decided.reason, decided.message)
    within = "the load asks for a number within the bounds"
    return Condition(st.SCALING_LIMITED, False, Reason.DESIRED_WITHIN_RANGE, within)


def _mode_reason(policy: Policy) -> Reason:
    modes = {Mode.PAUSED: Reason.PAUSED, Mode.ADVISE: Reason.ADVISING}
    return modes.get(policy.mode, Reason.RECONCILED)


def _ready(observed: ObservedCluster, decided: Plan) -> Condition:
    is_stopped = (
        not observed.found or observed.conflict or decided.reason is Reason.CLUSTER_NOT_FOUND
    )
    if is_stopped or not observed.scheduler.is_connected:
        return Condition(st.READY, False, decided.reason, decided.message)
    return Condition(st.READY, True, Reason.RECONCILED, "the cluster is served")


def _connected(scheduler: ObservedScheduler) -> Condition:
    if scheduler.problem is None:
        return Condition(st.SCHEDULER_CONNECTED, True, Reason.CONNECTED, "the scheduler answers")
    status = None if scheduler.problem is Reason.CLUSTER_NOT_FOUND else False
    return Condition(st.SCHEDULER_CONNECTED, status, scheduler.problem, scheduler.message)


def _able(
    observed: ObservedCluster, decided: Plan, outcomes: Sequence[Outcome], unheard: str
) -> Condition:
    failed = next((o for o in outcomes if o.reason is Reason.ACTION_FAILED), None)
    if failed is not None:
        return Condition(st.ABLE_TO_SCALE, False, Reason.ACTION_FAILED, failed.message)
    if observed.scheduler.problem is not None:
        problem = observed.scheduler.problem
        return Condition(st.ABLE_TO_SCALE, False, problem, observed.scheduler.message)
    if unheard:
        message = f"the agent could not be told of quotas: {unheard}"
        return Condition(st.ABLE_TO_SCALE, False, Reason.ACTION_FAILED, message)
    if decided.storm:
        return Condition(st.ABLE_TO_SCALE, False, Reason.RECYCLE_STORM, decided.storm)
    return Condition(st.ABLE_TO_SCALE, True, Reason.RECONCILED, "workers can be added and retired")
