"""What the operator has said of its plans, for shuffles that wait and for the dashboard's page.

No `distributed`; the clock is handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dask_adaptive_agent.settings import LONGEST_MS, Invalid, Request, number, shown, text

#: How much of a message is kept, whatever it holds.
ARRIVALS, WORKERS, DECISIONS, LETTERS = 50, 200, 50, 200

#: Workers that are overdue are believed in for so long, or for as many times their expectation.
GRACE_S, GRACE_TIMES = 30.0, 2.0


class Announced:
    """
    The last `wire.AnnounceRequest`. Empty at first, and again when no operator has been there for
    `lease_s`: what nobody keeps true is not shown and not waited for.

    Args:
        clock: Seconds that never go backwards.
        lease_s: For how long a message holds after the operator was last heard.
    """

    def __init__(self, clock: Callable[[], float], lease_s: Callable[[], float]) -> None:
        self._clock, self._lease_s = clock, lease_s
        self._heard_at = -math.inf
        self._at = -math.inf
        self._arriving: list[tuple[int, float]] = []
        self._can_grow = 0
        self._grow_s: float | None = None
        self._policy = self._message = ""
        self._workers: dict[str, str] = {}
        self._decisions: list[tuple[float, str, str, str]] = []

    def told(self, request: Request) -> None:
        """Take a message over, as the whole of what is known. Raises `Invalid`: nothing changed."""
        arriving = [
            (_count(workers), _count(ms) / 1000)
            for workers, ms in _rows(request, "arriving", ARRIVALS, (int, int))
        ]
        can_grow = number(request, "can_grow", 0)
        grow_ms = request.get("grow_ms")
        grow_s = None if grow_ms is None else number(request, "grow_ms", 0, high=LONGEST_MS) / 1000
        policy, message = text(request, "policy", ""), text(request, "message", "")
        workers = _rows(request, "workers", WORKERS, (str, str))
        decisions = _rows(request, "decisions", DECISIONS, (int, str, str, str))
        self._at = self._heard_at = self._clock()
        self._arriving = arriving
        self._can_grow, self._grow_s = can_grow, grow_s
        self._policy, self._message = policy[:LETTERS], message[:LETTERS]
        self._workers = {name: sentence for name, sentence in workers}
        self._decisions = [(at / 1000, group, why, said) for at, group, why, said in decisions]

    def heard(self) -> None:
        """The operator is there: what it has said holds on."""
        if self._is_over():
            self._forget()
        self._heard_at = self._clock()

    def worker_joined(self) -> None:
        """One of those on their way is there, before the operator has said so."""
        for index, (workers, in_s) in enumerate(self._arriving):
            if workers > 0:
                self._arriving[index] = (workers - 1, in_s)
                return

    @property
    def arriving(self) -> list[tuple[int, float]]:
        """(workers, seconds until they are expected; 0: overdue), soonest first."""
        if self._is_over():
            return []
        passed_s = self._clock() - self._at
        return [
            (workers, max(0.0, in_s - passed_s))
            for workers, in_s in self._arriving
            if workers and passed_s <= in_s + max(GRACE_S, GRACE_TIMES * in_s)
        ]

    @property
    def can_grow(self) -> int:
        """Workers beyond those on their way that the operator may still ask for."""
        return 0 if self._is_over() else self._can_grow

    @property
    def grow_s(self) -> float | None:
        """How long one of those would take to come; None: unknown."""
        return self._grow_s

    @property
    def silent_s(self) -> float:
        """Since the operator was last heard of."""
        return self._clock() - self._heard_at

    @property
    def policy(self) -> str:
        """The policy's name; empty: no operator is there, or it has said nothing."""
        return "" if self._is_over() else self._policy

    @property
    def message(self) -> str:
        return "" if self._is_over() else self._message

    @property
    def workers(self) -> dict[str, str]:
        """By name, in a sentence: why a worker is to leave, or stays."""
        return {} if self._is_over() else self._workers

    @property
    def decisions(self) -> list[tuple[float, str, str, str]]:
        """(seconds since 1970, group, reason, message), in the order in which they were sent."""
        return [] if self._is_over() else self._decisions

    def _is_over(self) -> bool:
        return self._clock() - self._heard_at > self._lease_s()

    def _forget(self) -> None:
        self._policy = self._message = ""
        self._arriving, self._workers, self._decisions = [], {}, []
        self._can_grow, self._grow_s = 0, None


def _rows(request: Request, key: str, most: int, kinds: tuple[type, ...]) -> list[Any]:
    """Rows of these kinds of values, texts cut; msgpack gives tuples as well as lists."""
    value = request.get(key) or ()
    if not isinstance(value, (list, tuple)):
        raise Invalid(f"{key} must be a list, not {shown(value)}")
    rows = []
    for row in value[:most]:
        if not isinstance(row, (list, tuple)) or len(row) != len(kinds):
            raise Invalid(f"{key} must have rows of {len(kinds)} values, not {shown(row)}")
        for one, kind in zip(row, kinds):
            if not isinstance(one, kind) or isinstance(one, bool):
                raise Invalid(f"{key} must have {kind.__name__} where it has {shown(one)}")
        rows.append(tuple(one[:LETTERS] if isinstance(one, str) else one for one in row))
    return rows


def _count(value: int) -> int:
    if not 0 <= value <= LONGEST_MS:
        raise Invalid(f"arriving must have numbers from 0 to {LONGEST_MS}, not {shown(value)}")
    return value
