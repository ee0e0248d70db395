"""
Decides which workers may leave, and in which order; announces terminating pods and manual pins.

Among workers of equal cost, prefers those on nodes that can be emptied soonest: nodes are paid for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from dask_adaptive.model.amounts import format_duration, listed
from dask_adaptive.model.observed import (
    Clocks,
    ObservedCluster,
    ObservedWorker,
    Pin,
    TerminatingPod,
)
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Blocker, Leave, Retire, SetPin, Unpin
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.context import PassContext
from dask_adaptive.planner.groups import GroupWorkers


@dataclass(frozen=True, slots=True)
class VetoContext:
    """The context of a veto."""

    past: Past
    now: float
    clocks: Clocks
    in_service: int  # Dask workers of the whole cluster that take tasks and data
    idle_s: float  # idle time after which a worker of its group may leave


#: Why a worker stays: the word, and a sentence.
Objection = tuple[Reason, str]

WITH_ACTORS = Reason.HOLDS_ACTORS, "holds actors, which cannot be moved"

#: Returns why a worker must stay, or None if this rule has no objection.
Veto = Callable[[ObservedWorker, VetoContext], "Objection | None"]


def pinned(worker: ObservedWorker, _: object = None) -> Objection | None:
    if not worker.is_pinned:
        return None
    return Reason.PINNED, f"pinned by {listed(sorted(pin_holders(worker)))}"


def busy(worker: ObservedWorker, _: VetoContext) -> Objection | None:
    return (Reason.BUSY, "has tasks") if worker.process.processing else None


def holds_actors(worker: ObservedWorker, _: VetoContext) -> Objection | None:
    return WITH_ACTORS if worker.process.actors else None


def in_grace(worker: ObservedWorker, context: VetoContext) -> Objection | None:
    if context.clocks.idle_s(worker) >= context.idle_s:
        return None
    limit = format_duration(context.idle_s)
    return Reason.IDLE_GRACE, f"idle for less than {limit} (idleTimeout)"


def no_recipient(worker: ObservedWorker, context: VetoContext) -> Objection | None:
    if not worker.process.sole_bytes or context.in_service > len(worker.dask_names):
        return None
    return Reason.NO_RECIPIENT, "holds the last copy of results, and no other worker can take them"


def not_offered(worker: ObservedWorker, _: VetoContext) -> Objection | None:
    if worker.process.closable:
        return None
    return Reason.NO_RECIPIENT, "not offered by the scheduler's workers_to_close: memory is needed"


def refused_lately(worker: ObservedWorker, context: VetoContext | PassContext) -> Objection | None:
    refusal = context.past.refusals.get(worker.name)
    if refusal is None or context.now >= refusal.until:
        return None
    return refusal.reason, refusal.message


#: Checked in this order; the first objection is the one reported.
VETOES: tuple[Veto, ...] = (
    pinned, busy, holds_actors, in_grace, no_recipient, not_offered, refused_lately,
)  # fmt: skip


#: Skipped where busy workers may leave: the scheduler offers no busy worker, and none whose memory
#: running tasks need.
_OF_IDLE = frozenset({busy, not_offered})


def veto(worker: ObservedWorker, context: VetoContext, *, busy_ok: bool = False) -> Blocker | None:
    """Return the first objection to retiring a connected worker, or None."""
    for rule in VETOES:
        if busy_ok and rule in _OF_IDLE:
            continue
        if (objection := rule(worker, context)) is not None:
            return Blocker(worker.name, *objection)
    return None


#: Bytes of unique results that cost nothing to move.
LITTLE = 1 << 20

#: Workers that remain on a node after all candidates have left, and the number of candidates.
Emptiness = tuple[int, int, str]

NodeOrder = Callable[[ObservedWorker], Emptiness]


def node_order(observed: ObservedCluster, free: Iterable[ObservedWorker]) -> NodeOrder:
    """
    Sort key: the node that can be emptied soonest comes first.

    Of what else runs on a node nothing is known: it counts as if these were all.

    Args:
        free: Workers that may leave now.
    """
    staying = (w for w in observed.workers if not w.is_deleting and w.retiring is None)
    every = Counter(w.platform.node for w in staying)
    going = Counter(w.platform.node for w in free)

    def emptiness(worker: ObservedWorker) -> Emptiness:
        node = worker.platform.node
        return every[node] - going[node], going[node], node

    return emptiness


def ranked(
    workers: Iterable[ObservedWorker], order: NodeOrder, first: Collection[str] = ()
) -> list[ObservedWorker]:
    """
    Sort workers by the cost of losing them: those in `first`, then by tasks, data, how soon their
    node can be emptied, and idle time.
    """

    def key(worker: ObservedWorker) -> tuple[object, ...]:
        data = worker.process.sole_bytes if worker.process.sole_bytes > LITTLE else 0
        rest = (worker.process.sole_bytes, worker.idle_since, worker.name)
        return worker.name not in first, worker.process.processing, data, order(worker), *rest

    return sorted(workers, key=key)


def ranked_pending(workers: Iterable[ObservedWorker]) -> list[ObservedWorker]:
    """
    Sort unconnected workers: gated ones first, then stuck ones, then young before old. The oldest
    one that is starting will be of use soonest.
    """
    return sorted(
        workers, key=lambda w: (not w.platform.gated, not w.waiting, -w.platform.made_at, w.name)
    )


def pin_holders(worker: ObservedWorker) -> set[str]:
    """The owners of a worker's pins, in words that stay as time passes."""
    held = {_holder(pin) for pin in worker.process.pins}
    manual = worker.platform.manual_pin
    if manual is not None and not any(p.source == "manual" for p in worker.process.pins):
        held.add(_manual(manual.reason))
    return held


def _holder(pin: Pin) -> str:
    if pin.source == "manual":
        return _manual(pin.reason)
    if pin.source == "shuffle":
        return f"shuffle {pin.owner}"
    return f"{pin.source} {pin.owner}" + (f" ({pin.reason})" if pin.reason else "")


def _manual(reason: str) -> str:
    return "annotation" + (f" ({reason})" if reason else "")


#: Tolerated difference between a pod's end and the scheduler's view of it.
SLACK_S = 5.0

#: The owner under which the operator pins; pins of others with source "manual" are not touched.
OWNER = "operator"

#: A lease is renewed when it is shorter than the annotation asks by this much.
PIN_SLACK_S = 30.0


def drain_terminating_nodes(
    workers: GroupWorkers, context: PassContext
) -> tuple[tuple[Retire, ...], tuple[Blocker, ...]]:
    """
    Retire workers whose node terminates, busy ones too; return the reasons of those that stay.

    The node does not wait, so neither `idleTimeout` nor `retirement.maxConcurrent` counts here.
    Only a pin holds, until it ends, and actors, which cannot be moved.
    """
    leaving, blockers = [], []
    for worker in workers.on_terminating_node:
        if (refusal := refused_lately(worker, context)) is not None:
            blockers.append(Blocker(worker.name, *refusal))
        else:
            why = worker.platform.node_terminating
            leaving.append(
                Retire(worker.name, worker.dask_names, Reason.NODE_GOING, why, busy_ok=True)
            )
    for worker in (w for w in workers.noted if w.name in workers.node_terminates):
        reason, held = pinned(worker) or WITH_ACTORS
        blockers.append(Blocker(worker.name, reason, f"{worker.platform.node_terminating}; {held}"))
    return tuple(leaving), tuple(blockers)


def announce_terminating(context: PassContext) -> tuple[Leave, ...]:
    """
    Announce terminating pods that the scheduler does not know, or gives more time.

    In all groups and modes: the pod goes whatever we decide, and this only saves work. Less time
    than the pod has may be the word of somebody who was not sure of the end: ours is heard once.
    """
    observed = context.observed
    if not observed.terminating:
        return ()
    drained = {
        w.address for w in observed.scheduler.workers if w.retiring and w.retiring.is_drained
    }
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
    too_long_s = pod.known_left_s - pod.left_s
    if too_long_s < -SLACK_S:
        return context.past.announced >= set(pod.dask_names)
    return too_long_s <= SLACK_S


def sync_pins(context: PassContext) -> tuple[SetPin | Unpin, ...]:
    """Bring the agent's manual pins in step with the annotations, for all groups of the cluster."""
    observed = context.observed
    staying = tuple(
        action
        for worker in observed.notable
        if worker.dask_names and (worker.platform.manual_pin is not None or worker.process.pins)
        for action in _sync(worker, context)
    )
    return (*staying, *_lifted(context))


def _lifted(context: PassContext) -> Iterator[Unpin]:
    """
    Release pins on terminating pods whose annotation was removed: the pod waits for them.

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
    for pod in observed.terminating:
        if pod.manual_pin is None and pinned & set(pod.dask_names):
            # By name as well, unless a successor has it.
            successor = observed.worker(pod.worker)
            by_name = () if successor and successor.dask_names else (pod.worker,)
            message = f"its annotation is gone; pod {pod.pod} is being deleted"
            names = (*pod.dask_names, *by_name)
            yield Unpin(pod.worker, names, Reason.PIN_CHANGED, message)


def _sync(worker: ObservedWorker, context: PassContext) -> Iterator[SetPin | Unpin]:
    held = next((p for p in worker.process.pins if p.source == "manual" and p.owner == OWNER), None)
    wish = worker.platform.manual_pin
    if wish is None:
        if held is not None:
            message = "its annotation was removed or has expired"
            yield Unpin(worker.name, worker.dask_names, Reason.PIN_CHANGED, message)
        return
    held_s = 0.0 if held is None else held.until - context.observed.scheduler.at
    left_s = wish.until - context.observed.at
    ttl_s = min(left_s, context.policy.pins.manual.max_duration_s)
    is_as_long = held is not None and abs(held_s - ttl_s) <= PIN_SLACK_S
    if held is not None and is_as_long and held.reason == wish.reason:
        return
    reason = Reason.INVALID_ANNOTATION if wish.problem else Reason.PIN_CHANGED
    message = wish.problem or f"annotated for {format_duration(ttl_s)}"
    yield SetPin(worker.name, worker.dask_names, reason, message, ttl_s, wish.reason)
