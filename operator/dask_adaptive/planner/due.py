"""The rules by which one worker is due, and what goes before what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dask_adaptive import DOMAIN
from dask_adaptive.model.amounts import format_bytes
from dask_adaptive.model.duration import format_duration
from dask_adaptive.model.observed import Leaving, ObservedWorker
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Measure, Quota, Recycle, RecyclePast
from dask_adaptive.planner.outliers import Outlier
from dask_adaptive.planner.rations import (
    life_of,
    measured,
    own_failures,
    own_hard,
    own_lifetime_s,
    own_soft,
    own_tasks,
)

#: Seconds over which the pace of a worker is averaged at least.
PACE_S = 10.0

#: As much as is shown of a failure's text.
SHOWN = 120


@dataclass(frozen=True, slots=True)
class Due:
    """A worker that is to be replaced, now or soon, if budgets and windows allow it."""

    worker: str
    reason: Reason
    message: str  # the quota and its use, in words
    ratio: float = 1.0  # use of the quota; 1: used up
    is_over: bool = True  # False: will be within the time that a new worker takes
    is_urgent: bool = False  # windows and minAge do not hold it
    is_manual: bool = False  # maxPerHour does not count it
    #: It gets no more tasks, whatever is decided: to hold it back would save no capacity.
    is_spent: bool = False
    rest: tuple[Due, ...] = ()  # what else it is due for, in case that this is not allowed


@dataclass(frozen=True, slots=True)
class Scene:
    """What is the same for all workers of one group, in one pass."""

    recycle: Recycle
    past: RecyclePast
    now: float
    at: float  # seconds since 1970
    restart_at: float  # pods made before are replaced; minus infinity: none
    expected_s: float  # of the longest unfinished task
    outliers: Mapping[str, Outlier]


#: Says that a worker is due, or None when this rule has nothing against it.
Rule = Callable[[ObservedWorker, Scene], Due | None]


def hard_memory(worker: ObservedWorker, scene: Scene) -> Due | None:
    use, line = worker.use.process, own_hard(worker, scene.recycle.memory)
    if use < line:
        return None
    message = f"its process takes {_level(use, line)} of its memory (recycle.memory.hard)"
    return Due(worker.name, Reason.MEMORY_HARD, message, use / line, is_urgent=True)


def soft_memory(worker: ObservedWorker, scene: Scene) -> Due | None:
    quota = scene.recycle.memory
    use, line = measured(worker, quota), own_soft(worker, quota)
    if use < line:
        return None
    left_s = _left_above(life_of(worker), quota.for_s, scene)
    if left_s > scene.past.ready_s:
        return None
    what = "unmanaged" if quota.measure is Measure.UNMANAGED else "its process's"
    message = _above(f"{what} memory", line, quota.for_s, left_s, "recycle.memory.soft")
    return Due(worker.name, Reason.MEMORY_SOFT, message, use / line, left_s <= 0)


def leaking_memory(worker: ObservedWorker, scene: Scene) -> Due | None:
    rate = scene.recycle.memory.leak_rate
    grows = scene.past.growth.get(life_of(worker), 0.0)
    if grows < rate:
        return None
    limit = f"recycle.memory.leakRate {format_bytes(rate)}"
    message = f"unmanaged memory grows by {format_bytes(grows)} an hour ({limit})"
    return Due(worker.name, Reason.MEMORY_LEAK, message, grows / rate)


def gpu_memory(worker: ObservedWorker, scene: Scene) -> Due | None:
    quota, use = scene.recycle.gpu, worker.use.gpu
    if use >= quota.hard:
        message = f"{_level(use, quota.hard)} of GPU memory is taken (recycle.gpuMemory.hard)"
        return Due(worker.name, Reason.GPU_MEMORY, message, use / quota.hard, is_urgent=True)
    if use < quota.soft:
        return None
    left_s = _left_above(gpu_key(worker), quota.for_s, scene)
    if left_s > scene.past.ready_s:
        return None
    message = _above("GPU memory", quota.soft, quota.for_s, left_s, "recycle.gpuMemory.soft")
    return Due(worker.name, Reason.GPU_MEMORY, message, use / quota.soft, left_s <= 0)


def end(worker: ObservedWorker, scene: Scene) -> Due | None:
    """An end that others have set: its pod's deadline, an annotation, Dask's own --lifetime."""
    margin_s = scene.recycle.lifetime.margin_s
    left_s = worker.ends_in_s - margin_s
    ratio = 1 - left_s / max(margin_s, 1.0)
    if left_s <= 0:
        message = f"it ends in less than {format_duration(margin_s)} (recycle.lifetime.margin)"
        return Due(worker.name, Reason.LIFETIME, message, ratio, is_urgent=True)
    if worker.too_short:
        message = "a task waits that it is not expected to finish before it ends"
        return Due(worker.name, Reason.LIFETIME, message, is_urgent=True)
    # The last task that fits is done by then, and the replacement is to be there.
    if left_s > scene.expected_s + scene.past.ready_s:
        return None
    message = "it ends soon, and has no time for another task of those that wait or run"
    ratio = scene.past.ready_s / (scene.past.ready_s + left_s)
    return Due(worker.name, Reason.LIFETIME, message, ratio, is_over=False, is_urgent=True)


def age(worker: ObservedWorker, scene: Scene) -> Due | None:
    quota, age_s = scene.recycle.lifetime, worker.pod_age_s
    own_s = own_lifetime_s(worker, quota)
    if age_s + scene.past.ready_s < own_s:
        return None
    is_over, own = age_s >= own_s, format_duration(own_s)
    notes = worker.quota_notes
    is_noted = notes is not None and notes.lifetime_s is not None
    maximum = own if is_noted else format_duration(quota.maximum_s)
    verb = "is older" if is_over else "will soon be older"
    message = f"{verb} than {own} ({_limit('lifetime', maximum, own, is_noted=is_noted)})"
    return Due(worker.name, Reason.LIFETIME, message, age_s / max(own_s, 1e-9), is_over)


def tasks(worker: ObservedWorker, scene: Scene) -> Due | None:
    quota, runs = scene.recycle.tasks, worker.use.runs
    own = own_tasks(worker, quota)
    is_spent = has_spent(worker, scene.recycle)
    if is_spent and runs < own:
        return Due(worker.name, Reason.TASK_QUOTA, worker.stopped, is_spent=True)  # all is assigned
    soon = pace_of(worker, scene.past, now=scene.now) * scene.past.ready_s
    if quota.exact:
        soon += worker.processing
    if not own or runs + soon < own:
        return None
    is_over = runs >= own
    notes = worker.quota_notes
    is_noted = notes is not None and notes.tasks is not None
    limit = _limit("tasks", str(quota.maximum), str(own), is_noted=is_noted)
    said = f"{runs:,} tasks run" if is_over else f"will soon have run {own:,} tasks"
    return Due(
        worker.name, Reason.TASK_QUOTA, f"{said} ({limit})", runs / own, is_over, is_spent=is_spent
    )


def walltime(worker: ObservedWorker, scene: Scene) -> Due | None:
    """The quota of tasks that is computed from the time a worker has left."""
    expected_s = scene.expected_s
    if not scene.recycle.tasks.from_walltime or expected_s <= 0:
        return None
    left_s = worker.ends_in_s - scene.recycle.lifetime.margin_s
    if left_s - scene.past.ready_s >= expected_s:
        return None
    is_over = left_s < expected_s
    message = "no other task fits before it ends (recycle.tasks.fromWalltime)"
    ratio = 2 * expected_s / (expected_s + max(left_s, 0.0))
    is_spent = has_spent(worker, scene.recycle)
    return Due(worker.name, Reason.TASK_QUOTA, message, ratio, is_over, is_spent=is_spent)


def failures(worker: ObservedWorker, scene: Scene) -> Due | None:
    quota, use = scene.recycle.failures, worker.use
    own = own_failures(worker, quota)
    ratio = use.failures / own if own else 1.0
    if use.match and quota.patterns:
        text = " ".join(use.match.split())[:SHOWN]
        message = f'a task failed with "{text}" (recycle.failures.patterns)'
        return Due(worker.name, Reason.FAILURES, message, max(1.0, ratio))
    if own and use.failures >= own:
        limit = _limit("failures", str(own), str(own), is_noted=own != quota.maximum)
        within = format_duration(quota.window_s)
        message = f"{use.failures:,} runs failed within {within} ({limit})"
        return Due(worker.name, Reason.FAILURES, message, ratio)
    # The agent has counted a failure that is out of its window by now, and has stopped it.
    has_quota = bool(own or quota.patterns)
    if worker.stopped_for is Quota.FAILURES and has_quota:
        return Due(worker.name, Reason.FAILURES, worker.stopped)
    return None


def outlier(worker: ObservedWorker, scene: Scene) -> Due | None:
    found = scene.outliers.get(worker.name)
    if found is None:
        return None
    return Due(worker.name, Reason.OUTLIER, found.message, found.ratio)


def requested(worker: ObservedWorker, scene: Scene) -> Due | None:
    if not worker.recycle_asked:
        return None
    message = f"its replacement was asked for: {worker.recycle_asked}"
    return Due(worker.name, Reason.RECYCLE_REQUESTED, message, is_manual=True)


def restart(worker: ObservedWorker, scene: Scene) -> Due | None:
    if scene.at - worker.pod_age_s >= scene.restart_at:
        return None
    message = "its pod was made before spec.restartAt"
    return Due(worker.name, Reason.RESTART_REQUESTED, message, is_manual=True)


def drift(worker: ObservedWorker, scene: Scene) -> Due | None:
    if not worker.drift or not scene.recycle.drift:
        return None
    message = f"differs from its worker group: {worker.drift}"
    return Due(worker.name, Reason.DRIFTED, message, is_manual=True)


RULES: tuple[Rule, ...] = (
    hard_memory, soft_memory, leaking_memory, gpu_memory, end, age, tasks, walltime, failures,
    outlier, requested, restart, drift,
)  # fmt: skip


def due(worker: ObservedWorker, scene: Scene) -> Due | None:
    """
    Why a worker is due, if it is.

    Of several reasons the one that the fewest rules hold back comes first: what is over before what
    will be, then what no window holds, then what people ask for.
    """
    found = [d for rule in RULES if (d := rule(worker, scene)) is not None]
    if len(found) < 2:
        return found[0] if found else None
    first, *others = sorted(
        found,
        key=lambda d: (not d.is_over, not d.is_urgent, not d.is_manual, _rank(d), -d.ratio,
                       d.reason.value),
    )  # fmt: skip
    return replace(first, rest=tuple(others))


def has_spent(worker: ObservedWorker, recycle: Recycle) -> bool:
    """Whether a worker has used up an exact quota of tasks, and so gets no more of them."""
    return recycle.tasks.exact and (
        worker.stopped_for is Quota.TASKS
        or (worker.leaving is not Leaving.NO and worker.leaving_reason is Reason.TASK_QUOTA)
    )


def urgency(due: Due) -> tuple[bool, int, float, str]:
    """The order in which workers are replaced."""
    return not due.is_over, _rank(due), -due.ratio, due.worker


def paced_over_s(past: RecyclePast) -> float:
    """
    Over how long the pace of a worker is averaged: what is so old counts for a third.

    Not less than a replacement takes, or one finished run would be taken for several to come.
    """
    return max(PACE_S, past.ready_s)


def pace_of(worker: ObservedWorker, past: RecyclePast, *, now: float) -> float:
    """
    Runs a second, as measured; none when it has rested for long.

    A short rest changes nothing. Of a long one nobody knows the end, and a replacement that
    came too early would stand beside it all the while.
    """
    if (known := past.pace.get(life_of(worker))) is None:
        return 0.0
    at, _, pace = known
    is_resting = not worker.processing and now - at > paced_over_s(past)
    return 0.0 if is_resting else pace


def gpu_key(worker: ObservedWorker) -> str:
    """Under which the past knows since when its GPU has been above the soft line."""
    return f"{life_of(worker)} gpu"


def _rank(due: Due) -> int:
    if due.is_urgent:
        return 1 if due.reason is Reason.LIFETIME else 0
    return {Reason.FAILURES: 2, Reason.RECYCLE_REQUESTED: 3}.get(due.reason, 4)


def _left_above(key: str, for_s: float, scene: Scene) -> float:
    """How long a worker may still stay above a soft line."""
    since = scene.past.above_since.get(key, scene.now)
    return since + for_s - scene.now


def _above(what: str, line: float, for_s: float, left_s: float, field: str) -> str:
    since = f"for over {format_duration(for_s)}" if left_s <= 0 else "for long"
    return f"{what} has been above {line:.0%} of the limit {since} ({field})"


def _level(use: float, line: float) -> str:
    """In steps of 5 %, or each breath that a worker takes would be news."""
    return f"{max(line * 100, math.floor(use * 20) * 5):.0f}%"


def _limit(quota: str, maximum: str, own: str, *, is_noted: bool) -> str:
    """Where a number comes from."""
    if is_noted:
        return f"annotation {DOMAIN}/recycle-{quota}: {own}"
    said = f"recycle.{quota}.max {maximum}"
    return said if own == maximum else f"{said}, less its jitter: {own}"
