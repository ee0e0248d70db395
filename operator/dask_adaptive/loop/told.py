"""What the page in the scheduler's dashboard shows of the operator's decisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dask_adaptive.loop.ports import Told
from dask_adaptive.model.history import Decision
from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import GroupPlan, Plan, Retire
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason

#: Decisions that are told, the last ones.
MAX_DECISIONS = 20

#: Workers of whom there is something to say.
MAX_WORKERS = 100

#: What more workers are not asked for because of, however much work comes.
_FULL = frozenset(
    {
        Reason.UNSCHEDULABLE,
        Reason.QUOTA_EXCEEDED,
        Reason.ADMISSION_REFUSED,
        Reason.CLUSTER_LIMIT,
        Reason.SCALE_OUT_PAUSED,
        Reason.REPLICAS_HELD,
    }
)

#: Vetoes that are the normal life of a worker.
_USUAL = frozenset({Reason.BUSY, Reason.IDLE_GRACE})


def told(
    name: str, observed: ObservedCluster, policy: Policy, decided: Plan, past: Past,
    decisions: Iterable[Decision],
) -> Told:  # fmt: skip
    """
    Args:
        name: Of the policy.
        decisions: The last ones, oldest first.
    """
    rows = tuple((d.at, d.group, d.reason.value, d.message) for d in decisions)
    can_grow = _can_grow(observed, policy, decided)
    arrivals = (past.of(group).arrival_s for group in can_grow)
    return Told(
        policy=name,
        message=f"{decided.reason.value}: {decided.message}",
        workers=tuple(_workers(observed, decided))[:MAX_WORKERS],
        decisions=rows[-MAX_DECISIONS:],
        can_grow=sum(can_grow.values()),
        grow_s=min((s for s in arrivals if s is not None), default=None),
    )


def _workers(observed: ObservedCluster, decided: Plan) -> Iterator[tuple[str, str]]:
    leaving = {a.worker: a.message for a in decided.actions if isinstance(a, Retire)}
    held = {b.worker: b.message for b in decided.blockers if b.reason not in _USUAL}
    for group in observed.groups:
        for worker in group.workers:
            said = _said(worker, leaving, held)
            if said:
                yield from ((name, said) for name in worker.dask_names)


def _said(worker: ObservedWorker, leaving: Mapping[str, str], held: Mapping[str, str]) -> str:
    if worker.leaving is not Leaving.NO:
        return f"leaves: {worker.leaving_message or worker.leaving.value}"
    if worker.name in leaving:
        return f"is to leave: {leaving[worker.name]}"
    return f"stays: {held[worker.name]}" if worker.name in held else ""


def _can_grow(observed: ObservedCluster, policy: Policy, decided: Plan) -> dict[str, int]:
    """How many more workers of each group may still be asked for."""
    if policy.mode is not Mode.AUTO:
        return {}
    bounds = {b.name: b for b in policy.bounds(observed.key.default_group)}
    left = {p.group: bounds[p.group].maximum - p.desired for p in decided.groups if _grows(p)}
    left = {group: more for group, more in left.items() if more > 0}
    if any(g.name == observed.key.default_group for g in policy.scaling.groups):
        room = max(0, policy.maximum - decided.desired)
        left = {group: min(more, room) for group, more in left.items()}
        while sum(left.values()) > room:
            left.popitem()
    return left


def _grows(plan: GroupPlan) -> bool:
    if plan.is_frozen or any(s.reason in _FULL for s in plan.steps[-1:]):
        return False
    return plan.limited is None or plan.limited.reason not in _FULL
