"""
Which workers may leave, and which of them should leave first: of those that cost the same, the ones
whose machine is soonest empty, because machines are paid for, not workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.observed import ObservedCluster, ObservedWorker, Pin
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Blocker
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.context import Horizon, PassContext


@dataclass(frozen=True, slots=True)
class VetoContext:
    """What a veto may look at besides the worker."""

    past: Past
    horizon: Horizon
    in_service: int  # Dask workers of the whole cluster that take tasks and data
    idle_s: float  # so long a worker of its group has to be without a task


WITH_ACTORS = Reason.HOLDS_ACTORS, "holds actors, which cannot be moved"

#: Says why a worker must stay, or None when this rule has no objection.
Veto = Callable[[ObservedWorker, VetoContext], "tuple[Reason, str] | None"]


def pinned(worker: ObservedWorker, _: object = None) -> tuple[Reason, str] | None:
    if not worker.is_pinned:
        return None
    return Reason.PINNED, f"pinned by {', '.join(sorted(claims(worker)))}"


def busy(worker: ObservedWorker, _: VetoContext) -> tuple[Reason, str] | None:
    return (Reason.BUSY, "has tasks") if worker.processing else None


def holds_actors(worker: ObservedWorker, _: VetoContext) -> tuple[Reason, str] | None:
    return WITH_ACTORS if worker.actors else None


def in_grace(worker: ObservedWorker, at: VetoContext) -> tuple[Reason, str] | None:
    if at.horizon.is_over(at.idle_s - at.horizon.clocks.idle_s(worker)):
        return None
    limit = format_duration(at.idle_s)
    return Reason.IDLE_GRACE, f"idle for less than {limit} (idleTimeout)"


def no_recipient(worker: ObservedWorker, at: VetoContext) -> tuple[Reason, str] | None:
    if not worker.sole_bytes or at.in_service > len(worker.dask_names):
        return None
    return Reason.NO_RECIPIENT, "holds the last copy of results and no other worker can take them"


def not_offered(worker: ObservedWorker, _: VetoContext) -> tuple[Reason, str] | None:
    if worker.closable:
        return None
    return Reason.NO_RECIPIENT, "not offered by the scheduler's workers_to_close: memory is needed"


def refused_lately(
    worker: ObservedWorker, at: VetoContext | PassContext
) -> tuple[Reason, str] | None:
    refusal = at.past.refusals.get(worker.name)
    if refusal is None or at.horizon.is_over(refusal.until - at.horizon.now):
        return None
    return refusal.reason, refusal.message


#: Checked in this order; the first objection is the one reported.
VETOES: tuple[Veto, ...] = (
    pinned, busy, holds_actors, in_grace, no_recipient, not_offered, refused_lately,
)  # fmt: skip


#: Where busy workers may go, for work elsewhere, these do not count: the scheduler offers no busy
#: worker, and none whose memory is needed by what runs.
_OF_IDLE = frozenset({busy, not_offered})


def veto(worker: ObservedWorker, at: VetoContext, *, busy_ok: bool = False) -> Blocker | None:
    """The first objection to letting a connected worker go, or None when it may."""
    for rule in VETOES:
        if busy_ok and rule in _OF_IDLE:
            continue
        if (objection := rule(worker, at)) is not None:
            return Blocker(worker.name, *objection)
    return None


#: Results that only one worker holds, in bytes: up to this much costs nothing to move.
LITTLE = 1 << 20

#: What is left on a worker's node once those that may leave have left, and how many those are.
Emptiness = tuple[int, int, str]

NodeOrder = Callable[[ObservedWorker], Emptiness]


def node_order(observed: ObservedCluster, free: Iterable[ObservedWorker]) -> NodeOrder:
    """
    How soon a worker's node can be empty, lowest first.

    Of what else runs on a node nothing is known: it counts as if these were all.

    Args:
        free: Workers that may leave now.
    """
    workers = (w for group in observed.groups for w in group.workers)
    every = Counter(w.node for w in workers if not w.is_deleting and w.retiring is None)
    going = Counter(w.node for w in free)

    def emptiness(worker: ObservedWorker) -> Emptiness:
        node = worker.node
        return every[node] - going[node], going[node], node

    return emptiness


def ranked(
    workers: Iterable[ObservedWorker], order: NodeOrder, first: Collection[str] = ()
) -> list[ObservedWorker]:
    """
    Cheapest to lose first: those in `first`, then those with fewest tasks, with least data, on the
    node that is soonest empty, idle longest.
    """

    def key(worker: ObservedWorker) -> tuple[object, ...]:
        data = worker.sole_bytes if worker.sole_bytes > LITTLE else 0
        rest = (worker.sole_bytes, worker.idle_since, worker.name)
        return worker.name not in first, worker.processing, data, order(worker), *rest

    return sorted(workers, key=key)


def ranked_pending(workers: Iterable[ObservedWorker]) -> list[ObservedWorker]:
    """
    First to go among those that are not connected: gated ones, stuck before starting, young before
    old.

    The oldest that is merely starting is the one that will soonest be of use.
    """
    return sorted(workers, key=lambda w: (not w.gated, not w.waiting, -w.made_at, w.name))


def claims(worker: ObservedWorker) -> set[str]:
    """The owners of a worker's pins, in words that stay as time passes."""
    held = {_claim(pin) for pin in worker.pins}
    if worker.manual_pin is not None and not any(p.source == "manual" for p in worker.pins):
        held.add(_manual(worker.manual_pin.reason))
    return held


def _claim(pin: Pin) -> str:
    if pin.source == "manual":
        return _manual(pin.reason)
    if pin.source == "shuffle":
        return f"shuffle {pin.owner}"
    return f"{pin.source} {pin.owner}" + (f" ({pin.reason})" if pin.reason else "")


def _manual(reason: str) -> str:
    return "annotation" + (f" ({reason})" if reason else "")
