"""The lease of all that an operator has said: what nobody renews ends. No `distributed`."""

from __future__ import annotations

import math
from collections.abc import Callable

#: A lease ends no later than so many seconds after it was renewed.
LONGEST_S = 300.0


class OperatorLease:
    """
    Begun by whatever the operator says, renewed by its leader's passes alone.

    Args:
        clock: Seconds that never go backwards.
        lease_s: How long it lasts; `LONGEST_S` at most.
        ended: Called once, when it has ended.
    """

    def __init__(
        self, clock: Callable[[], float], lease_s: Callable[[], float], ended: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._ended = ended
        self._renewed_at: float | None = None  # None: nothing was said, or the lease has ended

    @property
    def left_s(self) -> float:
        """Seconds until it ends; infinite: nothing has been said."""
        if self._renewed_at is None:
            return math.inf
        return self._renewed_at + min(self._lease_s(), LONGEST_S) - self._clock()

    def renew(self) -> None:
        self._renewed_at = self._clock()

    def begin(self) -> None:
        """Something was said, maybe not by the leader: that renews no lease that runs."""
        self.check()
        if self._renewed_at is None:
            self.renew()

    def check(self) -> None:
        """End it if it is time to."""
        if self.left_s < 0:
            self._renewed_at = None
            self._ended()
