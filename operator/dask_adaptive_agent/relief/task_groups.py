"""
The reliefs `prefixes` and `idle`: what upstream asks of all task groups, with many of them.

**prefixes.** Before 2024.6.0 `TaskPrefix.states` and its like walk all groups of the prefix at each
read: 20 to 50 ms at 50,000 groups, ten times a second while somebody looks at the dashboard's task
progress (`TaskProgress.update`), and at each scrape of metrics. No decision of the scheduler reads
them. Upstream still works out each answer. Of a prefix with many groups it is asked again only when
the last answer is so old that all such walks together take no more than `SHARE` of the time.

**idle.** `SchedulerState.is_idle` (2023.5.1 on) asks every group, and each submitted graph asks it
(`Scheduler.update_graph`, later `_create_taskstate_from_graph`): 24 ms at 50,000 groups. There is
unfinished work exactly if a task is assigned to a worker, queued or unrunnable: what waits waits
for one of these. Only within a transition a task may wait for what has just finished.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from operator import attrgetter
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakSet

import distributed.scheduler

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief.registry import Mismatch, Relief

upstream: Any = distributed.scheduler

#: Fewer groups are asked as upstream does: that takes less than a millisecond.
MANY_GROUPS = 1_000

#: The most that walks over the groups of large prefixes take of a scheduler's time.
SHARE = 1 / 20


class _Answer(NamedTuple):
    value: Any
    until: float


#: By read, and the prefix's id and name. The prefixes themselves are not kept alive.
_answers: dict[tuple[str, int, str], _Answer] = {}

#: Prefixes of other schedulers in the process are read as upstream does.
_schedulers: WeakSet[Any] = WeakSet()


def _keeping(name: str, stock: Any) -> Any:
    """Upstream's property or method of that name, asked less often."""
    work_out: Any = stock.fget if isinstance(stock, property) else stock

    def read(prefix: Any) -> Any:
        if len(prefix.groups) < MANY_GROUPS or not _is_ours(prefix):
            return work_out(prefix)
        key = name, id(prefix), prefix.name
        now = perf_counter()
        answer = _answers.get(key)
        if answer is None or now >= answer.until:
            for other in [other for other, (_, until) in _answers.items() if until <= now]:
                del _answers[other]
            value = work_out(prefix)
            took = perf_counter() - now
            answer = _Answer(value, now + took * (len(_answers) + 1) / SHARE)
            _answers[key] = answer
        return copy(answer.value)  # as upstream's reads do, it gives a fresh object

    return property(read, doc=stock.__doc__) if isinstance(stock, property) else read


def _is_ours(prefix: Any) -> bool:
    return any(s.task_prefixes.get(prefix.name) is prefix for s in _schedulers)


class PrefixesRelief(Relief):
    """Reads of a task prefix with 50,000 groups do not slow a scheduler down."""

    name = "prefixes"

    @classmethod
    def needless(cls) -> str:
        is_kept = hasattr(upstream, "TaskCollection")
        return "distributed 2024.6.0 and later keep them themselves" if is_kept else ""

    def install(self) -> None:
        for target in patching.PREFIX_READS:
            self.patches.put(target, partial(_keeping, target.name))
        _schedulers.add(self.place.scheduler)

    def uninstall(self) -> None:
        _schedulers.discard(self.place.scheduler)
        if not _schedulers:
            _answers.clear()
        super().uninstall()

    def counts(self) -> dict[str, int]:
        return {"kept": len(_answers)}


BUSY = {"waiting", "queued", "processing", "no-worker"}

_processing = attrgetter("processing")


def has_work(scheduler: Any) -> bool:
    # The scheduler's own dict is sorted, and slow to walk.
    workers = dict.values(scheduler.workers)
    return bool(scheduler.queued or scheduler.unrunnable or any(map(_processing, workers)))


def _answering(stock: property) -> property:
    """Raises `Mismatch` where upstream asks for something else than unfinished tasks."""
    try:
        busy = busy_states(stock)
    except Exception as error:
        raise Mismatch(f"is_idle asks more than is known: {error!r:.200}") from None
    if busy - {"erred"} != BUSY:  # 2023.5.1 writes "error" where it means "erred"
        raise Mismatch(f"states that are not rest are others than expected: {sorted(busy)}")

    def is_idle(self: Any) -> bool:
        is_small = len(self.task_groups) < MANY_GROUPS
        return stock.fget(self) if is_small else not has_work(self)  # type: ignore[misc]

    return property(is_idle, doc=stock.__doc__)


class IdleRelief(Relief):
    """A submit costs the same with 50,000 finished groups as with none."""

    name = "idle"

    @classmethod
    def needless(cls) -> str:
        has_it = hasattr(upstream.SchedulerState, "is_idle")
        return "" if has_it else "distributed before 2023.5.1 never asks whether it is idle"

    def install(self) -> None:
        scheduler: Any = self.place.scheduler
        if "is_idle" in vars(type(scheduler)):
            raise Mismatch("this class of scheduler has an is_idle of its own")
        self.patches.put(patching.IS_IDLE, _answering)
        groups = scheduler.task_groups.values()
        if has_work(scheduler) is not any(
            group.states[state] for group in groups for state in BUSY
        ):
            raise Mismatch("unfinished tasks are kept in other places than known")


def busy_states(stock: Any) -> set[str]:
    """Ask upstream, one state after the other, whether a scheduler with such a task is idle."""
    done = getattr(upstream.TaskGroup, "done", None)

    def is_idle(state: str) -> bool:
        group = SimpleNamespace(states={**dict.fromkeys(upstream.ALL_TASK_STATES, 0), state: 1})
        group.done = done is not None and done.fget(group)
        return stock.fget(SimpleNamespace(task_groups={"group": group}))  # type: ignore[no-any-return]

    return {state for state in upstream.ALL_TASK_STATES if not is_idle(state)}
