"""Limits how fast a number of workers moves: stabilization windows, tolerance, rate policies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.past import Change, GroupPast, Recommendation
from dask_adaptive.model.plan import Step
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Behavior, Direction, RatePolicy, RateType, Select

#: Gap between recommendations after which earlier ones no longer count.
BLIND_S = 20.0

#: Maximum remembered changes; the oldest are merged, dated as the later one.
CHANGES = 200


def damped(
    wanted: int, current: int, behavior: Behavior, past: GroupPast,
    *, idle_timeout_s: float, since: float | None, now: float, lowest: int = 0,
    highest: float = math.inf,
) -> tuple[int, tuple[Step, ...]]:  # fmt: skip
    """
    Move from `current` towards `wanted` as far as `behavior` allows; name the rules that held it.

    Up to what was desired last nothing is limited but by the window: workers that have died since
    are replaced at once. A fall needs more than HPA asks for: the load must have been watched,
    without a gap, for as long as any rule looks back, because an operator or a scheduler that has
    just started has no past to judge by. A higher `wanted` never gives a lower number.

    Args:
        idle_timeout_s: The window of a fall where `behavior` names none.
        since: When the load was first watched, without a gap since; None: not yet.
        lowest: No step there is too small to be made, nor to `highest`: `wanted` stops at these,
            however far beyond them the load is.

    Source:
        HorizontalPodAutoscaler (autoscaling/v2), `spec.behavior`.
    """
    watched_s = 0.0 if since is None else max(0.0, now - since)
    by = _Damping(behavior, past, idle_timeout_s, watched_s, now, lowest, highest)
    steps = []
    number = wanted
    for rule in (by.stabilized, by.limited):
        if (step := rule(number, current)) is not None:
            steps.append(step)
            number = step.replicas
    return number, tuple(steps)


def remembered(
    past: GroupPast, *, wanted: int, before: int, after: int, behavior: Behavior,
    idle_timeout_s: float, now: float,
) -> GroupPast:  # fmt: skip
    """
    Add this pass to the past, and drop what no rule can look back to.

    Args:
        before: Workers before what this pass has asked for, and has got; `after`: after it.
    """
    policies = (*behavior.scale_up.policies, *behavior.scale_down.policies)
    longest_s = max((p.period_s for p in policies), default=0.0)
    changes = [c for c in past.changes if now - c.at < longest_s]
    # As with HPA, which counts what is asked for, those that come for dead ones are no change.
    change = max(0, after - _owed(before, past)) if after > before else after - before
    if change and policies:
        changes.append(Change(now, change))
    return replace(
        past,
        recommendations=_recommendations(past, wanted, behavior, idle_timeout_s, now=now),
        changes=_few(changes),
        requested=after if after < before else max(after, past.requested or 0),
        up_at=now if change > 0 else past.up_at,
    )


def window_of(direction: Direction, idle_timeout_s: float) -> float:
    window_s = direction.stabilization_window_s
    return idle_timeout_s if window_s is None else window_s


@dataclass(frozen=True, slots=True)
class _Damping:
    """Everything that damps one group's number."""

    behavior: Behavior
    past: GroupPast
    idle_timeout_s: float
    watched_s: float  # how long the load has been watched without a gap
    now: float
    lowest: int
    highest: float

    def stabilized(self, wanted: int, current: int) -> Step | None:
        if wanted == current:
            return None
        is_rise, behavior = wanted > current, self.behavior
        direction = behavior.scale_up if is_rise else behavior.scale_down
        window_s = window_of(direction, self.idle_timeout_s)
        if window_s <= 0:
            return None
        if self._is_watched(window_s):
            ages = [(self.now - r.at, r.replicas) for r in self.past.recommendations]
            recent = [wanted, *(replicas for age_s, replicas in ages if age_s < window_s)]
            held = max(current, min(recent)) if is_rise else min(current, max(recent))
            if held == wanted:
                return None
        else:
            # HPA, too, holds what it finds at its own start, as if it had been recommended then
            # (recordInitialRecommendation).
            held = current
        reason = Reason.SCALE_UP_STABILIZED if is_rise else Reason.SCALE_DOWN_STABILIZED
        until = f"until the {'rise' if is_rise else 'fall'} has lasted {format_duration(window_s)}"
        return Step("window", held, reason, f"{wanted} wanted, {held} held {until}")

    def _is_watched(self, window_s: float) -> bool:
        last = self.past.recommendations[-1:]
        return self.watched_s >= window_s and any(self.now - r.at < BLIND_S for r in last)

    def limited(self, steady: int, current: int) -> Step | None:
        if steady > (owed := _owed(current, self.past)):
            return self._risen(steady, owed)
        return self._fallen(steady, current) if steady < current else None

    def _risen(self, steady: int, owed: int) -> Step | None:
        up = self.behavior.scale_up
        if (tolerated := self._tolerated(up, steady, owed)) is not None:
            return tolerated
        numbers = (_risen_by(p, self._at_start(owed, p)) for p in up.policies)
        limit = max(owed, _allowed(up, steady, owed, numbers))
        return None if steady <= limit else _rated(up, "scaleUp", steady, limit)

    def _fallen(self, steady: int, current: int) -> Step | None:
        down, past = self.behavior.scale_down, self.past
        # As with HPA, compare with the requested number: when workers leave one by one, the last
        # step is always small compared with the workers left.
        expected = current if past.desired is None else min(current, past.desired)
        if steady < expected and (tolerated := self._tolerated(down, steady, expected)) is not None:
            return tolerated
        since_up_s = self.watched_s if past.up_at is None else self.now - past.up_at
        if max(0.0, since_up_s) < down.delay_after_scale_up_s:
            delay = format_duration(down.delay_after_scale_up_s)
            message = f"{steady} needed, {current} held for {delay} after a scale-up"
            return Step("delay", current, Reason.SCALE_DOWN_LIMITED, message)
        # Workers that left before we watched are unknown: for one period its policy lets none
        # leave.
        numbers = (
            _fallen_by(p, self._at_start(current, p)) if self.watched_s >= p.period_s else current
            for p in down.policies
        )
        limit = min(current, _allowed(down, steady, current, numbers))
        return None if steady >= limit else _rated(down, "scaleDown", steady, limit)

    def _tolerated(self, direction: Direction, steady: int, current: int) -> Step | None:
        is_small = abs(steady - current) <= direction.tolerance * current + 1e-9
        if not (is_small and self.lowest < steady < self.highest):
            return None
        message = f"{steady} needed, within {direction.tolerance:.0%} of {current}"
        return Step("tolerance", current, Reason.WITHIN_TOLERANCE, message)

    def _at_start(self, current: int, policy: RatePolicy) -> int:
        """Return the workers at the start of the period, counting only our own changes."""
        recent = (c.workers for c in self.past.changes if self.now - c.at < policy.period_s)
        return max(0, current - sum(recent))


def _owed(current: int, past: GroupPast) -> int:
    """
    Return the workers there would be if none had died: these are replaced at any rate.

    What was desired says how many are still needed, what was asked for how many there have been: in
    mode Advise, and while the API server refuses, the one runs ahead of the other.
    """
    return max(current, min(past.desired or 0, past.requested or 0))


def _allowed(direction: Direction, steady: int, current: int, numbers: Iterable[int]) -> int:
    """Return the numbers that the rate policies allow; without policies the steady one."""
    if direction.select_policy is Select.DISABLED:
        return current
    most_first = sorted(numbers, reverse=steady > current) or [steady]
    return most_first[-1 if direction.select_policy is Select.MIN else 0]


def _risen_by(policy: RatePolicy, start: int) -> int:
    if policy.type is RateType.PODS:
        return start + policy.value
    # Rounded up, as HPA does. Of none any percentage is none, and HPA, which leaves 0 only for its
    # minimum, would stay there for good: here one worker may always come, and then its percent.
    return start + max(1, -(-start * policy.value // 100))


def _fallen_by(policy: RatePolicy, start: int) -> int:
    if policy.type is RateType.PODS:
        return start - policy.value
    return start * (100 - policy.value) // 100  # so many leave, rounded up


def _rated(direction: Direction, name: str, steady: int, limit: int) -> Step:
    words = (
        f"{p.value}{'%' if p.type is RateType.PERCENT else ''} in {format_duration(p.period_s)}"
        for p in direction.policies
    )
    rule = f": {(' and ' if direction.select_policy is Select.MIN else ' or ').join(words)}"
    if direction.select_policy is Select.DISABLED:
        rule = ".selectPolicy is Disabled"
    reason = Reason.SCALE_UP_LIMITED if name == "scaleUp" else Reason.SCALE_DOWN_LIMITED
    message = f"{steady} needed, {limit} allowed now (behavior.{name}{rule})"
    return Step("rate", limit, reason, message)


def _recommendations(
    past: GroupPast, wanted: int, behavior: Behavior, idle_timeout_s: float, *, now: float
) -> tuple[Recommendation, ...]:
    """
    Return recommendations that can still be the highest in a fall's window, or the lowest in a
    rise's.

    One that a later one covers, from above for the one and from below for the other, never can:
    what is left are two staircases, so no more than twice the numbers that there are.
    """
    down_s = window_of(behavior.scale_down, idle_timeout_s)
    up_s = window_of(behavior.scale_up, idle_timeout_s)
    newest = Recommendation(now, wanted)
    kept = [newest]
    highest = lowest = wanted
    for earlier in reversed(past.recommendations):
        is_highest = earlier.replicas > highest and now - earlier.at < down_s
        is_lowest = earlier.replicas < lowest and now - earlier.at < up_s
        if is_highest or is_lowest:
            kept.append(earlier)
            highest, lowest = max(highest, earlier.replicas), min(lowest, earlier.replicas)
    return tuple(reversed(kept))


def _few(changes: list[Change]) -> tuple[Change, ...]:
    while len(changes) > CHANGES:
        first, second = changes[:2]
        changes[:2] = [Change(second.at, first.workers + second.workers)]
    return tuple(changes)
