"""
Which workers may go, by the scheduler's own rules.

`closable` gives the answer of `Scheduler.workers_to_close()` for a fifth of its price;
`FilteredWorkersToClose` gives the method the plugin hook that it lacks before 2024.4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

#: Whether `workers_to_close` asks plugins (since 2024.4.2).
HAS_HOOK = hasattr(SchedulerPlugin, "valid_workers_downscaling")

Filter = Callable[["list[WorkerState]"], "list[WorkerState]"]


def closable(
    scheduler: Scheduler,
    keep: Filter | None = None,
    holders: Collection[WorkerState] | None = None,
) -> list[WorkerState]:
    """
    What `scheduler.workers_to_close()` would offer: idle workers, as long as memory is spare.

    Args:
        scheduler: Read, not changed.
        keep: Leaves the workers that may go; asked where this release asks no plugins.
        holders: Workers whose memory and data count; None: as upstream, those that may go and the
            busy ones. Upstream leaves the memory of pinned workers out, and so keeps one idle
            worker more for data that the pinned ones have room for.

    Source:
        `Scheduler.workers_to_close` with n=None, memory_ratio=2, minimum=None, key=None: workers
        without tasks, the least data first and the last in order first, while the memory limit of
        those that stay is at least twice the data. Long-running tasks hold back since 2024.1.0.
    """
    workers = [ws for ws in scheduler.workers.values() if not ws.long_running]
    if HAS_HOOK:
        for plugin in list(scheduler.plugins.values()):
            workers = plugin.valid_workers_downscaling(scheduler, workers)
    elif keep is not None:
        workers = keep(workers)

    if holders is None:
        holders = workers
    limit = sum([ws.memory_limit for ws in holders])
    threshold = 2 * sum([ws.nbytes for ws in holders])
    idle = [(-ws.nbytes, i) for i, ws in enumerate(workers) if not ws.processing]
    idle.sort(reverse=True)

    out: list[WorkerState] = []
    for _, i in idle:
        limit -= workers[i].memory_limit
        if limit < threshold:
            break
        out.append(workers[i])
    return out


class Delegate:
    """Stands for a scheduler in one of its own methods: what is not set here is the scheduler's."""

    def __init__(self, scheduler: Scheduler, **overrides: Any) -> None:
        self.__dict__.update(overrides)
        self.__dict__["_scheduler"] = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_scheduler"], name)


class FilteredWorkersToClose:
    """
    `Scheduler.workers_to_close` for releases that ask no plugin: some workers are out of reach.

    The stock method runs, on a scheduler that seems to have the other workers only; numbers are
    adjusted so that they mean the same. Stands in `scheduler.handlers` and on the instance, because
    `Scheduler.retire_workers` and `adaptive_target` call `self.workers_to_close`.
    """

    def __init__(self, scheduler: Scheduler, keep: Filter) -> None:
        self._scheduler = scheduler
        self._keep = keep

    def __call__(
        self,
        memory_ratio: float | None = None,
        n: int | None = None,
        key: Any = None,
        minimum: int | None = None,
        target: int | None = None,
        attribute: str = "address",
    ) -> list[Any]:
        scheduler = self._scheduler
        free = self._free()
        if target is not None and n is None:
            n = len(scheduler.workers) - target
        if minimum:
            minimum = max(0, minimum - (len(scheduler.workers) - len(free)))
        stand_in = Delegate(scheduler, workers={ws.address: ws for ws in free})
        stock: Any = type(scheduler).workers_to_close
        closing: list[Any] = stock(
            stand_in, memory_ratio=memory_ratio, n=n, key=key, minimum=minimum, attribute=attribute
        )
        return closing

    def _free(self) -> list[WorkerState]:
        """Long-running tasks hold their worker back, as upstream does since 2024.1.0."""
        return self._keep([ws for ws in self._scheduler.workers.values() if not ws.long_running])
