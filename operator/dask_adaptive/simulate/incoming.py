"""Work that keeps coming, as the agent would tell of it (`dask_adaptive_agent.incoming`)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: What came longer ago says nothing about what is to come.
WINDOW_S = 300.0

#: Tasks that come within so long of each other came together.
TOGETHER_S = 5.0


@dataclass(slots=True)
class _Lot:
    first_at: float
    last_at: float
    seconds: float


class Incoming:
    """Adds up the work that comes, in lots."""

    def __init__(self) -> None:
        self._lots: deque[_Lot] = deque()

    def add(self, now: float, seconds: float) -> None:
        if self._lots and now - self._lots[-1].last_at <= TOGETHER_S:
            self._lots[-1].last_at = now
            self._lots[-1].seconds += seconds
        else:
            self._lots.append(_Lot(now, now, seconds))

    def told(self, now: float) -> tuple[float, float]:
        """Thread-seconds of work a second of late, and seconds from one lot to the next."""
        while self._lots and now - self._lots[0].first_at > WINDOW_S:
            self._lots.popleft()
        if len(self._lots) < 2:
            return 0.0, 0.0
        lasted_s = self._lots[-1].first_at - self._lots[0].first_at
        seconds = sum(lot.seconds for lot in self._lots) - self._lots[-1].seconds
        return seconds / lasted_s, lasted_s / (len(self._lots) - 1)
