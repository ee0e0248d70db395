"""
Which worker failed, and which failures are not its fault. No `distributed`; the clock is handed in.

A failure speaks against its worker unless the same task fails on another one too, or most of the
workers fail alike: then the task is to blame, or the code.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from dask_adaptive_agent.quotas.worker_limits import MOST_FAILURES, WINDOW_MS

#: Failures are remembered for at least this time, even if a worker's own window is shorter.
KEEP_S = WINDOW_MS / 1000

#: Tasks that failed, and kinds of failure, that are remembered; the latest are.
TASKS, KINDS = 10_000, 1_000

#: Failures of one kind speak against the code from this number of workers and of failed tasks on.
FEWEST_WORKERS, FEWEST_TASKS = 3, 2

#: Characters shown of an exception's text.
SHOWN = 200

#: Matches of one worker that are kept: some of them may be forgiven.
KEPT_MATCHES = 10


@dataclass(eq=False)
class Failure:
    """One run that raised."""

    at: float
    record: Record
    text: str
    pattern: str  # empty: none matched

    def forgive(self) -> None:
        """Harmless when it is forgiven, or forgotten, already."""
        for kept in (self.record.recent, self.record.matched):
            if self in kept:
                kept.remove(self)


@dataclass(eq=False)
class Record:
    """The failures of one worker that are not forgiven."""

    recent: deque[Failure] = field(default_factory=lambda: deque(maxlen=MOST_FAILURES))
    matched: list[Failure] = field(default_factory=list)  # by patterns: the first, however long ago

    @property
    def match(self) -> Failure | None:
        return self.matched[0] if self.matched else None

    def add(self, failure: Failure) -> None:
        self.recent.append(failure)
        if failure.pattern and len(self.matched) < KEPT_MATCHES:
            self.matched.append(failure)

    def within(self, window_s: float, now: float) -> int:
        """Counts those of the last `window_s`; older ones are forgotten."""
        while self.recent and self.recent[0].at <= now - window_s:
            self.recent.popleft()
        return len(self.recent)


@dataclass(eq=False)
class _Alike:
    """Failures of one task; or of one kind: the prefix of their tasks, the exception's type."""

    is_to_blame: bool = False
    at: float = 0.0
    failures: deque[Failure] = field(default_factory=lambda: deque(maxlen=MOST_FAILURES))
    # Of a kind:
    tasks: set[Hashable] = field(default_factory=set)  # no more of them than matter
    last: dict[Record, float] = field(default_factory=dict)  # by worker


class _Latest(OrderedDict[Hashable, _Alike]):
    """The last failures, by key; what is older than `keep_s` is forgotten."""

    def at(self, key: Hashable, now: float, *, keep_s: float, most: int) -> _Alike:
        while self and next(iter(self.values())).at <= now - keep_s:
            self.popitem(last=False)
        found = self.setdefault(key, _Alike())
        if len(self) > most:
            self.popitem(last=False)
        self.move_to_end(key)
        found.at = now
        return found


class Failures:
    """Judges failures as they are reported."""

    def __init__(self, clock: Callable[[], float], workers: Callable[[], int]) -> None:
        self.clock, self.workers = clock, workers  # the latter: how many there are now
        self.keep_s = KEEP_S
        self._tasks, self._kinds = _Latest(), _Latest()

    def add(
        self, record: Record, *, key: Hashable, prefix: str, text: str, pattern: str = ""
    ) -> None:
        """
        Count one more failure.

        `text` is the `repr` of the exception, `pattern` the one of those that count at once that
        matches it, if any does.
        """
        now = self.clock()
        task = self._tasks.at(key, now, keep_s=self.keep_s, most=TASKS)
        if any(failure.record is not record for failure in task.failures):
            task.is_to_blame = True
            while task.failures:
                task.failures.popleft().forgive()
        if task.is_to_blame:
            return
        failure = Failure(now, record, text[:SHOWN], pattern)
        task.failures.append(failure)
        record.add(failure)
        # `ValueError` of `ValueError('no')`: the text is a `repr`.
        kind_key = prefix, text[:SHOWN].partition("(")[0]
        self._judge(self._kinds.at(kind_key, now, keep_s=self.keep_s, most=KINDS), failure, key)

    def _judge(self, kind: _Alike, failure: Failure, key: Hashable) -> None:
        if len(kind.tasks) < FEWEST_TASKS:
            kind.tasks.add(key)
        kind.failures.append(failure)
        kind.last[failure.record] = failure.at
        alike: Iterable[Failure] = [failure]
        if not kind.is_to_blame and self._is_everywhere(kind, failure.at):
            kind.is_to_blame, alike = True, kind.failures
        if kind.is_to_blame:
            for one in alike:
                # A pattern names what is the node's fault, even if all nodes have it.
                if not one.pattern:
                    one.forgive()

    def keep_for(self, windows_s: Iterable[float]) -> None:
        """Remember tasks and kinds for as long as the longest of these windows."""
        self.keep_s = max([KEEP_S, *windows_s])

    def forget(self, record: Record) -> None:
        """Its worker has left. That a task failed there is remembered."""
        for kind in self._kinds.values():
            kind.last.pop(record, None)

    def _is_everywhere(self, kind: _Alike, now: float) -> bool:
        workers, tasks = self.workers(), len(kind.tasks)
        if workers < FEWEST_WORKERS or tasks < FEWEST_TASKS or 2 * len(kind.last) <= workers:
            return False
        kind.last = {r: at for r, at in kind.last.items() if at > now - self.keep_s}
        return 2 * len(kind.last) > workers
