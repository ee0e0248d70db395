"""The agent in one scheduler: a plugin, and one method a message of `wire`."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

import distributed
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import Scheduler, WorkerState

from dask_adaptive_agent import __version__, wire
from dask_adaptive_agent.answers import Answers
from dask_adaptive_agent.drain.drain import Drain, Terms
from dask_adaptive_agent.drain.drains import combined, outcome
from dask_adaptive_agent.guard import guarded, logged
from dask_adaptive_agent.page.dashboard import DashboardPage
from dask_adaptive_agent.page.looks import Looks
from dask_adaptive_agent.parts import Parts
from dask_adaptive_agent.protocol.changes import Signs, Watch
from dask_adaptive_agent.protocol.requests import Malformed, Request, shown
from dask_adaptive_agent.shuffle.runs import BARRIER
from dask_adaptive_agent.text import group_of
from dask_adaptive_agent.worker_side.worker_plugin import Lender

logger = logging.getLogger(__name__)

#: Kubernetes' default grace period, less the time that ending the process takes.
LEAVE_MS = 25_000

#: Seconds that a message about many workers may block the event loop at a time.
SLICE_S = 0.005


def install(scheduler: Scheduler, clock: Callable[[], float] = monotonic) -> Agent:
    """
    Start the agent in `scheduler`; call it on the scheduler's event loop.

    Harmless when it runs already (preload and RPC may race). An agent of another version is taken
    out first. When anything fails, the scheduler is left as it was.
    """
    running = _running(scheduler)
    if running is not None:
        is_whole = scheduler.plugins.get(Agent.name) is running
        if is_whole and getattr(running, "version", None) == __version__:
            return running  # type: ignore[no-any-return]
        running.uninstall()
    agent = Agent(scheduler, clock)
    try:
        agent.install()
    except BaseException:
        agent.uninstall()
        raise
    return agent


def uninstall(scheduler: Scheduler) -> None:
    """Stop the agent in `scheduler`, if there is one, and put everything back."""
    running = _running(scheduler)
    if running is not None:
        running.uninstall()


def _running(scheduler: Scheduler) -> Any:
    """The running agent, if any: also one whose plugin was unregistered."""
    handler = scheduler.handlers.get(wire.HELLO)
    return scheduler.plugins.get(Agent.name) or getattr(handler, "plugin", None)


class Agent(Parts, SchedulerPlugin):
    """
    Receives the scheduler's events, and answers the operator; the parts decide.

    `version` and `uninstall()` are what another version of this package relies on: never rename.
    Upstream does not guard all calls of its plugins: no hook raises.
    """

    name = "dask-adaptive"
    idempotent = True
    version = __version__

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(scheduler, clock)
        self.answers = Answers(self)
        self.watch = Watch(self._signs)
        self.page = DashboardPage(scheduler, Looks(self))
        self._handlers: dict[str, Any] = {}
        self._lender = Lender(scheduler)

    def install(self) -> None:
        """
        Change what has to be changed from the start on, as far as this release allows it.

        Counters: put in later, runs and losses of before would be missing, and idle times be wrong.
        Calls that retire workers: one that has begun unseen would take away a worker that we drain.
        """
        self._handlers = {
            name: self._while_in_place(handler) for name, handler in self.handlers().items()
        }
        self.scheduler.handlers.update(self._handlers)
        self.expect("counting", "orders", "removals")
        if self.guard.section("shuffles", lambda: bool(self.shuffles.running()), True):
            self.expect("workers_to_close")
        self.roster.sync()
        self.barriers.start()
        self.scheduler.add_plugin(self, name=self.name)
        self.cordons.start()
        self._lender.give()
        self.reliefs.configure(self.settings.relief)
        self.page.install()

    def uninstall(self) -> None:
        """Put everything back as it was; draining workers return to service."""
        self._lender.take()
        self._stop(is_closing=False)
        if self.scheduler.plugins.get(self.name) is self:
            self.scheduler.remove_plugin(name=self.name)
        for name, handler in self._handlers.items():
            if self.scheduler.handlers.get(name) is handler:
                del self.scheduler.handlers[name]
        self.patches.close()

    def _stop(self, *, is_closing: bool) -> None:
        """Stop background work, and leave nothing in what a process' schedulers share."""
        self.watch.close()
        self.page.uninstall()
        self.shuffle_wait.close()
        self.reliefs.close()
        self.cordons.close(is_closing=is_closing)  # first: nobody comes back to be cordoned
        self.drains.close(is_closing=is_closing)

    def _while_in_place(self, handler: Any) -> Any:
        """
        The handler, but for a plugin that was unregistered: plugins are not notified of that.

        It gets no more events, so the first message removes the rest; the answer is that of
        a scheduler that has no such handler.
        """

        @functools.wraps(handler)
        def answer(**request: Any) -> Any:
            if self._is_in_place:
                return handler(**request)
            logger.warning("The plugin %s was unregistered: the agent is removed", self.name)
            self.uninstall()
            return None

        answer.plugin = self  # type: ignore[attr-defined]
        return answer

    @property
    def _is_in_place(self) -> bool:
        return self.scheduler.plugins.get(self.name) is self

    # Messages.

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
            self.expect("copies", "addresses")
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
            self.expect("clients")
            self.guard.section("drains", self.drains.review, None)
        self._look()
        if session != self.session:
            known = heard = 0
            version = None if version is None else 0

        def take() -> wire.Snapshot:
            self.roster.sync()
            self.guard.section("addresses", self.known.refresh, None)
            self.guard.section("cordons", self.cordons.review, None)
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
        """Check what no event reports."""
        self.guard.section("stuck threads", self.stuck.look, None)
        self.guard.section("data that clients send", self.clients.look, None)

    def _signs(self) -> Signs | None:
        self._look()
        return self.guard.section("signs", self.answers.signs, None)

    def pin(self, request: Request) -> wire.PinAnswer:
        self.expect("workers_to_close")
        return self.pins.pin(request)

    async def retire(self, request: Request) -> wire.RetireAnswer:
        names = request.names()
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
        answer = await self._each(names, lambda ws: self.drains.retire(ws, terms, busy_ok=busy_ok))
        states = {one["state"] for one in answer["outcomes"]}
        if not ends or states & {wire.ACTIVE, wire.DRAINING}:
            return answer  # processes that share a pod end together
        if ends == wire.NAMES:
            self.drains.call_off(names, terms)
        ongoing = self.drains.ongoing
        drained = [[ongoing.get(w.address) for w in ws] for ws in self.roster.named(names)]
        return await self._removed(dict(zip(names, drained)))

    async def cancel(self, request: Request) -> wire.RetireAnswer:
        names = request.names()
        self.drains.welcome(names)
        return await self._each(names, self.drains.cancel)

    def leave(self, request: Request) -> wire.RetireAnswer:
        self.expect("names")
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
            ended = f"session {shown(session)} has ended; observe, and send limits for the new one"
            raise Malformed(ended)
        self.limits.replace(request)
        self.lease.begin()
        self.roster.sync()
        self.cordons.limits_changed()

    def announce(self, request: Request) -> None:
        self.lease.check()
        self.plans.update(request)
        self.lease.begin()

    # What a scheduler tells its plugins.

    def valid_workers_downscaling(self, scheduler: Any, workers: list[Any]) -> list[Any]:
        # Scheduler.workers_to_close does not guard its plugins; `free` answers an error with no
        # worker at all.
        return self.vetoes.free(workers)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        # Fail open: the next snapshot finds the worker, and counts its idle time from then.
        with logged(logger, "Failed to note that worker %s has joined", worker):
            self._lender.joined(worker)
            self._joined(self.scheduler.workers[worker])

    def _joined(self, ws: WorkerState) -> None:
        self.cordons.worker_joined(self.roster.of(ws) or self.roster.add(ws))
        self.plans.worker_joined(group_of(ws).stem)
        self.drains.worker_joined(ws)
        for drain in self.service.terminating().values():
            if drain.ws is not ws and str(drain.name) == str(ws.name):
                # One that terminates gives its name to another one: its pins stay with it.
                self.pins.leases.move(str(ws.name), drain.ws.address)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        # Fail closed: pins that stay end by themselves.
        with logged(logger, "Failed to end the pins of worker %s, which has left", worker):
            entry = self.roster.entries.get(worker)
            if entry is not None:
                self.pins.worker_left(entry.ws)
        # Fail open: the next snapshot finds out.
        with logged(logger, "Failed to note that worker %s has left", worker):
            self.drains.worker_left(worker)
            self.cordons.worker_left(worker)
            self.roster.entries.pop(worker, None)
            self.roster.workers.pop(worker, None)

    def update_graph(self, scheduler: Scheduler, *args: Any, **kwargs: Any) -> None:
        # Called before the graph's tasks are assigned. Neither raises.
        self.known.graph_added(kwargs.get("annotations") or {})
        self.cordons.graph_added()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        # Cannot fail on what any release passes; Scheduler._transition guards it all the same.
        # Five times a task: as few calls as there can be.
        if finish != "waiting" != start:
            if start == "memory" and key in self.vetoes.copies:
                self.vetoes.copies.forget(key)
        elif type(key) is str and key.startswith(BARRIER):
            self.barriers.transition(key, finish)

    def restart(self, scheduler: Scheduler) -> None:
        # Scheduler.restart guards it; `restarts` cannot fail.
        self.drains.restarts()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        # Fail closed: its pins end by themselves, at their own time.
        with logged(logger, "Failed to shorten the pins of client %s, which has left", client):
            self.pins.leases.cut(client)
            self.floors.leases.cut(client)
            self.demand.client_left(client)

    async def close(self) -> None:
        with logged(logger, "Failed to stop the agent"):
            self._stop(is_closing=True)

    def lapsed(self) -> None:
        """The operator's lease has ended: the scheduler works as without an operator."""
        logger.info("No operator has renewed its lease: its settings no longer apply")
        self.limits.clear()
        self.settings.lapse()
        self.cordons.limits_changed()
        self.plans.clear()
        self.drains.welcome()
        self.known.refresh()
        self.reliefs.configure(self.settings.relief)
        self.shuffles.look()

    async def _each(
        self, names: list[str], act: Callable[[WorkerState], wire.RetireOutcome]
    ) -> wire.RetireAnswer:
        """Act on many workers in slices, with as much time for the scheduler between them."""
        outcomes: list[wire.RetireOutcome] = []
        workers, until = self.scheduler.workers, monotonic() + SLICE_S
        for name, named in zip(names, self.roster.named(names)):
            if outcomes and monotonic() > until:
                await asyncio.sleep(SLICE_S)
                if not self._is_in_place:
                    break
                until = monotonic() + SLICE_S
            there = [ws for ws in named if workers.get(ws.address) is ws]
            outcomes.append(combined(name, [act(ws) for ws in there]))
        return {"protocol": wire.PROTOCOL, "outcomes": outcomes}

    async def _removed(self, drained: dict[str, list[Drain | None]]) -> wire.RetireAnswer:
        remove = self.drains.remove
        outcomes = [
            combined(
                name,
                [
                    await remove(drain) if drain else outcome(name, wire.ACTIVE, "serves again")
                    for drain in drains
                ],
            )
            for name, drains in drained.items()
        ]
        return {"protocol": wire.PROTOCOL, "outcomes": outcomes}
