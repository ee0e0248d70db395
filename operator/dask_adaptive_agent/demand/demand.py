"""All the work that there is, by kind: what asks for workers. Reads only."""

from __future__ import annotations

from collections import Counter, namedtuple
from collections.abc import Callable
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.component import Component
from dask_adaptive_agent.demand.arrivals import Arrivals
from dask_adaptive_agent.demand.durations import FOREVER_S, UNFINISHED
from dask_adaptive_agent.demand.graph_shape import GraphShape, WaitingSample, waiting_sample
from dask_adaptive_agent.demand.restrictions import need_rows
from dask_adaptive_agent.protocol.handlers import whole

if TYPE_CHECKING:
    from distributed.scheduler import TaskGroup, TaskPrefix, WorkerState

    from dask_adaptive_agent.agent import Agent

#: Looking takes at most this part of the time.
LOOK_PART = 0.02

#: Rows that are sent; the rest is added up.
MOST = 200

#: Runs that have taken less are of no interest.
SHORT_S = 0.2


class DemandView(Component):
    """The unfinished work, as of the last look, and since when nobody uses the scheduler."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self.quiet, self._arrivals = Idleness(agent), Arrivals(agent)
        self._work: tuple[wire.PrefixColumns, list[wire.NeedRow]] | None = None
        self._look_at = 0.0
        self._looks = 0

    def answer(self) -> wire.DemandPart:
        """The work and what of it only some workers may do; what shuffles are about to begin."""
        clock, section, barriers = self.clock, self.agent.parts.section, self.agent.barriers
        barriers.seen()
        now = clock()
        if self._work is None or now >= self._look_at:
            self._work = self._look()
            self._look_at = clock() + (clock() - now) / LOOK_PART
        prefixes, needs = self._work
        coming = self._arrivals.batches.coming(clock())
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
        scheduler, parts = self.scheduler, self.agent.parts
        self._looks += 1
        # The scheduler's own dict is sorted, and slow to walk.
        workers = [entry.ws for entry in self.agent.roster.entries.values()]
        oldest = _oldest(workers)
        longest = {prefix: run.lasts_s for prefix, run in oldest.items()}
        counts = unfinished(scheduler, workers)
        is_waiting = any([waiting for _, _, waiting in counts.values()])
        sample = waiting_sample(scheduler.tasks, self._looks) if is_waiting else WaitingSample(())
        unknown_s = scheduler.UNKNOWN_TASK_DURATION

        def mean_s(prefix: TaskPrefix) -> float:
            mean = self.agent.durations.mean_s(prefix)
            others = is_another_kind(oldest.get(prefix), mean, sum(counts.get(prefix, ())))
            return -1.0 if others else mean

        def seconds(prefix: TaskPrefix) -> float:
            mean = mean_s(prefix)
            return mean if mean >= 0 else max(unknown_s, 2 * longest.get(prefix, 0.0))

        able = sum([running + ready for running, ready, _ in counts.values()])
        self._arrivals.look(seconds, is_queue=able > scheduler.total_nthreads)
        nothing: tuple[list[wire.NeedRow], dict[TaskPrefix, int]] = ([], {})
        needs, bound = parts.section(
            "needs", lambda: need_rows(parts, scheduler, workers, counts, sample, seconds), nothing
        )
        rows = _rows(counts, sample, longest, bound, seconds, mean_s)
        names = wire.PrefixColumns.__annotations__
        columns: Any = {name: [getattr(row, name) for row in rows] for name in names}
        return columns, needs


#: Type checkers read no fields that are computed.
_namedtuple: Any = namedtuple

#: A row of `wire.PrefixColumns`, and the seconds of work in all.
_Row: Any = _namedtuple("_Row", [*wire.PrefixColumns.__annotations__, "seconds"])


def unfinished(scheduler: Any, workers: list[WorkerState]) -> dict[TaskPrefix, Any]:
    """
    Tasks of each prefix that is not done: (running, ready, waiting).

    A task that has seceded (`worker_client`) takes no thread any more: it waits for others.
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
) -> list[Any]:  # fmt: skip
    shapes: dict[TaskPrefix, GraphShape] = sample.shapes(counts)
    rows = []
    for prefix, of_states in counts.items():
        running, ready, waiting = of_states
        mean, tasks = mean_s(prefix), running + ready + waiting
        rows.append(
            _Row(
                prefix.name,
                round(mean * 1000, 3) if mean >= 0 else -1,
                running,
                ready,
                waiting,
                int(longest.get(prefix, 0.0) * 1000),
                # Not `[...]`: it would put a 0 into upstream's book.
                prefix.state_counts.get("memory", 0),
                *shapes[prefix],
                min(tasks, bound.get(prefix, 0) + sample.bound_of(prefix, waiting)),
                seconds(prefix) * tasks,
            )
        )
    rows.sort(key=lambda row: (-row.seconds, row.name))
    return rows if len(rows) <= MOST else [*rows[: MOST - 1], _added_up(rows[MOST - 1 :])]


def _added_up(rows: list[Any]) -> Any:
    """Many prefixes with little work as one: what they take on average, at the first level."""
    total = {name: sum([getattr(row, name) for row in rows]) for name in _Row._fields[2:]}
    tasks = total["running"] + total["ready"] + total["waiting"]
    first = min([row.level for row in rows])
    total.update(
        longest_ms=max([row.longest_ms for row in rows]),
        width=sum([row.width for row in rows if row.level == first]),
        level=first,
        fan_in=min([row.fan_in for row in rows]),
    )
    return _Row("…", round(total["seconds"] / max(1, tasks) * 1000, 3), **total)


#: Futures that nobody waits for belong to a client of that name, which is none.
NOBODY = "fire-and-forget"


class Idleness(Component):
    """Remembers when somebody was last there. The operator's own connections are no clients."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._task_at = self._client_at = self.clock()
        self._begun = -1  # tasks that were ever assigned, as of the last look without one

    def client_left(self, client: str) -> None:
        if client != NOBODY:
            self._client_at = self.clock()

    def answer(self, *, processing: int) -> wire.QuietPart:
        """As of now, with so many tasks assigned to workers."""
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
