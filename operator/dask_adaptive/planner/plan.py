"""Decide what to do with one cluster: `plan` is the one entry of this package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, Blocker, Delete, Plan, SetReplicas
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.budget import left_this_hour
from dask_adaptive.planner.doomed import drain_doomed
from dask_adaptive.planner.endings import tell_endings
from dask_adaptive.planner.fall import Fall, cancel_all, delete_drained, fall
from dask_adaptive.planner.fleet import Fleet, is_creating, is_replaced, sort_fleet
from dask_adaptive.planner.others import Part, as_advice, cancel_others, joined, others, part_of
from dask_adaptive.planner.pins import sync_pins
from dask_adaptive.planner.quotas import assess
from dask_adaptive.planner.remember import renewed
from dask_adaptive.planner.rise import rise
from dask_adaptive.planner.sized import current_workers, wanted_now
from dask_adaptive.planner.stabilize import stabilize


def plan(observed: ObservedCluster, policy: Policy, past: Past, *, now: float) -> Plan:
    """
    Turn one observation into a plan. Total: every input has a plan, and every plan a reason.

    Args:
        observed: The cluster, platform and scheduler joined.
        policy: What the user asked for.
        past: What earlier passes remembered; an empty one only delays.
        now: Seconds, on the clock that stamped `past`.
    """
    group = observed.group(observed.key.default_group)
    if (stop := _cannot_decide(observed, policy, group)) is not None:
        return stop
    assert group is not None  # _cannot_decide answered otherwise

    always = (*tell_endings(observed, past), *sync_pins(observed, policy))
    fleet = sort_fleet(group, past.deleted, heed_nodes=policy.disruption.node_signals)
    if policy.mode is Mode.PAUSED:
        paused = (Reason.PAUSED, "the policy is paused")
        back = (*cancel_all(fleet, *paused), *cancel_others(observed, *paused))
        return Plan(Reason.PAUSED, "paused: nothing is scaled", actions=(*always, *back))

    if past.session != observed.scheduler.session:
        past = renewed(past)  # another scheduler's load says nothing about this one's
    decided, part = _scale(observed, group, fleet, policy, past, now=now)
    rest = others(observed, policy, past, left=part.turn.left, now=now)
    decided = joined(decided, (part, *rest), observed, policy)
    if policy.mode is Mode.ADVISE:
        advising = (Reason.ADVISING, "the policy only advises")
        back = (*cancel_all(fleet, *advising), *cancel_others(observed, *advising))
        return as_advice(decided, (*always, *back))
    return replace(decided, actions=(*always, *decided.actions))


def _cannot_decide(
    observed: ObservedCluster, policy: Policy, group: ObservedGroup | None
) -> Plan | None:
    """The plans that touch no worker because too little, or something wrong, is known."""
    name = observed.key.name
    if not observed.found:
        return Plan(Reason.CLUSTER_NOT_FOUND, f"there is no DaskCluster {name}; waiting for it")
    if observed.conflict:
        return Plan(Reason.OWNERSHIP_CONFLICT, observed.conflict)
    if group is None:
        missing = f"the cluster has no worker group {observed.key.default_group} yet"
        return Plan(Reason.CLUSTER_NOT_FOUND, missing)
    scheduler = observed.scheduler
    if scheduler.problem is None:
        return None
    raised = _below_minimum(group, policy) if policy.mode is Mode.AUTO else ()
    return Plan(scheduler.problem, f"{scheduler.message}; no worker is taken away", actions=raised)


def _below_minimum(group: ObservedGroup, policy: Policy) -> tuple[Action, ...]:
    # Safe without the scheduler: it only ever adds workers.
    if group.replicas >= policy.minimum:
        return ()
    message = f"{group.replicas} replicas are below minReplicas {policy.minimum}"
    return (SetReplicas(group.name, policy.minimum, Reason.BELOW_MINIMUM, message),)


def _scale(
    observed: ObservedCluster, group: ObservedGroup, fleet: Fleet, policy: Policy, past: Past,
    *, now: float,
) -> tuple[Plan, Part]:  # fmt: skip
    assessment = assess(observed, group, policy, past.recycle, now=now)
    wanted = wanted_now(observed, group, fleet, assessment.due, past)
    current = current_workers(fleet, assessment.due, policy.recycle_of(group.name), past)
    steady = stabilize(wanted, current, past, window_s=policy.idle_timeout_s, now=now)
    desired = min(max(steady, policy.minimum), policy.maximum)
    part = part_of(
        observed, group, fleet, assessment, policy, past, desired=desired,
        left=left_this_hour(policy, observed, past.recycle, now), is_scaled=True, now=now,
    )  # fmt: skip
    fleet, turn = part.turn.fleet, part.turn
    gone = delete_drained(fleet)
    # What must leave for its machine does so whatever is desired; replacements are asked for first.
    doomed, held = drain_doomed(fleet, past, now=now)
    held = _merged(held, turn.blockers)
    going: tuple[Action, ...] = (*doomed, *turn.restart, *turn.retire)

    if desired > fleet.serving:
        is_unsettled = is_creating(fleet, group, past, now=now) or _is_deleting(group, past)
        up = rise(fleet, desired, wanted, is_unsettled=is_unsettled)
        # Those that have drained wait: one that goes before upstream has looked for what it is to
        # make would be made anew.
        actions = (*turn.back, *up.actions, *going)
        return Plan(up.reason, up.message, wanted, desired, actions, blockers=held), part
    if desired < fleet.serving:
        due = frozenset(d.worker for d in assessment.due if d.is_over)
        down = fall(observed, fleet, desired, policy, past, due=due, now=now)
        leaving = (*turn.back, *gone, *going, *down.actions)
        actions = (*leaving, *_settle(fleet, group, past, leaving, now=now))
        blockers = _merged(held, down.blockers)
        return Plan(*_why(down, actions), wanted, desired, actions, blockers=blockers), part
    actions = (*turn.back, *gone, *going, *_settle(fleet, group, past, gone, now=now))
    reason, message = _at_rest(fleet, wanted, steady, desired, policy)
    if actions:
        reason, message = actions[0].reason, actions[0].message
    return Plan(reason, message, wanted, desired, actions, blockers=held), part


def _merged(held: Sequence[Blocker], others: Sequence[Blocker]) -> tuple[Blocker, ...]:
    named = {b.worker for b in held}
    return (*held, *(b for b in others if b.worker not in named))


def _settle(
    fleet: Fleet, group: ObservedGroup, past: Past, actions: Sequence[Action], *, now: float
) -> tuple[SetReplicas, ...]:
    """Bring `replicas` in step with the Deployments, so that upstream finds nothing to do."""
    if fleet.gap == 0 or is_creating(fleet, group, past, now=now):
        return ()
    # A number above what is left when all deletions are through has upstream make workers anew
    # (facts 9a): wait until each is seen gone.
    if _is_deleting(group, past):
        return ()
    if any(isinstance(a, Delete) for a in actions):
        return ()
    message = f"{fleet.present} workers exist, {fleet.replicas} are asked for"
    return (SetReplicas(fleet.name, fleet.present, Reason.REPLICAS_CORRECTED, message),)


def _is_deleting(group: ObservedGroup, past: Past) -> bool:
    return bool(past.deleted and past.deleted & {w.name for w in group.workers})


def _why(down: Fall, actions: Sequence[Action]) -> tuple[Reason, str]:
    if actions and not down.actions:
        return actions[0].reason, actions[0].message
    return down.reason, down.message


def _at_rest(
    fleet: Fleet, wanted: int, steady: int, desired: int, policy: Policy
) -> tuple[Reason, str]:
    if steady > desired:
        return Reason.TOO_MANY_REPLICAS, f"{steady} wanted, maxReplicas is {policy.maximum}"
    if steady < desired:
        return Reason.TOO_FEW_REPLICAS, f"{steady} wanted, minReplicas is {policy.minimum}"
    replaced = (*fleet.replaced, *fleet.restarting, *filter(is_replaced, fleet.retiring))
    if replaced:
        return Reason.RECYCLING, f"{len(replaced)} workers are being replaced"
    if fleet.retiring:
        return Reason.RETIRING, f"{len(fleet.retiring)} workers are on their way out"
    if steady > wanted:
        held = f"{wanted} wanted, {steady} held until the fall has lasted idleTimeout"
        return Reason.SCALE_DOWN_STABILIZED, held
    return Reason.DESIRED_WITHIN_RANGE, f"{desired} workers wanted and there"


def count_blockers(blockers: Sequence[Blocker]) -> tuple[tuple[Reason, int], ...]:
    """How many workers stay for each reason, most first, then by the reason's word."""
    counts = Counter(b.reason for b in blockers)
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0].value)))
