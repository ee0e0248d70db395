"""Work that keeps coming, in lots: how much a second, how often. `simulate` replays it too."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: What came longer ago says nothing about what is to come.
WINDOW_S = 300.0

#: Work that comes within so long of other work came together with it.
TOGETHER_S = 5.0

#: After so many times the usual gap nobody waits for the next lot.
LATE = 2.0


@dataclass
class _Lot:
    first_at: float
    last_at: float
    seconds: float


class Lots:
    """Adds up the work that came of late. Times are seconds, on a clock of the caller's."""

    def __init__(self) -> None:
        self._lots: deque[_Lot] = deque()

    def add(self, now: float, seconds: float) -> None:
        """
        Args:
            seconds: Thread-seconds of work that came just now.
        """
        if self._lots and now - self._lots[-1].last_at <= TOGETHER_S:
            self._lots[-1].last_at = now
            self._lots[-1].seconds += seconds
        else:
            self._lots.append(_Lot(now, now, seconds))

    def forget(self, now: float) -> None:
        """Leave out what came too long ago."""
        while self._lots and now - self._lots[0].first_at > WINDOW_S:
            self._lots.popleft()

    def rate(self, now: float) -> float:
        """
        Thread-seconds of work a second, on average since the first lot; 0: it came at once.

        The last lot is left out: it is there, and whether another follows is what is asked.
        """
        if len(self._lots) < 2 or self._is_late(now):
            return 0.0
        lasted_s = self._lots[-1].first_at - self._lots[0].first_at
        return sum([lot.seconds for lot in list(self._lots)[:-1]]) / lasted_s

    def every_s(self) -> float:
        """Seconds from one lot to the next, on average; 0: there was one, or none."""
        n = len(self._lots)
        return (self._lots[-1].first_at - self._lots[0].first_at) / (n - 1) if n > 1 else 0.0

    def _is_late(self, now: float) -> bool:
        """Whether the next lot ought to be there by now: it may not come at all."""
        return now - self._lots[-1].last_at > LATE * self.every_s()
