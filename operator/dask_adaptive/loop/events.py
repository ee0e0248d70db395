"""Makes events: of actions, of notes in the scheduler, of conditions that turn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dask_adaptive.loop import status as st
from dask_adaptive.loop.join import owner_in
from dask_adaptive.loop.ports import Event, EventType
from dask_adaptive.loop.status import Condition, Status
from dask_adaptive.loop.words import about, doing
from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.plan import Leave, Outcome, Plan, SetPin
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast

#: Losses, and problems that people should look into.
_WARNED = frozenset(
    {
        Reason.PIN_EXPIRED, Reason.PINS_OVERRIDDEN, Reason.TASKS_GIVEN_BACK,
        Reason.TASK_TOO_LONG, Reason.RELIEF_FAILED, Reason.SERIALIZATION_HEAVY,
    }
)  # fmt: skip

#: Conditions whose changes are reported as events.
_TOLD = frozenset({st.READY, st.INJECTED, st.SCHEDULER_CONFIGURED, st.WATCHING})


def events_of_outcomes(outcomes: Sequence[Outcome]) -> Iterator[Event]:
    """
    Events for actions that were done, refused, or failed; each is about a worker or the policy.
    """
    for outcome in outcomes:
        action, reason, message = outcome.action, outcome.reason, outcome.message
        worker, kind = about(action), EventType.NORMAL
        if isinstance(action, SetPin) and reason is Reason.INVALID_ANNOTATION:
            yield Event(EventType.WARNING, reason, message, worker)
        elif outcome.done and reason is Reason.RECYCLE_ABORTED:
            continue  # `events_of_aborts` reports it, with or without such an action
        elif outcome.done:
            yield Event(kind, reason, action.message, worker, doing=doing(action))
        elif reason is Reason.ACTION_FAILED:
            text = f"failed: {message}"
            yield Event(EventType.WARNING, reason, text, worker, doing=doing(action))
        else:
            is_kept = worker and not isinstance(action, Leave)
            yield Event(kind, reason, message, worker, doing="Keeping" if is_kept else "")


def events_of_notes(observed: ObservedCluster) -> Iterator[Event]:
    """Turn the scheduler's notes into events; each is about one worker, or the policy."""
    for note in observed.scheduler.notes:
        workers = {owner_in(observed, name) for name in note.names}
        worker = workers.pop() if len(workers) == 1 else None
        kind = EventType.WARNING if note.kind in _WARNED else EventType.NORMAL
        yield Event(kind, note.kind, note.message, worker or "")


def events_of_annotations(observed: ObservedCluster) -> Iterator[Event]:
    """Report unreadable annotations for as long as they exist."""
    for worker in observed.notable:
        if problem := worker.platform.annotation_problem:
            yield Event(EventType.WARNING, Reason.INVALID_ANNOTATION, problem, worker.name)


def events_of_aborts(now: RecyclePast, before: RecyclePast) -> Iterator[Event]:
    """Report workers that stay because their replacements did not come."""
    for worker, (until, why) in sorted(now.aborted.items()):
        if before.aborted.get(worker, (0.0, ""))[0] != until:
            yield Event(EventType.WARNING, Reason.RECYCLE_ABORTED, why, worker)


def events_of_advice(decided: Plan) -> Iterator[Event]:
    """Report the actions that Advise mode did not carry out."""
    for action in decided.advice:
        yield Event(
            EventType.NORMAL, action.reason, action.message, about(action), True, doing(action)
        )


def events_of_conditions(now: Status, before: Status | None) -> Iterator[Event]:
    """Report conditions that have turned bad, or good again."""
    old = {c.type: c for c in before.conditions} if before else {}
    for condition in now.conditions:
        was = old.get(condition.type)
        if condition.type not in _TOLD and not _is_of_storm(condition, was):
            continue  # other conditions repeat what actions' events already report
        if was is not None and (was.status, was.reason) == (condition.status, condition.reason):
            continue
        if condition.status is False:
            text = f"{condition.type}: {condition.message}"
            yield Event(EventType.WARNING, Reason(condition.reason), text)
        elif condition.status and was is not None and was.status is False:
            reason = Reason(condition.reason)
            yield Event(EventType.NORMAL, reason, f"{condition.type} is true again")


def _is_of_storm(*conditions: Condition | None) -> bool:
    return any(c is not None and c.reason == Reason.RECYCLE_STORM for c in conditions)
