"""
Decides which workers may drain, and on what terms; keeps those that do, and intercepts upstream's
own calls that retire workers.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import wraps
from itertools import islice
from typing import Any

from distributed.core import Status
from distributed.scheduler import WorkerState

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.drain.drain import Drain, DrainTools, Terms, rename
from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.patching import Call, Patches
from dask_adaptive_agent.quotas.cordons import Cordons
from dask_adaptive_agent.service.service import Gate
from dask_adaptive_agent.service.vetoes import Veto, Vetoes
from dask_adaptive_agent.text import common_name
from dask_adaptive_agent.worker_side import lifetime

logger = logging.getLogger(__name__)

#: Drains at which one message of the operator looks.
AT_ONCE = 100

#: Seconds for which the veto that ended a drain is kept for the next request.
VERDICT_S = 60.0

#: Names of workers that were called off.
MOST_CALLED_OFF = 10_000

#: Seconds between two looks at a drained worker that answers a call, and how many there are: before
#: the scheduler forgets it, and after that.
CALL_LOOK_S, CALL_LOOKS, LAST_CALL_LOOKS = 0.002, 100, 1000

#: Our own calls begin their stimulus_id so.
OURS = "dask-adaptive"

#: `Worker.close_gracefully` begins its stimulus_id so: the worker's own --lifetime has ended.
LIFETIME = "worker-close-gracefully"

#: `Scheduler.check_worker_ttl` begins its stimulus_id so: those workers no longer answer.
NOT_ANSWERING = "check-worker-ttl"

OWN_END = Terms("its lifetime is over", is_lifetime=True)


class Drains(Component):
    """Every worker on its way out, by address."""

    def __init__(self, context: Context, cordons: Cordons, vetoes: Vetoes) -> None:
        super().__init__(context)
        self.service, self._cordons, self._vetoes = cordons.service, cordons, vetoes
        self._tools = DrainTools(context, cordons, vetoes, self._ended)
        self.ongoing: dict[str, Drain] = self.service.draining
        self._verdicts: dict[str, tuple[float, Veto]] = {}
        self._called_off: dict[str, tuple[float, Terms]] = {}  # by name: until when, and how
        self._background: set[asyncio.Future[Any]] = set()
        #: Tasks and results lost with workers, as in `wire.Snapshot.redone`.
        self.redone = dict.fromkeys((wire.LOST, wire.FORCED, wire.ENDED), 0)
        self.outlived: set[str] = set()  # addresses of those whose `--lifetime` has ended

    def retire(self, ws: WorkerState, terms: Terms, *, busy_ok: bool) -> wire.RetireOutcome:
        """Start to drain a worker that may refuse, or return how far it is."""
        drain = self.ongoing.get(ws.address)
        if drain is not None:
            if drain.terms.is_refusable:
                drain.renewed_at = self.clock()
                drain.look()
            else:
                self._look(drain)
            return self._outcome(drain)
        name = str(ws.name)
        if self.service.is_draining(ws.address):
            return outcome(name, wire.DRAINING, "is being retired by another client")
        veto = self._verdict(ws)
        if veto is None or veto.code != wire.V_TIMEOUT:
            # Any other objection is one only as long as it stands.
            veto = self._vetoes.of(ws, terms.over_pins, busy_ok=busy_ok)
        if veto is not None:
            return outcome(name, wire.ACTIVE, veto=veto)
        drain = self._begin(ws, terms)
        try:
            drain.look()
        except Exception:
            drain.end()
            raise
        drain.start()
        return self._outcome(drain)

    def cancel(self, ws: WorkerState) -> wire.RetireOutcome:
        """Return it to service, unless its process is sure to end."""
        drain = self.ongoing.get(ws.address)
        self._verdicts.pop(ws.address, None)
        if drain is None:
            return outcome(str(ws.name), wire.ACTIVE, "was not being retired")
        if not drain.terms.is_refusable:
            self._look(drain)
            return self._outcome(drain)
        drain.end()
        return outcome(str(ws.name), wire.ACTIVE, "back to service")

    def leave(self, names: Iterable[str], terms: Terms) -> list[wire.RetireOutcome]:
        """Drain workers whose processes end, or return how far they are; each by its address."""
        requested = list(names)
        own_names = {a: str(one.name) for a, one in self.service.terminating().items()}
        named = self.context.roster.named(requested, own_names)
        found = {ws.address: ws for each in named for ws in each}
        for ws in found.values():
            self._look(self._terminating(ws, terms))
        drains = [(address, self.ongoing.get(address)) for address in found]
        outcomes = [
            _gone(address) if one is None else outcome(address, one.state, one.message)
            for address, one in drains
        ]
        return outcomes + [_gone(name) for name, each in zip(requested, named) if not each]

    def call_off(self, names: Iterable[str], terms: Terms) -> None:
        """Retire workers that join under these names, as long as their pods may live."""
        self._called_off.update((name, (self.clock() + terms.left_s, terms)) for name in names)
        while len(self._called_off) > MOST_CALLED_OFF:
            del self._called_off[next(iter(self._called_off))]

    def welcome(self, names: Iterable[str] | None = None) -> None:
        """Stop retiring workers that join under any of these names."""
        for own in list(self._called_off if names is None else names):
            for name in (own, common_name(own)):
                self._called_off.pop(name, None)

    def worker_joined(self, ws: WorkerState) -> None:
        """Shut the gate of a worker that was called off while it started."""
        for name in (str(ws.name), common_name(str(ws.name))):
            until, terms = self._called_off.get(name, (-math.inf, OWN_END))
            if self.clock() < until:
                self._look(self._terminating(ws, terms))
                return

    async def remove(self, drain: Drain) -> wire.RetireOutcome:
        """
        Have the scheduler forget a drained worker, between two calls to it.

        `Scheduler.remove_worker` cuts calls that go on, such as those of `Client.run`. The worker
        is not told, and answers whoever has chosen it in this very turn of the loop; with its next
        heartbeat it finds out, and closes.
        """
        await self._until_not_called(drain, CALL_LOOKS)
        self._look(drain)  # a pin, or a task, may have come
        if drain.state == wire.DRAINED and not self._is_called(drain):
            await self.scheduler.remove_worker(
                drain.ws.address, stimulus_id=f"dask-adaptive-leave-{self.clock()}", close=False
            )
            await self._until_not_called(drain, LAST_CALL_LOOKS)
        if self.scheduler.workers.get(drain.ws.address) is not drain.ws:
            return outcome(str(drain.name), wire.DRAINED, "has been removed")
        if drain.state == wire.DRAINED:
            return outcome(str(drain.name), wire.DRAINING, "answers a call")
        return self._outcome(drain)

    def free_names(self, patches: Patches) -> None:
        """
        From now on, a worker whose process is sure to end gives way to one that takes its name.

        The replacement of a pod comes at once, under the same name, and the scheduler refuses a
        name that is taken (`Scheduler.add_worker`).
        """

        def registering(stock: Call) -> Call:
            @wraps(stock)
            async def register_worker(*args: Any, **kwargs: Any) -> Any:
                # Fail open: the scheduler refuses a name that is taken, as stock code does.
                with logged(logger, "Failed to free the name of a worker that comes"):
                    drain = self.ongoing.get(self.scheduler.aliases.get(kwargs.get("name"), ""))
                    if drain is not None and drain.terms.is_certain:
                        rename(self.scheduler, drain.ws, f"{drain.name} (leaving)")
                return await stock(*args, **kwargs)

            return register_worker

        patches.put(patching.REGISTER_WORKER_RPC, registering)

    def removing(self, ws: WorkerState) -> bool:
        """
        A worker is about to be removed from the scheduler: count what has to be done again, and
        tell whether its end was announced, or is our doing.
        """
        cause = self._cause(ws)
        # While a scheduler ends, nothing is done again.
        if self.scheduler.status not in (Status.closing, Status.closed, Status.failed):
            only = [ts for ts in ws.has_what if len(ts.who_has or ()) == 1]
            self._cordons.tasks_return([*ws.processing, *only])
            lost = len(ws.processing) + sum([bool(ts.who_wants or ts.waiters) for ts in only])
            self.redone[cause] += lost
        return cause != wire.LOST

    def _cause(self, ws: WorkerState) -> str:
        """Why a worker that is removed now is gone."""
        drain = self.ongoing.get(ws.address)
        is_over = ws.address in self.outlived or self._cordons.has_ended(ws)
        if is_over or (drain is not None and not drain.terms.is_refusable):
            return wire.ENDED
        return wire.FORCED if drain is not None and drain.is_forced else wire.LOST

    async def lifetime(self, address: str) -> None:
        """
        A worker's own `--lifetime` is over: return when it may be closed without a loss.

        It waits for tasks and pins, but no longer than `lifetime_s`: then the worker goes as
        in stock. While no other worker is in service it stays, as long as it is of use, within
        the same bound. Never raises; cancelled, the worker is back in service.
        """
        ws = self.scheduler.workers.get(address)
        if ws is None:
            return
        self.outlived.add(address)
        most_s = self.context.settings.lifetime_s
        if not most_s:
            # Stock code moves its data now: the end of a cordon must not bring it back meanwhile.
            self.service.forget(address)
            return
        drain: Drain | None = None
        try:
            drain = self._terminating(ws, OWN_END)
            self._look(drain)
            await asyncio.wait_for(drain.is_drained.wait(), most_s)
        except asyncio.TimeoutError:
            logger.info("Worker %s has not drained in %.0f s", address, most_s)
        except asyncio.CancelledError:
            if drain is not None:
                drain.is_lifetime = False
                self._look(drain)  # comes back to service unless somebody else wants it gone
            raise
        except Exception:
            # Fail open: the worker closes as it would without us.
            logger.exception("Failed to wait for worker %s, whose lifetime is over", address)
        if drain is not None:
            drain.closes_since = self.clock()

    def install(self, patches: Patches) -> None:
        """
        Wrap `retire_workers`. A call that names workers is obeyed, and noted if it breaks pins; one
        that names none goes through `workers_to_close`.
        """
        # Upstream's HTTP API calls the method.
        patches.put(patching.RETIRE_WORKERS, self._retiring)
        patches.put(patching.RETIRE_WORKERS_RPC, self._retiring)

    def restarts(self) -> None:
        """`SchedulerPlugin.restart`: `Scheduler.restart` is about to restart all workers."""
        self._note_pins("restart", list(self.scheduler.workers.values()), "restart")

    def _retiring(self, stock: Call) -> Call:
        @wraps(stock)
        async def retire_workers(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _readable(args, kwargs)
            workers = args[0] if args else kwargs.get("workers")
            stimulus = str(kwargs.get("stimulus_id") or "")
            if stimulus.startswith(LIFETIME):
                # Never raises, unless it is cancelled: then the call is, too.
                for address in workers or ():
                    await self.lifetime(address)
                return await stock(*args, **kwargs)
            named = self._named(workers or (), kwargs.get("names"))
            self._note_pins("retire", named, stimulus)
            retired: dict[str, Any] = {}
            taken = [self._taken_over(ws) for ws in named]
            try:
                retired = await stock(*args, **kwargs)
            finally:
                for gate in taken:
                    self._others_are_done(gate, is_retired=gate.ws.address in retired)
            return retired

        return retire_workers

    def _named(self, addresses: Iterable[str], names: Iterable[Any] | None) -> list[WorkerState]:
        """Workers by name, or else by address."""
        known = self.scheduler.workers
        try:
            if names is not None:
                texts = {str(name) for name in names}  # as Scheduler.retire_workers compares them
                return [ws for ws in known.values() if str(ws.name) in texts]
            return [known[address] for address in dict.fromkeys(addresses) if address in known]
        except Exception:
            # Fail open: upstream's code judges its arguments.
            logger.exception("Failed to find the workers that a call names")
            return []

    def _note_pins(self, verb: str, named: list[WorkerState], stimulus: str) -> None:
        """Note the pins that a call breaks, if any."""
        if stimulus.startswith((OURS, NOT_ANSWERING)):
            return
        # Fail open: the call is obeyed, noted or not.
        with logged(logger, "Failed to find the pins that a call to %s workers has broken", verb):
            leaving = self.service.out_of_service()  # their pins have been respected
            staying = [ws for ws in named if ws.address not in leaving]
            pinned = [(ws, held) for ws in staying if (held := self._cordons.pins.holders(ws))]
            if not pinned:
                return
            shown = [f"{ws.name} ({', '.join(held)})" for ws, held in pinned[:3]]
            if len(pinned) > 3:
                shown.append(f"{len(pinned) - 3} more")
            call = f" ({stimulus})" if stimulus else ""
            names = [str(ws.name) for ws, _ in pinned]
            words = f"a call{call} to {verb} workers overrode their pins: "
            self.context.notes.add(wire.N_PINS_OVERRIDDEN, words + "; ".join(shown), names)

    def _taken_over(self, ws: WorkerState) -> Gate:
        """Another client's `retire_workers` begins; a drain that may be refused ends."""
        self._verdicts.pop(ws.address, None)
        drain = self.ongoing.get(ws.address)
        if drain is not None and drain.terms.is_refusable:
            drain.hand_over()
        return self.service.hand_to_stock(ws)

    def _others_are_done(self, gate: Gate, *, is_retired: bool) -> None:
        """
        The call has ended. `Scheduler.retire_workers` gives back the status that it has found,
        which may have been ours, so one that it could not retire is brought back to service here.
        """
        gate.others -= 1
        if gate.others or self.service.gate_of(gate.ws.address) is not gate:
            return  # the worker is gone, or another call goes on
        gate.is_frozen = True
        if gate.ws.address in self.ongoing:
            return
        if is_retired:
            gate.is_held = False
        else:
            self._back(gate)

    def review(self) -> None:
        """The operator still wants all of them: renew their leases. If they are few, check them."""
        drains = self.retirements().values()
        for drain in drains:
            drain.renewed_at = self.clock()
        for drain in list(islice(drains, AT_ONCE)):  # each looks by itself as well
            drain.look()

    def retirements(self) -> dict[str, Drain]:
        """Drains that may be called off."""
        return {a: one for a, one in self.ongoing.items() if one.terms.is_refusable}

    def worker_left(self, address: str) -> None:
        self.outlived.discard(address)
        self._verdicts.pop(address, None)
        self._vetoes.copies.worker_left(address)
        drain = self.ongoing.get(address)
        if drain is not None:
            drain.end(is_gone=True)

    def close(self, *, is_closing: bool = False) -> None:
        """Stop all; back to service unless the scheduler itself closes."""
        self._vetoes.copies.worker_left(None)
        for drain in list(self.ongoing.values()):
            drain.end(is_gone=is_closing)
        if is_closing:  # else whoever has outlived its lifetime still has to go
            for task in self._background:
                task.cancel()

    def _ended(self, drain: Drain, veto: Veto | None, is_back: bool) -> None:
        """Update the records, and only then return the worker to service: it gets tasks at once."""
        self.ongoing.pop(drain.ws.address, None)
        if veto is not None:
            self._verdicts[drain.ws.address] = (self.clock(), veto)
            logger.info("Worker %s stays: %s", drain.ws.address, veto.message)
        if is_back:
            self._back(drain.gate)

    def _back(self, gate: Gate) -> None:
        """To service, or to what else keeps it out of it."""
        if gate.others:
            return  # when they are done
        self._cordons.take_back(gate)
        if lifetime.left_s(gate.ws) <= 0 and gate.ws.address in self.scheduler.workers:
            self._live_out(gate.ws)

    async def _until_not_called(self, drain: Drain, looks: int) -> None:
        for _ in range(looks):
            await asyncio.sleep(CALL_LOOK_S)
            if not self._is_called(drain):
                return

    def _is_called(self, drain: Drain) -> bool:
        """True if a call to it or its nanny is in progress that it has the time to answer."""
        pool, ws = self.scheduler.rpc, drain.ws
        calls = [
            to.get(a) for to in (pool.occupied, pool._connecting) for a in (ws.address, ws.nanny)
        ]
        return drain.left_s > 0 and any(calls)

    def _live_out(self, ws: WorkerState) -> None:
        """
        Its lifetime has passed while it was frozen: it comes back, and would stay forever.

        `Worker.close_gracefully` does nothing when somebody else has said that the worker closes.
        """
        task = asyncio.ensure_future(
            self.scheduler.retire_workers(
                workers=[ws.address], close_workers=True, stimulus_id=f"{LIFETIME}-{self.clock()}"
            )
        )
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _begin(self, ws: WorkerState, terms: Terms) -> Drain:
        logger.info("Draining worker %s (%s): %s", ws.name, ws.address, terms.reason)
        self.context.expect_leaving()
        drain = Drain(self._tools, self.service.hold(ws), terms)
        self.service.hand(drain.gate, drain)
        return drain

    def _terminating(self, ws: WorkerState, terms: Terms) -> Drain:
        self._verdicts.pop(ws.address, None)
        drain = self.ongoing.get(ws.address)
        if drain is None:
            return self._begin(ws, terms)
        drain.notice(terms)
        return drain

    def _look(self, drain: Drain) -> None:
        drain.start()
        # Its own watch tries again: the process ends whatever goes wrong here.
        with logged(logger, "Failed to check the drain of %s", drain.ws.address):
            drain.look()

    def _outcome(self, drain: Drain) -> wire.RetireOutcome:
        veto = self._verdict(drain.ws) if drain.is_over else None
        return outcome(str(drain.name), drain.state, drain.message, veto)

    def _verdict(self, ws: WorkerState) -> Veto | None:
        """The veto that ended the last drain of this worker; only the first request gets it."""
        since, veto = self._verdicts.pop(ws.address, (0.0, None))
        return veto if veto is not None and self.clock() - since < VERDICT_S else None


def outcome(
    name: str, state: str, message: str = "", veto: Veto | None = None
) -> wire.RetireOutcome:
    code, message = veto or ("", message)
    return {"name": name, "state": state, "veto": code, "message": message}


def combined(name: str, outcomes: Sequence[wire.RetireOutcome]) -> wire.RetireOutcome:
    """One answer for the workers that share a name: the least advanced of them speaks for all."""
    if not outcomes:
        return _gone(name)
    order = (wire.ACTIVE, wire.DRAINING, wire.DRAINED)
    least = min(outcomes, key=lambda one: order.index(one["state"]))
    return {**least, "name": name}


def _gone(name: str) -> wire.RetireOutcome:
    return outcome(name, "gone", "no such worker")


def _readable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments with a list for each iterator, which can be read but once."""

    def readable(value: Any) -> Any:
        return list(value) if isinstance(value, Iterator) else value

    return tuple(map(readable, args)), {name: readable(value) for name, value in kwargs.items()}
