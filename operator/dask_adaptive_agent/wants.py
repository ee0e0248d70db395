"""Floors that clients' code asks for: so many workers at least, for a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.settings import Refused, Request, millis, number, text
from dask_adaptive_agent.words import duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from dask_adaptive_agent.settings import Settings

#: As many are kept; those that end last.
MOST = 1_000

#: More is a mistake of units.
MOST_WORKERS = 1_000_000


class Wish(NamedTuple):
    """One floor; instants are on the clock of the table."""

    workers: int
    until: float
    since: float  # when it was first asked for, renewals left aside
    client: str


class Wants:
    """
    Floors by owner and worker group. Each ends by itself, and soon after its client has left.

    Args:
        clock: Seconds that never go backwards.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wishes: dict[tuple[str, str], Wish] = {}

    def ask(
        self, owner: str, group: str, workers: int, *, ttl_s: float, total_s: float, client: str
    ) -> None:
        """
        Replace what this owner wants of this group; 0 workers: it wants none any more.

        Raises:
            Refused: It has been renewed for `total_s` already.
        """
        self._purge()
        now = self._clock()
        known = self._wishes.pop((owner, group), None)
        if not workers:
            return
        since = now if known is None else known.since
        if since + total_s <= now:
            self._wishes[owner, group] = known  # type: ignore[assignment]  # ends in this instant
            raise Refused(
                f"workers were wanted for {duration(total_s)}, renewals included: the longest that"
                " the policy allows (spec.pins.client.maxDuration)"
            )
        until = min(now + ttl_s, since + total_s)
        self._wishes[owner, group] = Wish(workers, until, since, client)
        if len(self._wishes) > MOST:
            del self._wishes[min(self._wishes, key=lambda k: (self._wishes[k].until, k))]

    def cut(self, client: str, within_s: float) -> None:
        """A Dask client has left: what it wants ends soon, unless it is renewed."""
        until = self._clock() + within_s
        for key, wish in self._wishes.items():
            if client and wish.client == client and until < wish.until:
                self._wishes[key] = wish._replace(until=until)

    def rows(self) -> list[wire.WantRow]:
        """All that hold now, the highest first."""
        self._purge()
        now = self._clock()
        rows: list[wire.WantRow] = [
            {
                "workers": wish.workers,
                "left_ms": max(1, int((wish.until - now) * 1000)),
                "owner": owner,
                "group": group,
            }
            for (owner, group), wish in self._wishes.items()
        ]
        return sorted(rows, key=lambda row: (-row["workers"], row["owner"], row["group"]))

    def _purge(self) -> None:
        now = self._clock()
        for key in [key for key, wish in self._wishes.items() if wish.until <= now]:
            del self._wishes[key]


def want(wants: Wants, settings: Settings, request: Request) -> wire.WantAnswer:
    """
    Answers `wire.WANT`.

    Raises:
        Invalid, Refused: The request makes no sense; or the policy does not allow it.
    """
    workers = number(request, "workers", 0, high=MOST_WORKERS)
    owner = text(request, "owner")
    group, client = text(request, "group", ""), text(request, "client", "")
    ttl_s = millis(request, "ttl_ms", 1 if not workers else 0) / 1000
    cap_s = settings.client_max_ms / 1000
    if workers and not settings.client_pins:
        raise Refused("the policy lets no code ask for workers (spec.pins.client.enabled is false)")
    if workers and ttl_s > cap_s:
        raise Refused(
            f"workers for {duration(ttl_s)} are longer than the {duration(cap_s)} that the policy"
            " allows (spec.pins.client.maxDuration)"
        )
    wants.ask(owner, group, workers, ttl_s=ttl_s, total_s=cap_s, client=client)
    return {"protocol": wire.PROTOCOL, "wants": wants.rows()}
