"""Limits how fast a number of workers moves: stabilization windows, tolerance, rate policies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.past import Change, GroupPast, Recommendation
from dask_adaptive.model.plan import Step
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Behavior, Direction, RatePolicy, RateType, Select
from dask_adaptive.planner.context import Horizon

#: With no recommendation for so long we were blind: what was before no longer counts.
BLIND_S = 20.0

#: Changes that are remembered; beyond it the oldest are counted together, as late as the later.
CHANGES = 200


def damped(
    wanted: int, current: int, behavior: Behavior, past: GroupPast,
    *, idle_timeout_s: float, since: float | None, horizon: Horizon,
) -> tuple[int, tuple[Step, ...]]:  # fmt: skip
    """
    Move from `current` towards `wanted` as far as `behavior` allows, and say which rules held it.

    Up to what was desired last nothing is limited but by the window: workers that have died since
    are replaced at once. A fall needs more than HPA asks for: the load must have been watched,
    without a gap, for as long as any rule looks back, because an operator or a scheduler that has
    just started has no past to judge by. A higher `wanted` never gives a lower number.

    Args:
        idle_timeout_s: The window of a fall where `behavior` names none.
        since: When the load was first watched, without a gap since; None: not yet.

    Source:
        HorizontalPodAutoscaler (autoscaling/v2), `spec.behavior`.
    """
    watched_s = 0.0 if since is None else max(0.0, horizon.now - since)
    by = _Damping(behavior, past, idle_timeout_s, watched_s, horizon)
    number, step = by.stabilized(wanted, current)
    steps = [step]
    if number > current:
        number, step = by.risen(number, current)
        steps.append(step)
    elif number < current:
        number, step = by.fallen(number, current)
        steps.append(step)
    return number, tuple(s for s in steps if s is not None)


def remembered(
    past: GroupPast, *, wanted: int, before: int, after: int, behavior: Behavior,
    idle_timeout_s: float, now: float,
) -> GroupPast:  # fmt: skip
    """
    The past with this pass in it, and nothing that no rule can look back to.

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
        asked=after if after < before else max(after, past.asked or 0),
        up_at=now if change > 0 else past.up_at,
    )


def window_of(direction: Direction, idle_timeout_s: float) -> float:
    window_s = direction.stabilization_window_s
    return idle_timeout_s if window_s is None else window_s


@dataclass(frozen=True, slots=True)
class _Damping:
    """All by which one group's number is damped."""

    behavior: Behavior
    past: GroupPast
    idle_timeout_s: float
    watched_s: float  # so long the load has been watched, without a gap
    horizon: Horizon

    def stabilized(self, wanted: int, current: int) -> tuple[int, Step | None]:
        if wanted == current:
            return current, None
        is_rise, behavior = wanted > current, self.behavior
        direction = behavior.scale_up if is_rise else behavior.scale_down
        window_s = window_of(direction, self.idle_timeout_s)
        if window_s <= 0:
            return wanted, None
        if self._is_watched(window_s):
            ages = [(self.horizon.now - r.at, r.replicas) for r in self.past.recommendations]
            recent = [wanted, *(replicas for age_s, replicas in ages if age_s < window_s)]
            held = max(current, min(recent)) if is_rise else min(current, max(recent))
            if held != wanted:
                last_s = min(a for a, n in ages if (n <= held if is_rise else n >= held))
                self.horizon.is_over(window_s - last_s)
        else:
            # HPA, too, holds what it finds at its own start, as if it had been recommended then
            # (recordInitialRecommendation).
            held = current
        if held == wanted:
            return held, None
        reason = Reason.SCALE_UP_STABILIZED if is_rise else Reason.SCALE_DOWN_STABILIZED
        until = f"until the {'rise' if is_rise else 'fall'} has lasted {format_duration(window_s)}"
        return held, Step("window", held, reason, f"{wanted} wanted, {held} held {until}")

    def _is_watched(self, window_s: float) -> bool:
        if not self.horizon.is_over(window_s - self.watched_s):
            return False
        if any(self.horizon.now - r.at < BLIND_S for r in self.past.recommendations[-1:]):
            return True
        self.horizon.within(window_s)  # watched from now on
        return False

    def risen(self, steady: int, current: int) -> tuple[int, Step | None]:
        up, owed = self.behavior.scale_up, _owed(current, self.past)
        if steady <= owed:
            return steady, None
        if _is_within(steady, owed, up.tolerance):
            message = f"{steady} are within {up.tolerance:.0%} of {owed}"
            return owed, Step("tolerance", owed, Reason.WITHIN_TOLERANCE, message)
        numbers = (_risen_by(p, self._at_start(owed, p)) for p in up.policies)
        allowed = _allowed(up, owed, numbers, is_rise=True)
        if allowed is None or steady <= allowed:
            return steady, None
        limit = max(owed, allowed)
        message = f"{steady} needed, {limit} allowed now ({_in_words(up, 'scaleUp')})"
        return limit, Step("rate", limit, Reason.SCALE_UP_LIMITED, message)

    def fallen(self, steady: int, current: int) -> tuple[int, Step | None]:
        down, past, horizon = self.behavior.scale_down, self.past, self.horizon
        # To nothing at all is no small step, whatever the tolerance.
        if steady > 0 and _is_within(steady, current, down.tolerance):
            message = f"{steady} are within {down.tolerance:.0%} of {current}"
            return current, Step("tolerance", current, Reason.WITHIN_TOLERANCE, message)
        since_up_s = self.watched_s if past.up_at is None else horizon.now - past.up_at
        if not horizon.is_over(down.delay_after_scale_up_s - max(0.0, since_up_s)):
            delay = format_duration(down.delay_after_scale_up_s)
            message = f"{steady} needed, {current} held for {delay} after more were requested"
            return current, Step("delay", current, Reason.SCALE_DOWN_LIMITED, message)
        # What left before we watched is not known: until a period is over its policy lets none go.
        numbers = (
            _fallen_by(p, self._at_start(current, p))
            if horizon.is_over(p.period_s - self.watched_s)
            else current
            for p in down.policies
        )
        allowed = _allowed(down, current, numbers, is_rise=False)
        if allowed is None or steady >= allowed:
            return steady, None
        limit = min(current, allowed)
        message = f"{steady} needed, {limit} allowed now ({_in_words(down, 'scaleDown')})"
        return limit, Step("rate", limit, Reason.SCALE_DOWN_LIMITED, message)

    def _at_start(self, current: int, policy: RatePolicy) -> int:
        """Workers at the beginning of the period, had nothing changed but what we asked for."""
        ages = ((self.horizon.now - c.at, c.workers) for c in self.past.changes)
        recent = (n for age_s, n in ages if not self.horizon.is_over(policy.period_s - age_s))
        return max(0, current - sum(recent))


def _owed(current: int, past: GroupPast) -> int:
    """
    Workers there would be, had none died: those are replaced whatever the rate.

    What was desired says how many are still needed, what was asked for how many there have been: in
    mode Advise, and while the API server refuses, the one runs ahead of the other.
    """
    return max(current, min(past.desired or 0, past.asked or 0))


def _is_within(number: int, current: int, tolerance: float) -> bool:
    return tolerance > 0 and abs(number - current) <= tolerance * current + 1e-9


def _allowed(
    direction: Direction, current: int, numbers: Iterable[int], *, is_rise: bool
) -> int | None:
    """What the rate policies allow, by the number of each; None: any number."""
    if direction.select_policy is Select.DISABLED:
        return current
    most_first = sorted(numbers, reverse=is_rise)
    if not most_first:
        return None
    return most_first[-1] if direction.select_policy is Select.MIN else most_first[0]


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


def _in_words(direction: Direction, name: str) -> str:
    if direction.select_policy is Select.DISABLED:
        return f"behavior.{name}.selectPolicy is Disabled"
    policies = [
        f"{p.value}{'%' if p.type is RateType.PERCENT else ''} in {format_duration(p.period_s)}"
        for p in direction.policies
    ]
    word = " and " if direction.select_policy is Select.MIN else " or "
    return f"behavior.{name}: {word.join(policies)}"


def _recommendations(
    past: GroupPast, wanted: int, behavior: Behavior, idle_timeout_s: float, *, now: float
) -> tuple[Recommendation, ...]:
    """
    Those that can still be the highest of the window of a fall, or the lowest of that of a rise.

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
