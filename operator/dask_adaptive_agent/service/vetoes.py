"""
The agent's one table of why a worker stays, and the workers that may go, by it and by the
scheduler's own rule, on every release.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Collection, Iterator
from functools import wraps
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import WorkerState

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.demand.client_calls import ClientCalls
from dask_adaptive_agent.patching import Call, Delegate, Patches
from dask_adaptive_agent.pins.pinned_workers import PinnedWorkers
from dask_adaptive_agent.service.data_copier import RequestedCopies, is_stuck
from dask_adaptive_agent.service.service import Service
from dask_adaptive_agent.service.task_mover import arriving
from dask_adaptive_agent.shuffle.runs import Shuffles
from dask_adaptive_agent.text import plural

logger = logging.getLogger(__name__)

#: Whether `workers_to_close` asks plugins (since 2024.4.2).
HAS_HOOK = hasattr(SchedulerPlugin, "valid_workers_downscaling")

#: Times the memory that data needs that stays, by default, in `workers_to_close`.
MEMORY_RATIO = 2

_memory_limit, _nbytes, _processing = map(attrgetter, ("memory_limit", "nbytes", "processing"))


class Veto(NamedTuple):
    """A reason for which a worker must stay: one of `wire.V_*`, and a sentence."""

    code: str
    message: str


class Vetoes(Component):
    """Returns why a worker must stay, if it must. Changes nothing."""

    def __init__(
        self, context: Context, service: Service, pins: PinnedWorkers, clients: ClientCalls
    ) -> None:
        super().__init__(context)
        self.service, self._pins, self._clients = service, pins, clients
        self.copies = RequestedCopies(context)

    def of(
        self, ws: WorkerState, over_pins: Collection[str] = (), *, busy_ok: bool = True
    ) -> Veto | None:
        """The weightiest reason, but for pins of these sources, and that it has tasks."""
        if holders := self.pinned_by(ws, over_pins):
            return Veto(wire.V_PINNED, f"pinned by {holders}")
        return self.of_unpinned(ws, busy_ok=busy_ok)

    def of_unpinned(self, ws: WorkerState, *, busy_ok: bool = False) -> Veto | None:
        """The same of a worker that nobody pins."""
        found = (veto for veto in self._all(ws) if not (busy_ok and veto.code == wire.V_BUSY))
        return next(found, None)

    def _all(self, ws: WorkerState) -> Iterator[Veto]:
        """The table: every reason that holds now, the weightiest first. Pins come before all."""
        tasks, scheduler = len(ws.processing), self.scheduler
        if ws.actors or any(ts.actor for ts in ws.processing):
            yield Veto(wire.V_ACTORS, "holds actors, which can't be moved")
        if tasks and not any(other is not ws for other in scheduler.running):
            yield Veto(wire.V_NO_RECIPIENT, "has tasks, and no other worker is in service")
        if is_stuck(self.service, ws):
            yield Veto(wire.V_NO_RECIPIENT, "no other worker can take its data")
        if held := self.copies.uncopyable(ws):
            yield Veto(wire.V_UNCOPYABLE, held)
        if not tasks and self._clients.is_sending:
            yield Veto(wire.V_BUSY, "a client sends data")
        if tasks or arriving(scheduler, ws):
            yield Veto(wire.V_BUSY, f"has {plural(max(1, tasks), 'task')}")

    def pinned_by(self, ws: WorkerState, over: Collection[str] = ()) -> str:
        """Name the holders of pins on a worker, except those of these sources and owners."""
        # Fail closed: what can't be read counts as a pin.
        try:
            return ", ".join(self._pins.holders(ws, over))
        except Exception as error:
            logger.exception("Failed to read pins; holding worker %s", ws.address)
            return f"pins that can't be read ({error!r})"

    def free(self, workers: list[WorkerState]) -> list[WorkerState]:
        """
        The `workers` that nothing holds; none while data come, or if that is not known.

        For who picks idle workers out of thousands: it does not look at what each of them has.
        """
        try:
            if self._clients.is_sending:
                return []
            named = self._pins.leases.names()
            for held in (self.service.out_of_service(), self._pins.in_shuffles()):
                if held:
                    workers = [ws for ws in workers if ws.address not in held]
        except Exception:
            # Fail closed.
            logger.exception("Failed to read pins; holding all workers")
            return []
        if named:
            workers = [
                ws for ws in workers if ws.address not in named and str(ws.name) not in named
            ]
        return workers


class WorkersToClose(Component):
    """
    Stands for `Scheduler.workers_to_close`, in its handlers and on the instance.

    Upstream's method answers, on a stand-in for the scheduler that lacks workers on their way out.
    It never names a pinned worker, nor one with a long-running task, as upstream has it since
    2024.1.0. If anything goes wrong, nobody may go.
    """

    def __init__(self, context: Context, vetoes: Vetoes, shuffles: Shuffles) -> None:
        super().__init__(context)
        self._service, self._vetoes, self._shuffles = vetoes.service, vetoes, shuffles
        #: The method as `install` leaves it, where nobody else's rule is below.
        self._ours: Call | None = None

    def install(self, patches: Patches) -> None:
        # `retire_workers` and `adaptive_target` call the method, others the handler.
        patch = patches.put(patching.WORKERS_TO_CLOSE, self._over)
        if patching.is_upstreams(patch.stock):
            self._ours = self.scheduler.workers_to_close
        patches.put(patching.WORKERS_TO_CLOSE_RPC, self._over)

    def offered(self) -> list[WorkerState]:
        """
        Workers that may go, as `workers_to_close` names without arguments; all memory counts.

        It is asked at each look of the operator, so only what such a call needs is done here.
        Unlike upstream's, memory of pinned workers counts: it has room for data as well.
        """
        # Fail closed: no worker may leave.
        return self.context.guard.section("who may go", self._offered, [])

    def _offered(self) -> list[WorkerState]:
        out, entries = self._service.out_of_service(), self.context.roster.entries
        holders = [entry.ws for address, entry in entries.items() if address not in out]
        method = self.scheduler.workers_to_close
        if method is not self._ours and not patching.is_upstreams(method):
            # Somebody's own rule, or what he has put over ours since.
            named = set(self._of_rule(method(), "address"))
            return [ws for ws in holders if ws.address in named]
        if all(map(_processing, holders)):
            return []
        valid = self._valid(self._service.in_service(holders))
        idle = _least_data_first([ws for ws in valid if not ws.processing])
        return idle[: _n_spare(idle, holders, MEMORY_RATIO)]

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
        workers = self._service.in_service()
        if n is None and target is not None:
            n = len(workers) - target
        if key is None and {type(n), type(minimum)} <= {int, type(None)}:
            # Without its groups of one, in a fifth of the time.
            named = self._one_by_one(workers, memory_ratio, n, minimum)
            return list(map(attrgetter(attribute), named))
        overrides: dict[str, Any] = {"plugins": {"": self}}
        if not HAS_HOOK:
            # It is given only those that may go, with numbers that mean the same.
            present, workers = len(workers), self._valid(workers)
            minimum = max(0, (minimum or 0) - (present - len(workers)))
        overrides["workers"] = {ws.address: ws for ws in workers}
        stock: Any = type(self.scheduler).workers_to_close
        stand_in = Delegate(self.scheduler, **overrides)
        return list(stock(stand_in, memory_ratio, n, key, minimum, None, attribute))

    def _one_by_one(
        self, workers: list[WorkerState], ratio: float | None, n: int | None, minimum: int | None
    ) -> list[WorkerState]:
        """Upstream's rule: idle workers as far as data has room, and `n` in any case."""
        n = n and max(0, n)
        if not n and all(map(_processing, workers)):
            return []
        ratio = MEMORY_RATIO if n is None and ratio is None else ratio
        valid = self._valid(workers)
        order = _least_data_first([ws for ws in valid if not ws.processing])
        if n is not None:
            order += _least_data_first([ws for ws in valid if ws.processing])
        most = max(n or 0, 0 if ratio is None else _n_spare(order, valid, ratio))
        return order[: min(most, max(0, len(workers) - minimum)) if minimum else most]

    def valid_workers_downscaling(self, _: Any, workers: list[WorkerState]) -> list[WorkerState]:
        """Upstream's method asks this instead of all plugins."""
        return self._valid(workers)

    def _of_rule(self, named: Any, attribute: str) -> list[Any]:
        """The workers in somebody's own answer that nothing holds, and that do not leave yet."""
        try:
            free = self._vetoes.free(self._service.in_service())
            allowed = {getattr(ws, attribute) for ws in free}
            return [one for one in named if one in allowed]
        except Exception:
            logger.exception("Failed to find the workers that may go; holding all workers")
            return []

    def _valid(self, workers: list[WorkerState]) -> list[WorkerState]:
        workers = [ws for ws in workers if not ws.long_running]
        if HAS_HOOK:
            # `free` holds all that the shuffle plugin would, which is slow with many shuffles.
            covers_shuffles = self.context.settings.shuffle_pins and self._shuffles.is_known
            for plugin in list(self.scheduler.plugins.values()):
                if plugin is self.context:
                    continue  # the agent: it would say what `free` says
                is_stock_shuffle = type(plugin).__module__.startswith("distributed.shuffle.")
                if not (is_stock_shuffle and covers_shuffles):
                    workers = plugin.valid_workers_downscaling(self.scheduler, workers)
        return self._vetoes.free(workers)


def _least_data_first(workers: list[WorkerState]) -> list[WorkerState]:
    """As upstream takes them: of equals, the last one that came."""
    return sorted(reversed(workers), key=_nbytes)


def _n_spare(order: list[WorkerState], of: list[WorkerState], ratio: float) -> int:
    """The first workers without whom the others have `ratio` times the memory for all data."""
    needed = ratio * sum(map(_nbytes, of))
    # Below zero: what is left. Sums of whole numbers are exact, in whatever order.
    left = accumulate(map(_memory_limit, order), initial=-sum(map(_memory_limit, of)))
    return max(0, bisect_right(list(left), -needed) - 1)
