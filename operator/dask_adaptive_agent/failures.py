"""
Which worker failed, and which failures are not its fault. No `distributed`; the clock is handed in.

A failure speaks against its worker unless the same task fails on another one too, or most of the
workers fail alike: then the task is to blame, or the code.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from dask_adaptive_agent.limits import MOST_FAILURES, WINDOW_MS

#: What is remembered at least, however short a worker's own window is.
KEEP_S = WINDOW_MS / 1000

#: Tasks that failed, and kinds of failure, that are remembered; the latest are.
TASKS, KINDS = 10_000, 1_000

#: Failures of one kind speak against the code if so many workers are known, and so many tasks fail.
FEWEST_WORKERS, FEWEST_TASKS = 3, 2

#: Characters shown of an exception's text.
SHOWN = 200

#: Matches of one worker that are kept: some of them may be forgiven.
MATCHED = 10


class Failure:
    """One run that raised."""

    __slots__ = ("at", "is_forgiven", "is_recent", "pattern", "record", "text")

    def __init__(self, at: float, record: Record, text: str, pattern: str) -> None:
        self.at = at
        self.record = record
        self.text = text[:SHOWN]
        self.pattern = pattern  # empty: none matched
        self.is_recent = True
        self.is_forgiven = False

    def forgive(self) -> None:
        if self.is_forgiven:
            return
        self.is_forgiven = True
        if self.is_recent:
            self.record.count -= 1
        if self in self.record.matched:
            self.record.matched.remove(self)


class Record:
    """The failures of one worker."""

    __slots__ = ("count", "matched", "recent")

    def __init__(self) -> None:
        self.recent: deque[Failure] = deque()
        self.count = 0  # of the recent ones, those that are not forgiven
        #: The first that patterns matched and that are not forgiven, however long ago.
        self.matched: list[Failure] = []

    @property
    def match(self) -> Failure | None:
        return self.matched[0] if self.matched else None

    def add(self, failure: Failure) -> None:
        if len(self.recent) == MOST_FAILURES:
            self._drop()
        self.recent.append(failure)
        self.count += 1
        if failure.pattern and len(self.matched) < MATCHED:
            self.matched.append(failure)

    def within(self, window_s: float, now: float) -> int:
        """How many there were since; older ones are forgotten."""
        while self.recent and self.recent[0].at <= now - window_s:
            self._drop()
        return self.count

    def _drop(self) -> None:
        oldest = self.recent.popleft()
        oldest.is_recent = False
        if not oldest.is_forgiven:
            self.count -= 1


class _Task:
    """A task that failed."""

    def __init__(self) -> None:
        self.failures: deque[Failure] = deque(maxlen=MOST_FAILURES)  # all on one worker
        self.is_to_blame = False
        self.at = 0.0


class _Kind:
    """What failures have in common: the prefix of their tasks and the type of the exception."""

    def __init__(self) -> None:
        self.tasks: set[Hashable] = set()  # no more of them than matter
        self.last: dict[Record, float] = {}  # by worker
        self.failures: deque[Failure] = deque(maxlen=MOST_FAILURES)
        self.is_to_blame = False
        self.at = 0.0


T = TypeVar("T", _Task, _Kind)


class _Latest(Generic[T]):
    """The last things that happened, by key; what is older than `keep_s` is forgotten."""

    def __init__(self, make: Callable[[], T], most: int) -> None:
        self._make: Callable[[], T] = make
        self._most = most
        self._by_key: OrderedDict[Hashable, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def at(self, key: Hashable, now: float, keep_s: float) -> T:
        while self._by_key and next(iter(self._by_key.values())).at <= now - keep_s:
            self._by_key.popitem(last=False)
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = self._make()
            if len(self._by_key) > self._most:
                self._by_key.popitem(last=False)
        self._by_key.move_to_end(key)
        found.at = now
        return found

    def values(self) -> list[T]:
        return list(self._by_key.values())


class Failures:
    """
    Judges failures as they are reported.

    Args:
        clock: Seconds that never go backwards.
        workers: How many workers there are now.
    """

    def __init__(self, clock: Callable[[], float], workers: Callable[[], int]) -> None:
        self._clock = clock
        self._workers = workers
        self._tasks: _Latest[_Task] = _Latest(_Task, TASKS)
        self._kinds: _Latest[_Kind] = _Latest(_Kind, KINDS)
        self.keep_s = KEEP_S

    def add(
        self, record: Record, *, key: Hashable, prefix: str, text: str, pattern: str = ""
    ) -> None:
        """
        Hear of one more failure.

        Args:
            record: Of the worker.
            key, prefix: Of the task.
            text: `repr` of the exception.
            pattern: Which one of those that count at once matches the text, if any does.
        """
        now = self._clock()
        task = self._tasks.at(key, now, self.keep_s)
        if any(failure.record is not record for failure in task.failures):
            task.is_to_blame = True
            for failure in task.failures:
                failure.forgive()
            task.failures.clear()
        if task.is_to_blame:
            return
        failure = Failure(now, record, text, pattern)
        task.failures.append(failure)
        record.add(failure)
        self._judge(self._kinds.at((prefix, _type_of(text)), now, self.keep_s), failure, key)

    def keep_for(self, windows_s: Iterable[float]) -> None:
        """Remember tasks and kinds for as long as the longest of these windows."""
        self.keep_s = max([KEEP_S, *windows_s])

    def forget(self, record: Record) -> None:
        """Its worker has left. That a task failed there is remembered."""
        for kind in self._kinds.values():
            kind.last.pop(record, None)

    def _judge(self, kind: _Kind, failure: Failure, key: Hashable) -> None:
        if len(kind.tasks) < FEWEST_TASKS:
            kind.tasks.add(key)
        kind.failures.append(failure)
        kind.last[failure.record] = failure.at
        if not kind.is_to_blame and self._is_everywhere(kind, failure.at):
            kind.is_to_blame = True
            for one in kind.failures:
                _forgive_unmatched(one)
        elif kind.is_to_blame:
            _forgive_unmatched(failure)

    def _is_everywhere(self, kind: _Kind, now: float) -> bool:
        workers = self._workers()
        if workers < FEWEST_WORKERS or len(kind.tasks) < FEWEST_TASKS:
            return False
        if 2 * len(kind.last) <= workers:
            return False
        kind.last = {r: at for r, at in kind.last.items() if at > now - self.keep_s}
        return 2 * len(kind.last) > workers


def _forgive_unmatched(failure: Failure) -> None:
    # A pattern says what is the machine's fault, also when all machines have it.
    if not failure.pattern:
        failure.forgive()


def _type_of(text: str) -> str:
    """`ValueError` of `ValueError('no')`: the text is a `repr`."""
    return text[:SHOWN].partition("(")[0]
