"""Why a group's number is what it is: which of its stages is the telling one."""

from __future__ import annotations

from collections.abc import Iterable

from dask_adaptive.model.history import Step
from dask_adaptive.model.plan import GroupPlan
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.fleet import Fleet, is_replaced
from dask_adaptive.planner.stages import Draft

#: What keeps a number from what is asked for, the most important first: `ScalingLimited`.
LIMITS = (
    Reason.UNSCHEDULABLE,
    Reason.QUOTA_EXCEEDED,
    Reason.ADMISSION_REFUSED,
    Reason.CLUSTER_LIMIT,
    Reason.TOO_MANY_REPLICAS,
    Reason.MAX_PENDING,
    Reason.SCALE_UP_LIMITED,
    Reason.TOO_FEW_REPLICAS,
    Reason.SCALE_DOWN_LIMITED,
)

#: Bounds are told once a group has come to them: on its way there it is not limited by them yet.
_BOUNDS = frozenset({Reason.TOO_MANY_REPLICAS, Reason.TOO_FEW_REPLICAS})

#: An ordinary wish of the load: nothing that would have to be explained.
_USUAL = frozenset({Reason.LOAD_INCREASED, Reason.DESIRED_WITHIN_RANGE, Reason.UNDERUTILIZED})


def limited_by(draft: Draft, *, is_at_rest: bool) -> Step | None:
    """What kept the number from what is asked for, if anything did."""
    step = _telling(draft)
    if step is None or step.reason not in LIMITS:
        return None
    return step if is_at_rest or step.reason not in _BOUNDS else None


def why_more(draft: Draft, fleet: Fleet) -> tuple[Reason, str]:
    """What asks for as many workers as are about to be asked for."""
    there = f"{draft.wanted} wanted, {fleet.serving} there: {draft.number} workers"
    asks = next((s for s in draft.steps if s.replicas >= draft.number), None)
    if asks is None or asks.reason in _USUAL or asks.reason is Reason.RECYCLING:
        return Reason.LOAD_INCREASED, there
    if asks.reason is Reason.TOO_FEW_REPLICAS:
        return Reason.BELOW_MINIMUM, there
    return asks.reason, f"{asks.message}: {draft.number} workers, {fleet.serving} there"


def why_at_rest(draft: Draft, fleet: Fleet, limited: Step | None) -> tuple[Reason, str]:
    """What a group that has as many workers as it shall have is told about."""
    if limited is not None:
        return limited.reason, limited.message
    replaced = (*fleet.replaced, *fleet.restarting, *filter(is_replaced, fleet.retiring))
    if replaced:
        return Reason.RECYCLING, f"{len(replaced)} workers are being replaced"
    if fleet.retiring:
        return Reason.RETIRING, f"{len(fleet.retiring)} workers are on their way out"
    step = _telling(draft)
    if step is None or step.reason in _USUAL or step.reason is Reason.RECYCLING:
        return Reason.DESIRED_WITHIN_RANGE, f"{draft.number} workers wanted and there"
    return step.reason, step.message


def _telling(draft: Draft) -> Step | None:
    """The last stage that had a say in the number, and still has."""
    last = draft.steps[-1]  # of the load at least
    return last if last.replicas == draft.number else None


def telling(plans: Iterable[GroupPlan]) -> GroupPlan:
    """Of several groups, one at least, the one of which there is most to say; first of equals."""
    return min(plans, key=_rank)


#: Of these there is least to say.
_QUIET = (Reason.DESIRED_WITHIN_RANGE, Reason.SCALE_DOWN_STABILIZED, Reason.RETIRING)


def _rank(plan: GroupPlan) -> int:
    """What stops a group comes first, then what moves one, then what limits one."""
    if plan.is_frozen:
        return 0
    if plan.reason in _QUIET:
        return 100 - _QUIET.index(plan.reason)
    if plan.desired != plan.serving:
        return 1
    is_limit = plan.limited is not None and plan.limited.reason is plan.reason
    return 2 + LIMITS.index(plan.reason) if is_limit else 50
