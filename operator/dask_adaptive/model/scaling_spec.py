"""How the number of workers may move, read from JSON: groups, behavior, schedules, idle, caps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from dask_adaptive.model.amounts import parse_percent
from dask_adaptive.model.recycle import Window
from dask_adaptive.model.scaling import (
    Behavior,
    Caps,
    Direction,
    Fallback,
    GroupBounds,
    Idle,
    IdleAction,
    RatePolicy,
    RateType,
    Scaling,
    Schedule,
    Select,
    ShuffleWait,
    Source,
)
from dask_adaptive.model.spec import Reader
from dask_adaptive.model.windows import problem_of_schedule, problem_of_zone

E = TypeVar("E", bound=Enum)

#: The CRD's schema has the same numbers.
MAX_GROUPS, MAX_SCHEDULES, MAX_RATES = 32, 32, 16
MAX_PRIORITY = 1000

#: The longest that a direction is stabilized, and the periods of its policies: HPA's own limits
#: (`maxStabilizationWindowSeconds`, `maxPeriodSeconds` in its validation).
MAX_WINDOW_S = 3600.0
MIN_PERIOD_S, MAX_PERIOD_S = 1.0, 1800.0

#: No client waits longer for a shuffle to begin.
MAX_SHUFFLE_WAIT_S = 600.0

#: The same pattern stands in the CRD's schema.
_PART = r"^(0(\.[0-9]+)?|1(\.0+)?)$"

#: What makes no sense for a group that is not scaled.
_NEEDS_MAXIMUM = ("minReplicas", "idleTimeout", "priority")


def read_scaling(spec: Reader) -> Scaling:
    """
    Read all that is about the number of workers, but for the default group's bounds.

    Args:
        spec: The whole spec.

    Raises:
        InvalidPolicy: The user can mend it by editing the field that the message names.
    """
    groups = _groups(spec)
    _check_minima(spec, groups)
    caps = Caps()
    return Scaling(
        groups=tuple(groups),
        source=_choice(spec.object("target"), "source", Source.STARTUP_AWARE),
        behavior=_behavior(spec.object("behavior")),
        schedules=tuple(_schedules(spec, groups)),
        idle=_idle(spec.object("idle")),
        fallback=_fallback(spec),
        caps=Caps(
            spec.seconds("unschedulableTimeout", caps.unschedulable_timeout_s, positive=True),
            spec.percent("maxUnready", caps.max_unready),
        ),
        shuffle_wait=_shuffle_wait(spec.object("shuffle")),
    )


def _groups(spec: Reader) -> list[GroupBounds]:
    """Groups with bounds; one that only has a `recycle` of its own is not scaled."""
    bounds = []
    for group in spec.objects("workerGroups", most=MAX_GROUPS):
        name = group.text("name", "the name of a DaskWorkerGroup")
        if group.get("maxReplicas") is None:
            for key in _NEEDS_MAXIMUM:
                if group.get(key) is not None:
                    raise group.error(key, " needs maxReplicas: a group without it is not scaled")
            continue
        bounds.append(_bounds(group, name))
    return bounds


def _bounds(group: Reader, name: str) -> GroupBounds:
    minimum, maximum = group.count("minReplicas", 0), group.count("maxReplicas", None)
    if minimum > maximum:
        problem = f" ({minimum}) must not be greater than maxReplicas ({maximum})"
        raise group.error("minReplicas", f"{problem}: lower the one or raise the other")
    own_timeout = group.get("idleTimeout") is not None
    return GroupBounds(
        name=name,
        maximum=maximum,
        minimum=minimum,
        idle_timeout_s=group.seconds("idleTimeout", "") if own_timeout else None,
        priority=group.whole("priority", 0, least=-MAX_PRIORITY, most=MAX_PRIORITY),
    )


def _check_minima(spec: Reader, groups: Sequence[GroupBounds]) -> None:
    """Where the default group has bounds of its own, the policy's maximum is that of all groups."""
    minimum, maximum = spec.count("minReplicas", 0), spec.count("maxReplicas", None)
    if all(g.name != _default_group(spec) for g in groups):
        return
    if minimum:
        problem = " must be that of the default group in spec.workerGroups: write it there"
        raise spec.error("minReplicas", problem)
    total = sum(g.minimum for g in groups)
    if total > maximum:
        raise spec.error(
            "workerGroups",
            f": the minReplicas of all groups ({total}) must not be more than spec.maxReplicas"
            f" ({maximum}): lower them or raise it",
        )


def _default_group(spec: Reader) -> str:
    cluster = spec.object("clusterRef").text("name", "the name of the DaskCluster")
    return f"{cluster}-default"


def _behavior(spec: Reader) -> Behavior:
    up, down = spec.object("scaleUp"), spec.object("scaleDown")
    has_most = up.get("maxPending") is not None
    return Behavior(
        up=_direction(up, 0.0),
        down=_direction(down, None),
        max_pending=up.count("maxPending", None, least=1) if has_most else None,
        delay_after_up_s=down.seconds("delayAfterScaleUp", 0.0),
    )


def _direction(spec: Reader, window_s: float | None) -> Direction:
    if spec.get("stabilizationWindow") is not None:
        window_s = spec.seconds("stabilizationWindow", "")
    if window_s is not None and window_s > MAX_WINDOW_S:
        raise spec.error("stabilizationWindow", " must not be longer than 1h")
    return Direction(
        window_s=window_s,
        select=_choice(spec, "selectPolicy", Select.MAX),
        policies=tuple(map(_rate, spec.objects("policies", most=MAX_RATES))),
        tolerance=_tolerance(spec),
    )


def _rate(spec: Reader) -> RatePolicy:
    kinds = [t.value for t in RateType]
    spec.text("type", f"one of {', '.join(kinds)}")
    if spec.get("period") is None:
        raise spec.error("period", " is required: in how much time, such as 60s")
    period_s = spec.seconds("period", "")
    if not MIN_PERIOD_S <= period_s <= MAX_PERIOD_S:
        raise spec.error("period", " must be from 1s to 30m")
    return RatePolicy(
        RateType(spec.one_of("type", kinds, "")), spec.count("value", None, least=1), period_s
    )


def _tolerance(spec: Reader) -> float:
    said = spec.get("tolerance")
    if said is None:
        return 0.0
    if isinstance(said, str) and re.fullmatch(_PART, said):
        return float(said)
    try:
        return parse_percent(said)
    except ValueError:
        how = 'a percentage from 0% to 100%, such as 10%, or a part of one in quotes, such as "0.1"'
        raise spec.error("tolerance", f" must be {how}") from None


def _schedules(spec: Reader, groups: Iterable[GroupBounds]) -> Iterable[Schedule]:
    most: Mapping[str, int] = {g.name: g.maximum for g in groups}
    default = _default_group(spec)
    for schedule in spec.objects("schedules", most=MAX_SCHEDULES):
        group = schedule.get("workerGroup", "")
        if not isinstance(group, str):
            raise schedule.error("workerGroup", " must be a text")
        if group not in ("", default, *most):
            problem = " must be the default group, or one of spec.workerGroups with maxReplicas"
            raise schedule.error("workerGroup", problem)
        minimum = schedule.count("minReplicas", None, least=1)
        if minimum > most.get(group or default, spec.count("maxReplicas", None)):
            problem = " must not be greater than maxReplicas of its worker group"
            raise schedule.error("minReplicas", problem)
        yield Schedule(_window(schedule), minimum, group)


def _window(spec: Reader) -> Window:
    cron = spec.text("cron", "five fields of cron, such as 0 8 * * 1-5")
    zone = spec.get("timeZone", "UTC")
    if problem := problem_of_zone(zone):
        raise spec.error("timeZone", f": {problem}")
    if problem := problem_of_schedule(cron):
        raise spec.error("cron", f": {problem}")
    if spec.get("duration") is None:
        raise spec.error("duration", " is required: how long the minimum holds, such as 10h")
    return Window(cron, spec.seconds("duration", "", positive=True), zone)


def _idle(spec: Reader) -> Idle:
    idle = Idle(
        after_s=_seconds_or_none(spec, "after"),
        action=_choice(spec, "action", IdleAction.NOTHING),
        no_client_s=_seconds_or_none(spec, "noClientTimeout"),
    )
    if idle.action is not IdleAction.NOTHING and idle.after_s is idle.no_client_s is None:
        raise spec.error("action", " needs idle.after or idle.noClientTimeout: when to do it")
    return idle


def _seconds_or_none(spec: Reader, key: str) -> float | None:
    return None if spec.get(key) is None else spec.seconds(key, "", positive=True)


def _fallback(policy: Reader) -> Fallback:
    spec, maximum = policy.object("fallback"), policy.count("maxReplicas", None)
    threshold = spec.count("failureThreshold", Fallback().failure_threshold, least=1)
    is_number = spec.one_of("behavior", ["Hold", "Replicas"], "Hold") == "Replicas"
    if is_number and spec.get("replicas") is None:
        raise spec.error("replicas", " is required with fallback.behavior: Replicas")
    replicas = None if spec.get("replicas") is None else spec.count("replicas", None)
    if replicas is not None and not is_number:
        raise spec.error("replicas", " needs fallback.behavior: Replicas")
    if replicas is not None and replicas > maximum:
        problem = f" ({replicas}) must not be greater than spec.maxReplicas ({maximum})"
        raise spec.error("replicas", problem)
    return Fallback(threshold, replicas)


def _shuffle_wait(spec: Reader) -> ShuffleWait:
    stock = ShuffleWait()
    most_s = spec.seconds("maxWait", stock.most_s)
    if most_s > MAX_SHUFFLE_WAIT_S:
        raise spec.error("maxWait", " must not be longer than 10m")
    enabled = spec.one_of("waitForWorkers", ["Auto", "Disabled"], "Auto") == "Auto"
    return ShuffleWait(enabled, most_s)


def _choice(spec: Reader, key: str, default: E) -> E:
    kind = type(default)
    return kind(spec.one_of(key, [e.value for e in kind], default.value))
