"""The agent in one scheduler: what it consists of, and its answers to the operator."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import distributed

from dask_adaptive_agent import __version__, wire
from dask_adaptive_agent.activity import Activity
from dask_adaptive_agent.closing import HAS_HOOK, closable
from dask_adaptive_agent.explain import duration, explain
from dask_adaptive_agent.moving import stealing
from dask_adaptive_agent.pins import PinTable
from dask_adaptive_agent.retirement import Order
from dask_adaptive_agent.retirements import Retirements, combined
from dask_adaptive_agent.roster import Entry, Roster
from dask_adaptive_agent.settings import (
    Invalid,
    Request,
    Settings,
    flag,
    millis,
    names,
    number,
    one_of,
    optional_names,
    text,
)
from dask_adaptive_agent.shuffles import ShuffleRun, Shuffles
from dask_adaptive_agent.snapshot import snapshot
from dask_adaptive_agent.sole import SoleBytes
from dask_adaptive_agent.tally import TallyPlugin

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)

ABORT, FORCE = "Abort", "Force"
DEADLINE_MS = 15 * 60 * 1000


class Agent:
    """Everything the agent knows about one scheduler, and one method a message of `wire`."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = monotonic) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.session = uuid4().hex
        self.settings = Settings()
        self.activity = Activity(clock)
        self.roster = Roster(scheduler, self.activity, clock)
        self.sole = SoleBytes()
        self.shuffles = Shuffles(scheduler, clock)
        self.pins = PinTable(clock, self.settings.manual_max_ms / 1000)
        self.tally: TallyPlugin | None = None
        self.retirements = Retirements(
            scheduler,
            pinned_by=lambda ws: ", ".join(self.pinned_by(ws)),
            lease_s=lambda: self.settings.lease_ms / 1000,
            clock=clock,
        )
        self._started_at = clock()

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """RPC handlers by the name of their message."""
        return {
            wire.HELLO: guarded(self.hello, any_protocol=True),
            wire.CONFIGURE: guarded(self.configure),
            wire.OBSERVE: guarded(self.observe),
            wire.EXPLAIN: guarded(self.explain),
            wire.RETIRE: guarded(self.retire),
            wire.CANCEL: guarded(self.cancel),
            wire.PIN: guarded(self.pin),
            wire.UNPIN: guarded(self.unpin),
        }

    def hello(self, request: Request) -> wire.HelloAnswer:
        return {
            "protocol": wire.PROTOCOL,
            "agent": __version__,
            "distributed": distributed.__version__,  # type: ignore[attr-defined]
            "python": ".".join(map(str, sys.version_info[:3])),
            "session": self.session,
            "scheduler_id": self.scheduler.id,
            "uptime_ms": int((self.clock() - self._started_at) * 1000),
            "hooks": {
                "valid_workers_downscaling": HAS_HOOK,
                "workers_to_close": "workers_to_close" in self.scheduler.__dict__,
                "shuffle": self.shuffles.is_known,
                "stealing": stealing(self.scheduler) is not None,
                "tally": self.tally is not None,
            },
        }

    def configure(self, request: Request) -> Request:
        settings = self.settings.updated(request)
        self._set_tally(settings.tally)
        self.settings = settings
        self.pins.cap_s = settings.manual_max_ms / 1000
        return self.settings.answer()

    def observe(self, request: Request) -> wire.Snapshot:
        session = text(request, "session", "")
        known = number(request, "known", 0)
        target_ms = request.get("target_duration_ms")
        target_s = None if target_ms is None else millis(request, "target_duration_ms", 1) / 1000
        self.retirements.review()
        return snapshot(self, session=session, known=known, target_duration_s=target_s)

    def explain(self, request: Request) -> wire.ExplainAnswer:
        return explain(self, optional_names(request))

    def retire(self, request: Request) -> wire.RetireAnswer:
        asked = names(request)
        busy_ok = flag(request, "busy_ok", False)
        order = Order(
            reason=text(request, "reason", ""),
            deadline_s=millis(request, "deadline_ms", DEADLINE_MS) / 1000,
            by_force=one_of(request, "on_timeout", (ABORT, FORCE), ABORT) == FORCE,
        )
        return self._each(asked, lambda ws: self.retirements.retire(ws, order, busy_ok=busy_ok))

    def cancel(self, request: Request) -> wire.RetireAnswer:
        return self._each(names(request), self.retirements.cancel)

    def pin(self, request: Request) -> wire.PinAnswer:
        asked = names(request)
        ttl_s = millis(request, "ttl_ms", 0) / 1000
        granted_s = self.pins.pin(
            asked,
            source=one_of(request, "source", (wire.MANUAL, wire.CLIENT)),
            owner=text(request, "owner"),
            reason=text(request, "reason", ""),
            ttl_s=ttl_s,
        )
        cut = f"cut from {duration(ttl_s)} to {duration(granted_s)}" if granted_s < ttl_s else ""
        pinned = [(name, int(granted_s * 1000)) for name in asked]
        return {"protocol": wire.PROTOCOL, "pinned": pinned, "message": cut}

    def unpin(self, request: Request) -> wire.PinAnswer:
        given_up = self.pins.unpin(
            source=one_of(request, "source", (wire.MANUAL, wire.CLIENT)),
            owner=text(request, "owner"),
            names=optional_names(request),
        )
        count = len(given_up)
        message = f"{count} pin{'s' * (count != 1)} given up"
        return {"protocol": wire.PROTOCOL, "pinned": [], "message": message}

    def offered(self, entries: dict[str, Entry]) -> list[WorkerState]:
        """Those of the roster that `workers_to_close` lets go, all memory that stays counted."""
        leaving = self.retirements.ongoing
        staying = [entry.ws for address, entry in entries.items() if address not in leaving]
        return closable(self.scheduler, self.free, staying)

    def free(self, workers: list[WorkerState]) -> list[WorkerState]:
        """Those of `workers` that nothing holds; none when that can't be known (fail closed)."""
        try:
            pinned = self.pins.names()
            held = set(self.retirements.ongoing)
            for run in self.pinning_shuffles():
                held |= run.participants
        except Exception:
            logger.exception("Cannot read pins; holding all workers")
            return []
        if held:
            workers = [ws for ws in workers if ws.address not in held]
        if pinned:
            workers = [ws for ws in workers if not pinned & {str(ws.name), ws.address}]
        return workers

    def pinning_shuffles(self) -> list[ShuffleRun]:
        if not self.settings.shuffle_pins:
            return []
        return self.shuffles.pinning(self.settings.shuffle_timeout_ms / 1000)

    def pinned_by(self, ws: WorkerState, shuffles: list[ShuffleRun] | None = None) -> list[str]:
        """
        Who claims a worker, for what and how long: in words, as of now.

        Args:
            ws: The worker.
            shuffles: What `pinning_shuffles()` has just said, for those who ask about many workers.
        """
        now = self.clock()
        timeout_s = self.settings.shuffle_timeout_ms / 1000
        said = [
            f"shuffle {run.id} for {duration(run.since + timeout_s - now)} more"
            for run in (self.pinning_shuffles() if shuffles is None else shuffles)
            if ws.address in run.participants
        ]
        for name in dict.fromkeys((str(ws.name), ws.address)):
            for lease in self.pins.of(name):
                reason = f" ({lease.reason})" if lease.reason else ""
                left = duration(lease.until - now)
                said.append(f"{lease.source} {lease.owner}{reason} for {left} more")
        return said

    def idle_s(self, entry: Entry) -> float:
        """Seconds since a worker last had a task, or joined; 0 while it has one."""
        now = self.clock()
        if entry.ws.processing:
            entry.active_at = now
        return now - max(entry.active_at, self.activity.last.get(entry.ws.address, 0.0))

    def close(self, *, is_closing: bool) -> None:
        """Stop what runs by itself."""
        self.retirements.close(is_closing=is_closing)
        self._set_tally(False)

    def _each(
        self, asked: list[str], act: Callable[[WorkerState], wire.RetireOutcome]
    ) -> wire.RetireAnswer:
        by_name = self.roster.by_name()
        outcomes = [combined(name, [act(ws) for ws in by_name.get(name, ())]) for name in asked]
        return {"protocol": wire.PROTOCOL, "outcomes": outcomes}

    def _set_tally(self, wanted: bool) -> None:
        if wanted and self.tally is None:
            self.tally = TallyPlugin(self.scheduler, self.shuffles)
            self.tally.install()
        elif not wanted and self.tally is not None:
            self.tally.uninstall()
            self.tally = None


def guarded(handler: Callable[[Request], Any], *, any_protocol: bool = False) -> Callable[..., Any]:
    """The handler as the scheduler calls it: it never raises, and it speaks one protocol."""

    def answer(**request: Any) -> Any:
        protocol = request.get("protocol", wire.PROTOCOL)
        if protocol != wire.PROTOCOL and not any_protocol:
            spoken = f"this agent ({__version__}) speaks protocol {wire.PROTOCOL}, not {protocol}"
            return error(wire.E_PROTOCOL, spoken)
        try:
            return handler(request)
        except Invalid as invalid:
            return error(wire.E_INVALID, str(invalid))
        except Exception as unexpected:
            logger.exception("Cannot answer")
            return error(wire.E_INTERNAL, repr(unexpected))

    return answer


def error(code: str, message: str) -> wire.ErrorAnswer:
    return {"error": code, "message": message, "protocol": wire.PROTOCOL}
