"""Time-limited claims that a worker must stay. No `distributed`; the clock is handed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Lease(NamedTuple):
    """One claim on one worker; `until` is on the clock of the table."""

    name: str
    source: str
    owner: str
    reason: str
    until: float


class Claim(NamedTuple):
    """Leases that were granted together: same source, owner, reason and end."""

    source: str
    owner: str
    reason: str
    until: float


class PinTable:
    """
    Leases by worker name, source and owner.

    A name needs no worker: who pins may know of a worker that is about to join. Every lease ends by
    itself, and a lease that has ended is forgotten at the next call, so the table cannot leak.

    Args:
        clock: Seconds that never go backwards.
        cap_s: No lease is granted for longer; those granted already keep their end.
    """

    def __init__(self, clock: Callable[[], float], cap_s: float) -> None:
        self._clock = clock
        self.cap_s = cap_s
        self._leases: dict[str, dict[tuple[str, str], Lease]] = {}
        self._next_end = float("inf")

    def __len__(self) -> int:
        self._purge()
        return sum(map(len, self._leases.values()))

    def pin(
        self, names: Iterable[str], *, source: str, owner: str, reason: str, ttl_s: float
    ) -> float:
        """
        Claim workers; a claim of the same source and owner on the same name is replaced.

        Returns:
            Seconds granted: `ttl_s`, or the cap where that is less.
        """
        self._purge()
        granted_s = min(ttl_s, self.cap_s)
        until = self._clock() + granted_s
        for name in names:
            lease = Lease(name, source, owner, reason, until)
            self._leases.setdefault(name, {})[source, owner] = lease
        self._next_end = min(self._next_end, until)
        return granted_s

    def unpin(
        self, *, source: str, owner: str, names: Iterable[str] | None = None
    ) -> list[tuple[str, float]]:
        """Give up the claims of one owner; returns what was given up, as (name, seconds left)."""
        self._purge()
        now = self._clock()
        given_up = []
        for name in list(self._leases) if names is None else names:
            lease = self._leases.get(name, {}).pop((source, owner), None)
            if lease is not None:
                given_up.append((name, lease.until - now))
            if not self._leases.get(name, True):
                del self._leases[name]
        return given_up

    def of(self, name: str) -> list[Lease]:
        """Claims on one worker, the one that lasts longest first."""
        self._purge()
        return sorted(
            self._leases.get(name, {}).values(), key=lambda x: (-x.until, x.source, x.owner)
        )

    def names(self) -> set[str]:
        """Every name that is claimed now."""
        self._purge()
        return set(self._leases)

    def claims(self) -> dict[Claim, list[str]]:
        """Names by claim, for reports."""
        self._purge()
        out: dict[Claim, list[str]] = {}
        for leases in self._leases.values():
            for lease in leases.values():
                out.setdefault(Claim(*lease[1:]), []).append(lease.name)
        return out

    def _purge(self) -> None:
        now = self._clock()
        if now < self._next_end:
            return
        for name, leases in list(self._leases.items()):
            for key in [key for key, lease in leases.items() if lease.until <= now]:
                del leases[key]
            if not leases:
                del self._leases[name]
        ends = (lease.until for leases in self._leases.values() for lease in leases.values())
        self._next_end = min(ends, default=float("inf"))
