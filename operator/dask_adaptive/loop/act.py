"""Carry out a plan: check each action's preconditions once more, then make one idempotent call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dask_adaptive.loop.ports import LinkError, PlatformError, Ports, Retired
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    DeleteCluster,
    Leave,
    Outcome,
    Plan,
    Restart,
    Retire,
    SetPin,
    SetReplicas,
    Unpin,
)
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason

#: Looks once more, and says whether the cluster is still to be deleted.
StillUnused = Callable[[DeleteCluster], Awaitable[bool]]


async def act(
    decided: Plan, policy: Policy, ports: Ports, still_unused: StillUnused | None = None
) -> tuple[Outcome, ...]:
    """
    Do what was planned, in order. What fails is an outcome with reason `ActionFailed`, and does not
    keep the others from being tried.

    Args:
        still_unused: Without it no cluster is deleted.
    """
    outcomes = []
    for action in decided.actions:
        try:
            if isinstance(action, DeleteCluster):
                outcome = await _end(action, ports, still_unused)
            else:
                outcome = await _do(action, policy, ports)
        except (PlatformError, LinkError) as exc:
            outcome = Outcome(action, False, Reason.ACTION_FAILED, str(exc))
        outcomes.append(outcome)
    return tuple(outcomes)


async def _end(action: DeleteCluster, ports: Ports, still_unused: StillUnused | None) -> Outcome:
    if still_unused is None or not await still_unused(action):
        return Outcome(action, False, Reason.BUSY, "the cluster is in use again")
    await ports.platform.delete_cluster(action.uid)
    return Outcome(action, True, action.reason, action.message)


async def _do(action: Action, policy: Policy, ports: Ports) -> Outcome:
    match action:
        case SetReplicas(group, replicas):
            await ports.platform.set_replicas(group, replicas)
        case Retire():
            return await _retire(action, policy, ports)
        case Leave():
            return await _leave(action, ports)
        case Cancel(_, names):
            await ports.link.cancel(names)
        case Delete() | Restart():
            return await _take_away(action, policy, ports)
        case SetPin(_, names, ttl_s, note):
            await ports.link.pin(names, ttl_s=ttl_s, note=note)
        case Unpin(_, names):
            await ports.link.unpin(names)
    return Outcome(action, True, action.reason, action.message)


async def _retire(action: Retire, policy: Policy, ports: Ports) -> Outcome:
    answers = await ports.link.retire(
        action.dask_names,
        policy,
        action.reason,
        busy_ok=action.busy_ok,
        over_pins=action.over_pins,
    )
    refusal = _refusal(answers)
    if refusal is None:
        return Outcome(action, True, action.reason, action.message)
    # A Deployment's workers leave together or not at all.
    accepted = [a.name for a in answers if a.state in {"draining", "drained"}]
    if accepted:
        await ports.link.cancel(accepted)
    return Outcome(action, False, refusal.veto or Reason.RETIREMENT_REFUSED, refusal.message)


async def _leave(action: Leave, ports: Ports) -> Outcome:
    answers = await ports.link.leave(
        action.dask_names, left_s=action.left_s, reason=action.reason, ending=True
    )
    refusal = _refusal(answers)
    if refusal is not None:
        reason = refusal.veto or Reason.RETIREMENT_REFUSED
        return Outcome(action, False, reason, refusal.message)
    return Outcome(action, True, action.reason, action.message)


async def _take_away(action: Delete | Restart, policy: Policy, ports: Ports) -> Outcome:
    # The snapshot is seconds old. Ask again, now: a worker that has connected since, was pinned,
    # or holds a new result must not be deleted. One that never connected is known by its own name.
    names = action.dask_names or (action.worker,)
    answers = await ports.link.retire(names, policy, action.reason)
    if not all(a.state in {"drained", "gone"} for a in answers):
        refusal = _refusal(answers)
        message = refusal.message if refusal else "has connected or has work since; it drains first"
        reason = (refusal and refusal.veto) or Reason.RETIRING
        return Outcome(action, False, reason, message)
    if isinstance(action, Restart):
        await ports.platform.restart_worker(action.worker, action.pod, action.pod_uid)
    else:
        await ports.platform.delete_worker(action.worker, action.uid)
    return Outcome(action, True, action.reason, action.message)


def _refusal(answers: Sequence[Retired]) -> Retired | None:
    return next((a for a in answers if a.state == "active"), None)
