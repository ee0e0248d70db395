"""Workers whose machine is about to go: out of there before it goes, work and all."""

from __future__ import annotations

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Blocker, Retire
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.candidates import claims
from dask_adaptive.planner.fleet import Fleet


def drain_doomed(
    fleet: Fleet, past: Past, *, now: float
) -> tuple[tuple[Retire, ...], tuple[Blocker, ...]]:
    """
    Let doomed workers go, busy ones too: their tasks finish, and no new ones come.

    The machine does not wait, so neither `idleTimeout` nor `retirement.maxConcurrent` counts here.
    Only a pin holds, until it ends, and actors, which cannot be moved. The agent may refuse (nobody
    is there yet to take the data): then it is asked again a little later.

    Returns:
        The retirements to begin now, and who stays on its doomed machine and why.
    """
    leaving, blockers = [], []
    for worker in fleet.doomed:
        refusal = past.refusals.get(worker.name)
        if refusal is not None and refusal.until > now:
            blockers.append(Blocker(worker.name, refusal.reason, refusal.message))
        else:
            leaving.append(_retire(worker))
    for worker in fleet.active:
        if worker.name in fleet.on_doomed_nodes:
            blockers.append(_held(worker))
    return tuple(leaving), tuple(blockers)


def _retire(worker: ObservedWorker) -> Retire:
    return Retire(
        worker.name, worker.dask_names, Reason.NODE_GOING, worker.node_going, busy_ok=True
    )


def _held(worker: ObservedWorker) -> Blocker:
    if worker.is_pinned:
        held = f"pinned by {', '.join(sorted(claims(worker)))}"
        return Blocker(worker.name, Reason.PINNED, f"{worker.node_going}; {held}")
    held = "holds actors, which cannot be moved"
    return Blocker(worker.name, Reason.HOLDS_ACTORS, f"{worker.node_going}; {held}")
