"""The workers that may go, by the scheduler's own rule, with pins honoured on every release."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Collection
from functools import wraps
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_adaptive_agent import patching
from dask_adaptive_agent.component import Component
from dask_adaptive_agent.patching import Call, Patches

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

    from dask_adaptive_agent.agent import Agent

logger = logging.getLogger(__name__)

#: Whether `workers_to_close` asks plugins (since 2024.4.2).
HAS_HOOK = hasattr(SchedulerPlugin, "valid_workers_downscaling")

#: Times the memory that data needs that stays, by default, in `workers_to_close`.
MEMORY_RATIO = 2

_memory_limit, _nbytes = attrgetter("memory_limit"), attrgetter("nbytes")


class Delegate:
    """Stands for a scheduler in one of its own methods: what is not set here is the scheduler's."""

    def __init__(self, scheduler: Scheduler, **overrides: Any) -> None:
        self.__dict__.update(overrides)
        self.__dict__["_scheduler"] = scheduler

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # `super()` in one of its methods asks for it.
        return type(self.__dict__["_scheduler"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_scheduler"], name)


class WorkersToClose(Component):
    """
    Stands for `Scheduler.workers_to_close`, in its handlers and on the instance.

    Upstream's method answers, on a stand-in for the scheduler that lacks workers on their way out.
    It never names a pinned worker, nor one with a long-running task, as upstream has it since
    2024.1.0. If anything goes wrong, nobody may go.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        #: The method as `install` leaves it, where nobody else's rule is below.
        self._ours: Call | None = None

    def install(self, patches: Patches) -> None:
        # `retire_workers` and `adaptive_target` call the method, others the handler.
        patch = patches.put(patching.WORKERS_TO_CLOSE, self._over)
        if patching.is_upstreams(patch.stock):
            self._ours = self.scheduler.workers_to_close
        patches.put(patching.WORKERS_TO_CLOSE_RPC, self._over)

    def offered(self, holders: Collection[WorkerState]) -> list[WorkerState]:
        """
        Whoever may go, as `workers_to_close` says without arguments; of `holders`, memory counts.

        It is asked at each look of the operator, so only what such a call needs is done here.
        Unlike upstream's, memory of pinned workers counts: it has room for data as well.
        """
        method = self.scheduler.workers_to_close
        if method is not self._ours and not patching.is_upstreams(method):
            # Somebody's own rule, or what he has put over ours since.
            named = set(self._of_rule(method(), "address"))
            return [ws for ws in holders if ws.address in named]
        if all([ws.processing for ws in holders]):
            return []
        valid = self._valid(self.agent.service.in_service(holders))
        # The least data first; of equals, the last one that came.
        idle = sorted([ws for ws in reversed(valid) if not ws.processing], key=_nbytes)
        spare = sum(map(_memory_limit, holders)) - MEMORY_RATIO * sum(map(_nbytes, holders))
        return idle[: bisect_right(list(accumulate(map(_memory_limit, idle))), spare)]

    def _over(self, stock: Call) -> Call:
        is_upstreams = patching.is_upstreams(stock)

        @wraps(stock)
        def workers_to_close(*args: Any, **kwargs: Any) -> list[Any]:
            try:
                if is_upstreams:
                    return self._of_upstream(*args, **kwargs)
            except Exception:
                logger.exception("Failed to find the workers that may go; holding all workers")
                return []
            return self._of_rule(stock(*args, **kwargs), kwargs.get("attribute", "address"))

        return workers_to_close

    def _of_upstream(
        self,
        memory_ratio: float | None = None,
        n: int | None = None,
        key: Any = None,
        minimum: int | None = None,
        target: int | None = None,
        attribute: str = "address",
    ) -> list[Any]:
        """The answer of upstream's method as if workers on their way out were gone already."""
        workers = self.agent.service.in_service()
        overrides: dict[str, Any] = {"plugins": {"": self}}
        if not HAS_HOOK:
            # It is given only those that may go, with numbers that mean the same.
            present, workers = len(workers), self._valid(workers)
            if n is None and target is not None:
                n, target = max(0, present - target), None
            minimum = max(0, (minimum or 0) - (present - len(workers)))
        overrides["workers"] = {ws.address: ws for ws in workers}
        stock: Any = type(self.scheduler).workers_to_close
        stand_in = Delegate(self.scheduler, **overrides)
        return list(stock(stand_in, memory_ratio, n, key, minimum, target, attribute))

    def valid_workers_downscaling(self, _: Any, workers: list[WorkerState]) -> list[WorkerState]:
        """Upstream's method asks this instead of all plugins."""
        return self._valid(workers)

    def _of_rule(self, named: Any, attribute: str) -> list[Any]:
        """The workers in somebody's own answer that nothing holds, and that do not leave yet."""
        try:
            free = self.agent.free(self.agent.service.in_service())
            allowed = {getattr(ws, attribute) for ws in free}
            return [one for one in named if one in allowed]
        except Exception:
            logger.exception("Failed to find the workers that may go; holding all workers")
            return []

    def _valid(self, workers: list[WorkerState]) -> list[WorkerState]:
        workers = [ws for ws in workers if not ws.long_running]
        if HAS_HOOK:
            # `free` holds all that the shuffle plugin would, which is slow with many shuffles.
            covers_shuffles = self.agent.settings.shuffle_pins and self.agent.shuffles.is_known
            for plugin in list(self.scheduler.plugins.values()):
                if getattr(plugin, "agent", None) is self.agent:
                    continue  # it would say what `free` says
                is_stock_shuffle = type(plugin).__module__.startswith("distributed.shuffle.")
                if not (is_stock_shuffle and covers_shuffles):
                    workers = plugin.valid_workers_downscaling(self.scheduler, workers)
        return self.agent.free(workers)
