"""Reads a trace as work: which tasks come when, what they wait for, and how long they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dask_adaptive.model.demand import PrefixWork
from dask_adaptive.model.trace import Sample, Trace

#: How long a task of a prefix runs of which none has finished: Dask's own guess
#: (`distributed.scheduler.unknown-task-duration`).
UNKNOWN_S = 0.5

#: In so many portions tasks get ready that did so between two samples.
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
class Load:
    """All that is to be done."""

    arrivals: tuple[Arrival, ...]  # by time
    withdrawals: tuple[Withdrawal, ...]  # by time
    releases: tuple[Release, ...]  # by `after`
    duration_s: Mapping[str, float]
    known: Mapping[str, float]  # means that the scheduler had measured when the trace began
    done: Mapping[str, int] = field(default_factory=dict)  # runs before the trace began
    shapes: Mapping[str, PrefixWork] = field(default_factory=dict)  # how the tasks hang on others

    @property
    def tasks(self) -> int:
        return sum(a.ready + a.waiting for a in self.arrivals)


def load_of(trace: Trace) -> Load:
    """
    The work that a trace tells of.

    A prefix has got as many new tasks as its unfinished and its finished ones together have become
    more. Of those that waited the trace does not say for which tasks: they are taken to get ready
    when as many tasks have finished, of all prefixes, as had finished when they really did.
    """
    book = _Book()
    for sample in trace.samples:
        book.add(sample)
    book.close()
    first = trace.samples[0].prefixes
    return Load(
        arrivals=tuple(book.arrivals),
        withdrawals=tuple(book.withdrawals),
        releases=tuple(sorted(book.releases, key=lambda r: r.after)),
        duration_s=_durations(trace.samples),
        known={p.name: p.mean_s for p in first if p.mean_s is not None},
        done={p.name: p.done for p in first},
        shapes=_shapes(trace.samples),
    )


def _shapes(samples: Sequence[Sample]) -> dict[str, PrefixWork]:
    """Of each prefix the row in which most of its tasks waited: it tells most of its shape."""
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


@dataclass(frozen=True, slots=True)
class _Seen:
    """Of one prefix, at one sample."""

    unfinished: int = 0
    waiting: int = 0
    done: int = 0


@dataclass(frozen=True, slots=True)
class _Change:
    """What became of one prefix from one sample to the next."""

    name: str
    before: _Seen
    after: _Seen
    finished: int

    @property
    def new(self) -> int:
        """Tasks that came; negative: that were withdrawn."""
        return self.after.unfinished + self.finished - self.before.unfinished

    @property
    def got_ready(self) -> int:
        """Tasks that wait no more, or never did."""
        now = self.after.unfinished - self.after.waiting + self.finished
        return max(0, now - (self.before.unfinished - self.before.waiting))


class _Book:
    """Compares each sample with the one before."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.withdrawals: list[Withdrawal] = []
        self.releases: list[Release] = []
        self._seen: dict[str, _Seen] = {}
        self._last: Sample | None = None
        self._finished = 0  # since the trace began, all prefixes

    def add(self, sample: Sample) -> None:
        if self._last is not None and sample.session != self._last.session:
            self._lose(sample.t)
        rows = {p.name: p for p in sample.prefixes}
        names = sorted({*rows, *self._seen})
        changes = [self._change(name, rows.get(name), sample) for name in names]
        finished = self._finished + sum(c.finished for c in changes)
        for change in changes:
            self._enter(change, sample.t, range(self._finished, finished))
            self._seen[change.name] = change.after
        self._finished, self._last = finished, sample

    def close(self) -> None:
        """What still waits when the trace ends gets ready while the rest is worked off."""
        begin = self._finished
        end = begin + sum(s.unfinished - s.waiting for s in self._seen.values())
        levels = {p.name: p.level for p in self._last.prefixes} if self._last else {}
        for level in sorted(set(levels.values())):
            waiting = {n: self._seen[n].waiting for n in sorted(levels) if levels[n] == level}
            for name, tasks in waiting.items():
                self.releases += _portions(name, tasks, range(begin, end))
            if tasks := sum(waiting.values()):
                begin, end = end, end + tasks

    def _lose(self, t: float) -> None:
        """A scheduler that starts anew knows of nothing that was to be done."""
        for name, seen in sorted(self._seen.items()):
            if seen.unfinished:
                self.withdrawals.append(Withdrawal(t, name, seen.unfinished))
        self._seen.clear()
        self._last = None

    def _change(self, name: str, row: PrefixWork | None, sample: Sample) -> _Change:
        before = self._seen.get(name)
        if row is None:  # nothing of it is left to do
            assert before is not None
            after = _Seen(0, 0, before.done + before.unfinished)
            return _Change(name, before, after, before.unfinished)
        before = before or _Seen(done=self._done_before(row, sample))
        after = _Seen(row.running + row.ready + row.waiting, row.waiting, row.done)
        return _Change(name, before, after, max(0, row.done - before.done))

    def _done_before(self, row: PrefixWork, sample: Sample) -> int:
        """How many runs of a prefix that is new in the trace had finished at the sample before."""
        if self._last is None:
            return row.done
        # Perhaps it is not new to the scheduler: no more than could be run meanwhile.
        threads = sum(g.connected * max(g.threads, 1) for g in sample.groups)
        meanwhile = threads * (sample.t - self._last.t) / max(row.mean_s or UNKNOWN_S, 1e-3)
        return max(0, row.done - round(meanwhile) - 1)

    def _enter(self, change: _Change, t: float, span: range) -> None:
        new, got_ready = change.new, change.got_ready
        if new < 0:
            self.withdrawals.append(Withdrawal(t, change.name, -new))
        ready = min(got_ready, max(new, 0))
        if new > 0:
            self.arrivals.append(Arrival(t, change.name, ready, new - ready))
        released = min(got_ready - ready, change.before.waiting)
        self.releases += _portions(change.name, released, span)


def _portions(prefix: str, tasks: int, span: range) -> Iterator[Release]:
    """Spread tasks evenly over what finishes meanwhile."""
    portions = max(1, min(tasks, len(span), PORTIONS)) if tasks else 0
    for n in range(portions):
        share = tasks * (n + 1) // portions - tasks * n // portions
        yield Release(span.start + len(span) * (n + 1) // portions, prefix, share)
