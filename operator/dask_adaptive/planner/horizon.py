"""
Computes how long a plan holds: `next_instant` lists every time at which something ends by itself.

A rule that compares a time has its line here, with the seconds that are left. A line too many costs
a pass; one that is missing has a plan kept for too long (`tests/unit/planner/test_valid_until.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise

from dask_adaptive.model.observed import ObservedGroup
from dask_adaptive.model.plan import GroupPlan, Plan
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.windows import turns_at
from dask_adaptive.planner.behavior import BLIND_S, window_of
from dask_adaptive.planner.capacity import arrival_of, stepped_s
from dask_adaptive.planner.caps import LONGEST_WAIT_S
from dask_adaptive.planner.context import PassContext, scaled_groups
from dask_adaptive.planner.groups import HANDLED_S, LOST_S, SEEN_S, SETTLE_S, UNHANDLED_S, gap_of
from dask_adaptive.planner.leave import OWNER, PIN_SLACK_S, SLACK_S
from dask_adaptive.planner.limits import LATE, OVERDUE_S
from dask_adaptive.planner.load import LATE as LATE_WORK
from dask_adaptive.planner.load import Load
from dask_adaptive.planner.quotas import life_of, own_lifetime_s, own_margin_s, paced_over_s
from dask_adaptive.planner.replace import HOUR_S, GroupRecycling

#: Shortest validity; keeps rounding from causing a busy loop.
TICK_S = 0.001

#: Interval of passes while workers wait for their replacement: their order may change with age.
CONTESTED_S = 1.0


def next_instant(
    context: PassContext,
    decided: Plan,
    needs: Mapping[str, Load],
    recycled: Sequence[GroupRecycling],
) -> float:
    """Return the first instant after `now` at which time alone may change the plan; or infinity."""
    lefts = chain(
        _of_people(context),
        _of_load(context, needs),
        *(_of_group(context, group) for group in decided.groups),
        _of_absent_workers(context),
        _of_recycles(context, recycled),
        *(_of_quotas(context, group) for group in context.observed.groups),
        [OVERDUE_S] if decided.arriving else [],
    )
    left_s = min((left_s for left_s in lefts if left_s > 0), default=math.inf)
    return context.now + max(left_s, TICK_S)


def _past(left_s: float) -> float:
    """Turn an inclusive end into the first instant after it."""
    return left_s or TICK_S


def _of_people(context: PassContext) -> Iterator[float]:
    """Yield ends set by people, clients and the platform."""
    observed, policy, at = context.observed, context.policy, context.observed.at
    windows = (*(s.window for s in policy.schedules), *policy.disruption.windows)
    yield turns_at(windows, at) - at
    yield observed.changes_in_s
    yield observed.pause.left_s or 0.0
    for want in observed.scheduler.wants:
        yield want.left_s
    quiet, idle = observed.scheduler.quiet, policy.idle
    if quiet.no_task_s > 0 and idle.after_s is not None:
        yield idle.after_s - quiet.no_task_s
    if quiet.no_client_s > 0 and idle.no_client_timeout_s is not None:
        yield idle.no_client_timeout_s - quiet.no_client_s
    for pod in observed.terminating:
        yield from (pod.left_s, pod.left_s - SLACK_S)
        yield from (pod.known_left_s, pod.known_left_s - SLACK_S)
        yield pod.manual_pin.until - at if pod.manual_pin else 0.0
    for worker in (w for w in observed.notable if w.is_pinned):
        manual = worker.platform.manual_pin
        yield manual.until - at if manual else 0.0
        for pin in worker.process.pins:
            held_s = pin.until - observed.scheduler.at
            yield held_s
            if manual and pin.owner == OWNER:
                over_s = held_s - policy.pins.manual.max_duration_s
                yield from (_past(over_s - PIN_SLACK_S), _past(over_s + PIN_SLACK_S))


def _of_load(context: PassContext, needs: Mapping[str, Load]) -> Iterator[float]:
    demand, clocks = context.observed.scheduler.demand, context.clocks
    if demand is None or not needs:
        return
    if demand.every_s > 0:
        yield _past(LATE_WORK * demand.every_s - demand.age_s)
    if any(load.is_lasting for load in needs.values()):
        yield from (stepped_s(row, demand.age_s)[1] for row in demand.prefixes if row.running)
    if demand.has_work:
        for group, _ in scaled_groups(context.observed, context.policy):
            arrival_s = arrival_of(context.past, group.name)
            absent = (w for w in group.table.notable if not w.dask_names)
            for worker in (w for w in absent if not w.platform.is_held_up):
                age_s = clocks.pod_age_s(worker) or clocks.age_s(worker)
                yield _past((arrival_s - age_s - 0.5) % 1.0)  # it is expected in whole seconds


def _of_group(context: PassContext, decided: GroupPlan) -> Iterator[float]:
    """Yield ends in the memory of a group's number, and of its workers' idle times."""
    if decided.is_frozen:
        return
    observed, policy, past, now = context.observed, context.policy, context.past, context.now
    behavior, mine = policy.behavior, past.of(decided.group)
    bounds = next(b for b in policy.bounds(context.default_group) if b.name == decided.group)
    directions = (behavior.scale_up, behavior.scale_down)
    windows_s = [window_of(d, bounds.idle_timeout_s) for d in directions]
    periods_s = [p.period_s for d in directions for p in d.policies]
    delay_s = behavior.scale_down.delay_after_scale_up_s
    group = observed.group(decided.group)
    gap = () if group is None else gap_of(group)
    gap_since = mine.gap_since if mine.gap == gap else now
    is_held = any(step.stage in ("window", "delay", "rate") for step in decided.steps)
    watched_since = [past.since, mine.since, mine.up_at] if is_held else []
    for instants, lasting in (
        ([r.at for r in mine.recommendations if r.replicas != decided.wanted], windows_s),
        ([c.at for c in mine.changes], periods_s),
        (watched_since, [*windows_s, *periods_s, delay_s]),
        ([mine.corrected_at], [SEEN_S]),
        ([gap_since] if len({*gap}) > 1 else [], [HANDLED_S, SETTLE_S, UNHANDLED_S]),
    ):
        yield from (at + s - now for at in instants if at is not None for s in lasting)
    if all(now - r.at >= BLIND_S for r in mine.recommendations[-1:]):
        yield from windows_s  # it is watched from now on
    if mine.blocked is not None:
        yield mine.blocked.until - now
        yield _past(mine.blocked.until + LONGEST_WAIT_S - now)
    if group is not None and decided.desired < decided.serving:
        latest = observed.scheduler.at - bounds.idle_timeout_s
        yield from (w.idle_since - latest for w in group.workers if w.idle_since < math.inf)


def _of_absent_workers(context: PassContext) -> Iterator[float]:
    """Yield ends of waits for workers that are expected, lost, or replaced in place."""
    policy, past, clocks = context.policy, context.past, context.clocks
    counted = past.counted or ()
    for group in context.observed.groups:
        takes_s = past.of(group.name).arrival_s or past.recycle.ready_s
        absent = [w for w in group.table.notable if not w.dask_names]
        for worker in (*absent, *group.table.named(counted)):
            yield policy.recycle.strategy.ready_timeout_s - clocks.pod_age_s(worker)
            yield _past(LATE * takes_s - clocks.age_s(worker))
            lost_at = past.lost.get(worker.name, context.now)
            yield lost_at + LOST_S - context.now
            if (unplaced_s := clocks.unplaced_s(worker)) > -math.inf:
                yield _past(policy.unschedulable_timeout_s - unplaced_s)
                yield _past(takes_s - unplaced_s)
                yield lost_at + policy.unschedulable_timeout_s - context.now


def _of_recycles(context: PassContext, recycled: Sequence[GroupRecycling]) -> Iterator[float]:
    """Yield ends in the memory of replacements."""
    past, now = context.past.recycle, context.now
    timeout_s = context.policy.recycle.strategy.ready_timeout_s
    yield from (refusal.until - now for refusal in context.past.refusals.values())
    yield from (until - now for until, _ in past.aborted.values())
    yield from (since + timeout_s - now for since in past.surging_since.values())
    if context.policy.recycle.max_per_hour is not None:
        yield from (at + HOUR_S - now for at in past.begun)
    for group in recycled:
        due = group.assessment.due
        if group.is_contested and any(one.rises for one in due):
            yield CONTESTED_S
        several = [(one, *one.other_reasons) for one in due]
        if any(c.reason is Reason.TASK_QUOTA and not c.is_over for each in several for c in each):
            over_s = paced_over_s(past)
            yield from (_past(at + over_s - now) for at, _, _ in past.pace.values())
        for before, after in (pair for each in several for pair in pairwise(each)):
            if after.rises:
                yield (before.ratio - after.ratio) / after.rises or TICK_S


def _of_quotas(context: PassContext, group: ObservedGroup) -> Iterator[float]:
    """Yield ages and ends of a group's workers."""
    recycle, past = context.policy.recycle_of(group.name), context.past.recycle
    clocks, ready_s = context.clocks, past.ready_s
    memory, expected_s = recycle.memory, context.observed.scheduler.expected_s
    fits = recycle.tasks.from_walltime and expected_s > 0
    if recycle.min_age_s:
        yield from (recycle.min_age_s - clocks.pod_age_s(w) for w in group.workers)
    if recycle.lifetime.max_s < math.inf:
        for worker in group.workers:
            left_s = own_lifetime_s(worker, recycle.lifetime) - clocks.pod_age_s(worker)
            yield from (left_s, left_s - ready_s)
    if memory.soft < math.inf:
        for worker in (w for w in group.workers if w.use.unmanaged >= memory.soft):
            since = past.above_since.get(life_of(worker), context.now)
            yield from (since + memory.for_s - context.now - s for s in (0.0, ready_s))
    for worker in (w for w in group.table.ends.values() if w.dask_names):
        ends_in_s = clocks.ends_in_s(worker)
        left_s = ends_in_s - own_margin_s(worker, recycle.lifetime, clocks)
        yield from (ends_in_s, left_s, left_s - expected_s - ready_s)
        if fits:
            yield from (_past(left_s - expected_s - ready_s), _past(left_s - expected_s))
            yield _past(max(left_s, 0.0) % expected_s)
