"""All the work that there is, by kind: what asks for workers. Reads only."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.answering import whole
from dask_adaptive_agent.claims import CLIENT_AWAY_S
from dask_adaptive_agent.durations import UNFINISHED
from dask_adaptive_agent.incoming import Incoming
from dask_adaptive_agent.means import FOREVER_S, Means
from dask_adaptive_agent.needs import need_rows
from dask_adaptive_agent.quiet import Quietness
from dask_adaptive_agent.structure import Sample, Shape, Structure
from dask_adaptive_agent.upcoming import upcoming
from dask_adaptive_agent.wants import Wants, want

if TYPE_CHECKING:
    from distributed.scheduler import TaskGroup, TaskPrefix, WorkerState

    from dask_adaptive_agent.agent import Agent
    from dask_adaptive_agent.settings import Request

#: Looking takes at most this part of the time.
LOOK_PART = 0.02

#: Rows that are sent; the rest is added up.
MOST = 200

#: Workers whose running tasks one look goes through; of more, each look takes others.
LOOKED_AT = 2_000

#: How long a task runs is of interest from here on.
SHORT_S = 0.2


class DemandView:
    """What is unfinished, as of the last look; what clients want; whether anybody is there."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.wants = Wants(agent.clock)
        self.quiet = Quietness(agent.scheduler, agent.clock)
        self._structure = Structure(agent.scheduler, agent.clock)
        self._running = _Running()
        self._means = Means(agent.clock)
        self._incoming = Incoming(agent.scheduler, agent.clock)
        self._work: tuple[wire.PrefixWork, list[wire.NeedRow]] | None = None
        self._look_at = 0.0

    def handler(self, request: Request) -> wire.WantAnswer:
        """Answers `wire.WANT`."""
        return want(self.wants, self._agent.settings, request)

    def client_left(self, client: str) -> None:
        self.wants.cut(client, CLIENT_AWAY_S)
        self.quiet.client_left(client)

    def answer(self) -> wire.Demand:
        """The work and what of it only some workers may do; what shuffles are about to begin."""
        self._agent.barriers.seen()
        clock = self._agent.clock
        now = clock()
        if self._work is None or now >= self._look_at:
            self._work = self._look()
            self._look_at = clock() + (clock() - now) / LOOK_PART
        prefixes, needs = self._work
        scheduler: Any = self._agent.scheduler
        return {
            "prefixes": prefixes,
            "needs": needs,
            "shuffles": self._agent.parts.section(
                "shuffles that are to begin", lambda: upcoming(self._agent), []
            ),
            "unknown_ms": int(scheduler.UNKNOWN_TASK_DURATION * 1000),
            "incoming_ms": whole(self._incoming.rate() * 1000),
            "every_ms": whole(self._incoming.every_s() * 1000),
        }

    def _look(self) -> tuple[wire.PrefixWork, list[wire.NeedRow]]:
        scheduler: Any = self._agent.scheduler
        # The scheduler's own dict is sorted, and slow to walk.
        workers = [entry.ws for entry in self._agent.roster.entries.values()]
        oldest = self._running.look(workers)
        longest = {prefix: lasts_s for prefix, (lasts_s, _) in oldest.items()}
        counts = unfinished(scheduler, _seceded(workers))
        sample = self._structure.look(sum([waiting for _, _, waiting in counts.values()]))
        unknown_s = scheduler.UNKNOWN_TASK_DURATION

        def mean_s(prefix: TaskPrefix) -> float:
            mean = self._means.mean_s(prefix)
            others = is_another_kind(oldest.get(prefix), mean, sum(counts.get(prefix, ())))
            return -1.0 if others else mean

        def seconds(prefix: TaskPrefix) -> float:
            mean = mean_s(prefix)
            return mean if mean >= 0 else max(unknown_s, 2 * longest.get(prefix, 0.0))

        self._means.turn()
        self._incoming.look(seconds)
        nothing: tuple[list[wire.NeedRow], dict[TaskPrefix, int]] = ([], {})
        parts = self._agent.parts
        needs, bound = parts.section(
            "needs",
            lambda: need_rows(parts, scheduler, workers, counts, sample, seconds),
            nothing,
        )
        rows = _rows(counts, sample, longest, bound, seconds, mean_s)
        return _columns(rows), needs


class _Row:
    """One prefix, or all that are beyond the first ones."""

    __slots__ = ("bound", "counts", "done", "longest", "mean", "name", "seconds", "shape")

    def __init__(
        self, name: str, mean: float, counts: tuple[int, int, int], longest: float, done: int,
        shape: Shape, bound: int, seconds: float,
    ) -> None:  # fmt: skip
        self.name, self.mean, self.counts = name, mean, counts
        self.longest, self.done, self.shape = longest, done, shape
        self.bound, self.seconds = bound, seconds


def unfinished(scheduler: Any, seceded: dict[TaskPrefix, int]) -> dict[TaskPrefix, Any]:
    """
    Tasks of each prefix that is not done: (running, ready, waiting).

    A task that has seceded (`worker_client`) takes no thread any more: it waits for others.
    """
    counts = {}
    for prefix in scheduler.task_prefixes.values():
        states = prefix.states
        running, waiting = states.get("processing", 0), states.get("waiting", 0)
        ready = states.get("queued", 0) + states.get("no-worker", 0)
        if running or ready or waiting:
            running = max(0, running - seceded.get(prefix, 0))
            if running or ready or waiting:
                counts[prefix] = (running, ready, waiting)
    return counts


class Oldest(NamedTuple):
    """The run that has lasted longest, of one prefix."""

    lasts_s: float
    group: TaskGroup


class _Running:
    """The oldest run of each prefix, by heartbeats."""

    def __init__(self) -> None:
        #: What the latest looks have found, each at another part of the workers.
        self._found: deque[dict[TaskPrefix, Oldest]] = deque()
        self._turn = 0

    def look(self, workers: list[WorkerState]) -> dict[TaskPrefix, Oldest]:
        parts = max(1, math.ceil(len(workers) / LOOKED_AT))
        while len(self._found) >= parts:
            self._found.popleft()
        self._turn = (self._turn + 1) % parts
        self._found.append(_oldest(workers[self._turn :: parts]))
        oldest: dict[TaskPrefix, Oldest] = {}
        for found in self._found:
            for prefix, one in found.items():
                if prefix not in oldest or one.lasts_s > oldest[prefix].lasts_s:
                    oldest[prefix] = one
        return oldest


def _oldest(workers: list[WorkerState]) -> dict[TaskPrefix, Oldest]:
    oldest: dict[TaskPrefix, Oldest] = {}
    for ws in workers:
        for ts, lasts_s in ws.executing.items():
            # A worker's report lasts until its next one: the task may be done by now.
            if is_long(lasts_s) and ts.processing_on is ws:
                known = oldest.get(ts.prefix)
                if known is None or lasts_s > known.lasts_s:
                    oldest[ts.prefix] = Oldest(lasts_s, ts.group)
    return oldest


def is_long(lasts_s: Any) -> bool:
    """Whether a reported time is one (workers' clocks may be odd), and of interest."""
    return isinstance(lasts_s, (int, float)) and SHORT_S < lasts_s < FOREVER_S


def is_another_kind(oldest: Oldest | None, mean_s: float, left: int) -> bool:
    """
    Whether what is left of a prefix is not of the kind that its mean was taken of: its oldest run
    takes more than twice as long, nothing of its group has finished since it began, and most of
    what is left is of that group. So a slow step is seen that bears the name of its quick source,
    and a straggler among tasks that go on finishing unsays nothing.

    Args:
        mean_s: Of the prefix; below 0: not known.
        left: Its unfinished tasks.
    """
    if oldest is None or mean_s < 0 or oldest.lasts_s <= 2 * mean_s:
        return False
    group: Any = oldest.group
    if time() - group.stop < oldest.lasts_s:  # the scheduler's clock; 0: none has finished
        return False
    return bool(2 * sum([group.states.get(state, 0) for state in UNFINISHED]) >= left)


def _seceded(workers: list[WorkerState]) -> dict[TaskPrefix, int]:
    """Tasks of each prefix that take no thread any more."""
    seceded: dict[TaskPrefix, int] = {}
    for ws in workers:
        if ws.long_running:
            for ts in ws.long_running:
                seceded[ts.prefix] = seceded.get(ts.prefix, 0) + 1
    return seceded


def _rows(
    counts: dict[TaskPrefix, Any], sample: Sample, longest: dict[TaskPrefix, float],
    bound: dict[TaskPrefix, int], seconds: Callable[[TaskPrefix], float],
    mean_s: Callable[[TaskPrefix], float],
) -> list[_Row]:  # fmt: skip
    shapes = sample.shapes(counts)
    rows = [
        _Row(
            prefix.name,
            mean_s(prefix),
            of_states,
            longest.get(prefix, 0.0),
            # Not `[...]`: it would put a 0 into upstream's book.
            prefix.state_counts.get("memory", 0),
            shapes[prefix],
            min(sum(of_states), bound.get(prefix, 0) + sample.bound_of(prefix, of_states[2])),
            seconds(prefix) * sum(of_states),
        )
        for prefix, of_states in counts.items()
    ]
    rows.sort(key=lambda row: (-row.seconds, row.name))
    return rows if len(rows) <= MOST else [*rows[: MOST - 1], _added_up(rows[MOST - 1 :])]


def _added_up(rows: list[_Row]) -> _Row:
    """Many prefixes with little work as one: what they take on average, at the first level."""
    counts = tuple([sum([row.counts[i] for row in rows]) for i in range(3)])
    seconds = sum([row.seconds for row in rows])
    first = min([row.shape.level for row in rows])
    width = sum([row.shape.width for row in rows if row.shape.level == first])
    return _Row(
        "…",
        seconds / max(1, sum(counts)),
        counts,  # type: ignore[arg-type]
        max([row.longest for row in rows]),
        sum([row.done for row in rows]),
        Shape(width, first, min([row.shape.fan_in for row in rows])),
        sum([row.bound for row in rows]),
        seconds,
    )


def _columns(rows: list[_Row]) -> wire.PrefixWork:
    return {
        "name": [row.name for row in rows],
        "mean_ms": [round(row.mean * 1000, 3) if row.mean >= 0 else -1 for row in rows],
        "running": [row.counts[0] for row in rows],
        "ready": [row.counts[1] for row in rows],
        "waiting": [row.counts[2] for row in rows],
        "longest_ms": [int(row.longest * 1000) for row in rows],
        "done": [row.done for row in rows],
        "width": [row.shape.width for row in rows],
        "level": [row.shape.level for row in rows],
        "fan_in": [round(row.shape.fan_in, 3) for row in rows],
        "bound": [row.bound for row in rows],
    }
