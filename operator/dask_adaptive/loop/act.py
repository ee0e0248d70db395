"""Carry out a plan: check each action's preconditions once more, then make one idempotent call."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from dask_adaptive.backoff import Backoff
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

#: Looks once more; true if the cluster is still to be deleted.
StillUnused = Callable[[DeleteCluster], Awaitable[bool]]


#: The first wait before what has failed is tried again, and the longest.
FIRST_S, LONGEST_S = 1.0, 60.0


class Attempts:
    """
    Actions that the platform refused lately, retried with exponential backoff. Requests that a
    scheduler does not answer are not among them: nothing is planned until it does.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], _Failed] = {}

    def waiting(self, action: Action) -> str:
        """Return the last error of an action that is in backoff, else an empty string."""
        known = self._known.get(_name(action))
        return known.why if known and self._clock() < known.until else ""

    def is_again(self, action: Action) -> bool:
        return _name(action) in self._known

    def failed(self, action: Action, exc: PlatformError) -> None:
        known = self._known.setdefault(_name(action), _Failed(Backoff(FIRST_S, LONGEST_S)))
        known.until = self._clock() + known.backoff.next_s(exc.retry_after_s)
        known.why = str(exc)

    def keep(self, actions: Iterable[Action]) -> None:
        """Forget actions that are no longer planned."""
        planned = {_name(action) for action in actions}
        self._known = {name: known for name, known in self._known.items() if name in planned}

    def done(self, action: Action) -> None:
        self._known.pop(_name(action), None)

    def left_s(self) -> float:
        """Seconds until the next one may be tried; infinite if none waits."""
        return min((k.until for k in self._known.values()), default=math.inf) - self._clock()


@dataclass(slots=True)
class _Failed:
    backoff: Backoff
    until: float = 0.0
    why: str = ""


def _name(action: Action) -> tuple[str, str]:
    about = getattr(action, "worker", "") or getattr(action, "group", "")
    return type(action).__name__, about


async def act(
    decided: Plan, policy: Policy, ports: Ports, attempts: Attempts,
    still_unused: StillUnused | None = None,
) -> tuple[Outcome, ...]:  # fmt: skip
    """
    Carry out the actions in order. A failed one becomes an outcome with reason `ActionFailed`; the
    others are still tried.

    Args:
        still_unused: Without it no cluster is deleted.
    """
    attempts.keep(decided.actions)
    outcomes = []
    for action in decided.actions:
        why = attempts.waiting(action)
        if why:
            outcomes.append(Outcome(action, False, Reason.ACTION_FAILED, why))
            continue
        try:
            if isinstance(action, DeleteCluster):
                outcome = await _end(action, ports, still_unused)
            else:
                outcome = await _do(action, policy, ports, is_again=attempts.is_again(action))
        except (PlatformError, LinkError) as exc:
            if isinstance(exc, PlatformError):
                attempts.failed(action, exc)
            outcome = Outcome(action, False, Reason.ACTION_FAILED, str(exc))
        else:
            attempts.done(action)
        outcomes.append(outcome)
    return tuple(outcomes)


async def _end(action: DeleteCluster, ports: Ports, still_unused: StillUnused | None) -> Outcome:
    if still_unused is None or not await still_unused(action):
        return Outcome(action, False, Reason.BUSY, "the cluster is in use again")
    await ports.platform.delete_cluster(action.uid)
    return Outcome(action, True, action.reason, action.message)


async def _do(action: Action, policy: Policy, ports: Ports, *, is_again: bool) -> Outcome:
    match action:
        case SetReplicas(group, replicas):
            await ports.platform.set_replicas(group, replicas)
        case Retire():
            return await _retire(action, policy, ports)
        case Leave(_, names, reason, _, left_s):
            answers = await ports.link.leave(names, left_s=left_s, reason=reason)
            return _answered(action, answers)
        case Cancel(_, names):
            await ports.link.cancel(names)
        case Delete() | Restart():
            return await _take_away(action, policy, ports, is_again=is_again)
        case SetPin(_, names, _, _, ttl_s, note):
            await ports.link.pin(names, ttl_s=ttl_s, note=note)
        case Unpin(_, names):
            await ports.link.unpin(names)
    return Outcome(action, True, action.reason, action.message)


async def _retire(action: Retire, policy: Policy, ports: Ports) -> Outcome:
    answers = await ports.link.retire(
        action.dask_names, policy, action.reason, busy_ok=action.busy_ok, over_pins=action.over_pins
    )
    outcome = _answered(action, answers)
    # A Deployment's workers leave together or not at all.
    accepted = [a.name for a in answers if a.state in {"draining", "drained"}]
    if accepted and not outcome.done:
        await ports.link.cancel(accepted)
    return outcome


async def _take_away(
    action: Delete | Restart, policy: Policy, ports: Ports, *, is_again: bool
) -> Outcome:
    # The snapshot is seconds old. Ask again, now: a worker that has connected since, was pinned,
    # or holds a new result must not be deleted. One that never connected is known by its own name.
    # So is the second process of a pod that has connected since the first.
    names = tuple(dict.fromkeys((*action.dask_names, action.worker)))
    ends = "names" if isinstance(action, Delete) else "processes"
    # If the platform refuses, workers that the scheduler forgot register again: tell it only once.
    answers = await ports.link.retire(names, policy, action.reason, ends="" if is_again else ends)
    if not all(a.state in {"drained", "gone"} for a in answers):
        refusal = _refusal(answers)
        if refusal is not None:
            await ports.link.cancel(names)  # together, or not at all
        message = refusal.message if refusal else "has connected or got work since; it drains first"
        reason = (refusal and refusal.veto) or Reason.RETIRING
        return Outcome(action, False, reason, message)
    if isinstance(action, Restart):
        await ports.platform.restart_worker(action.worker, action.pod, action.pod_uid)
    else:
        await ports.platform.delete_worker(action.worker, action.uid)
    return Outcome(action, True, action.reason, action.message)


def _answered(action: Action, answers: Sequence[Retired]) -> Outcome:
    if (refusal := _refusal(answers)) is not None:
        return Outcome(action, False, refusal.veto or Reason.RETIREMENT_REFUSED, refusal.message)
    return Outcome(action, True, action.reason, action.message)


def _refusal(answers: Sequence[Retired]) -> Retired | None:
    return next((a for a in answers if a.state == "active"), None)
