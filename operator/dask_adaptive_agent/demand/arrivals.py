"""
Work that keeps coming, though there is never much of it: how much a second, and how often.

`simulate` adds up the work of a trace with the same `Batches`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

#: Batches that came longer ago say nothing about what is to come.
WINDOW_S = 300.0

#: Seconds within which work belongs to the same batch, though tasks wait for no thread meanwhile.
TOGETHER_S = 1.0

#: After so many times the usual gap nobody waits for more.
LATE = 2.0


class Stream(NamedTuple):
    """Work that is expected to keep coming, until it is late."""

    rate: float = 0.0  # thread-seconds a second
    every_s: float = 0.0  # from one time to the next, on average; 0: it came once
    trickle_s: float = 0.0  # thread-seconds that have come so far, where tasks waited all the time


@dataclass
class _Batch:
    first_at: float
    last_at: float
    seconds: float
    times: int = 0  # that more has come

    def add(self, now: float, seconds: float) -> None:
        self.last_at = now
        self.seconds += seconds
        self.times += 1


class Batches:
    """Adds up the work that came of late. Times are seconds, on a clock of the caller's."""

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque()
        self._queue: _Batch | None = None  # that has come since tasks began to wait for threads

    def look(self, now: float, seconds: float, *, is_queue: bool) -> None:
        """
        Add the thread-seconds of work that have come since the last look.

        Args:
            is_queue: Tasks wait for a thread now.
        """
        batches, queue = self._batches, self._queue
        if seconds:
            if batches and (queue is not None or now - batches[-1].last_at <= TOGETHER_S):
                batches[-1].add(now, seconds)
            else:
                batches.append(_Batch(now, now, seconds))
        while batches and now - batches[0].first_at > WINDOW_S:
            batches.popleft()
        if not is_queue:
            self._queue = None
        elif queue is None:
            self._queue = _Batch(now, now, 0.0)
        elif seconds:
            queue.add(now, seconds)

    def coming(self, now: float) -> Stream:
        """By the batches, or by the queue that never empties: whichever shows more."""
        return max(self._by_batches(now), self._by_queue(now))

    def _by_batches(self, now: float) -> Stream:
        """
        The average since the first batch.

        The last batch is left out: it is there, and whether another follows is the question. So
        nothing comes where all came at once, nor where the next batch is so late that it may not.
        """
        if len(self._batches) < 2:
            return Stream()
        first, last = self._batches[0], self._batches[-1]
        lasted_s = last.first_at - first.first_at
        every_s = lasted_s / (len(self._batches) - 1)
        if now - last.last_at > LATE * every_s:
            return Stream(every_s=every_s)
        return Stream((sum([b.seconds for b in self._batches]) - last.seconds) / lasted_s, every_s)

    def _by_queue(self, now: float) -> Stream:
        queue = self._queue
        if queue is None or not queue.times:
            return Stream()
        lasted_s = queue.last_at - queue.first_at
        if now - queue.last_at > LATE * lasted_s / queue.times:
            return Stream()
        return Stream(queue.seconds / lasted_s, lasted_s / queue.times, queue.seconds)
