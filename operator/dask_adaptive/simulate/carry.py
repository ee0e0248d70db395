"""Carries out a plan in a simulated world, with the checks that the real actions make."""

from __future__ import annotations

from dask_adaptive.model.observed import Leaving
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    DeleteCluster,
    Outcome,
    Plan,
    Restart,
    Retire,
    SetReplicas,
)
from dask_adaptive.model.reason import Reason
from dask_adaptive.simulate.world import World


def carry_out(decided: Plan, world: World) -> tuple[Outcome, ...]:
    return tuple(_one(action, world) for action in decided.actions)


def _one(action: Action, world: World) -> Outcome:
    match action:
        case Retire(worker, _, reason):
            is_accepted = world.retire(worker, reason, busy_ok=action.busy_ok)
            refused = "" if is_accepted else "has tasks"
        case Delete(worker) | Restart(worker):
            refused = _objection(world, worker)
        case _:
            refused = ""
    if refused:
        return Outcome(action, False, Reason.RETIREMENT_REFUSED, refused)
    _do(action, world)
    return Outcome(action, True, action.reason, action.message)


def _do(action: Action, world: World) -> None:
    match action:
        case SetReplicas(group, replicas):
            world.set_replicas(group, replicas)
        case Cancel(worker):
            world.cancel(worker)
        case Delete(worker):
            world.delete(worker)
        case Restart(worker):
            world.restart(worker)
        case DeleteCluster():
            world.delete_all()


def _objection(world: World, name: str) -> str:
    """As `loop.act` asks the agent once more: one that has connected or works since stays."""
    worker = world.workers.get(name)
    if worker is None or not worker.is_here or worker.leaving is Leaving.DRAINED:
        return ""
    return "has connected or has work since; it drains first"
