"""The agent in one scheduler: what it consists of, and its answers to the operator."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dask_adaptive_agent import claims, patching, wire
from dask_adaptive_agent.announced import Announced
from dask_adaptive_agent.answering import Parts, guarded
from dask_adaptive_agent.barriers import Barriers
from dask_adaptive_agent.choice import ShuffleChoice
from dask_adaptive_agent.closing import Closing
from dask_adaptive_agent.cordons import Cordons
from dask_adaptive_agent.demand import DemandView
from dask_adaptive_agent.drain import Terms
from dask_adaptive_agent.drains import Drains, combined
from dask_adaptive_agent.explain import explain
from dask_adaptive_agent.gate import Gate, hearing
from dask_adaptive_agent.hello import hello
from dask_adaptive_agent.limits import Limits
from dask_adaptive_agent.meters import Meters
from dask_adaptive_agent.naming import registering
from dask_adaptive_agent.notes import Notes
from dask_adaptive_agent.operator_lease import OperatorLease
from dask_adaptive_agent.orders import Orders
from dask_adaptive_agent.page.page import Page
from dask_adaptive_agent.patching import Mismatch, Patch, Patches
from dask_adaptive_agent.pins import PinTable
from dask_adaptive_agent.redone import Redone
from dask_adaptive_agent.relief.choices import at_start
from dask_adaptive_agent.relief.reliefs import Reliefs
from dask_adaptive_agent.removals import Removals
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
    shown,
    text,
)
from dask_adaptive_agent.shuffle_wait import ShuffleWait
from dask_adaptive_agent.shuffles import ShuffleRun, Shuffles
from dask_adaptive_agent.snapshot import snapshot
from dask_adaptive_agent.sole import SoleBytes
from dask_adaptive_agent.tally import TallyPlugin
from dask_adaptive_agent.words import duration, plural

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)

ABORT, FORCE = "Abort", "Force"
DEADLINE_MS = 15 * 60 * 1000
#: What Kubernetes gives a pod that says nothing, less what its end itself takes.
LEAVE_MS = 25_000


class Agent:
    """Everything the agent knows about one scheduler, and one method a message of `wire`."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = monotonic) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.session = uuid4().hex
        self.patches = Patches(scheduler)
        self.features: dict[str, list[Patch]] = {}
        self.lapses = 0  # how often the lease of what the operator has said has ended
        self.settings = Settings(relief=at_start())
        self.notes = Notes(clock)
        self.parts = Parts()
        self.roster = Roster(scheduler, clock)
        self.limits = Limits(scheduler.workers, clock)
        self.lease = OperatorLease(clock, self._lease_s, self._lapse)
        self.sole = SoleBytes()
        self.shuffles = Shuffles(
            scheduler, clock, timeout_s=self._shuffle_timeout_s, expired=self._shuffle_expired
        )
        self.pins = PinTable(clock)
        self.announced = Announced(clock, self._lease_s)
        self.barriers = Barriers(
            scheduler, clock, has_begun=self.shuffles.has_begun, first=self._serve_shuffles
        )
        self.closing = Closing(
            scheduler,
            self.free,
            leaving=self.leaving,
            covers_shuffles=lambda: self.settings.shuffle_pins and self.shuffles.is_known,
        )
        self.choice = ShuffleChoice(scheduler, leaving=self.leaving, chosen=self.shuffles.look)
        self.orders = Orders(self)
        self.tally: TallyPlugin | None = None
        self._make_exits()
        self.shuffle_wait = ShuffleWait(self)
        self.redone = Redone(scheduler, self._cause)
        self.removals = Removals(scheduler)
        self.reliefs = Reliefs(scheduler, clock, self.notes.add)
        self.page = Page(self)
        self.demand = DemandView(self)
        self.started_at = clock()

    def _make_exits(self) -> None:
        """The ways out of service, which take workers over from each other."""
        self.cordons = Cordons(
            self.scheduler,
            self.roster.entries,
            self.limits,
            self.lease,
            is_pinned=self.is_pinned,
            is_leaving=self.is_leaving,
            in_shuffle=lambda address: address in self._held_by_shuffles(),
            are_arriving=lambda: bool(self.announced.arriving),
            expect_gates=self.expect_gates,
            tell=self.notes.add,
            clock=self.clock,
        )
        self.meters = Meters(
            self.roster.entries,
            self.clock,
            self.cordons.durations,
            reached=self.cordons.reached,
            failed=self.cordons.failed,
        )
        self.drains = Drains(
            self.scheduler,
            cordons=self.cordons,
            pinned_by=lambda ws, over: ", ".join(self.pinned_by(ws, over=over)),
            lease_s=self._lease_s,
            lifetime_s=self._lifetime_s,
            tell=self.notes.add,
            clock=self.clock,
        )

    def install(self) -> None:
        """Change what the agent changes from the start on, as far as this release allows it."""
        self.removals.listeners.append(self.redone.removing)
        self._add_feature("counting", self.meters.install)
        self._add_feature("workers_to_close", self.closing.install)
        self._add_feature("orders", self.orders.install)
        self._add_feature("removals", self.removals.install)

    def has_feature(self, name: str) -> bool:
        """Whether it is in place, and calls still come to it."""
        patches = self.features.get(name, [])
        return bool(patches) and all([patch.is_called for patch in patches])

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
            wire.LEAVE: guarded(self.leave),
            wire.LIMIT: guarded(self.limit),
            wire.ANNOUNCE: guarded(self.announce),
            wire.WANT: guarded(self.demand.handler),
        }

    def hello(self, request: Request) -> wire.HelloAnswer:
        return hello(self)

    def configure(self, request: Request) -> Request:
        settings = self.settings.updated(request)
        if request.keys() - {"protocol", "tally"}:
            self.lease.begin()
        self._set_tally(settings.tally)
        self.settings = settings
        self.reliefs.configure(settings.relief)
        self.shuffles.look()
        return self.settings.answer()

    def observe(self, request: Request) -> wire.Snapshot:
        session = text(request, "session", "")
        known, heard = number(request, "known", 0), number(request, "heard", 0)
        target_ms = request.get("target_duration_ms")
        target_s = None if target_ms is None else millis(request, "target_duration_ms", 1) / 1000
        self.roster.sync()
        self.lease.check()
        reviews: list[Callable[[], None]] = [self.cordons.review]
        if flag(request, "renew", False):
            self.lease.renew()
            reviews += [self.drains.review, self.announced.heard]
        for review in reviews:
            self.parts.section(review.__qualname__, review, None)
        return snapshot(
            self, session=session, known=known, heard=heard, target_duration_s=target_s,
            meters=flag(request, "meters", False), demand=flag(request, "demand", False),
        )  # fmt: skip

    def explain(self, request: Request) -> wire.ExplainAnswer:
        return explain(self, optional_names(request))

    def retire(self, request: Request) -> wire.RetireAnswer:
        self.expect_gates()
        asked = names(request)
        busy_ok = flag(request, "busy_ok", False)
        terms = Terms(
            reason=text(request, "reason", ""),
            left_s=millis(request, "deadline_ms", DEADLINE_MS) / 1000,
            is_refusable=True,
            by_force=one_of(request, "on_timeout", (ABORT, FORCE), ABORT) == FORCE,
            over_pins=_over_pins(request),
        )
        return self._each(asked, lambda ws: self.drains.retire(ws, terms, busy_ok=busy_ok))

    def cancel(self, request: Request) -> wire.RetireAnswer:
        return self._each(names(request), self.drains.cancel)

    def leave(self, request: Request) -> wire.RetireAnswer:
        self.expect_gates()
        if "names" not in self.features:
            self._add_feature("names", self._hear_of_comers)
        terms = Terms(
            reason=text(request, "reason", "its process ends"),
            left_s=millis(request, "left_ms", LEAVE_MS) / 1000,
            is_certain=flag(request, "ending", True),
        )
        by_name, by_host = optional_names(request) or [], optional_names(request, "hosts") or []
        outcomes = self.drains.leave(by_name, by_host, terms)
        return {"protocol": wire.PROTOCOL, "outcomes": outcomes}

    def limit(self, request: Request) -> wire.LimitAnswer:
        session = text(request, "session")
        if session != self.session:
            raise Invalid(f"session {shown(session)} has ended; observe, then send limits for that")
        self.limits.told(request)
        self.lease.begin()
        self.roster.sync()
        stopped = self.cordons.told()
        return {"protocol": wire.PROTOCOL, "stopped": stopped}

    def announce(self, request: Request) -> Request:
        self.announced.told(request)
        return {"protocol": wire.PROTOCOL}

    def pin(self, request: Request) -> wire.PinAnswer:
        return claims.pin(self, request)

    def unpin(self, request: Request) -> wire.PinAnswer:
        return claims.unpin(self, request)

    def leaving(self) -> Collection[str]:
        """Addresses of workers that are on their way out because of us, or with our help."""
        some = (self.drains.ongoing, self.cordons.ongoing)
        return frozenset().union(*some) if any(some) else ()

    def is_leaving(self, address: str) -> bool:
        """Whether a worker drains, or somebody retires it; being stopped is less than that."""
        return address in self.drains.ongoing or self.drains.is_others(address)

    def is_pinned(self, ws: WorkerState) -> bool:
        """Whether anybody claims a worker; yes when that can't be known (fail closed)."""
        try:
            if ws.address in self._held_by_shuffles():
                return True
            named = self.pins.names()
            return bool(named) and (ws.address in named or claims.name_of(self, ws) in named)
        except Exception:
            logger.exception("Cannot read pins; holding worker %s", ws.address)
            return True

    def offered(self, entries: dict[str, Entry]) -> list[WorkerState]:
        """Those of the roster that `workers_to_close` lets go, all memory that stays counted."""
        leaving = self.leaving()
        staying = [entry.ws for address, entry in entries.items() if address not in leaving]
        # Fail closed: nobody may go.
        return self.parts.section("who may go", lambda: self.closing.offered(staying), [])

    def free(self, workers: list[WorkerState]) -> list[WorkerState]:
        """Those of `workers` that nothing holds; none when that can't be known (fail closed)."""
        try:
            named = self.pins.names()
            for held in (self.leaving(), self._held_by_shuffles()):
                if held:
                    workers = [ws for ws in workers if ws.address not in held]
        except Exception:
            logger.exception("Cannot read pins; holding all workers")
            return []
        if named:
            workers = [
                ws for ws in workers if ws.address not in named and str(ws.name) not in named
            ]
        return workers

    def pinning_shuffles(self) -> list[ShuffleRun]:
        return self.shuffles.pinning() if self.settings.shuffle_pins else []

    def pinned_by(
        self,
        ws: WorkerState,
        shuffles: list[ShuffleRun] | None = None,
        over: Collection[str] = (),
    ) -> list[str]:
        """
        Who claims a worker, for what and how long: in words, as of now.

        Args:
            ws: The worker.
            shuffles: What `pinning_shuffles()` has just said, for those who ask about many workers.
            over: Sources of pins that do not count; shuffles always do.
        """
        now = self.clock()
        timeout_s = self.settings.shuffle_timeout_ms / 1000
        said = []
        if ws.address in self._held_by_shuffles():
            said = [
                f"shuffle {run.id} for {duration(run.since + timeout_s - now)} more"
                for run in (self.pinning_shuffles() if shuffles is None else shuffles)
                if ws.address in run.participants
            ]
        for name in dict.fromkeys((claims.name_of(self, ws), ws.address)):
            for lease in self.pins.of(name):
                if lease.source in over:
                    continue
                reason = f" ({lease.reason})" if lease.reason else ""
                left = duration(lease.until - now)
                said.append(f"{lease.source} {lease.owner}{reason} for {left} more")
        return said

    def idle_s(self, entry: Entry) -> float:
        """Seconds since a worker last had a task, or joined; 0 while it has one."""
        now = self.clock()
        if entry.ws.processing:
            entry.active_at = now
        return now - entry.active_at

    def gate_of(self, address: str) -> Gate | None:
        """What holds a worker out of service, if anything of ours does."""
        return self.drains.gate_of(address)

    def close(self, *, is_closing: bool) -> None:
        """Stop what runs by itself, and leave nothing in what schedulers of a process share."""
        self.page.uninstall()
        self.shuffle_wait.close()
        self.reliefs.close()
        self.cordons.close(is_closing=is_closing)  # first: nobody comes back to be stopped
        self.drains.close(is_closing=is_closing)
        self.shuffles.close()
        self._set_tally(False)

    def _lapse(self) -> None:
        """Nobody has renewed what the operator has said: the scheduler works as without it."""
        logger.info("No operator has renewed its lease: what it has said holds no more")
        self.lapses += 1
        self.limits.clear()
        self.cordons.told()
        self.settings = self.settings.lapsed()
        self.reliefs.configure(self.settings.relief)
        self.shuffles.look()

    def _cause(self, ws: WorkerState) -> str:
        """Why a worker that is removed now is gone."""
        drain = self.drains.ongoing.get(ws.address)
        if drain is None:
            return wire.LOST
        if drain.terms.is_refusable:
            return wire.FORCED if drain.is_forced else wire.LOST
        return wire.ENDED

    def _add_feature(self, name: str, install: Callable[[Patches], None]) -> None:
        """Fails open: the scheduler does without it, as stock code does."""
        try:
            with self.patches.together() as put:
                install(self.patches)
        except Mismatch as error:
            why = str(error)
        except Exception as error:
            logger.exception("Cannot install %s", name)
            why = f"{error!r:.200}"
        else:
            self.features[name] = put
            return
        self.features[name] = []
        logger.warning("%s is off, stock code serves: %s", name, why)
        self.notes.add(wire.N_RELIEF_FAILED, f"{name} is off, stock code serves: {why}")

    def expect_gates(self) -> None:
        """From the first cordon on, or the first message that may begin a drain."""
        if "gates" not in self.features:
            self._add_feature("gates", self._hear_of_gates)

    def _hear_of_gates(self, patches: Patches) -> None:
        patches.put(patching.STATUS_CHANGE, lambda stock: hearing(stock, self.gate_of))

    def _hear_of_comers(self, patches: Patches) -> None:
        patches.put(
            patching.REGISTER_WORKER_RPC, lambda stock: registering(stock, self.drains.comes)
        )

    def _serve_shuffles(self) -> None:
        self._add_feature("shuffle_choice", self.choice.install)
        self._add_feature("shuffle_wait", self.shuffle_wait.install)

    def _held_by_shuffles(self) -> Collection[str]:
        return self.shuffles.pinned() if self.settings.shuffle_pins else ()

    def _lease_s(self) -> float:
        return self.settings.lease_ms / 1000

    def _lifetime_s(self) -> float:
        """How long a worker whose own lifetime is over may take to drain; 0: as in stock."""
        settings = self.settings
        return settings.lifetime_ms / 1000 if settings.on_lifetime == wire.LIFETIME_DRAIN else 0.0

    def _shuffle_timeout_s(self) -> float:
        return self.settings.shuffle_timeout_ms / 1000 if self.settings.shuffle_pins else math.inf

    def _shuffle_expired(self, run: ShuffleRun) -> None:
        limit = duration(self._shuffle_timeout_s())
        workers = self.scheduler.workers
        names = [str(workers[a].name) for a in sorted(run.participants) if a in workers]
        self.notes.add(
            wire.N_SHUFFLE_PIN_EXPIRED,
            f"shuffle {run.id} has run for over {limit} (spec.pins.shuffle.timeout) and pins its "
            f"{plural(len(names), 'worker')} no more: if one of them leaves, it starts over",
            names,
        )
        self.pins.count_expired(wire.SHUFFLE)

    def _each(
        self, asked: list[str], act: Callable[[WorkerState], wire.RetireOutcome]
    ) -> wire.RetireAnswer:
        by_name = self.roster.by_name()
        outcomes = [combined(name, [act(ws) for ws in by_name.get(name, ())]) for name in asked]
        return {"protocol": wire.PROTOCOL, "outcomes": outcomes}

    def _set_tally(self, wanted: bool) -> None:
        if wanted and self.tally is None:
            self.tally = TallyPlugin(self.scheduler, self.shuffles, self.removals)
            self.tally.install(self.patches)
        elif not wanted and self.tally is not None:
            self.tally.uninstall()
            self.tally = None


def _over_pins(request: Request) -> frozenset[str]:
    sources = frozenset(optional_names(request, "over_pins") or ())
    if not sources <= {wire.MANUAL, wire.CLIENT}:
        raise Invalid(f"over_pins must be of {wire.MANUAL}, {wire.CLIENT}, not {sorted(sources)}")
    return sources
