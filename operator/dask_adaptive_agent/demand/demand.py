"""
All the work that there is, by kind: what asks for workers; and the tasks of it that only some
workers may run, because they name resources, workers or hosts. Reads only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.demand.arrivals import Batches
from dask_adaptive_agent.demand.durations import FOREVER_S, UNFINISHED, Durations
from dask_adaptive_agent.demand.graph_shape import WaitingSample, is_bound, waiting_sample
from dask_adaptive_agent.guard import Guard, amount, whole
from dask_adaptive_agent.shuffle.runs import Barriers

if TYPE_CHECKING:
    from distributed.scheduler import TaskGroup, TaskPrefix, TaskState, WorkerState

#: Looking takes at most this part of the time.
LOOK_PART = 0.02

#: Rows that are sent; the rest is added up.
MOST = 200

#: Runs that have taken less are of no interest.
SHORT_S = 0.2

#: Assigned tasks that are looked at, and tasks without a worker, in one look.
LOOKED_AT = 1_000

#: Kinds of needs that are reported, names in one, and kinds of which is reported who may run them.
KINDS, NAMES, ABLE_KINDS = 50, 50, 10

Kind = Any  # what makes two tasks need the same; a tuple of frozensets

#: Futures that nobody waits for belong to a client of that name, which is none.
NOBODY = "fire-and-forget"


class DemandView(Component):
    """The unfinished work, as of the last look, and since when the scheduler is unused."""

    def __init__(self, context: Context, barriers: Barriers, durations: Durations) -> None:
        super().__init__(context)
        self._barriers, self._durations = barriers, durations
        self._batches = Batches()
        self._counts: dict[TaskPrefix, int] = {}  # tasks that have come, as of the last look
        self._is_first_count = True
        #: When somebody last used the scheduler. The operator's own connections are no clients.
        self._task_at = self._client_at = self.clock()
        self._begun = -1  # tasks that were ever assigned, as of the last look without one
        self._work: tuple[wire.PrefixColumns, list[wire.NeedRow]] | None = None
        self._look_at = 0.0
        self._looks = 0

    def answer(self) -> wire.DemandPart:
        """The work and what of it only some workers may do; what shuffles are about to begin."""
        clock, section, barriers = self.clock, self.context.guard.section, self._barriers
        barriers.seen()
        now = clock()
        if self._work is None or now >= self._look_at:
            self._work = self._look()
            self._look_at = clock() + (clock() - now) / LOOK_PART
        prefixes, needs = self._work
        coming = self._batches.coming(clock())
        return {
            "prefixes": prefixes,
            "needs": needs,
            "shuffles": section("shuffles that are to begin", barriers.rows, []),
            "unknown_ms": int(self.scheduler.UNKNOWN_TASK_DURATION * 1000),
            "incoming_ms": whole(coming.rate * 1000),
            "every_ms": whole(coming.every_s * 1000),
            "trickle_ms": whole(coming.trickle_s * 1000),
        }

    def _look(self) -> tuple[wire.PrefixColumns, list[wire.NeedRow]]:
        scheduler, guard = self.scheduler, self.context.guard
        self._looks += 1
        # The scheduler's own dict is sorted, and slow to walk.
        workers = [entry.ws for entry in self.context.roster.entries.values()]
        oldest = _oldest(workers)
        longest = {prefix: run.lasts_s for prefix, run in oldest.items()}
        counts = unfinished(scheduler, workers)
        is_waiting = any([waiting for _, _, waiting in counts.values()])
        sample = waiting_sample(scheduler.tasks, self._looks) if is_waiting else WaitingSample(())
        unknown_s = scheduler.UNKNOWN_TASK_DURATION

        def mean_s(prefix: TaskPrefix) -> float:
            mean = self._durations.mean_s(prefix)
            others = is_another_kind(oldest.get(prefix), mean, sum(counts.get(prefix, ())))
            return -1.0 if others else mean

        def seconds(prefix: TaskPrefix) -> float:
            mean = mean_s(prefix)
            return mean if mean >= 0 else max(unknown_s, 2 * longest.get(prefix, 0.0))

        able = sum([running + ready for running, ready, _ in counts.values()])
        self._count_arrivals(seconds, is_queue=able > scheduler.total_nthreads)
        nothing: tuple[list[wire.NeedRow], dict[TaskPrefix, int]] = ([], {})
        needs, bound = guard.section(
            "needs", lambda: need_rows(guard, scheduler, workers, counts, sample, seconds), nothing
        )
        rows = _rows(counts, sample, longest, bound, seconds, mean_s)
        names = wire.PrefixColumns.__annotations__
        columns: Any = {name: [row[name] for row in rows] for name in names}
        return columns, needs

    def _count_arrivals(self, seconds: Callable[[TaskPrefix], float], *, is_queue: bool) -> None:
        """Count what has come since the last look; `seconds`: how long a task takes."""
        now = self.clock()
        came_s = 0.0
        for prefix in self.scheduler.task_prefixes.values():
            # Each task waits once, however shortly (released -> waiting), in every release.
            count = prefix.state_counts.get("waiting", 0)
            new = count - self._counts.get(prefix, 0)
            if new:
                self._counts[prefix] = count
                came_s += max(0, new) * seconds(prefix)
        self._batches.look(now, 0.0 if self._is_first_count else came_s, is_queue=is_queue)
        self._is_first_count = False

    def client_left(self, client: str) -> None:
        if client != NOBODY:
            self._client_at = self.clock()

    def idleness(self, *, processing: int) -> wire.QuietPart:
        """Return since when nobody uses the scheduler; so many tasks are assigned to workers."""
        now = self.clock()
        if self._has_tasks(processing):
            self._task_at = now
        if self.scheduler.clients.keys() - {NOBODY}:
            self._client_at = now
        return {
            "no_task_ms": int((now - self._task_at) * 1000),
            "no_client_ms": int((now - self._client_at) * 1000),
        }

    def _has_tasks(self, processing: int) -> bool:
        """Tells whether there is a task, or was one since the last look."""
        scheduler = self.scheduler
        if processing or scheduler.queued or scheduler.unrunnable:
            self._begun = -1
            return True
        # Results that are let go are transitions as well: only tasks that were assigned count.
        prefixes = scheduler.task_prefixes.values()
        before = self._begun
        self._begun = sum([prefix.state_counts.get("processing", 0) for prefix in prefixes])
        return before != self._begun


def unfinished(scheduler: Any, workers: list[WorkerState]) -> dict[TaskPrefix, Any]:
    """
    Tasks of each prefix that is not done: (running, ready, waiting).

    A task that has seceded (`worker_client`) takes no thread: it waits for others.
    """
    seceded = Counter([ts.prefix for ws in workers if ws.long_running for ts in ws.long_running])
    counts = {}
    for prefix in scheduler.task_prefixes.values():
        states = prefix.states
        running = max(0, states.get("processing", 0) - seceded[prefix])
        ready = states.get("queued", 0) + states.get("no-worker", 0)
        waiting = states.get("waiting", 0)
        if running or ready or waiting:
            counts[prefix] = (running, ready, waiting)
    return counts


class Oldest(NamedTuple):
    """The run that has lasted longest, of one prefix."""

    lasts_s: float
    group: TaskGroup


def _oldest(workers: list[WorkerState]) -> dict[TaskPrefix, Oldest]:
    oldest: dict[TaskPrefix, Oldest] = {}
    for ws in workers:
        for ts, lasts_s in ws.executing.items():
            # Workers' clocks may be odd. And a report lasts until the next: the task may be done.
            is_plausible = isinstance(lasts_s, (int, float)) and SHORT_S < lasts_s < FOREVER_S
            if is_plausible and ts.processing_on is ws:
                known = oldest.get(ts.prefix)
                if known is None or lasts_s > known.lasts_s:
                    oldest[ts.prefix] = Oldest(lasts_s, ts.group)
    return oldest


def is_another_kind(oldest: Oldest | None, mean_s: float, left: int) -> bool:
    """
    Tells whether the rest of a prefix is of another kind than the runs of its mean.

    That is so if its oldest run takes more than twice as long, nothing of its group has finished
    since that run began, and most of the rest belongs to that group. This detects a slow step that
    bears the name of its quick source. A straggler among tasks that finish is no such case.
    `mean_s` below 0: not known; `left`: the unfinished tasks of the prefix.
    """
    if oldest is None or mean_s < 0 or oldest.lasts_s <= 2 * mean_s:
        return False
    group: Any = oldest.group
    if time() - group.stop < oldest.lasts_s:  # the scheduler's clock; 0: none has finished
        return False
    return bool(2 * sum([group.states.get(state, 0) for state in UNFINISHED]) >= left)


def _rows(
    counts: dict[TaskPrefix, Any], sample: WaitingSample, longest: dict[TaskPrefix, float],
    bound: dict[TaskPrefix, int], seconds: Callable[[TaskPrefix], float],
    mean_s: Callable[[TaskPrefix], float],
) -> list[dict[str, Any]]:  # fmt: skip
    shapes = sample.shapes(counts)
    rows = []
    for prefix, of_states in counts.items():
        running, ready, waiting = of_states
        mean, tasks = mean_s(prefix), running + ready + waiting
        row = {
            "name": prefix.name,
            "mean_ms": round(mean * 1000, 3) if mean >= 0 else -1,
            "running": running,
            "ready": ready,
            "waiting": waiting,
            "longest_ms": int(longest.get(prefix, 0.0) * 1000),
            # Not `[...]`: it would put a 0 into upstream's book.
            "done": prefix.state_counts.get("memory", 0),
            "bound": min(tasks, bound.get(prefix, 0) + sample.bound_of(prefix, waiting)),
            "seconds": seconds(prefix) * tasks,
        }
        rows.append({**row, **shapes[prefix]._asdict()})
    rows.sort(key=lambda row: (-row["seconds"], row["name"]))
    return rows if len(rows) <= MOST else [*rows[: MOST - 1], _added_up(rows[MOST - 1 :])]


def _added_up(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Many prefixes with little work as one: what they take on average, at the first level."""
    total = {name: sum([row[name] for row in rows]) for name in rows[0].keys() - {"name"}}
    tasks = total["running"] + total["ready"] + total["waiting"]
    first = min([row["level"] for row in rows])
    return {
        **total,
        "name": "…",
        "mean_ms": round(total["seconds"] / max(1, tasks) * 1000, 3),
        "longest_ms": max([row["longest_ms"] for row in rows]),
        "width": sum([row["width"] for row in rows if row["level"] == first]),
        "level": first,
        "fan_in": min([row["fan_in"] for row in rows]),
    }


@dataclass(eq=False)
class _Need:
    """Tasks of one kind, each as many as it stands for."""

    example: Any
    tasks: float = 0.0
    waiting: float = 0.0
    seconds: float = 0.0


def need_rows(
    guard: Guard,
    scheduler: Any,
    workers: list[WorkerState],
    counts: dict[TaskPrefix, Any],
    sample: WaitingSample,
    seconds: Callable[[TaskPrefix], float],
) -> tuple[list[wire.NeedRow], dict[TaskPrefix, int]]:
    """
    Kinds of needs, those with most tasks first, and how many tasks of each prefix have any.

    `is_rootish` leaves out tasks that name anything, in every release, so none of them is queued.
    """
    needs: dict[Kind, _Need] = {}
    bound: dict[TaskPrefix, float] = {}
    for ts, stands_for in _ready(scheduler, workers):
        need = needs.setdefault(_kind(ts), _Need(ts))
        need.tasks += stands_for
        need.seconds += stands_for * seconds(ts.prefix)
        bound[ts.prefix] = bound.get(ts.prefix, 0.0) + stands_for
    for ts in sample.bound:
        waiting = counts[ts.prefix][2] if ts.prefix in counts else 0
        needs.setdefault(_kind(ts), _Need(ts)).waiting += sample.part_of(ts, waiting)
    most = sorted(needs.values(), key=lambda n: (-n.tasks, -n.waiting, str(n.example.key)))
    able = most[:ABLE_KINDS]
    rows = guard.rows("needs", most[:KINDS], lambda one: _need_row(scheduler, one, one in able))
    return rows, {prefix: math.ceil(n) for prefix, n in bound.items()}


def _ready(scheduler: Any, workers: list[WorkerState]) -> Iterator[tuple[TaskState, float]]:
    """Tasks with needs that are assigned, or have no worker; for how many each stands."""
    unrunnable = scheduler.unrunnable  # a set, or a dict in later releases
    part = max(1.0, len(unrunnable) / LOOKED_AT)
    for ts in islice(unrunnable, LOOKED_AT):
        if is_bound(ts):
            yield ts, part
    step = max(1, math.ceil(len(workers) / LOOKED_AT))
    each = max(1, LOOKED_AT * step // max(1, len(workers)))
    for ws in workers[::step]:
        processing = ws.processing
        part = step * max(1.0, len(processing) / each)
        for ts in islice(processing, each):
            if is_bound(ts):
                yield ts, part


def _kind(ts: TaskState) -> Kind:
    return (
        frozenset((ts.resource_restrictions or {}).items()),
        _named(ts.worker_restrictions),
        _named(ts.host_restrictions),
        ts.loose_restrictions,
    )


def _named(names: Any) -> Any:
    # A task that names hundreds of workers names all of them: the number is enough, and quick.
    return len(names) if names and len(names) > NAMES else frozenset(names or ())


def _need_row(scheduler: Any, need: _Need, is_looked_up: bool) -> wire.NeedRow:
    ts, known = need.example, scheduler.workers
    # Connected workers, busy or not.
    able = scheduler.valid_workers(ts) if is_looked_up else None
    named = islice(ts.worker_restrictions or (), NAMES)
    return {
        "tasks": round(need.tasks),
        "ms": int(need.seconds * 1000),
        "resources": {str(name): amount(n) for name, n in (ts.resource_restrictions or {}).items()},
        "workers": [str(known[one].name if one in known else one) for one in named],
        "hosts": [str(host) for host in islice(ts.host_restrictions or (), NAMES)],
        "loose": bool(ts.loose_restrictions),
        "waiting": round(need.waiting),
        "able": [str(ws.name) for ws in islice(able or (), NAMES)],
    }
