"""
Workers that somebody claims: people by annotation, code by `pinned` or because it knows their
addresses, P2P shuffles that run; and the number of workers that code asks for by `want`.

Pins of the operator (annotations) go by name, so that they hold a worker that is about to join;
those of code go by address, because code means the workers that it sees.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any

from distributed.scheduler import WorkerState

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.guard import logged, whole
from dask_adaptive_agent.patching import Call, Patches
from dask_adaptive_agent.pins.leases import LeaseTable
from dask_adaptive_agent.protocol.requests import AgentSettings, Malformed, Refused, Request
from dask_adaptive_agent.quotas.roster import Entry
from dask_adaptive_agent.service.service import Service
from dask_adaptive_agent.shuffle.runs import ShuffleRun, Shuffles
from dask_adaptive_agent.text import duration

logger = logging.getLogger(__name__)

#: Floors that are kept, and the highest: more is a mistake of units.
MOST_FLOORS, MOST_WORKERS = 1_000, 1_000_000

#: The owner of the leases of `KnownWorkers`.
KNOWN = "addresses"

LONGEST = "renewals included: the longest that the policy allows (spec.pins.client.maxDuration)"


class PinnedWorkers(Component):
    """All claims on the workers of one scheduler."""

    def __init__(self, context: Context, service: Service, shuffles: Shuffles) -> None:
        super().__init__(context)
        self._service, self._shuffles = service, shuffles
        self.settings = context.settings  # what the policy allows
        self.leases = LeaseTable(self.clock)

    def pin(self, request: Request) -> wire.PinAnswer:
        is_client = request.one_of("source", (wire.MANUAL, wire.CLIENT)) == wire.CLIENT
        return self._pin_for_client(request) if is_client else self._pin_by_hand(request)

    def unpin(self, request: Request) -> None:
        source = request.one_of("source", (wire.MANUAL, wire.CLIENT))
        names = request.optional_names()
        if names is not None and source == wire.CLIENT:
            names = [ws.address for each in self.context.roster.named(names) for ws in each]
        self.leases.unpin(source=source, owner=request.text("owner"), names=names)

    def worker_left(self, ws: WorkerState) -> None:
        """All pins end with their worker, unless another has taken its name."""
        self.leases.drop(ws.address)
        for name in {str(ws.name), self._service.name_of(ws)} & self.leases.names():
            others = self.scheduler.workers.values()
            if not any(str(other.name) == name for other in others if other is not ws):
                self.leases.drop(name)

    def expired(self) -> dict[str, int]:
        """Pins that came to their end, by source."""
        of_shuffles = self._shuffles.expired
        return {**self.leases.expired, **({wire.SHUFFLE: of_shuffles} if of_shuffles else {})}

    def name_of(self, ws: WorkerState) -> str:
        """The name a worker is pinned by: one that terminates keeps its own until it is taken."""
        name = self._service.name_of(ws)
        owner = self.scheduler.aliases.get(name, ws.address)
        return name if owner == ws.address else str(ws.name)

    def in_shuffles(self) -> Collection[str]:
        """Addresses; raises when shuffles cannot be read: the caller must hold all workers."""
        return self._shuffles.pinned() if self.settings.shuffle_pins else ()

    def shuffles(self) -> list[ShuffleRun]:
        return self._shuffles.pinning() if self.settings.shuffle_pins else []

    def is_pinned(self, ws: WorkerState) -> bool:
        """
        Tells whether a worker has to serve on; yes when that can't be known (fail closed).

        Of one that code only knows, what is bound to it still runs there when it is cordoned.
        """
        try:
            if ws.address in self.in_shuffles():
                return True
            leased = self.leases.names() and {ws.address, self.name_of(ws)} & self.leases.names()
            return any(one.owner != KNOWN for name in leased for one in self.leases.of(name))
        except Exception:
            logger.exception("Failed to read pins; holding worker %s", ws.address)
            return True

    def holders(self, ws: WorkerState, over: Collection[str] = ()) -> list[str]:
        """The holders of a worker, why and how long, but for the sources, and owners, `over`."""
        now = self.clock()
        held = []
        if ws.address in self.in_shuffles():
            held = [
                f"{wire.SHUFFLE} {run.id} for {duration(self._left_s(run, now))} more"
                for run in self.shuffles()
                if ws.address in run.participants
            ]
        for name in dict.fromkeys((self.name_of(ws), ws.address)):
            for lease in self.leases.of(name):
                if lease.source not in over and lease.owner not in over:
                    reason = f"({lease.reason}) " if lease.reason else ""
                    left = duration(lease.until - now)
                    held.append(f"{lease.source} {lease.owner} {reason}for {left} more")
        return held

    def rows(self, entries: dict[str, Entry]) -> list[wire.PinRow]:
        """Every pin, with the slots of the workers that it holds."""
        now = self.clock()
        granted = self.leases.granted()
        slots: dict[str, list[int]] = {}
        for address, entry in entries.items() if granted else ():
            for name in {self.name_of(entry.ws), address}:
                slots.setdefault(name, []).append(entry.slot)
        rows: list[wire.PinRow] = [
            {
                "source": lease.source,
                "owner": lease.owner,
                "reason": lease.reason,
                "left_ms": _ms(lease.until - now),
                "latest_ms": _ms((lease.until if math.isinf(lease.latest) else lease.latest) - now),
                "for_ms": _ms(now - lease.since),
                "slots": sorted({slot for name in named for slot in slots.get(name, ())}),
            }
            for lease, named in granted.items()
        ]
        return rows + [self._shuffle_row(run, entries, now) for run in self.shuffles()]

    def _shuffle_row(self, run: ShuffleRun, entries: dict[str, Entry], now: float) -> wire.PinRow:
        left_ms = _ms(self._left_s(run, now))
        return {
            "source": wire.SHUFFLE,
            "owner": run.id,
            "reason": "takes part in a P2P shuffle",
            "left_ms": left_ms,
            "latest_ms": left_ms,
            "for_ms": _ms(now - run.since),
            "slots": sorted([entries[a].slot for a in run.participants if a in entries]),
        }

    def _left_s(self, run: ShuffleRun, now: float) -> float:
        return run.since + self.settings.shuffle_timeout_s - now

    def _pin_by_hand(self, request: Request) -> wire.PinAnswer:
        names = request.names()
        granted_s = self.leases.pin(
            names,
            source=wire.MANUAL,
            owner=request.text("owner"),
            reason=request.text("reason", ""),
            ttl_s=min(request.millis("ttl_ms"), self.settings.manual_max_ms) / 1000,
        )
        return _granted(names, granted_s)

    def _pin_for_client(self, request: Request) -> wire.PinAnswer:
        names = request.names()
        holder: dict[str, Any] = {"source": wire.CLIENT, "owner": request.text("owner")}
        reason, client = request.text("reason", ""), request.text("client", "")
        ttl_s, cap_s = _allowed_s(request, self.settings, "pin")
        named = self.context.roster.named(names)
        if unknown := [name for name, workers in zip(names, named) if not workers]:
            raise Malformed(f"no worker has the name or address {', '.join(unknown[:10])}")
        workers = {ws.address: ws for each in named for ws in each}
        if self.leases.is_spent(workers, total_s=cap_s, **holder):
            spent = f"pinned for {duration(cap_s)}, {LONGEST}"
            if self.leases.refuse(**holder):
                pin = f"a pin from code ({reason})" if reason else "a pin from code"
                still = f"{pin} has {spent}; its caller still asks for it"
                held = [str(ws.name) for ws in workers.values()]
                self.context.notes.add(wire.N_PIN_EXPIRED, still, held)
            raise Refused(spent)
        granted_s = self.leases.pin(
            workers, reason=reason, ttl_s=ttl_s, total_s=cap_s, client=client, **holder
        )
        return _granted(names, granted_s)


class WorkerFloors(Component):
    """
    Numbers of workers that code asks for, as leases by owner and worker group. Each ends by itself,
    and soon after its client has left.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.leases = LeaseTable(self.clock, MOST_FLOORS)

    def want(self, request: Request) -> None:
        """Answer `wire.WANT`. Raises `Malformed` and `Refused`."""
        workers = request.number("workers", 0, high=MOST_WORKERS)
        groups = [request.text("group", "")]
        holder: dict[str, Any] = {"source": wire.CLIENT, "owner": request.text("owner")}
        if workers:
            client = request.text("client", "")
            ttl_s, cap_s = _allowed_s(request, self.context.settings, "floor")
            if self.leases.is_spent(groups, total_s=cap_s, **holder):
                raise Refused(f"workers were requested for {duration(cap_s)}, {LONGEST}")
            self.leases.pin(
                groups, reason="", ttl_s=ttl_s, total_s=cap_s, client=client, workers=workers,
                **holder,
            )  # fmt: skip
        else:
            self.leases.unpin(names=groups, **holder)

    def rows(self) -> list[wire.WantRow]:
        """All that hold now, the highest first."""
        now = self.clock()
        leases = sorted(self.leases.every(), key=lambda x: (-x.workers, x.owner, x.name))
        return [
            {
                "workers": lease.workers,
                "left_ms": max(1, int((lease.until - now) * 1000)),
                "owner": lease.owner,
                "group": lease.name,
            }
            for lease in leases
        ]


def _allowed_s(request: Request, settings: AgentSettings, what: str) -> tuple[float, float]:
    """Return the requested and the longest allowed duration of a claim. Raises `Refused`."""
    ttl_s, cap_s = request.millis("ttl_ms") / 1000, settings.client_max_ms / 1000
    if not settings.client_pins:
        raise Refused(f"the policy allows no {what}s from code (spec.pins.client.enabled is false)")
    if ttl_s > cap_s:
        raise Refused(
            f"a {what} of {duration(ttl_s)} is longer than the {duration(cap_s)} that the policy "
            "allows (spec.pins.client.maxDuration)"
        )
    return ttl_s, cap_s


def _granted(names: list[str], granted_s: float) -> wire.PinAnswer:
    # Rounded up: a lease of less than a millisecond is one.
    pinned = [(name, math.ceil(granted_s * 1000)) for name in names]
    return {"protocol": wire.PROTOCOL, "pinned": pinned}


def _ms(seconds: float) -> int:
    return whole(seconds * 1000)


class KnownWorkers(Component):
    """
    Workers whose addresses code knows: it has asked who has its results, or has named them for
    tasks. What was asked for, by address; each has a lease of `spec.pins.client.maxDuration`.

    Libraries (XGBoost, LightGBM, RAPIDS) note addresses and name them later; such a task waits for
    ever if its worker has left. So these are leased for as long as anybody wants what they were
    asked for.
    """

    def __init__(self, context: Context, pins: PinnedWorkers) -> None:
        super().__init__(context)
        self._pins = pins
        #: The oldest first; asked for again, a key keeps its place, and prolongs nothing.
        self._keys: dict[str, dict[Any, None]] = {}

    def install(self, patches: Patches) -> None:
        patches.put(patching.WHO_HAS_RPC, lambda stock: self._answering(stock, _by_address))
        patches.put(patching.HAS_WHAT_RPC, lambda stock: self._answering(stock, dict))

    def graph_added(self, annotations: Mapping[str, Any]) -> None:
        """A graph has come; `annotations` by kind and key. Never raises."""
        # Fail open: those workers may leave, as with stock code.
        with logged(logger, "Failed to note the workers that a graph names"):
            named = [self.scheduler.tasks.get(key) for key in annotations.get("workers", ())]
            bound = {
                ts.key: ts.worker_restrictions or ()
                for ts in named
                if ts is not None and not ts.loose_restrictions
            }
            if bound:
                self._lease(_by_address(bound))

    def refresh(self) -> None:
        """Release workers whose results nobody wants now. A key is checked once."""
        tasks, gone = self.scheduler.tasks, []
        for address, keys in self._keys.items():
            while keys and not _is_wanted(tasks.get(next(reversed(keys)))):
                keys.popitem()
            if not keys or not self._is_on or address not in self.scheduler.workers:
                gone.append(address)
        for address in gone:
            del self._keys[address]
        if gone:
            self._pins.leases.unpin(source=wire.CLIENT, owner=KNOWN, names=gone)

    @property
    def _is_on(self) -> bool:
        """Without an operator, and a policy of its, nobody of ours takes a worker away."""
        of = self.context
        is_governed = "addresses" in of.features and of.lease.silent_s < math.inf
        return is_governed and of.settings.client_pins

    def _answering(self, stock: Call, read: Callable[[Any], Mapping[str, Any]]) -> Call:
        @wraps(stock)
        def answer(*args: Any, **kwargs: Any) -> Any:
            found = stock(*args, **kwargs)
            # Fail open: those workers may leave, as with stock code.
            with logged(logger, "Failed to note the workers of which code was told"):
                self._lease(read(found))
            return found

        return answer

    def _lease(self, wanted: Mapping[str, Iterable[Any]]) -> None:
        if not self._is_on:
            return
        new = []
        for address in wanted.keys() & self.scheduler.workers.keys():
            keys = self._keys.setdefault(address, {})
            known = len(keys)
            keys.update(dict.fromkeys(wanted[address]))
            if len(keys) > known:
                new.append(address)
        if new:
            self.context.expect("workers_to_close")
            self._pins.leases.pin(
                new,
                source=wire.CLIENT,
                owner=KNOWN,
                reason="code knows where its results are",
                ttl_s=self.context.settings.client_max_ms / 1000,
            )


def _by_address(addresses: Mapping[Any, Iterable[str]]) -> Mapping[str, list[Any]]:
    """Keys by address, of addresses by key."""
    out: dict[str, list[Any]] = defaultdict(list)
    for key, each in addresses.items():
        for address in each:
            out[address].append(key)
    return out


def _is_wanted(ts: Any) -> bool:
    return ts is not None and bool(ts.who_wants or ts.waiters)
