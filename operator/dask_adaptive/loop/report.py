"""Say what was seen, decided and done: a `Status`, and events for what has just changed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dask_adaptive.loop import status as st
from dask_adaptive.loop.ports import Event, EventType
from dask_adaptive.loop.status import Condition, Status, WorkerRow
from dask_adaptive.model.observed import (
    Leaving,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
)
from dask_adaptive.model.plan import (
    Action,
    Delete,
    Outcome,
    Plan,
    Retire,
    SetPin,
    SetReplicas,
    Unpin,
)
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.candidates import claims
from dask_adaptive.planner.fleet import Fleet, sort_fleet
from dask_adaptive.planner.plan import count_blockers

#: Rows of workers in one status; an object of the API server should stay small.
MAX_ROWS = 100

#: Vetoes that are the normal life of a worker: counted, but worth no row.
_USUAL = frozenset({Reason.BUSY, Reason.IDLE_GRACE})

_LIMITED = frozenset({Reason.TOO_MANY_REPLICAS, Reason.TOO_FEW_REPLICAS})


def status_of(
    observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome]
) -> Status:
    """Render one pass. Two equal worlds give two equal values: no number in it counts time."""
    scheduler = observed.scheduler
    group = observed.group(observed.key.default_group) or ObservedGroup("", 0)
    fleet = sort_fleet(group)
    held = Counter(pin.source for w in group.workers for pin in w.pins)
    return Status(
        replicas=group.replicas,
        desired=decided.desired,
        wanted=decided.wanted,
        connected=sum(w.is_connected for w in group.workers),
        pending=len(fleet.pending),
        idle=sum(not w.processing for w in fleet.active),
        busy=sum(bool(w.processing) for w in fleet.active),
        pinned=sum(w.is_pinned for w in group.workers),
        retiring=len(fleet.retiring),
        reason=decided.reason,
        message=decided.message,
        target=scheduler.target,
        pins=tuple(sorted(held.items())),
        blockers=count_blockers(decided.blockers),
        pending_reasons=_pending_reasons(fleet),
        workers=tuple(_rows(fleet, decided, outcomes))[:MAX_ROWS],
        distributed=scheduler.distributed,
        agent=scheduler.agent,
        conditions=conditions_of(observed, policy, decided, outcomes),
    )


def _pending_reasons(fleet: Fleet) -> tuple[tuple[str, int], ...]:
    counts = Counter((w.waiting or "Starting").partition(":")[0] for w in fleet.pending)
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _rows(fleet: Fleet, decided: Plan, outcomes: Sequence[Outcome]) -> Iterator[WorkerRow]:
    # What has just been done is told at once: an operator that dies before its next pass leaves in
    # the status whose absence explains that `replicas` is too high.
    done = {_about(o.action): o.action for o in outcomes if o.done}
    blocked = {b.worker: b for b in decided.blockers if b.reason not in _USUAL}
    for worker in (*fleet.retiring, *fleet.other, *fleet.active, *fleet.pending):
        match done.get(worker.name):
            case Retire(_, _, _, message):
                yield WorkerRow(worker.name, "Draining", Reason.RETIRING, message, worker.pod)
                continue
            case Delete(_, _, _, reason, message):
                yield WorkerRow(worker.name, "Going", reason, message, worker.pod)
                continue
        row = _row(worker)
        if row is None and worker.name in blocked:
            blocker = blocked[worker.name]
            row = (blocker.reason, blocker.message)
        if row is not None:
            yield WorkerRow(worker.name, worker_state(worker), *row, pod=worker.pod)


def _row(worker: ObservedWorker) -> tuple[Reason, str] | None:
    if worker.going:
        return Reason.LEAVING_ALREADY, "is being deleted"
    if worker.leaving is not Leaving.NO:
        return Reason.RETIRING, worker.leaving_message or worker.leaving.value
    if worker.manual_pin is not None and worker.manual_pin.problem:
        return Reason.INVALID_PIN, worker.manual_pin.problem
    if worker.is_pinned:
        return Reason.PINNED, f"pinned by {', '.join(sorted(claims(worker)))}"
    if not worker.is_connected:
        return Reason.NEVER_CONNECTED, worker.waiting or "starting"
    return None if worker.in_service else (Reason.LEAVING_ALREADY, "is being closed by someone")


def worker_state(worker: ObservedWorker) -> str:
    """Where a worker stands, in one word: `WorkerRow.state`."""
    if worker.going:
        return "Going"
    if not worker.is_connected:
        return "Pending"
    return worker.leaving.value.capitalize()


def conditions_of(
    observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome]
) -> tuple[Condition, ...]:
    """All six conditions, always, in the order in which they are shown."""
    mode = f"mode is {policy.mode.value}"
    return (
        _ready(observed, decided),
        _connected(observed.scheduler),
        _injected(observed.scheduler),
        _able(observed, outcomes),
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


def _injected(scheduler: ObservedScheduler) -> Condition:
    if scheduler.agent:
        return Condition(st.INJECTED, True, Reason.CONNECTED, f"agent {scheduler.agent}")
    if scheduler.degraded is None:
        message = "not known while the scheduler does not answer"
        return Condition(st.INJECTED, None, Reason.SCHEDULER_UNREACHABLE, message)
    return Condition(st.INJECTED, False, scheduler.degraded, scheduler.degraded_message)


def _able(observed: ObservedCluster, outcomes: Sequence[Outcome]) -> Condition:
    failed = next((o for o in outcomes if o.reason is Reason.ACTION_FAILED), None)
    if failed is not None:
        return Condition(st.ABLE_TO_SCALE, False, Reason.ACTION_FAILED, failed.message)
    if observed.scheduler.problem is not None:
        problem = observed.scheduler.problem
        return Condition(st.ABLE_TO_SCALE, False, problem, observed.scheduler.message)
    return Condition(st.ABLE_TO_SCALE, True, Reason.RECONCILED, "workers can be added and retired")


def events_of_outcomes(outcomes: Sequence[Outcome]) -> Iterator[Event]:
    """What was done, and what was refused or failed; each is about a worker or the policy."""
    for outcome in outcomes:
        worker = _about(outcome.action)
        if isinstance(outcome.action, SetPin) and outcome.reason is Reason.INVALID_PIN:
            yield Event(EventType.WARNING, outcome.reason, outcome.message, worker)
        elif outcome.done:
            yield Event(EventType.NORMAL, outcome.reason, describe(outcome.action), worker)
        elif outcome.reason is Reason.ACTION_FAILED:
            text = f"{describe(outcome.action)}: {outcome.message}"
            yield Event(EventType.WARNING, outcome.reason, text, worker)
        else:
            text = f"stays: {outcome.message}"
            yield Event(EventType.NORMAL, outcome.reason, text, worker)


def events_of_advice(decided: Plan) -> Iterator[Event]:
    """In Advise mode: what would have been done."""
    for action in decided.advice:
        text = describe(action)
        yield Event(EventType.NORMAL, action.reason, text, _about(action), would=True)


def events_of_conditions(now: Status, before: Status | None) -> Iterator[Event]:
    """A condition that has become bad, or good again."""
    old = {c.type: c for c in before.conditions} if before else {}
    for condition in now.conditions:
        was = old.get(condition.type)
        if condition.type not in {st.READY, st.INJECTED}:
            continue  # these two say it all; more events would say the same thing again
        if was is not None and (was.status, was.reason) == (condition.status, condition.reason):
            continue
        if condition.status is False:
            text = f"{condition.type}: {condition.message}"
            yield Event(EventType.WARNING, condition.reason, text)
        elif condition.status and was is not None and was.status is False:
            yield Event(EventType.NORMAL, condition.reason, f"{condition.type} again")


def describe(action: Action) -> str:
    """One action as a sentence for people."""
    match action:
        case SetReplicas(group, replicas, _, message):
            return f"set {group} to {replicas} replicas: {message}"
        case SetPin() | Unpin():
            return action.message
        case _:
            return f"{_VERBS[type(action).__name__]}: {action.message}"


_VERBS = {"Retire": "begins to leave", "Cancel": "stays in service", "Delete": "is taken away"}


def _about(action: Action) -> str:
    return "" if isinstance(action, SetReplicas) else action.worker
