"""How many workers each group shall have: the load's wish on its way through one stage a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.past import Blocked, Past
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import GroupBounds
from dask_adaptive.planner.behavior import damped
from dask_adaptive.planner.caps import capped, shared
from dask_adaptive.planner.demand import Load, loads
from dask_adaptive.planner.fleet import Fleet, sort_fleet
from dask_adaptive.planner.idle import idle_step
from dask_adaptive.planner.pauses import held
from dask_adaptive.planner.quotas import Assessment, assess
from dask_adaptive.planner.schedules import floor_of
from dask_adaptive.planner.sized import current_workers, wanted_now


@dataclass(frozen=True, slots=True)
class Draft:
    """One group's number on its way through the stages."""

    group: ObservedGroup
    bounds: GroupBounds
    fleet: Fleet
    assessment: Assessment
    load: Load
    current: int  # what it moves from, see `sized.current_workers`
    wanted: int  # what the load asks for
    number: int  # what the stages have made of it so far
    steps: tuple[Step, ...] = ()
    floor: Step | None = None  # below which no stage takes it, but caps and pauses
    blocked: Blocked | None = None

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def standing(self) -> int:
        """Workers that are there or on their way; those that can still be called back as well."""
        return self.current + self.fleet.recallable

    def at(self, step: Step | None) -> Draft:
        """After one more stage; None: it had nothing to say."""
        if step is None:
            return self
        return replace(self, number=step.replicas, steps=(*self.steps, step))


def scaled_groups(
    observed: ObservedCluster, policy: Policy
) -> tuple[tuple[ObservedGroup, GroupBounds], ...]:
    """The groups that are there and that the policy has bounds for, the default one first."""
    every = policy.bounds(observed.key.default_group)
    found = ((observed.group(bounds.name), bounds) for bounds in every)
    return tuple((group, bounds) for group, bounds in found if group is not None)


def drafts_of(
    observed: ObservedCluster, policy: Policy, past: Past, *, now: float
) -> tuple[Draft, ...]:
    """Take each group's wish through all stages; the same input gives the same numbers."""
    asked = loads(observed, policy, past)
    drafts = [
        _bounded(_damped(_floored(draft, observed, policy), policy, past, now=now))
        for draft in (
            _loaded(observed, group, bounds, policy, past, asked, now=now)
            for group, bounds in scaled_groups(observed, policy)
        )
    ]
    drafts = [_capped(draft, policy, past, now=now) for draft in drafts]
    drafts = _shared(drafts, observed, policy)
    return tuple(_held(draft, observed) for draft in drafts)


def _loaded(
    observed: ObservedCluster, group: ObservedGroup, bounds: GroupBounds, policy: Policy,
    past: Past, asked: Mapping[str, Load], *, now: float,
) -> Draft:  # fmt: skip
    fleet = sort_fleet(group, past.deleted, heed_nodes=policy.disruption.node_signals)
    assessment = assess(observed, group, policy, past.recycle, now=now)
    recycle = policy.recycle_of(group.name)
    load = asked[group.name]
    wanted = wanted_now(load.wanted, fleet, assessment.due, past)
    steps = load.steps
    if wanted != load.wanted:
        stand_in = f"{load.wanted - wanted} of {load.wanted} stand in for workers that leave"
        steps = (*steps, Step("recycle", wanted, Reason.RECYCLING, stand_in))
    current = current_workers(fleet, group, assessment.due, recycle, past, now=now)
    return Draft(group, bounds, fleet, assessment, load, current, wanted, wanted, steps)


def _floored(draft: Draft, observed: ObservedCluster, policy: Policy) -> Draft:
    """The minimum, unless nobody uses the cluster; and, used or not, what schedules keep."""
    default, minimum = observed.key.default_group, draft.bounds.minimum
    floors = []
    if minimum > 0:
        if (idle := idle_step(observed, policy)) is None:
            message = f"{draft.number} wanted, minReplicas is {minimum}"
            floors.append(Step("bounds", minimum, Reason.TOO_FEW_REPLICAS, message))
        else:
            draft = draft.at(replace(idle, replicas=draft.number))
    _, scheduled = floor_of(policy.scaling.schedules, draft.name, default, at=observed.at)
    if scheduled is not None:
        floors.append(scheduled)
    floor = max(floors, key=lambda step: step.replicas, default=None)
    draft = replace(draft, floor=floor)
    return draft if floor is None or draft.number >= floor.replicas else draft.at(floor)


def _damped(draft: Draft, policy: Policy, past: Past, *, now: float) -> Draft:
    mine = past.of(draft.name)
    watched = None if past.since is None or mine.since is None else max(past.since, mine.since)
    number, steps = damped(
        draft.number, draft.current, policy.scaling.behavior, mine,
        idle_timeout_s=policy.idle_timeout_of(draft.bounds), since=watched, now=now,
    )  # fmt: skip
    draft = replace(draft, number=number, steps=(*draft.steps, *steps))
    # What a floor asks for is not slowed down: as with HPA, minReplicas hold at once.
    floor = draft.floor
    return draft if floor is None or number >= floor.replicas else draft.at(floor)


def _bounded(draft: Draft) -> Draft:
    maximum = draft.bounds.maximum
    if draft.number <= maximum:
        return draft
    message = f"{draft.number} wanted, maxReplicas is {maximum}"
    return draft.at(Step("bounds", maximum, Reason.TOO_MANY_REPLICAS, message))


def _capped(draft: Draft, policy: Policy, past: Past, *, now: float) -> Draft:
    number, steps, blocked = capped(
        draft.number, draft.fleet, draft.group, policy, past.of(draft.name), now=now
    )
    return replace(draft, number=number, steps=(*draft.steps, *steps), blocked=blocked)


def _shared(drafts: Sequence[Draft], observed: ObservedCluster, policy: Policy) -> list[Draft]:
    """`maxReplicas` of the policy is that of all groups together where the default has its own."""
    if all(g.name != observed.key.default_group for g in policy.scaling.groups):
        return list(drafts)
    # Nobody is taken away so that another group can grow, and none grows into the place of one that
    # has yet to leave; but what is beyond the limit goes.
    maximum = policy.maximum - sum(max(0, d.current - d.number) for d in drafts)
    desired = {d.name: d.number for d in drafts}
    floor = {d.name: min(d.number, d.current - _stuck(d, policy)) for d in drafts}
    if sum(floor.values()) > policy.maximum:
        maximum = policy.maximum
        desired = {d.name: min(d.number, d.current) for d in drafts}
        floor = {d.name: min(desired[d.name], d.bounds.minimum) for d in drafts}
    _, steps = shared(desired, [d.bounds for d in drafts], floor, maximum)
    return [d.at(_less(d, steps.get(d.name), desired[d.name], policy.maximum)) for d in drafts]


def _less(draft: Draft, step: Step | None, allowed: int, maximum: int) -> Step | None:
    """What the cluster's limit makes of a number, and why."""
    if step is None and allowed == draft.number:
        return None
    number = allowed if step is None else step.replicas
    message = f"{draft.number} needed, {number} for now: maxReplicas of all groups is {maximum}"
    return Step("cluster", number, Reason.CLUSTER_LIMIT, message)


def _stuck(draft: Draft, policy: Policy) -> int:
    """Workers that no machine takes: another group need not wait for their places."""
    limit_s = policy.scaling.caps.unschedulable_timeout_s
    return sum(w.unschedulable_s > limit_s or bool(w.refused) for w in draft.fleet.pending)


def _held(draft: Draft, observed: ObservedCluster) -> Draft:
    is_default = draft.name == observed.key.default_group
    _, step = held(draft.number, draft.standing, observed.pause, is_default=is_default)
    return draft.at(step)
