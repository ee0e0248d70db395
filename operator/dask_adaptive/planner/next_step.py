"""Takes one step of a group towards its number: more workers, fewer, or corrected `replicas`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dask_adaptive.model.amounts import counted, format_duration
from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.plan import Action, Blocker, Cancel, Delete, GroupPlan, Retire, SetReplicas
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.context import PassContext
from dask_adaptive.planner.groups import GroupWorkers, is_creating, is_deleting, is_unseen
from dask_adaptive.planner.leave import (
    Emptiness,
    VetoContext,
    drain_terminating_nodes,
    node_order,
    ranked,
    ranked_pending,
    veto,
)
from dask_adaptive.planner.replace import GroupRecycling
from dask_adaptive.planner.stages import Draft, limited_by, why_at_rest, why_more


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Actions that bring a group closer to its number, with their reason."""

    reason: Reason
    message: str
    actions: tuple[Action, ...] = ()
    blockers: tuple[Blocker, ...] = ()


@dataclass(frozen=True, slots=True)
class NextStep:
    """The plan, actions and blockers of one group."""

    plan: GroupPlan
    actions: tuple[Action, ...] = ()
    blockers: tuple[Blocker, ...] = ()


def next_step(
    context: PassContext, draft: Draft, recycled: GroupRecycling, *, leaving: int
) -> NextStep:
    """
    Decide the next step of one group. `leaving` counts unneeded workers that leave the cluster.
    """
    workers = recycled.workers
    drained = delete_drained(workers)
    # Workers on terminating nodes leave in any case; their replacements are requested first.
    evacuated, held = drain_terminating_nodes(workers, context)
    removals: tuple[Action, ...] = (*evacuated, *recycled.restart, *recycled.retire)

    if draft.number > workers.serving:
        change = scale_up(context, workers, draft.number, why_more(draft, workers))
        # Drained workers wait: upstream would recreate one that is deleted before it has acted on
        # the new number.
        actions = (*recycled.back, *change.actions, *removals)
    elif draft.number < workers.serving:
        due = frozenset(d.worker for d in recycled.assessment.due if d.is_over)
        change = scale_down(context, workers, draft, due=due, leaving=leaving)
        actions = (*recycled.back, *drained, *removals, *change.actions)
        actions = (*actions, *_settle(context, workers, actions))
    else:
        change = Adjustment(*why_at_rest(draft, workers, limited_by(draft, is_at_rest=True)))
        settle = _settle(context, workers, drained)
        actions = (*recycled.back, *drained, *removals, *settle)
    reason, message = change.reason, change.message
    if actions and not change.actions and draft.number <= workers.serving:
        reason, message = actions[0].reason, actions[0].message
    blockers = _merged(held, recycled.blockers, change.blockers)
    return NextStep(_group_plan(draft, workers, reason, message), actions, blockers)


def _group_plan(draft: Draft, workers: GroupWorkers, reason: Reason, message: str) -> GroupPlan:
    figures = {
        "serving": workers.serving,
        "pending": len(workers.pending),
        "retiring": len(workers.retiring),
        "replicas": draft.workers.replicas,
        "minReplicas": draft.bounds.minimum,
        "maxReplicas": draft.bounds.maximum,
    }
    return GroupPlan(
        group=draft.name,
        serving=workers.serving,
        wanted=draft.wanted,
        desired=draft.number,
        reason=reason,
        message=message,
        steps=draft.steps,
        inputs={**draft.load.inputs, **figures},
        limited=limited_by(draft, is_at_rest=workers.serving == draft.number),
        asked_by=draft.load.asked_by,
        current=draft.current,
        blocked=draft.blocked,
        claim=draft.claim,
    )


def _merged(*objections: Sequence[Blocker]) -> tuple[Blocker, ...]:
    """One objection for each worker: the first."""
    found: dict[str, Blocker] = {}
    for blocker in (b for each in objections for b in each):
        found.setdefault(blocker.worker, blocker)
    return tuple(found.values())


def _settle(
    context: PassContext, workers: GroupWorkers, actions: Sequence[Action]
) -> tuple[SetReplicas, ...]:
    """Match `replicas` to the Deployments, so that upstream has nothing to do."""
    if workers.gap == 0 or is_creating(context, workers):
        return ()
    # If `replicas` exceeds the workers that remain after all deletions, upstream creates new ones
    # (docs/explanation/decisions.md): wait until each deletion is seen.
    if is_deleting(context, workers) or any(isinstance(a, Delete) for a in actions):
        return ()
    message = f"{counted(workers.present, 'worker')} present, {workers.replicas} requested"
    return (SetReplicas(workers.name, workers.present, Reason.REPLICAS_CORRECTED, message),)


# More workers: first those that were about to leave, then new ones


def scale_up(
    context: PassContext, workers: GroupWorkers, desired: int, cause: tuple[Reason, str]
) -> Adjustment:
    """Raise the serving workers to `desired`, which is above their number."""
    missing = desired - workers.serving
    back = _called_back(workers, missing)
    missing -= len(back)
    if not missing:
        return Adjustment(back[0].reason, back[0].message, back)
    reason, message = _why_up(workers, desired, cause)
    goal = workers.present + missing
    if is_unseen(context, workers, goal):
        seen = f"{goal} needed, once dask-kubernetes has handled the {workers.replicas} requested"
        return Adjustment(Reason.SETTLING, seen, back)
    if goal > workers.replicas:
        rise = SetReplicas(workers.name, goal, reason, message)
        return Adjustment(reason, message, (*back, rise))
    if is_creating(context, workers) or is_deleting(context, workers):
        return Adjustment(Reason.SETTLING, f"{workers.gap} more not created yet", back)
    # Upstream acts only on changes of `replicas`. Here the number is at or above the goal, yet
    # upstream is idle: correct it first, so that the next pass can raise it.
    number = goal if goal < workers.replicas else workers.present
    known = f"{counted(workers.present, 'worker')} present, {workers.replicas} requested"
    fix = SetReplicas(workers.name, number, Reason.REPLICAS_CORRECTED, f"{known}, {goal} needed")
    return Adjustment(reason, message, (*back, fix))


def _why_up(workers: GroupWorkers, desired: int, cause: tuple[Reason, str]) -> tuple[Reason, str]:
    more = desired - workers.serving
    leaving = len(workers.on_terminating_node)
    leaving += sum(w.name in workers.node_terminates for w in workers.retiring)
    if leaving and more <= leaving:
        going = f"{counted(leaving, 'worker')} on nodes that are about to go away"
        return Reason.NODE_GOING, f"{going}: {more} more needed"
    replaced = len(workers.replaced) + sum(w.is_replaced for w in workers.retiring)
    if replaced and more <= replaced + leaving:
        going = f"{counted(replaced, 'worker')} to be replaced"
        return Reason.RECYCLING, f"{going}: {more} more must come first"
    return cause


def _called_back(workers: GroupWorkers, missing: int) -> tuple[Cancel, ...]:
    # Most data first: these are the most expensive to lose and the furthest from done.
    order = sorted(workers.recallable, key=lambda w: (-w.process.sole_bytes, w.name))
    return tuple(
        Cancel(w.name, w.dask_names, Reason.WANTED_AGAIN, "needed again before it had left")
        for w in order[:missing]
    )


# Fewer workers: those that never connected first, then idle ones that nothing holds


def scale_down(
    context: PassContext, workers: GroupWorkers, draft: Draft, *, due: Collection[str], leaving: int
) -> Adjustment:
    """
    Retire workers until as many serve as the draft says, which is below their number.

    Never one that a veto objects to; never more on their way out at once than
    `retirement.maxConcurrent` (one that never connected costs nothing and is not counted); never so
    many that fewer than desired are connected: one that is pending may never come.

    Args:
        due: Workers whose quotas have run out: of those that may go, they go first.
        leaving: Workers of the whole cluster that are on their way out because nobody needs them.
    """
    desired = draft.number
    unpinned = [w for w in ranked_pending(workers.pending) if w.platform.manual_pin is None]
    deletions = tuple(
        Delete(w.name, (), reason, f"not needed and not connected ({why})", w.platform.uid)
        for w in unpinned[: workers.serving - desired]
        for reason, why in [w.absence]
    )
    surplus = workers.serving - len(workers.pending) - desired
    if surplus <= 0:
        if not deletions:
            return Adjustment(Reason.NO_CANDIDATES, "workers that are not connected are pinned")
        pending = counted(len(deletions), "worker")
        message = f"deleting {pending} not connected yet: {desired} of {workers.serving} needed"
        return Adjustment(deletions[0].reason, message, deletions)

    gives_back = draft.steps[-1].reason is Reason.BUDGET_SHARED
    idle_s = 0.0 if gives_back else draft.bounds.idle_timeout_s
    free, blockers = _divide(context, workers, idle_s=idle_s, busy_ok=gives_back)
    budget = context.policy.retirement.max_concurrent - leaving
    order = node_order(context.observed, free)
    chosen = ranked(free, order, first=due)[: max(0, min(surplus, budget))]
    retired = (_retire(context, w, desired, order(w), gives_back=gives_back) for w in chosen)
    actions: tuple[Action, ...] = (*deletions, *retired)
    if chosen and gives_back:
        reason, message = Reason.BUDGET_SHARED, draft.steps[-1].message
    elif chosen:
        reason = Reason.UNDERUTILIZED
        idle = f"retiring {counted(len(chosen), 'idle worker')}"
        message = f"{idle}: {desired} of {workers.serving} needed"
    elif free:
        reason = Reason.BUDGET_EXHAUSTED
        message = f"{counted(leaving, 'worker')} leaving already (retirement.maxConcurrent)"
    else:
        reason = Reason.NO_CANDIDATES
        message = f"{surplus} of {counted(workers.serving, 'worker')} not needed, none may leave"
    return Adjustment(reason, message, actions, blockers)


def delete_drained(workers: GroupWorkers) -> tuple[Delete, ...]:
    """Delete drained workers: they have no task and no last copy, and get no new work."""
    return tuple(
        Delete(
            w.name, w.dask_names, Reason.DRAINED, "drained: no task, no last copy", w.platform.uid
        )
        for w in workers.retiring
        if w.is_drained
    )


def _divide(
    context: PassContext, workers: GroupWorkers, *, idle_s: float, busy_ok: bool
) -> tuple[list[ObservedWorker], tuple[Blocker, ...]]:
    """
    Divide active workers into those that may leave and those that must stay.

    Args:
        busy_ok: One that has tasks may go, too: those that run finish first, others move.
    """
    scheduler = context.observed.scheduler
    in_service = sum(
        w.retiring is None and w.status == "running" and not w.terminating
        for w in scheduler.workers
    )
    at = VetoContext(context.past, context.now, context.clocks, in_service, idle_s)
    free, blockers = [], []
    for worker in workers.active:
        if (blocker := veto(worker, at, busy_ok=busy_ok)) is None:
            free.append(worker)
        else:
            blockers.append(blocker)
    return free, tuple(blockers)


def _retire(
    context: PassContext, worker: ObservedWorker, desired: int, emptiness: Emptiness,
    *, gives_back: bool,
) -> Retire:  # fmt: skip
    if gives_back:
        message = f"{counted(desired, 'worker')}: this group's part of what it shares"
        busy_ok = worker.process.processing > 0
        return Retire(
            worker.name, worker.dask_names, Reason.BUDGET_SHARED, message, busy_ok=busy_ok
        )
    idle = format_duration(context.clocks.idle_s(worker))
    message = f"idle for {idle}, {desired} needed"
    left, _, node = emptiness
    if node:
        message += f"; {counted(left, 'other worker')} kept on node {node}"
    return Retire(worker.name, worker.dask_names, Reason.UNDERUTILIZED, message)
