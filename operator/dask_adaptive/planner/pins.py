"""Pins that people set by annotation: tell the agent of new ones and of those that are gone."""

from __future__ import annotations

from collections.abc import Iterator

from dask_adaptive.model.duration import format_duration
from dask_adaptive.model.observed import ObservedCluster, ObservedWorker, Pin
from dask_adaptive.model.plan import SetPin, Unpin
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason

#: The owner under which the operator pins; pins of others with source "manual" are not touched.
OWNER = "operator"

#: A lease is renewed when it is this much shorter than what the annotation asks for.
SLACK_S = 30.0


def sync_pins(observed: ObservedCluster, policy: Policy) -> tuple[SetPin | Unpin, ...]:
    """
    Bring the agent's manual pins in step with the annotations, for all groups of the cluster.

    Nothing to do while the agent is missing: our own vetoes look at the annotations themselves.
    """
    if not observed.scheduler.agent:
        return ()
    staying = tuple(
        action
        for group in observed.groups
        for worker in group.workers
        if worker.dask_names and (worker.manual_pin is not None or worker.pins)
        for action in _sync(worker, policy)
    )
    return (*staying, *_lifted(observed))


def _lifted(observed: ObservedCluster) -> Iterator[Unpin]:
    """
    Pins on pods that are being deleted, whose annotation is gone: the pod waits for nothing else.

    None is set there: what a person annotates now is about the next pod.
    """
    if not observed.ending:
        return
    pinned = {
        w.address
        for w in observed.scheduler.workers
        if any(p.source == "manual" and p.owner == OWNER for p in w.pins)
    }
    connected = {w.name for g in observed.groups for w in g.workers if w.dask_names}
    for ending in observed.ending:
        if ending.manual_pin is None and pinned & set(ending.dask_names):
            # By its name as well, unless that is its successor's by now.
            by_name = () if ending.worker in connected else (ending.worker,)
            message = f"its annotation is gone; pod {ending.pod} is being deleted"
            names = (*ending.dask_names, *by_name)
            yield Unpin(ending.worker, names, Reason.PIN_REMOVED, message)


def _sync(worker: ObservedWorker, policy: Policy) -> Iterator[SetPin | Unpin]:
    held = next((p for p in worker.pins if p.source == "manual" and p.owner == OWNER), None)
    asked = worker.manual_pin
    if asked is None:
        if held is not None:
            message = "its annotation is gone or has run out"
            yield Unpin(worker.name, worker.dask_names, Reason.PIN_REMOVED, message)
        return
    ttl_s = min(asked.left_s, policy.pins.manual_max_s)
    if _is_in_step(held, ttl_s, asked.reason):
        return
    reason = Reason.INVALID_PIN if asked.problem else Reason.PIN_REQUESTED
    message = asked.problem or f"pinned by annotation for {format_duration(ttl_s)}"
    yield SetPin(worker.name, worker.dask_names, ttl_s, asked.reason, reason, message)


def _is_in_step(held: Pin | None, ttl_s: float, note: str) -> bool:
    return held is not None and abs(held.left_s - ttl_s) <= SLACK_S and held.reason == note
