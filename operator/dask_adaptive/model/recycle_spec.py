"""`spec.recycle` and what goes with it, read from JSON: quotas, budgets, windows."""

from __future__ import annotations

import math
from enum import Enum
from typing import TypeVar

from dask_adaptive.model.patterns import MAX_PATTERNS, problem_of
from dask_adaptive.model.pins import read_instant
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Amount,
    Budget,
    FailureQuota,
    GpuQuota,
    LifetimeQuota,
    Measure,
    MemoryQuota,
    Recycle,
    Selection,
    Strategy,
    TaskQuota,
    Trait,
    Window,
)
from dask_adaptive.model.spec import InvalidPolicy, Reader
from dask_adaptive.model.windows import problem_of_schedule, problem_of_zone

E = TypeVar("E", bound=Enum)


def read_recycle(spec: Reader) -> Recycle:
    """
    Read the quotas of a cluster, or of one of its worker groups.

    Raises:
        InvalidPolicy: The user can mend it by editing the field that the message names.
    """
    strategy = spec.object("strategy")
    max_surge = strategy.amount("maxSurge", Amount(1))
    if max_surge.of(100) < 1:
        raise strategy.error("maxSurge", " must be at least 1, or more than 0%")
    return Recycle(
        tasks=_tasks(spec.object("tasks")),
        lifetime=_lifetime(spec.object("lifetime")),
        memory=_memory(spec.object("memory")),
        gpu=_gpu(spec.object("gpuMemory")),
        failures=_failures(spec.object("failures")),
        selection=_selection(spec.object("selection")),
        drift=spec.flag("drift", True),
        min_age_s=spec.seconds("minAge", 0.0),
        strategy=_choice(strategy, "type", Strategy.SURGE),
        max_surge=max_surge,
        ready_timeout_s=strategy.seconds("readyTimeout", 600.0, positive=True),
    )


def read_groups(spec: Reader) -> dict[str, Recycle]:
    """Read what worker groups have instead of `spec.recycle`, by their names."""
    groups: dict[str, Recycle] = {}
    names = set[str]()
    for group in spec.objects("workerGroups"):
        name = group.text("name", "the name of a DaskWorkerGroup")
        if name in names:
            raise group.error("name", f": {name} stands there twice; join the two")
        names.add(name)
        if group.get("recycle") is None:
            continue
        recycle = group.object("recycle")
        if recycle.get("maxPerHour") is not None:
            raise recycle.error("maxPerHour", " holds for the whole cluster: set spec.recycle's")
        groups[name] = read_recycle(recycle)
    return groups


def read_max_per_hour(recycle: Reader) -> Amount | None:
    if recycle.get("maxPerHour") is None:
        return None
    return recycle.amount("maxPerHour", None)


def read_restart_at(spec: Reader) -> float | None:
    value = spec.get("restartAt")
    if value is None:
        return None
    instant = read_instant(value) if isinstance(value, str) else None
    if instant is None:
        how = 'an instant with its time zone, in quotes, such as "2026-01-31T18:00:00Z"'
        raise spec.error("restartAt", f": {value!s} is not {how}")
    return instant


def read_budgets(disruption: Reader, default: tuple[Budget, ...]) -> tuple[Budget, ...]:
    if disruption.get("budgets") is None:
        return default
    known = [r.value for r in Reason if r.replaces]
    budgets = []
    for budget in disruption.objects("budgets"):
        reasons = budget.texts("reasons")
        for i, reason in enumerate(reasons):
            if reason not in known:
                raise budget.error(f"reasons[{i}]", f" must be one of {', '.join(known)}")
        workers = budget.amount("workers", None)
        budgets.append(Budget(workers, frozenset(Reason(r) for r in reasons)))
    return tuple(budgets)


def read_windows(disruption: Reader) -> tuple[Window, ...]:
    windows = []
    for window in disruption.objects("windows"):
        schedule = window.text("schedule", "cron's five fields, such as 0 2 * * *")
        zone = window.get("timeZone", "UTC")
        for key, problem in (
            ("timeZone", problem_of_zone(zone)), ("schedule", problem_of_schedule(schedule)),
        ):  # fmt: skip
            if problem:
                raise window.error(key, f": {problem}")
        if window.get("duration") is None:
            raise window.error("duration", " is required: how long it stays open, such as 2h")
        windows.append(Window(schedule, window.seconds("duration", "", positive=True), zone))
    return tuple(windows)


def _tasks(spec: Reader) -> TaskQuota:
    return TaskQuota(
        maximum=spec.count("max", 0),
        jitter=spec.percent("jitter", 0.0),
        exact=spec.flag("exact", False),
        from_walltime=spec.flag("fromWalltime", False),
    )


def _lifetime(spec: Reader) -> LifetimeQuota:
    is_walltime = spec.flag("walltime", False)
    if is_walltime and spec.seconds("max", math.inf, positive=True) == math.inf:
        raise spec.error("walltime", " needs recycle.lifetime.max: how long workers have")
    return LifetimeQuota(
        is_walltime=is_walltime,
        maximum_s=spec.seconds("max", math.inf, positive=True),
        jitter=spec.percent("jitter", 0.0),
        floor_s=spec.seconds("minTaskDuration", 0.0),
        deviations=spec.number("deviations", 2.0),
        margin_s=spec.seconds("margin", 10.0),
    )


def _memory(spec: Reader) -> MemoryQuota:
    soft, hard = _lines(spec)
    leak_rate = spec.size("leakRate", math.inf)
    if leak_rate <= 0:
        raise spec.error("leakRate", " must be more than 0")
    leak_window_s = spec.seconds("leakWindow", 3600.0)
    if leak_window_s < 60:
        raise spec.error("leakWindow", " must be at least 1m: less says nothing of a trend")
    quota = MemoryQuota(
        soft=soft,
        for_s=spec.seconds("for", 120.0),
        hard=hard,
        measure=_choice(spec, "measure", Measure.UNMANAGED),
        leak_rate=leak_rate,
        leak_window_s=leak_window_s,
        over_pins=spec.flag("overridePins", False),
    )
    if math.inf == soft == hard == leak_rate and quota != MemoryQuota():
        raise InvalidPolicy(f"{spec.path} has no quota: set soft, hard or leakRate")
    return quota


def _gpu(spec: Reader) -> GpuQuota:
    soft, hard = _lines(spec)
    quota = GpuQuota(soft=soft, for_s=spec.seconds("for", 120.0), hard=hard)
    if math.inf == soft == hard and quota != GpuQuota():
        raise InvalidPolicy(f"{spec.path} has no quota: set soft or hard")
    return quota


def _lines(spec: Reader) -> tuple[float, float]:
    """The soft and the hard line of some memory."""
    lines = {key: spec.percent(key, math.inf) for key in ("soft", "hard")}
    for key, line in lines.items():
        if line <= 0:
            raise spec.error(key, " must be more than 0%")
    soft, hard = lines["soft"], lines["hard"]
    if not soft < hard and math.isfinite(soft):
        both = f"got {spec.get('soft')} and {spec.get('hard')}"
        raise spec.error("soft", f" must be less than {spec.path}.hard, {both}")
    return soft, hard


def _failures(spec: Reader) -> FailureQuota:
    patterns = spec.texts("patterns")
    for i, pattern in enumerate(patterns):
        if problem := problem_of(pattern):
            raise spec.error(f"patterns[{i}]", f" {problem}")
    if len(patterns) > MAX_PATTERNS:
        problem = f" has {len(patterns)} entries; {MAX_PATTERNS} are allowed"
        raise spec.error("patterns", problem)
    return FailureQuota(
        maximum=spec.count("max", 0),
        window_s=spec.seconds("window", 600.0, positive=True),
        patterns=tuple(patterns),
    )


def _selection(spec: Reader) -> Selection:
    traits = spec.texts("by")
    known = [t.value for t in Trait]
    for i, trait in enumerate(traits):
        if trait not in known:
            raise spec.error(f"by[{i}]", f" must be one of {', '.join(known)}")
    selection = Selection(
        traits=tuple(Trait(t) for t in traits),
        deviations=spec.number("deviations", 2.0),
        min_tasks=spec.count("minTasks", 100, least=1),
    )
    if selection.deviations <= 0:
        raise spec.error("deviations", " must be more than 0: half of all workers are above that")
    return selection


def _choice(spec: Reader, key: str, default: E) -> E:
    kind = type(default)
    return kind(spec.one_of(key, [e.value for e in kind], default.value))
