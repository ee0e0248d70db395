"""Time-limited claims, on workers or on groups of them. No `distributed`; a clock is handed in."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, KeysView
from typing import NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.protocol.requests import Refused

#: (source, owner): whoever asks again under the same one renews.
PinHolder = tuple[str, str]

#: Seconds that the leases of a Dask client go on after it has left: it may be back, and it renews
#: every 20 s at least.
CLIENT_AWAY_S = 60.0

#: Seconds for which it is remembered that a claim has lasted as long as it may: callers that live
#: renew at least every 20 s, and each refusal prolongs it.
SPENT_S = 600.0


class Lease(NamedTuple):
    """One claim on one worker (or group of workers); instants are on the clock of the table."""

    until: float
    name: str
    source: str
    owner: str
    reason: str
    since: float  # when it was first set, renewals left aside
    latest: float  # it ends then, however often it is renewed; infinite: there is no such limit
    client: str  # the caller's Dask client, if any
    workers: int = 0  # of a group: the minimum that is wanted

    @property
    def holder(self) -> PinHolder:
        return self.source, self.owner


class LeaseTable:
    """
    Leases by worker name, source and owner.

    A name needs no worker: who pins may know of a worker that is about to join. Every lease ends by
    itself, and what has ended is forgotten at the next call, so the table cannot leak. A call costs
    O(log n) for each lease it names, and each lease that has ended is paid for once.
    """

    def __init__(self, clock: Callable[[], float], most: int = wire.MOST_PINS) -> None:
        self.clock = clock
        self.most = most  # leases that it holds
        self.expired: Counter[str] = Counter()  # leases that came to their end, by source
        self._new_or_gone = self._renewed = 0  # how often, in all
        self._by_name: dict[str, dict[PinHolder, Lease]] = {}
        self._by_holder: dict[PinHolder, dict[str, Lease]] = {}
        self._count = 0
        #: A heap, by their ends. Some were replaced or given up since: those are skipped.
        self._ends: list[Lease] = []
        #: Who has had its time: until when that is remembered, the soonest first, and whether
        #: anybody was told.
        self._spent: dict[PinHolder, tuple[float, bool]] = {}

    def revision(self) -> tuple[int, int]:
        """
        Two numbers: the first changes with each lease that is new or gone, the second with each
        that is renewed.
        """
        self._purge()
        return self._new_or_gone, self._renewed

    def pin(
        self,
        names: Iterable[str],
        *,
        source: str,
        owner: str,
        reason: str,
        ttl_s: float,
        total_s: float = math.inf,
        client: str = "",
        workers: int = 0,
    ) -> float:
        """
        Claim workers; a claim of the same source and owner on the same name is replaced.

        No renewal prolongs it beyond `total_s` since it was first set. Returns the seconds that are
        granted, the least of all names: `ttl_s`, or what is left of `total_s`. Raises `Refused`
        where there would be more leases than the table holds; nothing was claimed then.
        """
        self._purge()
        now = self.clock()
        granted_s = ttl_s
        names = list(names)
        held = self._by_holder.get((source, owner), {})
        new = sum([name not in held for name in names])
        _has_room(len(held) + new, wire.MOST_PINS_OF_OWNER, "of one owner")
        _has_room(self._count + new, self.most, "in all")
        for name in names:
            since = held[name].since if name in held else now
            latest = since + total_s
            until = max(now, min(now + ttl_s, latest))
            granted_s = min(granted_s, until - now)
            self._put(Lease(until, name, source, owner, reason, since, latest, client, workers))
        return granted_s

    def unpin(self, *, source: str, owner: str, names: Iterable[str] | None = None) -> None:
        """Give up the claims of one owner, on some names or all of them."""
        self._purge()
        held = self._by_holder.get((source, owner), {})
        for name in list(held) if names is None else held.keys() & set(names):
            self._remove(held[name])
        if names is None:
            self._spent.pop((source, owner), None)

    def drop(self, name: str) -> None:
        """The worker of that name is gone, and all claims on it."""
        for lease in self.of(name):
            self._remove(lease)

    def move(self, name: str, other: str) -> None:
        """The worker has been renamed: its claims move to the new name."""
        for lease in self.of(name):
            self._remove(lease)
            self._put(lease._replace(name=other))

    def cut(self, client: str, within_s: float = CLIENT_AWAY_S) -> None:
        """A Dask client has left: its claims end soon, unless they are renewed."""
        until = self.clock() + within_s
        for lease in self.every():
            if lease.client == client and until < lease.until:
                self._put(lease._replace(until=until))

    def is_spent(self, names: Iterable[str], *, source: str, owner: str, total_s: float) -> bool:
        """True if a claim may not be renewed: it has lasted `total_s` on some name."""
        self._purge()
        holder = (source, owner)
        held = self._by_holder.get(holder, {})
        since = min([held[name].since for name in names if name in held], default=math.inf)
        return holder in self._spent or total_s <= self.clock() - since

    def refuse(self, *, source: str, owner: str) -> bool:
        """Remember that a renewal was refused; True the first time."""
        return not self._spend((source, owner), is_reported=True)

    def of(self, name: str) -> list[Lease]:
        """Claims on one worker, the one that lasts longest first."""
        self._purge()
        leases = self._by_name.get(name, {}).values()
        return sorted(leases, key=lambda x: (-x.until, x.source, x.owner))

    def names(self) -> KeysView[str]:
        """Every name that is claimed now; to be read at once."""
        self._purge()
        return self._by_name.keys()

    def every(self) -> list[Lease]:
        self._purge()
        return self._all()

    def _all(self) -> list[Lease]:
        return [lease for leases in self._by_name.values() for lease in leases.values()]

    def granted(self) -> dict[Lease, list[str]]:
        """Names by what was granted together, as a lease without a name."""
        out: dict[Lease, list[str]] = {}
        for lease in self.every():
            out.setdefault(lease._replace(name=""), []).append(lease.name)
        return out

    def _put(self, lease: Lease) -> None:
        of_name = self._by_name.setdefault(lease.name, {})
        is_new = lease.holder not in of_name
        self._count += is_new
        self._new_or_gone += is_new
        self._renewed += not is_new
        of_name[lease.holder] = lease
        self._by_holder.setdefault(lease.holder, {})[lease.name] = lease
        heapq.heappush(self._ends, lease)
        if len(self._ends) > 2 * self._count + 64:
            self._ends = self._all()
            heapq.heapify(self._ends)

    def _remove(self, lease: Lease) -> None:
        of_name, of_holder = self._by_name[lease.name], self._by_holder[lease.holder]
        del of_name[lease.holder], of_holder[lease.name]
        if not of_name:
            del self._by_name[lease.name]
        if not of_holder:
            del self._by_holder[lease.holder]
        self._count -= 1
        self._new_or_gone += 1

    def _spend(self, holder: PinHolder, *, is_reported: bool) -> bool:
        """Remember that a holder's time is used up; True if this was reported before."""
        # Taken out first, so that it goes to the end: the order is by time.
        _, was_reported = self._spent.pop(holder, (0.0, False))
        self._spent[holder] = (self.clock() + SPENT_S, was_reported or is_reported)
        return was_reported

    def _purge(self) -> None:
        now = self.clock()
        while self._ends and self._ends[0].until <= now:
            lease = heapq.heappop(self._ends)
            if self._by_name.get(lease.name, {}).get(lease.holder) is not lease:
                continue
            self._remove(lease)
            self.expired[lease.source] += 1
            if lease.latest <= lease.until:
                self._spend(lease.holder, is_reported=False)
        while self._spent:
            holder, (until, _) = next(iter(self._spent.items()))
            if now < until:
                break
            del self._spent[holder]


def _has_room(count: int, most: int, whose: str) -> None:
    if count > most:
        raise Refused(f"there may be at most {most} pins {whose}, and these would make {count}")
