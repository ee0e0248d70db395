"""
Which workers may go, by the scheduler's own rules: its `workers_to_close`, for a fifth of the price
and with pins honoured on every release.
"""

from __future__ import annotations

import heapq
import logging
import math
import pickle
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from itertools import accumulate, compress
from operator import attrgetter, is_, not_
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_adaptive_agent import patching
from dask_adaptive_agent.patching import Call, Patches

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)

#: Whether `workers_to_close` asks plugins (since 2024.4.2).
HAS_HOOK = hasattr(SchedulerPlugin, "valid_workers_downscaling")

#: A worker with one of these statuses is on its way out, by whoever's decision.
LEAVING = frozenset({Status.closing_gracefully, Status.closing, Status.closed, Status.failed})

# At 5,000 workers a third faster than a list's comprehension.
_memory_limit, _nbytes = attrgetter("memory_limit"), attrgetter("nbytes")
_processing = attrgetter("processing")

Filter = Callable[["list[WorkerState]"], "list[WorkerState]"]


class Request(NamedTuple):
    """Arguments of `workers_to_close`; see its docstring."""

    memory_ratio: float | None = None
    n: int | None = None
    key: Any = None
    minimum: int | None = None
    target: int | None = None

    @property
    def counts_memory(self) -> bool:
        """Whether spare memory lets workers go; `n` has been made of `target` already."""
        return self.n is None or self.memory_ratio is not None


#: Whoever is idle, as long as memory is spare.
ANY = Request()


class InOrder:
    """
    A scheduler's workers by address, as its SortedDict would walk them.

    That walk hashes each address and costs more than all else that is done with most workers. A
    dict gives them in the order of their coming without one, and tells whether they are the same.
    """

    def __init__(self) -> None:
        self._as_they_came: list[WorkerState] = []
        self._sorted: list[WorkerState] = []

    def __call__(self, workers: Any) -> list[WorkerState]:
        """The same list until somebody joins or leaves: not to be changed."""
        now = list(dict.values(workers))
        before = self._as_they_came
        if len(now) != len(before) or not all(map(is_, now, before)):
            self._as_they_came = now
            self._sorted = list(map(workers.get, workers))
        return self._sorted


def in_service(
    scheduler: Scheduler, leaving: Collection[str] = (), in_order: InOrder | None = None
) -> list[WorkerState]:
    """Workers that are not on their way out, in the scheduler's order; not to be changed."""
    out = (in_order or InOrder())(scheduler.workers)
    if leaving:
        out = [ws for ws in out if ws.address not in leaving]
    # Scheduler.running is kept in step with statuses, and enums hash in Python code.
    if len(scheduler.running) < len(out):
        out = [ws for ws in out if ws in scheduler.running or ws.status not in LEAVING]
    return out


class Closing:
    """
    Stands for `Scheduler.workers_to_close`, in its handlers and on the instance.

    Gives the answer of the stock method (2024.4.2 and later) as if workers on their way out were
    gone already, and never a pinned worker. A worker with a long-running task is never offered
    either, as upstream does since 2024.1.0. If anything goes wrong, the stock method answers, less
    what is pinned; and if even that is unknown, nobody may go.

    Args:
        scheduler: Read, not changed.
        free: Leaves the workers that nothing holds.
        leaving: Addresses that are on their way out, besides those whose status says so.
        covers_shuffles: Whether `free` holds all that the shuffle plugin would; it is slow with
            many shuffles, and is not asked then.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        free: Filter,
        *,
        leaving: Callable[[], Collection[str]] = tuple,
        covers_shuffles: Callable[[], bool] = lambda: False,
    ) -> None:
        self._scheduler = scheduler
        self._free = free
        self._leaving = leaving
        self._covers_shuffles = covers_shuffles
        self._in_order = InOrder()
        #: Whose hook says what `free` says; not asked twice.
        self.own_plugin: object = None
        #: The method as `install` leaves it, where nobody else's rule is below.
        self._ours: Call | None = None

    def install(self, patches: Patches) -> None:
        # `retire_workers` and `adaptive_target` call the method, others the handler.
        patch = patches.put(patching.WORKERS_TO_CLOSE, self._over)
        if patching.is_upstreams(patch.stock):
            self._ours = self._scheduler.workers_to_close
        patches.put(patching.WORKERS_TO_CLOSE_RPC, self._over)

    def _over(self, stock: Call) -> Call:
        if patching.is_upstreams(stock):
            return self

        @wraps(stock)
        def by_rule(*args: Any, **kwargs: Any) -> list[Any]:
            return self._of_rule(stock(*args, **kwargs), kwargs.get("attribute", "address"))

        return by_rule

    def _of_rule(self, named: Any, attribute: str) -> list[Any]:
        """Those of somebody's own answer that nothing holds, and that do not leave already."""
        try:
            free = self._free(list(in_service(self._scheduler, self._leaving())))
            allowed = {getattr(ws, attribute) for ws in free}
            return [one for one in named if one in allowed]
        except Exception:
            logger.exception("Cannot tell which workers may go; holding all workers")
            return []

    def offered(self, holders: Collection[WorkerState]) -> list[WorkerState]:
        """Whoever may go, as `workers_to_close` says without arguments; see `closable`."""
        method = self._scheduler.workers_to_close
        if method is self._ours or patching.is_upstreams(method):
            return self.closable(ANY, holders)
        # Somebody's own rule, or what he has put over ours since.
        named = set(self._of_rule(method(), "address"))
        return [ws for ws in holders if ws.address in named]

    def __call__(
        self,
        memory_ratio: float | None = None,
        n: int | None = None,
        key: Any = None,
        minimum: int | None = None,
        target: int | None = None,
        attribute: str = "address",
    ) -> list[Any]:
        request = Request(memory_ratio, n, key, minimum, target)
        try:
            return list(map(attrgetter(attribute), self.closable(request)))
        except Exception:
            logger.exception("Cannot tell which workers may go; asking the stock method")
        try:
            return self._from_stock(request, attribute)
        except Exception:
            logger.exception("Cannot tell which workers may go; holding all workers")
            return []

    def closable(
        self, request: Request = ANY, holders: Collection[WorkerState] | None = None
    ) -> list[WorkerState]:
        """
        Those that `request` lets go.

        Args:
            request: Of `workers_to_close`.
            holders: Workers whose memory and data count; None: as upstream, those that may go and
                the busy ones. Upstream leaves the memory of pinned workers out, and so keeps one
                idle worker more for data that the pinned ones have room for.
        """
        workers = in_service(self._scheduler, self._leaving(), self._in_order)
        n = request.n
        if n is None and request.target is not None:
            n = len(workers) - request.target
        if n is not None:
            n = max(0, n)
        busy = list(map(_processing, workers))
        if not n and all(busy):
            return []
        present = len(workers)
        # A task that runs long is one of `processing`, too.
        if any([ws.long_running for ws in compress(workers, busy)]):
            workers = [ws for ws in workers if not ws.long_running]
        valid = self._valid(list(workers))  # plugins may change what they get
        if request.key is not None:
            return _chosen_groups(valid, request._replace(n=n), present=present)
        request = request._replace(n=n)
        # Where only their number decides, the memory of 5,000 workers is not even read.
        limits = list(map(_memory_limit, valid)) if request.counts_memory else []
        if len(valid) != len(busy) or not all(map(is_, valid, workers)):
            busy = list(map(_processing, valid))
        columns = Columns(limits, list(map(_nbytes, valid)), busy)
        memory = Memory(sum(limits), sum(columns.nbytes))
        if holders is not None:
            memory = Memory(sum(map(_memory_limit, holders)), sum(map(_nbytes, holders)))
        picked = chosen(columns, request, memory, present=present)
        return [valid[i] for i in picked]

    def _valid(self, workers: list[WorkerState]) -> list[WorkerState]:
        if HAS_HOOK:
            for plugin in list(self._scheduler.plugins.values()):
                if plugin is self.own_plugin:
                    continue
                if not (_is_stock_shuffle(plugin) and self._covers_shuffles()):
                    workers = plugin.valid_workers_downscaling(self._scheduler, workers)
        return self._free(workers)

    def _from_stock(self, request: Request, attribute: str) -> list[Any]:
        stock: Any = type(self._scheduler).workers_to_close
        addresses = stock(self._scheduler, *request)
        workers = [self._scheduler.workers[address] for address in addresses]
        leaving = self._leaving()
        return [
            getattr(ws, attribute)
            for ws in self._free(workers)
            if ws.address not in leaving and ws.status not in LEAVING
        ]


class Columns(NamedTuple):
    """Workers, or groups of them: parallel lists."""

    limits: list[int]  # not read unless `Request.counts_memory`
    nbytes: list[int]
    busy: Sequence[object]  # true: has tasks
    sizes: list[int] | None = None  # workers in each group; None: one


class Memory(NamedTuple):
    limit: int
    used: int


def chosen(columns: Columns, request: Request, memory: Memory, *, present: int) -> list[int]:
    """
    Which rows the rules of `Scheduler.workers_to_close` pick, of `present` workers in service.

    They leave in this order: idle ones first, the least data first, the last in order first. Each
    rule lets a beginning of it go, so the longest that is allowed is looked up, not walked.

    Source:
        `Scheduler.workers_to_close`, what follows its plugins. `request.n` is final: it has been
        made of `target` already.
    """
    n, ratio = request.n, request.memory_ratio
    if n is None and ratio is None:
        ratio = 2
    order = _order(columns, n, at_most=n if ratio is None else None)
    allowed = 0
    if n is not None:
        allowed = _fitting(columns.sizes, order, n)
    if ratio is not None:
        spare = memory.limit - math.ceil(ratio * memory.used)
        allowed = max(allowed, _fitting(columns.limits, order, spare))
    if request.minimum:
        allowed = min(allowed, _fitting(columns.sizes, order, present - request.minimum))
    return order[:allowed]


def _order(columns: Columns, n: int | None, *, at_most: int | None) -> list[int]:
    """Rows in the order in which they leave; without `n` only idle ones ever do."""
    busy = columns.busy
    data = columns.nbytes.__getitem__
    rows = range(len(busy) - 1, -1, -1)
    idle = list(compress(rows, map(not_, reversed(busy))))
    order = _sorted(idle, data, at_most)
    if n is not None and (at_most is None or len(idle) < at_most):
        rest = None if at_most is None else at_most - len(idle)
        order += _sorted(list(compress(rows, reversed(busy))), data, rest)
    return order


def _sorted(rows: list[int], data: Callable[[int], int], at_most: int | None) -> list[int]:
    """The first `at_most` or more of them, the least data first."""
    if at_most is not None and at_most < len(rows) // 8:
        return heapq.nsmallest(at_most, rows, key=data)
    rows.sort(key=data)
    return rows


def _fitting(column: list[int] | None, order: list[int], room: int) -> int:
    """How many of the first rows of `order` sum up to no more than `room`."""
    if column is None:
        return max(0, min(room, len(order)))
    return bisect_right(list(accumulate(map(column.__getitem__, order))), room)


def _chosen_groups(
    valid: list[WorkerState], request: Request, *, present: int
) -> list[WorkerState]:
    """The same with a key: workers that have it in common leave together."""
    key = request.key
    if isinstance(key, bytes):
        # Before 2024.2 or so pickle could be forbidden; the stock method then has its own answer.
        if not dask.config.get("distributed.scheduler.pickle", True):
            raise ValueError("a pickled key, and distributed.scheduler.pickle is off")
        key = pickle.loads(key)
    by_key: dict[Any, list[WorkerState]] = {}
    for ws in valid:
        by_key.setdefault(key(ws), []).append(ws)
    groups = list(by_key.values())
    columns = Columns(
        [sum([ws.memory_limit for ws in group]) for group in groups],
        [sum([ws.nbytes for ws in group]) for group in groups],
        [any([ws.processing for ws in group]) for group in groups],
        [len(group) for group in groups],
    )
    memory = Memory(sum(columns.limits), sum(columns.nbytes))
    return [ws for i in chosen(columns, request, memory, present=present) for ws in groups[i]]


def _is_stock_shuffle(plugin: Any) -> bool:
    """Whether a plugin's `valid_workers_downscaling` is that of `ShuffleSchedulerPlugin`."""
    return type(plugin).__module__.startswith("distributed.shuffle.")


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
