"""Reactions to decisions of others: terminating nodes and pods, and pins by annotation."""

from __future__ import annotations

from collections.abc import Iterator

from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.observed import Leaving, ObservedWorker, TerminatingPod
from dask_adaptive.model.plan import Blocker, Leave, Retire, SetPin, Unpin
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.actions.candidates import WITH_ACTORS, pinned, refused_lately
from dask_adaptive.planner.actions.groups import GroupWorkers
from dask_adaptive.planner.context import PassContext

#: The scheduler's idea of a worker's end may differ by so much from its pod's.
SLACK_S = 5.0

#: The owner under which the operator pins; pins of others with source "manual" are not touched.
OWNER = "operator"

#: A lease is renewed when it is this much shorter than what the annotation asks for.
PIN_SLACK_S = 30.0


def drain_terminating_nodes(
    workers: GroupWorkers, context: PassContext
) -> tuple[tuple[Retire, ...], tuple[Blocker, ...]]:
    """
    Let workers go whose machine does, busy ones too; those that stay are told, and why.

    The machine does not wait, so neither `idleTimeout` nor `retirement.maxConcurrent` counts here.
    Only a pin holds, until it ends, and actors, which cannot be moved.
    """
    leaving, blockers = [], []
    for worker in workers.on_terminating_node:
        if (refusal := refused_lately(worker, context)) is not None:
            blockers.append(Blocker(worker.name, *refusal))
        else:
            why = worker.node_terminating
            leaving.append(
                Retire(worker.name, worker.dask_names, Reason.NODE_GOING, why, busy_ok=True)
            )
    for worker in (w for w in workers.active if w.name in workers.node_terminates):
        reason, held = pinned(worker) or WITH_ACTORS
        blockers.append(Blocker(worker.name, reason, f"{worker.node_terminating}; {held}"))
    return tuple(leaving), tuple(blockers)


def tell_endings(context: PassContext) -> tuple[Leave, ...]:
    """
    Say which workers are about to end where the scheduler does not know, or believes in more time.

    In all groups and modes: the pod goes whatever we decide, and this only saves work. Less time
    than the pod has may be the word of somebody who was not sure of the end: ours is heard once.
    """
    observed = context.observed
    if not observed.terminating:
        return ()
    drained = {w.address for w in observed.scheduler.workers if w.leaving is Leaving.DRAINED}
    return tuple(
        Leave(
            pod.worker,
            pod.dask_names,
            Reason.POD_ENDING,
            f"pod {pod.pod} is being deleted",
            pod.left_s,
        )
        for pod in observed.terminating
        if set(pod.dask_names) - drained and not _is_known(pod, context)
    )


def _is_known(pod: TerminatingPod, context: PassContext) -> bool:
    for end_s in (pod.left_s, pod.known_left_s):  # neither falls below 0
        context.horizon.is_over(end_s - SLACK_S)
        context.horizon.is_over(end_s)
    too_long_s = pod.known_left_s - pod.left_s
    if too_long_s < -SLACK_S:
        return context.past.told >= set(pod.dask_names)
    return too_long_s <= SLACK_S


def sync_pins(context: PassContext) -> tuple[SetPin | Unpin, ...]:
    """Bring the agent's manual pins in step with the annotations, for all groups of the cluster."""
    observed = context.observed
    staying = tuple(
        action
        for group in observed.groups
        for worker in group.workers
        if worker.dask_names and (worker.manual_pin is not None or worker.pins)
        for action in _sync(worker, context)
    )
    return (*staying, *_lifted(context))


def _lifted(context: PassContext) -> Iterator[Unpin]:
    """
    Pins on pods that are being deleted, whose annotation is gone: the pod waits for nothing else.

    None is set there: what a person annotates now is about the next pod.
    """
    observed = context.observed
    if not observed.terminating:
        return
    pinned = {
        w.address
        for w in observed.scheduler.workers
        if any(p.source == "manual" and p.owner == OWNER for p in w.pins)
    }
    connected = {w.name for g in observed.groups for w in g.workers if w.dask_names}
    for pod in observed.terminating:
        if pod.manual_pin is not None:
            context.horizon.within(pod.manual_pin.until - observed.at)
        elif pinned & set(pod.dask_names):
            # By its name as well, unless that is its successor's by now.
            by_name = () if pod.worker in connected else (pod.worker,)
            message = f"its annotation is gone; pod {pod.pod} is being deleted"
            names = (*pod.dask_names, *by_name)
            yield Unpin(pod.worker, names, Reason.PIN_CHANGED, message)


def _sync(worker: ObservedWorker, context: PassContext) -> Iterator[SetPin | Unpin]:
    held = next((p for p in worker.pins if p.source == "manual" and p.owner == OWNER), None)
    asked = worker.manual_pin
    if asked is None:
        if held is not None:
            message = "its annotation is gone or has run out"
            yield Unpin(worker.name, worker.dask_names, Reason.PIN_CHANGED, message)
        return
    held_s = 0.0 if held is None else held.until - context.observed.scheduler.at
    left_s = asked.until - context.observed.at
    ttl_s = min(left_s, context.policy.pins.manual.max_duration_s)
    if held is not None and left_s > ttl_s:  # a lease that is as long again each time
        context.horizon.is_exceeded(held_s - (ttl_s + PIN_SLACK_S))
        context.horizon.is_exceeded(held_s - (ttl_s - PIN_SLACK_S))
    is_as_long = held is not None and abs(held_s - ttl_s) <= PIN_SLACK_S
    if held is not None and is_as_long and held.reason == asked.reason:
        return
    reason = Reason.INVALID_ANNOTATION if asked.problem else Reason.PIN_CHANGED
    message = asked.problem or f"pinned by annotation for {format_duration(ttl_s)}"
    yield SetPin(worker.name, worker.dask_names, reason, message, ttl_s, asked.reason)
