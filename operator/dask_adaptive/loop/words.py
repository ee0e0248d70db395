"""
Makes the sentences that several places show: about workers, actions and events, for status, events,
`explain`, the page and the command line alike. Pure.

Each rule of the planner returns a message with its reason; these are only inserted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dask_adaptive.loop.ports import Event
from dask_adaptive.model.amounts import counted, joined, listed
from dask_adaptive.model.observed import Closing, ObservedWorker, Serving
from dask_adaptive.model.plan import Action, DeleteCluster, SetReplicas
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.leave import pinned

#: Workers that one event names.
NAMED = 3

#: Each action as a verb; names of workers follow.
_VERBS = {
    "Retire": "Retiring",
    "Leave": "Moving work off",
    "Cancel": "Keeping",
    "Delete": "Deleting",
    "Restart": "Restarting",
    "SetPin": "Pinning",
    "Unpin": "Unpinning",
    "DeleteCluster": "Deleting the cluster",
}


def about(action: Action) -> str:
    """Return the worker of an action, or an empty string."""
    return "" if isinstance(action, SetReplicas | DeleteCluster) else action.worker


def doing(action: Action) -> str:
    """Return a verb such as "Retiring"; names of workers follow, then the reason."""
    if isinstance(action, SetReplicas):
        return f"Setting {action.group} to {counted(action.replicas, 'replica')}"
    return _VERBS[type(action).__name__]


def sentence(events: Iterable[Event]) -> str:
    """
    Join events of a kind: each message once, after the names of its workers. At most `NAMED` are
    named; others are counted.
    """
    found: dict[tuple[str, str, bool], dict[str, None]] = {}
    for event in events:
        key = event.doing, event.message, bool(event.worker)
        found.setdefault(key, {})[event.worker] = None
    parts, left, more = [], NAMED, 0
    for (verb, message, has_names), every in found.items():
        names = list(every) if has_names else []
        if names and not left:
            more += len(names)
            continue
        head = " ".join(filter(None, (verb, listed(names, left))))
        parts.append(f"{head}: {message}" if head else message)
        left = max(0, left - len(names))
    return joined(*parts, f"and {more} more" if more else "")


def why_leaving(worker: ObservedWorker) -> str:
    """Return the progress of a leaving worker, or an empty string."""
    if worker.is_deleting:
        return "is being deleted"
    return worker.retiring.message or worker.retiring.word if worker.retiring else ""


def worker_row(worker: ObservedWorker, *, is_exposed: bool) -> tuple[Reason, str] | None:
    if leaving := why_leaving(worker):
        on_node = is_exposed and not worker.is_deleting
        node = worker.platform.node_terminating
        return Reason.RETIRING, f"{node}: {leaving}" if on_node else leaving
    manual = worker.platform.manual_pin
    if manual is not None and manual.problem:
        return Reason.INVALID_ANNOTATION, manual.problem
    return pinned(worker) or _row_of_unheld(worker, is_exposed=is_exposed)


def _row_of_unheld(worker: ObservedWorker, *, is_exposed: bool) -> tuple[Reason, str] | None:
    if worker.terminating:
        return Reason.POD_ENDING, worker.waiting
    if not worker.is_connected:
        return worker.absence
    if isinstance(worker.lifecycle, Serving) and is_exposed:
        return Reason.NODE_GOING, worker.platform.node_terminating
    if worker.process.cordon is not None:
        return Reason.QUOTA_REACHED, worker.process.cordon.message
    if worker.platform.annotation_problem:
        return Reason.INVALID_ANNOTATION, worker.platform.annotation_problem
    if isinstance(worker.lifecycle, Closing):
        return Reason.RETIRING, "is being closed by another client"
    return None


def worker_state(worker: ObservedWorker) -> str:
    """Return the value of `WorkerRow.state`."""
    if worker.is_deleting:
        return "Going"
    if not worker.is_connected:
        return "Pending"
    if worker.process.cordon is not None and worker.retiring is None:
        return "Stopped"
    return worker.retiring.word.capitalize() if worker.retiring else "Active"


#: When a hold on a worker, a group or a cluster ends, by `Reason`.
ENDS: Mapping[str, str] = {
    "ScaleDownStabilized": "once the load has been low for behavior.scaleDown.stabilizationWindow"
    " (by default idleTimeout)",
    "ScaleDownLimited": "when behavior.scaleDown allows it (policies, delayAfterScaleUp)",
    "WithinTolerance": "when the load needs fewer than behavior.scaleDown.tolerance allows",
    "BudgetExhausted": "when a leaving worker is gone (retirement.maxConcurrent)",
    "TooFewReplicas": "when minReplicas is lowered",
    "AdmissionGated": "when the scheduling gate is removed",
    "ScheduledMinimum": "when the schedule closes (schedules)",
    "ClientWants": "when the client's want() ends, or the client leaves",
    "ShuffleAhead": "when the shuffle is done",
    "Settling": "when dask-kubernetes has completed the last change",
    "Retiring": "when its tasks are done and its results are moved",
    "ScalingPaused": "when the annotation ends or is removed",
    "InvalidAnnotation": "when the annotation is fixed or removed",
    "Paused": "when spec.mode is Auto and the annotation paused is removed",
    "Advising": "when spec.mode is Auto",
    "Fallback": "when the scheduler answers again",
    "TooManyUnready": "when lost workers are back (maxUnready)",
    "SchedulerUnreachable": "when the scheduler answers again",
    "AgentInvalid": "when the scheduler gives a valid answer",
    "AgentMissing": "when the agent is in the scheduler",
    "OwnershipConflict": "when only one autoscaler scales the cluster",
    "ClusterNotFound": "when the DaskCluster exists",
    "InvalidSpec": "when the policy is fixed",
    "Busy": "when its tasks are done",
    "HoldsActors": "when its actors are released",
    "NoRecipient": "when another worker can take its results, or they are released",
    "HoldsUncopyable": "when the result is released",
    "IdleGrace": "after idleTimeout without a task",
    "Pinned": "when the pin ends",
    "Free": "when it is no longer needed",
}

#: Shown instead of a `Reason` for a worker that nothing keeps.
FREE = "Free"
