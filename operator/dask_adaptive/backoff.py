"""How long to wait after each of several errors in a row: twice as long, with jitter."""

from __future__ import annotations

import random


class Backoff:
    """Waits of seconds, from `first_s` to `longest_s`."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._errors = 0

    def good(self) -> None:
        """The next error is the first again."""
        self._errors = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """From half of the wait to all of it, and never less than somebody asks for."""
        wait_s = min(self._first_s * 2.0 ** min(self._errors, 30), self._longest_s)
        self._errors += 1
        return max(wait_s * random.uniform(0.5, 1.0), at_least_s)
