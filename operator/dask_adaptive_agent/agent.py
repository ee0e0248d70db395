"""The agent in one scheduler: what it consists of, and its answers to the operator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import distributed
from distributed.core import Status

from dask_adaptive_agent import __version__, wire
from dask_adaptive_agent.answers import Answers
from dask_adaptive_agent.demand.client_calls import ClientCalls
from dask_adaptive_agent.demand.demand import DemandView
from dask_adaptive_agent.demand.durations import Durations
from dask_adaptive_agent.drain.drain import Drain, Terms
from dask_adaptive_agent.drain.drains import Drains, UpstreamCalls, combined
from dask_adaptive_agent.page.page import DashboardPage, Looks
from dask_adaptive_agent.patching import Mismatch, Patch, Patches
from dask_adaptive_agent.pins.pinned_workers import KnownWorkers, PinnedWorkers, WorkerFloors
from dask_adaptive_agent.protocol.changes import Signs, Watch
from dask_adaptive_agent.protocol.handlers import Parts, guarded
from dask_adaptive_agent.protocol.operator_side import Notes, OperatorLease, OperatorPlans
from dask_adaptive_agent.protocol.requests import AgentSettings, Malformed, Request, shown
from dask_adaptive_agent.quotas.cordons import Cordons
from dask_adaptive_agent.quotas.roster import Entry, Roster, SoleBytes
from dask_adaptive_agent.quotas.worker_limits import WorkerLimits
from dask_adaptive_agent.relief.registry import Reliefs, at_start
from dask_adaptive_agent.relief.workers_to_close import WorkersToClose
from dask_adaptive_agent.service.service import Service
from dask_adaptive_agent.service.task_mover import StuckThreads
from dask_adaptive_agent.shuffle.delay import ShuffleDelay
from dask_adaptive_agent.shuffle.runs import Barriers, Shuffles
from dask_adaptive_agent.text import group_of

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)

#: What Kubernetes gives a pod that says nothing, less what its end itself takes.
LEAVE_MS = 25_000

#: While a scheduler ends, nothing is done again.
ENDING = (Status.closing, Status.closed, Status.failed)


class Agent:
    """Everything the agent knows about one scheduler, and one method a message of `wire`."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = monotonic) -> None:
        self.scheduler: Any = scheduler
        self.clock = clock
        self.session = uuid4().hex
        self.patches = Patches(scheduler)
        self.features: dict[str, list[Patch]] = {}
        self.settings = AgentSettings(relief=at_start())
        self.notes = Notes(clock)
        self.parts = Parts()
        self.roster = Roster(scheduler, clock)
        self.sole = SoleBytes()
        self.lease = OperatorLease(clock, lambda: self.settings.lease_s, self._lapse)
        self.plans = OperatorPlans(clock)
        self.limits = WorkerLimits(clock)
        #: Tasks and results lost with workers, as in `wire.Snapshot.redone`.
        self.redone = dict.fromkeys((wire.LOST, wire.FORCED, wire.ENDED), 0)
        # Whoever holds workers, or wants some.
        self.shuffles = Shuffles(self)
        self.pins = PinnedWorkers(self)
        self.known = KnownWorkers(self)
        self.floors = WorkerFloors(self)
        self.clients = ClientCalls(self)
        # The ways out of service, which take workers over from each other.
        self.service = Service(self)
        self.durations = Durations(self)
        self.cordons = Cordons(self)
        self.drains = Drains(self)
        self.upstream_calls = UpstreamCalls(self)
        self.closing = WorkersToClose(self)
        # What is told, and what is put off or taken off.
        self.barriers = Barriers(self)
        self.shuffle_wait = ShuffleDelay(self)
        self.reliefs = Reliefs(self)
        self.demand = DemandView(self)
        self.stuck = StuckThreads(self)
        self.answers = Answers(self)
        self.watch = Watch(self._signs)
        self.page = DashboardPage(scheduler, Looks(self))

    def install(self) -> None:
        """
        Change what has to be changed from the start on, as far as this release allows it.

        Counters: put in later, runs and losses of before would be missing, and idle times be wrong.
        Calls that retire workers: one that has begun unseen would take away a worker that we drain.
        """
        self._expect("counting", self.cordons.install)
        self._expect("orders", self.upstream_calls.install)
        self._expect("removals", lambda put: put.before_removals(self._removing))
        if self.parts.section("shuffles", lambda: bool(self.shuffles.running()), True):
            self.expect_holds()

    def close(self, *, is_closing: bool) -> None:
        """Stop what runs by itself, and leave nothing in what schedulers of a process share."""
        self.watch.close()
        self.page.uninstall()
        self.shuffle_wait.close()
        self.reliefs.close()
        self.cordons.close(is_closing=is_closing)  # first: nobody comes back to be stopped
        self.drains.close(is_closing=is_closing)

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """RPC handlers by the name of their message."""
        return {
            wire.HELLO: guarded(self.hello, any_protocol=True),
            wire.CONFIGURE: guarded(self.configure),
            wire.OBSERVE: guarded(self.observe),
            wire.RETIRE: guarded(self.retire),
            wire.CANCEL: guarded(self.cancel),
            wire.PIN: guarded(self.pin),
            wire.UNPIN: guarded(self.pins.unpin),
            wire.LEAVE: guarded(self.leave),
            wire.LIMIT: guarded(self.limit),
            wire.ANNOUNCE: guarded(self.announce),
            wire.WANT: guarded(self.floors.want),
        }

    def hello(self, request: Request) -> wire.HelloAnswer:
        """The versions, and the session."""
        return {
            "protocol": wire.PROTOCOL,
            "agent": __version__,
            "distributed": distributed.__version__,  # type: ignore[attr-defined]
            "session": self.session,
        }

    def configure(self, request: Request) -> None:
        changes = self.settings.read(request)
        if changes:
            self.lease.begin()
            self._expect("copies", self.drains.asked.install)
            self._expect("addresses", self.known.install)
        self.settings.update(changes)
        self.reliefs.configure(self.settings.relief)
        self.shuffles.look()

    def observe(self, request: Request) -> Any:
        session, caller = request.text("session", ""), request.text("caller", "")
        known, heard = request.number("known", 0), request.number("heard", 0)
        version = None if request.get("version") is None else request.number("version")
        wait_ms = request.number("wait_ms", 0)
        target_ms = request.get("target_duration_ms")
        target_s = None if target_ms is None else request.millis("target_duration_ms") / 1000
        meters, demand = request.flag("meters", False), request.flag("demand", False)
        self.lease.check()
        if request.flag("renew", False):
            self.lease.renew()
            self._expect("clients", self.clients.install)
            self.parts.section("drains", self.drains.review, None)
        self._look()
        if session != self.session:
            known = heard = 0
            version = None if version is None else 0

        def take() -> wire.Snapshot:
            self.roster.sync()
            self.parts.section("addresses", self.known.refresh, None)
            self.parts.section("cordons", self.cordons.review, None)
            return self.answers.snapshot(
                known=known, heard=heard, target_s=target_s, meters=meters, demand=demand
            )

        if version is None:
            return take()
        if not wait_ms:
            return self.watch.answer(caller, version, take)
        wait_s = min(wait_ms, wire.MOST_WAIT_MS) / 1000
        return self.watch.wait(caller, version, wait_s, take)

    def _look(self) -> None:
        """At what nobody tells us of."""
        self.parts.section("stuck threads", self.stuck.look, None)
        self.parts.section("data that clients send", self.clients.look, None)

    def _signs(self) -> Signs | None:
        self._look()
        return self.parts.section("signs", self.answers.signs, None)

    def pin(self, request: Request) -> wire.PinAnswer:
        self.expect_holds()
        return self.pins.pin(request)

    def retire(self, request: Request) -> Any:
        asked = request.names()
        busy_ok = request.flag("busy_ok", False)
        over_pins = frozenset(request.optional_names("over_pins") or ())
        if not over_pins <= {wire.MANUAL, wire.CLIENT}:
            raise Malformed(f"over_pins must be manual or client, not {shown(sorted(over_pins))}")
        self._look()
        terms = Terms(
            reason=request.text("reason", ""),
            left_s=request.millis("deadline_ms", 15 * 60_000) / 1000,
            is_refusable=True,
            by_force=request.one_of("on_timeout", ("Abort", "Force"), "Abort") == "Force",
            over_pins=over_pins,
        )
        ends = request.one_of("ends", ("", wire.PROCESSES, wire.NAMES), "")
        answer = self._each(asked, lambda ws: self.drains.retire(ws, terms, busy_ok=busy_ok))
        states = {one["state"] for one in answer["outcomes"]}
        if not ends or states & {wire.ACTIVE, wire.DRAINING}:
            return answer  # processes that share a pod end together
        if ends == wire.NAMES:
            self.drains.call_off(asked, terms)
        drained = [[self.drains.ongoing[w.address] for w in ws] for ws in self.roster.named(asked)]
        return self._removed(dict(zip(asked, drained)))

    def cancel(self, request: Request) -> wire.RetireAnswer:
        asked = request.names()
        self.drains.welcome(asked)
        return self._each(asked, self.drains.cancel)

    def leave(self, request: Request) -> wire.RetireAnswer:
        self._expect("names", self.drains.free_names)
        terms = Terms(
            reason=request.text("reason", "its process ends"),
            left_s=request.millis("left_ms", LEAVE_MS) / 1000,
            is_assumed="left_ms" not in request,
        )
        # None: as the hooks of 0.1.0 asked, by the IP of their pod.
        outcomes = self.drains.leave(request.optional_names() or [], terms)
        return {"protocol": wire.PROTOCOL, "outcomes": outcomes}

    def limit(self, request: Request) -> None:
        session = request.text("session")
        if session != self.session:
            ended = f"session {shown(session)} has ended; observe, then send limits for that"
            raise Malformed(ended)
        self.limits.replace(request)
        self.lease.begin()
        self.roster.sync()
        self.cordons.limits_changed()

    def announce(self, request: Request) -> None:
        self.lease.check()
        self.plans.update(request)
        self.lease.begin()

    def worker_joined(self, address: str) -> None:
        ws = self.scheduler.workers[address]
        self.cordons.worker_joined(self.roster.of(ws) or self.roster.add(ws))
        self.plans.worker_joined(group_of(ws).stem)
        self.drains.worker_joined(ws)
        for drain in self.service.terminating().values():
            if drain.ws is not ws and str(drain.name) == str(ws.name):
                # One that departs gives its name to another one: its pins stay with it.
                self.pins.leases.move(str(ws.name), drain.ws.address)

    def client_left(self, client: str) -> None:
        self.pins.leases.cut(client)
        self.floors.leases.cut(client)
        self.demand.quiet.client_left(client)

    def offered(self, entries: dict[str, Entry]) -> list[WorkerState]:
        """Those of the roster that `workers_to_close` lets go, all memory that stays counted."""
        out = self.service.out_of_service()
        staying = [entry.ws for address, entry in entries.items() if address not in out]
        # Fail closed: nobody may go.
        return self.parts.section("who may go", lambda: self.closing.offered(staying), [])

    def free(self, workers: list[WorkerState]) -> list[WorkerState]:
        """Those of `workers` that nothing holds; none while data come, or if that is not known."""
        try:
            if self.clients.is_sending:
                return []
            named = self.pins.leases.names()
            for held in (self.service.out_of_service(), self.pins.in_shuffles()):
                if held:
                    workers = [ws for ws in workers if ws.address not in held]
        except Exception:
            # Fail closed.
            logger.exception("Failed to read pins; holding all workers")
            return []
        if named:
            workers = [
                ws for ws in workers if ws.address not in named and str(ws.name) not in named
            ]
        return workers

    def expect_leaving(self) -> None:
        """To be called before a worker is cordoned, or drains."""
        self._expect("gates", self.service.install)
        self._expect("copies", self.drains.asked.install)
        self.expect_holds()

    def expect_holds(self) -> None:
        """To be called before something holds a worker, or takes it out of service."""
        self._expect("workers_to_close", self.closing.install)

    def _expect(self, name: str, install: Callable[[Patches], object]) -> None:
        """
        Have a feature from now on. Fails open: the scheduler does without it, as stock code does.
        """
        if name in self.features:
            return
        why = ""
        try:
            with self.patches.together() as self.features[name]:
                install(self.patches)
        except Mismatch as error:
            why = str(error)
        except Exception as error:
            logger.exception("Failed to install %s", name)
            why = f"{error!r:.200}"
        if why:
            logger.warning("%s is off, stock code serves: %s", name, why)
            self.notes.add(wire.N_RELIEF_FAILED, f"{name} is off, stock code serves: {why}")

    def _lapse(self) -> None:
        """Nobody has renewed what the operator has said: the scheduler works as without it."""
        logger.info("No operator has renewed its lease: its settings no longer apply")
        self.limits.clear()
        self.settings.lapse()
        self.cordons.limits_changed()
        self.plans.clear()
        self.drains.welcome()
        self.known.refresh()
        self.reliefs.configure(self.settings.relief)
        self.shuffles.look()

    def _removing(self, ws: WorkerState) -> bool:
        """
        A worker is about to be removed from the scheduler: count what has to be done again, and
        tell whether its end was announced, or is our doing.
        """
        cause = self._cause(ws)
        if self.scheduler.status in ENDING:
            return cause != wire.LOST
        only = [ts for ts in ws.has_what if len(ts.who_has or ()) == 1]
        self.cordons.tasks_return([*ws.processing, *only])
        lost = len(ws.processing) + sum([bool(ts.who_wants or ts.waiters) for ts in only])
        self.redone[cause] += lost
        return cause != wire.LOST

    def _cause(self, ws: WorkerState) -> str:
        """Why a worker that is removed now is gone."""
        drain = self.drains.ongoing.get(ws.address)
        is_over = ws.address in self.drains.outlived or self.cordons.has_ended(ws)
        if is_over or (drain is not None and not drain.terms.is_refusable):
            return wire.ENDED
        return wire.FORCED if drain is not None and drain.is_forced else wire.LOST

    def expect_shuffles(self) -> None:
        """To be called when a P2P shuffle becomes known, before its first input is ready."""
        self.expect_holds()
        self._expect("shuffle_choice", self.shuffles.install)
        self._expect("shuffle_wait", self.shuffle_wait.install)

    def _each(
        self, asked: list[str], act: Callable[[WorkerState], wire.RetireOutcome]
    ) -> wire.RetireAnswer:
        named = zip(asked, self.roster.named(asked))
        outcomes = [combined(name, [act(ws) for ws in workers]) for name, workers in named]
        return {"protocol": wire.PROTOCOL, "outcomes": outcomes}

    async def _removed(self, drained: dict[str, list[Drain]]) -> wire.RetireAnswer:
        outcomes = [
            combined(name, [await self.drains.remove(drain) for drain in drains])
            for name, drains in drained.items()
        ]
        return {"protocol": wire.PROTOCOL, "outcomes": outcomes}
