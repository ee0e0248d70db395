"""
The relief `idle`: what upstream asks of all task groups, with many of them.

`SchedulerState.is_idle` asks every group, and each submitted graph asks it
(`Scheduler.update_graph`, later `_create_taskstate_from_graph`): 24 ms at 50,000 groups. There is
unfinished work exactly if a task is assigned to a worker, queued or unrunnable: what waits waits
for one of these. Only within a transition a task may wait for what has just finished.
"""

from __future__ import annotations

from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import distributed.scheduler

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief.registry import Mismatch, Relief

upstream: Any = distributed.scheduler

#: Fewer groups are asked as upstream does: that takes less than a millisecond.
MANY_GROUPS = 1_000

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
