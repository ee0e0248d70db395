"""Reads a trace as work: which tasks come when, what they wait for, and how long they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from dask_adaptive.model.observed import PrefixWork
from dask_adaptive_lab.trace import Sample, Trace

#: Seconds that a task of a prefix runs of which none has finished: Dask's own guess
#: (`distributed.scheduler.unknown-task-duration`).
UNKNOWN_S = 0.5

#: Work that comes within so long after all before it was done follows on it: a client had waited
#: for the result. After a longer pause it comes by the clock.
FOLLOWS_S = 60.0

#: Where no sample shows the moment between two bursts, the second begins only if nothing had come
#: for so many samples: work that comes all the time is one burst.
LULL_SAMPLES = 3

#: Tasks that got ready between two samples do so in this many portions.
PORTIONS = 20


@dataclass(frozen=True, slots=True)
class Arrival:
    """Tasks of one prefix that come at the same time; `waiting` of them wait for other tasks."""

    at: float
    prefix: str
    ready: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Tasks that nobody wants any more: released, or lost with their scheduler."""

    at: float
    prefix: str
    tasks: int


@dataclass(frozen=True, slots=True)
class Release:
    """Waiting tasks that get ready once so many tasks have finished, all prefixes together."""

    after: int
    prefix: str
    tasks: int


@dataclass(frozen=True, slots=True)
class WorkBurst:
    """The recorded work from `at` until the next burst."""

    at: float
    pause_s: float | None  # after all before it was done; None: it comes at its instant


@dataclass(frozen=True, slots=True)
class Workload:
    """All that is to be done, and how."""

    arrivals: tuple[Arrival, ...]  # by time
    withdrawals: tuple[Withdrawal, ...]  # by time
    releases: tuple[Release, ...]  # by `after`
    duration_s: Mapping[str, float]
    known: Mapping[str, float]  # means that the scheduler had measured when the trace began
    done: Mapping[str, int] = field(default_factory=dict)  # runs before the trace began
    shapes: Mapping[str, PrefixWork] = field(default_factory=dict)  # how the tasks hang on others
    bursts: tuple[WorkBurst, ...] = ()  # by time; what no burst holds comes at its instant


def workload_of(trace: Trace) -> Workload:
    """
    The work that a trace tells of.

    A prefix has got as many new tasks as its unfinished and its finished ones together have become
    more. Of those that waited the trace does not say for which tasks: they are taken to get ready
    when as many tasks have finished, of all prefixes, as had finished when they really did.

    A burst that came within `FOLLOWS_S` after all before it was done is taken to follow on it: it
    comes as long after the end of that as it really did, whenever that is. Others keep their time.
    """
    reader = _Reader()
    for sample in trace.samples:
        reader.add(sample)
    reader.close()
    first = trace.samples[0].prefixes
    return Workload(
        arrivals=tuple(reader.arrivals),
        withdrawals=tuple(reader.withdrawals),
        releases=tuple(sorted(reader.releases, key=lambda r: r.after)),
        duration_s=_durations(trace.samples),
        known={p.name: p.mean_s for p in first if p.mean_s is not None},
        done={p.name: p.done for p in first},
        shapes=_shapes(trace.samples),
        bursts=tuple(reader.bursts),
    )


def _shapes(samples: Sequence[Sample]) -> dict[str, PrefixWork]:
    """Pick the row of each prefix in which most tasks waited: it knows most of its shape."""
    shapes: dict[str, PrefixWork] = {}
    for prefix in (p for s in samples for p in s.prefixes):
        known = shapes.get(prefix.name)
        if known is None or prefix.waiting > known.waiting:
            shapes[prefix.name] = prefix
    return shapes


def _durations(samples: Sequence[Sample]) -> dict[str, float]:
    """The last mean of each prefix; where there is none, the longest that one was seen to run."""
    means: dict[str, float] = {}
    longest: dict[str, float] = {}
    for prefix in (p for s in samples for p in s.prefixes):
        longest[prefix.name] = max(longest.get(prefix.name, UNKNOWN_S), prefix.longest_s)
        if prefix.mean_s is not None:
            means[prefix.name] = prefix.mean_s
    return {name: max(means.get(name, longest[name]), 1e-3) for name in longest}


class _Reader:
    """Compares each sample with the one before."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.withdrawals: list[Withdrawal] = []
        self.releases: list[Release] = []
        self.bursts: list[WorkBurst] = []
        self._came_at = 0.0  # when work came last
        self._rests_since: float | None = None  # nothing is to be done since then
        self._seen: dict[str, PrefixWork] = {}
        self._last: Sample | None = None
        self._finished = 0  # since the trace began, all prefixes

    def add(self, sample: Sample) -> None:
        if self._last is not None and sample.session != self._last.session:
            self._lose(sample.t)
        rows = {p.name: p for p in sample.prefixes}
        changes = []
        for name in sorted({*rows, *self._seen}):
            before = self._seen.get(name) or self._before(rows[name], sample)
            left = before.done + before.unfinished
            done = replace(before, running=0, ready=0, waiting=0, done=left)
            changes.append((before, rows.get(name, done)))  # no row: nothing of it is left to do
        finished = self._finished + sum(_finished(*change) for change in changes)
        known = len(self.arrivals)
        for before, after in changes:
            self._compare(sample.t, before, after, range(self._finished, finished))
            self._seen[after.name] = after
        if len(self.arrivals) > known:
            all_done = all(_finished(*change) >= change[0].unfinished for change in changes)
            self._burst(sample.t, all_done=all_done)
        if sample.unfinished:
            self._rests_since = None
        elif self._rests_since is None:
            self._rests_since = sample.t
        self._finished, self._last = finished, sample

    def close(self) -> None:
        """Release tasks that still wait at the end, level by level, as the rest is worked off."""
        begin = self._finished
        end = begin + sum(s.running + s.ready for s in self._seen.values())
        rows = sorted(self._last.prefixes if self._last else (), key=lambda p: (p.level, p.name))
        for _, level in groupby(rows, key=lambda p: p.level):
            waiting = [row for row in level if row.waiting]
            for row in waiting:
                self.releases += _portions(row.name, row.waiting, range(begin, end))
            if waiting:
                begin, end = end, end + sum(row.waiting for row in waiting)

    def _burst(self, t: float, *, all_done: bool) -> None:
        """Work came: say whether it begins a burst, and on what that follows."""
        if self._last is None or not self.bursts:
            self.bursts.append(WorkBurst(t, None))
        elif self._rests_since is not None:
            pause_s = t - self._rests_since
            self.bursts.append(WorkBurst(t, pause_s if pause_s <= FOLLOWS_S else None))
        elif all_done and t - self._came_at > LULL_SAMPLES * (t - self._last.t):
            self.bursts.append(WorkBurst(t, 0.0))
        self._came_at, self._rests_since = t, None

    def _lose(self, t: float) -> None:
        """Withdraw all tasks: a scheduler that has started anew knows none of them."""
        for name, seen in sorted(self._seen.items()):
            if seen.unfinished:
                self.withdrawals.append(Withdrawal(t, name, seen.unfinished))
        self._seen.clear()
        self._last = None

    def _before(self, row: PrefixWork, sample: Sample) -> PrefixWork:
        """Guess the row that a prefix, new in the trace, had at the sample before."""
        done = row.done
        if self._last is not None:
            # Perhaps it is not new to the scheduler: no more than could be run meanwhile.
            threads = sum(g.connected * max(g.threads, 1) for g in sample.groups)
            meanwhile = threads * (sample.t - self._last.t) / max(row.mean_s or UNKNOWN_S, 1e-3)
            done = max(0, row.done - round(meanwhile) - 1)
        return PrefixWork(row.name, None, 0, 0, 0, done=done)

    def _compare(self, t: float, before: PrefixWork, after: PrefixWork, span: range) -> None:
        finished = _finished(before, after)
        new = after.unfinished + finished - before.unfinished
        # Tasks that wait no more, or never did.
        got_ready = after.running + after.ready + finished - before.running - before.ready
        got_ready = max(0, got_ready)
        ready = min(got_ready, max(new, 0))
        if new < 0:
            self.withdrawals.append(Withdrawal(t, after.name, -new))
        if new > 0:
            self.arrivals.append(Arrival(t, after.name, ready, new - ready))
        released = min(got_ready - ready, before.waiting)
        self.releases += _portions(after.name, released, span)


def _finished(before: PrefixWork, after: PrefixWork) -> int:
    return max(0, after.done - before.done)


def _portions(prefix: str, tasks: int, span: range) -> Iterator[Release]:
    """Spread tasks evenly over what finishes meanwhile."""
    portions = max(1, min(tasks, len(span), PORTIONS)) if tasks else 0
    for n in range(portions):
        share = tasks * (n + 1) // portions - tasks * n // portions
        yield Release(span.start + len(span) * (n + 1) // portions, prefix, share)
